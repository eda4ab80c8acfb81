"""``ostinato dev`` goes on whatever a saved module or document does to it."""

from __future__ import annotations

import asyncio
import os
import shutil
import threading
import time
import urllib.request
from pathlib import Path

import psutil
import pytest
from support.reloading import SHOP, ReloadingDev, reloading_dev, start_dev

from ostinato.control.document.read import Document
from ostinato.core.instants import SECOND
from ostinato.dev_sources import DevSources, read_all_documents
from ostinato.errors import UserError

TASKS = """\
version: 1
tasks:
  - name: hello
    shell: {command: "echo hello"}
"""


def _declared(dev: ReloadingDev) -> set[str]:
    return {task["name"] for task in dev.json("task", "list")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("import os; os._exit(0)", "ended with exit status 0 before the import was over"),
        ("import os; os.kill(os.getpid(), 9)", "ended with signal SIGKILL"),
        ("import os; os.fork() and os._exit(0)", "so without an answer"),
        ("import sys; sys.exit(0)", "could not be imported"),
    ],
    ids=["exit", "kill", "daemonised", "sys-exit"],
)
def test_module_that_ends_its_process_is_refused_and_what_ran_goes_on(
    tmp_path: Path, line: str, said: str
) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", f"{line}\n{SHOP}")
        dev.until_complained("not reloaded, what ran before goes on")
        assert "INVALID_APP" in dev.complained
        assert said in dev.complained
        dev.write("shop.py", SHOP.replace("first + 1", "first + 2"))
        dev.until_said("reloaded: code only")
        assert dev.json("task", "trigger", "add", "--wait")["result"] == 2


def test_module_that_forks_is_taken_over_and_runs_each_task_once(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", f"import os; os.fork()\n{SHOP.replace('first + 1', 'first + 2')}")
        dev.until_said("reloaded: code only")
        assert [dev.json("task", "trigger", "add", "--wait")["result"] for _ in range(3)] == [2, 2, 2]


def test_import_that_blocks_is_told_and_ended_by_the_next_save(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", f"import time; time.sleep(1000)\n{SHOP}")
        dev.until_complained("is still being imported")
        dev.write("shop.py", SHOP.replace("first + 1", "first + 2"))
        dev.until(lambda: "reloaded: code only" in dev.said, within_s=20)
        assert _probes(dev) == []


def test_ctrl_c_during_a_blocked_import_ends_it_within_seconds(tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop.py") as dev:
        dev.write("shop.py", f"import time; time.sleep(1000)\n{SHOP}")
        probes = dev.until(lambda: _probes(dev))
        dev.process.send_signal(2)
        assert dev.process.wait(10) == 130
        assert not any(psutil.pid_exists(pid) for pid in probes)


def _probes(dev: ReloadingDev) -> list[int]:
    return [
        child.pid
        for child in psutil.Process(dev.process.pid).children(recursive=True)
        if any("app_probe" in word for word in _command(child))
    ]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("given", ["tasks.yaml", "."])
def test_document_that_becomes_a_pipe_is_refused_and_ctrl_c_still_works(tmp_path: Path, given: str) -> None:
    (tmp_path / "tasks.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(tmp_path, given) as dev:
        os.mkfifo(tmp_path / "pipe")
        os.replace(tmp_path / "pipe", tmp_path / "tasks.yaml")
        dev.until_complained("is no regular file")
        assert _declared(dev) == {"hello"}
        dev.write("tasks.yaml", TASKS.replace("hello", "bye"))
        dev.until_said("reloaded: 1 added")
        assert _declared(dev) == {"hello", "bye"}


def test_document_that_is_a_pipe_at_the_start_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "tasks.yaml")
    dev = start_dev(tmp_path, "tasks.yaml")
    try:
        assert dev.process.wait(20) == 2
    finally:
        dev.process.kill()
    assert "tasks.yaml: is no regular file" in dev.complained
    assert not (tmp_path / "ostinato.db").exists()


async def test_reading_that_does_not_end_is_given_up_and_holds_nobody_up() -> None:
    answer = threading.Event()

    def read() -> list[Document]:
        answer.wait()
        return []

    reading = asyncio.create_task(
        read_all_documents(DevSources(app="", read_documents=read), limit_us=SECOND // 2)
    )
    await asyncio.wait([reading], timeout=0.1)
    assert not reading.done()
    with pytest.raises(UserError) as caught:
        await reading
    answer.set()
    assert caught.value.code == "INVALID_DOCUMENT"
    assert "could not be read within 500ms" in str(caught.value)


def test_other_requests_are_answered_while_a_huge_document_is_taken_over(tmp_path: Path) -> None:
    (tmp_path / "tasks.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(tmp_path, "tasks.yaml") as dev:
        line = next(line for line in dev.said.splitlines() if "http://" in line)
        address = next(word.strip(",.") for word in line.split() if word.startswith("http://"))
        many = "".join(f"  - {{name: many-{number}, shell: {{command: date}}}}\n" for number in range(20_000))
        dev.write("tasks.yaml", f"version: 1\ntasks:\n{many}")
        slowest_s = 0.0

        def is_done() -> bool:
            nonlocal slowest_s
            began = time.monotonic()
            with urllib.request.urlopen(f"{address}/healthz", timeout=30) as answer:
                assert answer.status == 200
            slowest_s = max(slowest_s, time.monotonic() - began)
            return "reloaded: 20000 added" in dev.said

        dev.until(is_done, within_s=120)
        # Of a machine that does other things too: before, it was all the seconds of the parsing.
        assert slowest_s < 1.0, slowest_s


def test_folder_that_is_removed_and_made_anew_is_watched_again(tmp_path: Path) -> None:
    folder = tmp_path / "tasks"
    folder.mkdir()
    (folder / "tasks.yaml").write_text(TASKS, encoding="utf-8")
    with reloading_dev(tmp_path, "tasks") as dev:
        shutil.rmtree(folder)
        dev.until_complained("no such file or folder")
        folder.mkdir()
        (folder / "tasks.yaml").write_text(TASKS.replace("hello", "again"), encoding="utf-8")
        dev.until_said("reloaded: 1 added")
        dev.write("tasks/tasks.yaml", TASKS.replace("hello", "later"))
        dev.until_said("reloaded: 1 added", times=2)
        assert _declared(dev) == {"hello", "again", "later"}


def test_folder_that_is_swapped_for_another_at_once_is_watched_again(tmp_path: Path) -> None:
    for name, task in (("tasks", "hello"), ("other", "again")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "tasks.yaml").write_text(TASKS.replace("hello", task), encoding="utf-8")
    with reloading_dev(tmp_path, "tasks/tasks.yaml") as dev:
        (tmp_path / "tasks").rename(tmp_path / "away")
        (tmp_path / "other").rename(tmp_path / "tasks")
        dev.until_said("reloaded: 1 added")
        dev.write("tasks/tasks.yaml", TASKS.replace("hello", "later"))
        dev.until_said("reloaded: 1 added", times=2)
        assert _declared(dev) == {"hello", "again", "later"}


def test_package_that_is_removed_and_made_anew_is_watched_again(tmp_path: Path) -> None:
    package = tmp_path / "shop"
    package.mkdir()
    (package / "__init__.py").write_text(SHOP, encoding="utf-8")
    with reloading_dev(tmp_path, "shop") as dev:
        shutil.rmtree(package)
        dev.until_complained("not reloaded, what ran before goes on")
        package.mkdir()
        dev.write("shop/__init__.py", SHOP.replace("first + 1", "first + 2"))
        dev.until_said("reloaded: code only")
        dev.write("shop/__init__.py", SHOP.replace("first + 1", "first + 3"))
        dev.until_said("reloaded: code only", times=2)
        assert dev.json("task", "trigger", "add", "--wait")["result"] == 3
