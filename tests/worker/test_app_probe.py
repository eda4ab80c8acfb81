"""The process that imports an app to look at it: whatever the app does there, the answer says so."""

from __future__ import annotations

import asyncio
import os
import time
from pathlib import Path

import psutil
import pytest

from ostinato.core.instants import SECOND
from ostinato.errors import UserError
from ostinato.worker.app_probe import probe_app
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.process_tree import MARKER_VARIABLE

APP = """
from ostinato import App

app = App("shop")


@app.task
def add() -> int:
    return 1
"""


def _app(folder: Path, *lines: str) -> str:
    (folder / "probed.py").write_text("\n".join([*lines, APP]), encoding="utf-8")
    return str(folder / "probed.py")


async def _refusal(app: str, *, limit_us: int = 30 * SECOND) -> UserError:
    with pytest.raises(UserError) as caught:
        await probe_app(app, limit_us=limit_us)
    assert caught.value.code == "INVALID_APP"
    return caught.value


def _left_in(folder: Path) -> list[int]:
    """Processes that an app has started, by the file in which it has noted them."""
    noted = [int(line) for line in (folder / "pids").read_text(encoding="ascii").split()]
    assert noted
    return [pid for pid in noted if psutil.pid_exists(pid) and psutil.Process(pid).status() != "zombie"]


_NOTE = "import os, sys, time\nout = open(os.environ['NOTED'], 'a')"
_FORK = f"{_NOTE}\npid = os.fork()\nif pid: out.write(f'{{pid}}\\n'); out.flush()"


@pytest.fixture
def noting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("NOTED", str(tmp_path / "pids"))
    return tmp_path


@pytest.mark.parametrize(
    ("lines", "said"),
    [
        ("import os\nos._exit(0)", "ended with exit status 0 before the import was over"),
        ("import os\nos._exit(7)", "ended with exit status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)", "ended with signal SIGKILL"),
        ("import os\nos.write(3, b'x')\n", "gave an answer that cannot be read, or more than one"),
        (
            "import os, msgspec\nfrom ostinato.worker.known_tasks import KnownTasks\n"
            "os.write(3, msgspec.msgpack.encode(KnownTasks()))\n",
            "gave an answer that cannot be read, or more than one",
        ),
    ],
    ids=["exit-0", "exit-7", "killed", "no-answer", "two-answers"],
)
async def test_what_is_not_exactly_one_answer_is_told_as_what_happened(
    tmp_path: Path, lines: str, said: str
) -> None:
    # Descriptor 3 is the first that is free, where the probe keeps the way to its answer.
    error = await _refusal(_app(tmp_path, "import sys", lines))
    assert said in str(error)
    assert "probed.py" in str(error)


async def test_copy_of_the_process_is_ended_with_it_and_only_one_answers(noting: Path) -> None:
    known = await probe_app(_app(noting, _FORK, "if not pid: time.sleep(600)"))
    assert [str(ref) for ref in known.tasks] == ["default/add"]
    assert _left_in(noting) == []


async def test_both_copies_that_go_on_with_the_import_are_one_answer(noting: Path) -> None:
    known = await probe_app(_app(noting, _FORK))
    assert [str(ref) for ref in known.tasks] == ["default/add"]
    assert _left_in(noting) == []


async def test_copy_in_a_session_of_its_own_is_ended_though_its_parent_has_gone(noting: Path) -> None:
    error = await _refusal(
        _app(noting, _FORK, "if pid: os._exit(0)", "os.setsid()", "time.sleep(600)"), limit_us=20 * SECOND
    )
    assert "without an answer" in str(error)
    assert _left_in(noting) == []


async def test_what_it_prints_is_read_without_end_and_only_the_last_of_it_kept(tmp_path: Path) -> None:
    process = psutil.Process()
    before_bytes = process.memory_info().rss
    lines = "import sys, os\nfor _ in range(3000): print('x' * 100_000)\nprint('last words')\n"
    error = await _refusal(_app(tmp_path, lines, "sys.stdout.flush()", "os._exit(3)"))
    assert str(error).count("x") < 9_000
    assert "last words" in str(error)
    assert process.memory_info().rss - before_bytes < 64 * 1024 * 1024


async def test_import_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    error = await _refusal(_app(tmp_path, "import time", "time.sleep(600)"), limit_us=2 * SECOND)
    assert "was not imported within 2s" in str(error)


async def test_cancelled_it_leaves_nothing_behind(noting: Path) -> None:
    before = set(_marked_children())
    looking = asyncio.create_task(probe_app(_app(noting, _FORK, "time.sleep(600)")))
    end = time.monotonic() + 20
    while not (noting / "pids").exists() or not (noting / "pids").read_text():
        assert time.monotonic() < end
        await asyncio.wait([looking], timeout=0.05)
        assert not looking.done()
    looking.cancel()
    await asyncio.wait([looking])
    assert looking.cancelled()
    assert _left_in(noting) == []
    assert not set(_marked_children()) - before


def _marked_children() -> list[int]:
    """Processes below this one that a probe has marked."""
    found = []
    for child in psutil.Process().children(recursive=True):
        try:
            if MARKER_VARIABLE in child.environ():
                found.append(child.pid)
        except psutil.Error:
            continue
    assert os.getpid() not in found
    return found


async def test_app_that_is_fine_is_known(tmp_path: Path) -> None:
    known = await probe_app(_app(tmp_path))
    assert isinstance(known, KnownTasks)
    assert (len(known.declarations), known.problems) == (1, [])
