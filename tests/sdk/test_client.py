"""One loop and one store in each process, whatever threads, loops and forks there are."""

from __future__ import annotations

import asyncio
import os
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from support.scripted_http import Answer, ScriptedHttp

from ostinato import App
from ostinato.clock import SystemClock
from ostinato.errors import UnavailableError
from ostinato.sdk.client import Client
from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store


class Opener:
    """Counts how often a store was opened and closed."""

    def __init__(self) -> None:
        self.opened = 0
        self.closed = 0
        self.fails = 0

    async def __call__(self, clock: object) -> Store:
        await asyncio.sleep(0)
        if self.fails:
            self.fails -= 1
            raise UnavailableError("DATABASE_UNAVAILABLE", "not yet")
        self.opened += 1
        return ClosingStore(self)


class ClosingStore(MemoryStore):
    def __init__(self, opener: Opener) -> None:
        super().__init__(SystemClock())
        self._opener = opener

    async def close(self) -> None:
        self._opener.closed += 1


async def ask(store: Store) -> int:
    return store.partition_count


def test_the_store_is_opened_once_on_first_use_and_closed_once() -> None:
    opener = Opener()
    client = Client(opener)
    assert opener.opened == 0
    results: list[int] = []
    threads = [threading.Thread(target=lambda: results.append(client.call(ask))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [64] * 8
    assert (opener.opened, opener.closed) == (1, 0)
    client.close()
    client.close()
    assert (opener.opened, opener.closed) == (1, 1)
    assert client.call(ask) == 64
    client.close()
    assert (opener.opened, opener.closed) == (2, 2)


def test_a_store_that_cannot_be_opened_is_tried_again_by_the_next_call() -> None:
    opener = Opener()
    opener.fails = 1
    client = Client(opener)
    with pytest.raises(UnavailableError):
        client.call(ask)
    assert client.call(ask) == 64
    client.close()


def test_closing_ends_what_is_under_way_and_leaves_no_thread() -> None:
    before = threading.active_count()
    client = Client(Opener())
    started = threading.Event()
    ended: list[BaseException] = []

    async def forever(store: Store) -> None:
        started.set()
        await asyncio.Event().wait()

    def wait() -> None:
        try:
            client.call(forever)
        except BaseException as error:  # noqa: BLE001 - kept to be looked at below
            ended.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    assert started.wait(10)
    client.close()
    thread.join(10)
    assert [type(error).__name__ for error in ended] == ["CancelledError"]
    assert threading.active_count() == before


async def test_an_asynchronous_call_leaves_the_callers_loop_free() -> None:
    client = Client(Opener())
    turns = 0

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    turning = asyncio.create_task(turn())
    assert await client.call_async(ask) == 64
    assert turns > 1
    turning.cancel()
    client.close()


# Newer Pythons warn of the very thing that is tested here.
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_c081_a_forked_child_opens_its_own_and_leaves_its_parents_alone() -> None:
    opener = Opener()
    client = Client(opener)
    client.call(ask)
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            client.call(ask)
            client.close()
            os.write(writer, f"{opener.opened} {opener.closed}".encode())
        finally:
            os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as answers:
        assert answers.read() == "2 1"
    os.waitpid(child, 0)
    assert client.call(ask) == 64
    assert (opener.opened, opener.closed) == (1, 0)
    client.close()


def test_a_database_that_does_not_exist_is_refused_by_its_path_and_made_by_apply_alone(
    tmp_path: Path,
) -> None:
    path = tmp_path / "shop.db"
    app = App("shop", f"sqlite:///{path}")

    @app.task
    def report(day: int) -> None: ...

    with pytest.raises(UnavailableError, match=re.escape(f"there is no database {path}")) as caught:
        report.submit(1)
    assert (caught.value.code, caught.value.field) == ("DATABASE_UNAVAILABLE", "url")
    assert "app.apply()" in caught.value.hint
    with pytest.raises(UnavailableError):
        app.handle("none").status()
    assert not path.exists()
    app.apply()
    assert report.submit(1).status() == "pending"
    app.close()
    path.rename(tmp_path / "elsewhere.db")
    with pytest.raises(UnavailableError):
        report.submit(2)
    app.close()


async def test_apply_async_makes_the_database_too(tmp_path: Path) -> None:
    app = App("shop", f"sqlite:///{tmp_path}/shop.db")
    assert await app.apply_async() == []
    app.close()
    assert (tmp_path / "shop.db").exists()


_SLOW = re.compile(r"^Executing <.*> took [\d.]+ seconds\n", re.MULTILINE)
Runner = Callable[[str], "subprocess.CompletedProcess[str]"]


@pytest.fixture
def run(tmp_path: Path) -> Runner:
    def run_script(script: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, "-X", "dev", "-W", "error", "-W", "ignore:This process", "-c", script],
            cwd=tmp_path,
            env={**os.environ, "OSTINATO_URL": "sqlite:///shop.db"},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        # The loop's debug mode tells of a busy machine too, which is not what is listened for.
        done.stderr = _SLOW.sub("", done.stderr)
        return done

    return run_script


def test_importing_is_light(run: Runner) -> None:
    """A web process that declares tasks loads no database, no transport and no scheduler."""
    done = run(
        "import sys, ostinato\n"
        "assert not [name for name in sys.modules if name.startswith('ostinato.')]\n"
        "from ostinato import App, Retry, cron\n"
        "@App('shop').task(retry=Retry.fixed(1), cron='@daily')\n"
        "def report() -> None: ...\n"
        "heavy = {'sqlalchemy', 'alembic', 'grpc', 'sqlite3', 'httpx', 'structlog', 'prometheus_client'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print([name for name in dir(ostinato) if name in ostinato.__all__] == sorted(ostinato.__all__))\n"
        "print(all(getattr(ostinato, name) for name in ostinato.__all__))\n"
    )
    assert done.stdout.split("\n")[:3] == ["[]", "True", "True"], done.stderr


def test_a_program_that_submits_over_http_loads_no_database(run: Runner) -> None:
    with ScriptedHttp(Answer(b"{}", 404)) as server:
        done = run(
            "import sys\n"
            "from ostinato import App, UserError\n"
            f"app = App('shop', {server.url!r})\n"
            "assert 'httpx' not in sys.modules\n"
            "try:\n"
            "    app.submit('report')\n"
            "except UserError as error:\n"
            "    print(error.code, 'httpx' in sys.modules)\n"
            "heavy = {'sqlalchemy', 'alembic', 'grpc', 'sqlite3', 'structlog', 'litestar', 'uvicorn'}\n"
            "print(sorted(heavy & set(sys.modules)))\n"
        )
    assert (done.stdout, done.stderr) == ("INVALID_SETTING True\n[]\n", "")


def test_a_process_ends_without_a_word_though_nothing_was_closed(run: Runner, url: str) -> None:
    done = run(
        "from ostinato import App\n"
        f"app = App('shop', {url!r})\n"
        "@app.task\n"
        "def report(day: int) -> None: ...\n"
        "app.apply()\n"
        "print(report.submit(1).status(), len(app.submit_many(report, [{'day': 2}] * 3)))\n"
    )
    assert (done.stdout, done.stderr, done.returncode) == ("pending 3\n", "", 0)


def test_c081_forked_children_submit_and_end_without_a_word(run: Runner, url: str) -> None:
    done = run(
        "import os, sys\n"
        "from ostinato import App\n"
        f"app = App('shop', {url!r})\n"
        "@app.task\n"
        "def report(day: int) -> None: ...\n"
        "app.apply()\n"
        "report.submit(0)\n"
        "children = []\n"
        "for day in range(4):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        sys.exit(0 if report.submit(day).status() == 'pending' else 1)\n"
        "    children.append(child)\n"
        "print([os.waitpid(child, 0)[1] for child in children], report.submit(9).status())\n"
    )
    assert (done.stdout, done.stderr) == ("[0, 0, 0, 0] pending\n", "")


def test_c041_programmes_that_register_their_tasks_at_once_make_one_version(tmp_path: Path, url: str) -> None:
    script = (
        "from ostinato import App\n"
        f"app = App('shop', {url!r})\n"
        "@app.task(every='1h')\n"
        "def report() -> None: ...\n"
        "print([(receipt.version, receipt.outcome) for receipt in app.apply()])\n"
    )
    outcomes: list[str] = []
    for _ in range(2):
        processes = [
            subprocess.Popen([sys.executable, "-c", script], cwd=tmp_path, stdout=subprocess.PIPE, text=True)
            for _ in range(3)
        ]
        outcomes += [process.communicate(timeout=60)[0] for process in processes]
    assert sorted(outcomes) == ["[(1, 'created')]\n"] + ["[(1, 'unchanged')]\n"] * 5
