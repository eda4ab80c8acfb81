"""What tasks start beside themselves ends before their end is told; no fork takes over a neighbour (I1)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import PythonSpec
from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import (
    DEADLINE_SECONDS,
    RecordingSink,
    attempt_of,
    opened,
    task_spec,
)
from ostinato.worker.executors.protocol import StopReason
from ostinato.worker.executors.python import build_python_executor
from ostinato.worker.guardian import Guardian
from tests.worker.python_worker import PythonWorker, python_worker, text_in, until
from tests.worker.test_leftovers import lives

TASKS = """
import asyncio
import multiprocessing
import os
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

gates = {}


@app.task
async def async_pid() -> int:
    return os.getpid()


@app.task
def pid() -> int:
    return os.getpid()


@app.task
async def async_ticks(path: str) -> int:
    with open(path, "a", buffering=1) as note:
        gate = gates["ticks"] = asyncio.Event()
        while not gate.is_set():
            note.write(f"{os.getpid()}\\n")
            await asyncio.sleep(0.01)
    return os.getpid()


@app.task
async def async_open_gate() -> None:
    gates["ticks"].set()


async def fork_and(how):
    child = os.fork()
    if not child and how == "raise":
        raise KeyError("in the child")
    if not child and how == "exit":
        sys.exit(5)
    if not child and how == "await":
        await asyncio.sleep(0)
    return child


@app.task
async def async_fork(how: str) -> list:
    if how == "subtask":
        child = await asyncio.create_task(fork_and("return"))
    else:
        child = await fork_and(how)
    if child:
        return [os.getpid(), (await asyncio.to_thread(os.waitpid, child, 0))[1]]


@app.task
async def async_other_processes() -> list:
    with multiprocessing.get_context("fork").Pool(1) as workers:
        pooled = workers.map(abs, [-1])
    hooked = await asyncio.create_subprocess_exec("sh", "-c", "exit 4", preexec_fn=lambda: None)
    plain = await asyncio.create_subprocess_shell("echo said", stdout=asyncio.subprocess.PIPE)
    said, _ = await plain.communicate()
    blocking = subprocess.run(["sh", "-c", "exit 6"], preexec_fn=lambda: None)
    in_thread = await asyncio.to_thread(subprocess.run, ["sh", "-c", "exit 7"])
    return [pooled, await hooked.wait(), said.decode(), blocking.returncode, in_thread.returncode]


def hold(folder):
    folder = Path(folder)
    (folder / "begun").write_text(str(os.getpid()))
    while not (folder / "go").exists():
        time.sleep(0.005)
    (folder / "over").touch()


@app.task
async def async_thread(folder: str, own_pool: bool) -> None:
    try:
        if own_pool:
            pool = ThreadPoolExecutor(1)
            first = asyncio.get_running_loop().run_in_executor(pool, hold, folder)
            asyncio.get_running_loop().run_in_executor(pool, Path(folder, "second").touch)
            await first
        else:
            await asyncio.to_thread(hold, folder)
    except asyncio.CancelledError:
        Path(folder, "cancelled").write_text("yes")
        raise


@app.task
async def async_leave_thread(folder: str) -> bool:
    asyncio.get_running_loop().run_in_executor(None, hold, folder)
    return True


async def note_end(folder):
    try:
        await gates.setdefault("notes", asyncio.Event()).wait()
        Path(folder, "opened").touch()
    finally:
        await asyncio.sleep(0.01)
        Path(folder, "ended").touch()


async def fail():
    raise KeyError("first")


@app.task
async def async_gather(folder: str) -> None:
    await asyncio.gather(note_end(folder), fail())


@app.task
async def async_leave_task(folder: str) -> None:
    gates["task"] = asyncio.create_task(note_end(folder))


@app.task
async def async_await_left_task() -> None:
    gates["notes"].set()
    await gates["task"]


@app.task
async def async_leave_process(folder: str) -> list:
    script = f"sleep 600 & echo $! > {folder}/new; mv {folder}/new {folder}/child; wait"
    shell = await asyncio.create_subprocess_shell(script)
    deaf = await asyncio.create_subprocess_exec("sh", "-c", "trap '' TERM; sleep 600")
    while not Path(folder, "child").exists():
        await asyncio.sleep(0.005)
    return [shell.pid, deaf.pid, int(Path(folder, "child").read_text())]


@app.task
async def async_hide_thread(folder: str) -> None:
    threading.Thread(target=hold, args=[folder], daemon=True).start()
    await asyncio.sleep(600)


@app.task
def leave_thread(folder: str, fails: bool) -> int:
    threading.Thread(target=hold, args=[folder], daemon=True).start()
    while not (Path(folder, "begun").exists() and Path(folder, "begun").read_text()):
        time.sleep(0.005)
    if fails:
        raise KeyError(os.getpid())
    return os.getpid()


@app.task
async def async_replace_program() -> None:
    os.execv("/bin/sleep", ["sleep", "600"])


@app.task
def replace_program() -> None:
    os.execv("/bin/sleep", ["sleep", "600"])
"""


def stop(worker: PythonWorker, attempt_id: str, *, grace_us: int, reason: StopReason) -> None:
    worker.executor.stop(attempt_id, reason=reason, grace_us=grace_us)


# ── forks ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["return", "raise", "exit", "await", "subtask"])
async def test_a_fork_of_the_loop_process_ends_before_it_runs_a_neighbour(tmp_path: Path, how: str) -> None:
    note = tmp_path / "ticks"
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        neighbour = worker.start("async_ticks", path=str(note))
        await text_in(note)
        forked = await worker.result(worker.start("async_fork", how=how))
        await worker.result(worker.start("async_pid"))
        await worker.end(worker.start("async_open_gate"))
        pid = await worker.result(neighbour)
    assert forked == [pid, 0]
    assert set(note.read_text().split()) == {str(pid)}
    assert set(worker.sink.end_counts.values()) == {1}


async def test_coroutines_may_start_processes_in_every_way(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        before = await worker.result(worker.start("async_pid"))
        assert await worker.result(worker.start("async_other_processes")) == [[1], 4, "said\n", 6, 7]
        assert await worker.result(worker.start("async_pid")) == before


# ── threads and processes of a coroutine ──────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("own_pool", [False, True])
async def test_the_end_of_a_cancelled_coroutine_is_told_when_its_threads_are_over(
    tmp_path: Path, own_pool: bool
) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        start = worker.start("async_thread", folder=str(tmp_path), own_pool=own_pool)
        attempt_id = start.assignment.attempt_id
        await text_in(tmp_path / "begun")
        stop(worker, attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        await text_in(tmp_path / "cancelled")
        # What ends now is told after what would have been told then.
        await worker.end(worker.start("async_pid"))
        assert attempt_id not in worker.sink.ends
        (tmp_path / "go").touch()
        assert (await worker.failure(start)).code == "CANCELLED"
        assert (tmp_path / "over").exists()
        assert not (tmp_path / "second").exists(), "what no thread had begun is dropped"


async def test_a_thread_that_outlives_the_grace_ends_with_the_loop_process(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        neighbour = worker.start("async_ticks", path=str(tmp_path / "ticks"))
        start = worker.start("async_thread", folder=str(tmp_path), own_pool=False)
        pid = int(await text_in(tmp_path / "begun"))
        stop(worker, start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=SECOND // 10)
        killed, bystander = await worker.end(start), await worker.end(neighbour)
        assert not lives(pid), "the thread is gone when the end is told"
        assert await worker.result(worker.start("async_pid")) != pid
    assert (killed.collateral, bystander.collateral) == (False, True)


async def test_a_coroutine_that_returns_has_ended_when_its_threads_have(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        start = worker.start("async_leave_thread", folder=str(tmp_path))
        await text_in(tmp_path / "begun")
        await worker.end(worker.start("async_pid"))
        assert start.assignment.attempt_id not in worker.sink.ends
        (tmp_path / "go").touch()
        assert await worker.result(start) is True
        assert (tmp_path / "over").exists()


async def test_subtasks_of_a_coroutine_that_fails_are_over_when_its_end_is_told(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        failure = await worker.failure(worker.start("async_gather", folder=str(tmp_path)))
        assert failure.message == "KeyError: 'first'"
        assert (tmp_path / "ended").exists()
        assert not (tmp_path / "opened").exists()


async def test_subtasks_of_a_coroutine_that_succeeds_live_on(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        await worker.end(worker.start("async_leave_task", folder=str(tmp_path)))
        assert not (tmp_path / "ended").exists()
        assert (await worker.end(worker.start("async_await_left_task"))).failure is None
        assert (tmp_path / "opened").exists()


async def test_processes_that_a_coroutine_has_started_with_asyncio_end_with_it(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        before = await worker.result(worker.start("async_pid"))
        left = await worker.result(worker.start("async_leave_process", folder=str(tmp_path)))
        assert [pid for pid in left if lives(pid)] == []
        assert await worker.result(worker.start("async_pid")) == before


async def test_after_the_end_of_a_lease_the_loop_process_ends_whatever_it_hides(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=0) as worker:
        start = worker.start("async_hide_thread", folder=str(tmp_path))
        pid = int(await text_in(tmp_path / "begun"))
        stop(worker, start.assignment.attempt_id, reason=StopReason.LEASE_ENDED, grace_us=SECOND // 5)
        assert (await worker.failure(start)).code == "CANCELLED"
        assert await worker.result(worker.start("async_pid")) != pid, "what comes next runs elsewhere"
        await until(lambda: not lives(pid))


async def test_the_guardian_watches_over_a_lease_until_the_loop_process_has_ended(tmp_path: Path) -> None:
    clock = SystemClock()
    (tmp_path / "app.py").write_text(f"from ostinato import App\napp = App('sample')\n{TASKS}")
    executor = build_python_executor(app=str(tmp_path / "app.py"), clock=clock, process_slots=0)
    async with opened(executor) as sink:
        worker = PythonWorker(executor, sink)
        spec = task_spec("async_hide_thread", PythonSpec(call="", is_async=True))
        start = attempt_of(spec, msgspec.json.encode({"folder": str(tmp_path)}))
        start.lease_ends_us = clock.boot_us() + 3 * SECOND
        executor.start([start])
        pid = int(await text_in(tmp_path / "begun"))
        stop(worker, start.assignment.attempt_id, reason=StopReason.LEASE_ENDED, grace_us=MINUTE)
        assert (await worker.failure(start)).code == "CANCELLED"
        executor.leases_moved()
        # Long before the grace is over: it is the guardian that ends it.
        await until(lambda: not lives(pid))


# ── threads of functions ──────────────────────────────────────────────────────────────────────────────────


async def test_a_function_that_fails_takes_its_threads_with_it(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        failure = await worker.failure(worker.start("leave_thread", folder=str(tmp_path), fails=True))
        pid = int(await text_in(tmp_path / "begun"))
        assert failure.message == f"KeyError: {pid}"
        assert not lives(pid)
        assert await worker.result(worker.start("pid")) != pid


async def test_a_function_that_succeeds_may_leave_threads(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        pid = await worker.result(worker.start("leave_thread", folder=str(tmp_path), fails=False))
        assert await worker.result(worker.start("pid")) == pid
        (tmp_path / "go").touch()
        await until((tmp_path / "over").exists)


# ── processes that are lost in other ways ─────────────────────────────────────────────────────────────────


async def test_a_process_that_replaces_its_program_is_killed(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        neighbour = worker.start("async_ticks", path=str(tmp_path / "ticks"))
        await text_in(tmp_path / "ticks")
        coroutine, function = worker.start("async_replace_program"), worker.start("replace_program")
        codes = {(await worker.failure(start)).code for start in (neighbour, coroutine, function)}
        assert codes == {"SIGNAL_9"}
        assert await worker.result(worker.start("async_pid")) != await worker.result(worker.start("pid"))


@pytest.mark.parametrize("slots", [0, 1])
async def test_the_loss_of_the_first_guardian_is_no_problem_of_the_app(tmp_path: Path, slots: int) -> None:
    source = (
        "import os, time\nfrom pathlib import Path\nfrom ostinato import App\napp = App('sample')\n"
        f"folder = Path({str(tmp_path)!r})\n(folder / f'begun-{{os.getpid()}}').touch()\n"
        "while not (folder / 'go').exists():\n    time.sleep(0.005)\n"
        "@app.task\nasync def async_nothing() -> None: ...\n"
    )
    (tmp_path / "app.py").write_text(source)
    guardian = Guardian(clock=SystemClock())
    executor = build_python_executor(
        app=str(tmp_path / "app.py"), clock=SystemClock(), process_slots=slots, guardian=guardian
    )
    opening = asyncio.create_task(executor.open(RecordingSink()))
    try:
        await until(lambda: len(list(tmp_path.glob("begun-*"))) == 1 + slots)
        assert guardian.pid

        os.kill(guardian.pid, signal.SIGKILL)
        (tmp_path / "go").touch()
        await asyncio.wait_for(opening, DEADLINE_SECONDS)
    finally:
        await executor.close()
        await guardian.close()
    assert list(executor.known_tasks.problems) == []
    assert guardian.start_count == 2
