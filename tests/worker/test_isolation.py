"""``isolation: process``, scratch directories, and what an attempt finds of the ones before it."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest

from ostinato.core.instants import SECOND
from ostinato.sdk.context import Context
from ostinato.worker.executors.protocol import AttemptStart, StopReason
from tests.worker.python_worker import PythonWorker, python_worker, text_in, until

TASKS = """
import asyncio
import os
import resource
import signal
import sys
import time
from pathlib import Path

seen = []


@app.task
def look(note: str = "") -> list:
    seen.append(note)
    return [os.getpid(), len(seen)]


@app.task
async def async_look() -> list:
    seen.append("")
    await asyncio.sleep(0)
    return [os.getpid(), len(seen), asyncio.current_task() is not None]


@app.task
async def async_wait(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    try:
        await asyncio.sleep(600)
    finally:
        await asyncio.sleep(0)
        print("tidied up")


@app.task
async def async_stubborn(path: str) -> None:
    Path(path).write_text(str(os.getpid()))
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            print("no")


@app.task
async def async_cancel_itself() -> None:
    raise asyncio.CancelledError


@app.task
async def async_context(context: Context) -> list:
    return [context.attempt_id, current_context().attempt_id]


@app.task
def leave_things(context: Context) -> str:
    scratch = context.scratch_directory
    (scratch / "part").write_text("x")
    (scratch / "folder").mkdir()
    assert current_context().scratch_directory == scratch
    return str(scratch)


@app.task
async def async_leave_things(context: Context) -> str:
    (context.scratch_directory / "part").write_text("x")
    return str(context.scratch_directory)


@app.task
def leave_and_hang(context: Context, path: str) -> None:
    (context.scratch_directory / "part").write_text("x")
    Path(path).write_text(str(context.scratch_directory))
    time.sleep(600)


@app.task
async def async_leave_and_exit(context: Context) -> None:
    (context.scratch_directory / "part").write_text("x")
    os._exit(3)


@app.task
def change_limits(kind: str) -> int:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if kind == "soft":
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, hard))
    elif kind == "hard":
        resource.setrlimit(resource.RLIMIT_NOFILE, (16, 16))
    return os.getpid()


@app.task
def state() -> list:
    return [os.getpid(), *resource.getrlimit(resource.RLIMIT_NOFILE), sys.path, sorted(os.environ)]


@app.task
def change_path() -> None:
    sys.path.insert(0, "/nowhere")
    os.environ["LEFT"] = "x"


@app.task
def replace_path() -> None:
    sys.path = ["/nowhere", *sys.path]
"""


def exists(path: Path) -> bool:
    return path.exists()


async def look(worker: PythonWorker, *, isolated: bool) -> tuple[int, int]:
    pid, count = await worker.result(worker.start("look", isolation="process" if isolated else "shared"))
    return pid, count


# ── a process of one's own ────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("slots", [1, 2])
async def test_an_isolated_attempt_runs_in_a_process_that_has_run_nothing_and_runs_nothing_after(
    tmp_path: Path, slots: int
) -> None:
    async with python_worker(tmp_path, TASKS, slots=slots) as worker:
        first = await look(worker, isolated=False)
        again = await look(worker, isolated=False)
        assert again == (first[0], 2), "a shared task goes on in the same process"
        isolated = [await look(worker, isolated=True) for _ in range(3)]
        last = await look(worker, isolated=False)
    assert [count for _, count in isolated] == [1, 1, 1]
    pids = [pid for pid, _ in isolated]
    assert len({*pids, first[0]}) == 4
    assert last[0] not in pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


async def test_an_unused_process_is_kept_ready_for_the_next_isolated_attempt(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=3) as worker:
        used, _ = await look(worker, isolated=False)
        first, _ = await look(worker, isolated=True)
        known = {used, first, 0}
        await until(lambda: not known.issuperset(worker.executor.slot_process_ids))
        ready = {*worker.executor.slot_process_ids} - known
        assert (await look(worker, isolated=True))[0] in ready


async def test_isolated_and_shared_attempts_that_wait_together_all_run(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS, slots=2) as worker:
        starts = [
            worker.start("look", isolation="process" if number % 2 else "shared") for number in range(8)
        ]
        results = [await worker.result(start) for start in starts]
    isolated = [tuple(result) for result in results[1::2]]
    assert {count for _, count in isolated} == {1}
    shared = {pid for pid, _ in results[0::2]}
    assert len({pid for pid, _ in isolated}) == 4
    assert not shared & {pid for pid, _ in isolated}


async def test_an_isolated_coroutine_has_a_process_of_its_own_with_an_event_loop(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        loop_pid = worker.executor.loop_process_id
        first = await worker.result(worker.start("async_look", isolation="process"))
        second = await worker.result(worker.start("async_look", isolation="process"))
        shared = await worker.result(worker.start("async_look"))
        ids = worker.start("async_context", isolation="process")
        assert await worker.result(ids) == [ids.assignment.attempt_id] * 2
    assert [first[1:], second[1:]] == [[1, True], [1, True]]
    assert len({first[0], second[0], loop_pid}) == 3
    assert shared[0] == loop_pid


async def test_killing_an_isolated_coroutine_ends_no_neighbour(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        neighbour = worker.start("async_wait", path=str(tmp_path / "neighbour"))
        stubborn = worker.start("async_stubborn", isolation="process", path=str(tmp_path / "stubborn"))
        await text_in(tmp_path / "neighbour")
        pid = int(await text_in(tmp_path / "stubborn"))
        _stop(worker, stubborn, grace_us=SECOND // 10)
        failure = await worker.failure(stubborn)
        assert failure.code == "SIGNAL_9"
        assert "no\n" in worker.sink.text_of(stubborn.assignment.attempt_id), "it was asked first"
        assert pid not in worker.executor.slot_process_ids
        assert neighbour.assignment.attempt_id not in worker.sink.ends


@pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.TIMEOUT])
async def test_an_isolated_coroutine_is_cancelled_and_may_tidy_up(tmp_path: Path, reason: StopReason) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("async_wait", isolation="process", path=str(tmp_path / "note"))
        await text_in(tmp_path / "note")
        worker.executor.stop(start.assignment.attempt_id, reason=reason, grace_us=60 * SECOND)
        failure = await worker.failure(start)
        assert failure.code == "CANCELLED"
        assert worker.sink.text_of(start.assignment.attempt_id) == "tidied up\n"


async def test_a_stop_that_comes_with_the_start_of_an_isolated_coroutine_is_not_lost(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        for _ in range(3):
            start = worker.start("async_wait", isolation="process", path=str(tmp_path / "note"))
            await worker.sink.start_of(start.assignment.attempt_id)
            _stop(worker, start, grace_us=60 * SECOND)
            assert (await worker.failure(start)).code == "CANCELLED"


async def test_an_isolated_coroutine_that_cancels_itself_fails_by_itself(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        failure = await worker.failure(worker.start("async_cancel_itself", isolation="process"))
        assert failure.code == "PYTHON_ERROR"


def _stop(worker: PythonWorker, start: AttemptStart, *, grace_us: int) -> None:
    worker.executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=grace_us)


# ── scratch directories ───────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["leave_things", "async_leave_things"])
async def test_a_scratch_directory_is_gone_when_its_attempt_has_ended(tmp_path: Path, name: str) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start(name)
        scratch = Path(await worker.result(start))
        assert scratch == tmp_path / "data" / "attempts" / start.assignment.attempt_id
        assert not exists(scratch)


async def test_an_attempt_that_asks_for_no_scratch_directory_makes_none(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        await look(worker, isolated=False)
        await look(worker, isolated=True)
    assert not (tmp_path / "data").exists()


async def test_a_scratch_directory_goes_with_the_process_of_its_attempt(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("leave_and_hang", path=str(tmp_path / "note"))
        scratch = Path(await text_in(tmp_path / "note"))
        assert exists(scratch / "part")
        worker.executor.stop(start.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=0)
        await worker.failure(start)
        assert not exists(scratch)


async def test_a_scratch_directory_goes_with_the_loop_process(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("async_leave_and_exit")
        assert (await worker.failure(start)).code == "EXIT_3"
        scratch = tmp_path / "data" / "attempts" / start.assignment.attempt_id
        await until(lambda: not exists(scratch))


def test_a_direct_call_has_a_scratch_directory_as_long_as_its_context() -> None:
    context = Context(instance_id="local", task="t")
    scratch = context.scratch_directory
    assert scratch == context.scratch_directory
    assert scratch.is_dir()
    del context
    assert not scratch.exists()


# ── what is left of earlier attempts ──────────────────────────────────────────────────────────────────────


async def test_lowered_limits_of_a_task_do_not_reach_the_next_one(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        before = await worker.result(worker.start("state"))
        changed_pid = await worker.result(worker.start("change_limits", kind="soft"))
        after = await worker.result(worker.start("state"))
        assert after == before
        assert changed_pid == before[0], "a soft limit comes back without a new process"
        await worker.result(worker.start("change_limits", kind="hard"))
        assert (await worker.result(worker.start("state")))[1:] == before[1:]


@pytest.mark.parametrize("name", ["change_path", "replace_path"])
async def test_import_path_and_environment_are_as_the_imports_left_them(tmp_path: Path, name: str) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        before = await worker.result(worker.start("state"))
        await worker.end(worker.start(name))
        after = await worker.result(worker.start("state"))
    assert "/nowhere" not in after[3]
    assert after == before


async def test_a_used_idle_process_that_dies_does_not_keep_an_isolated_attempt_waiting(
    tmp_path: Path,
) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        pid, _ = await look(worker, isolated=False)
        os.kill(pid, signal.SIGKILL)
        assert (await look(worker, isolated=True))[1] == 1
