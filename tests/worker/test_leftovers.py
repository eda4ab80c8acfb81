"""What a task leaves running is ended with its attempt, wherever it has hidden itself (C125)."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import psutil

from ostinato.worker.executors.protocol import StopReason
from tests.worker.python_worker import PythonWorker, python_worker, text_in, until

TASKS = """
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

helper = subprocess.Popen(["sleep", "600"])

@app.task
def hide_a_child(path: str) -> int:
    command = f"env -i setsid sh -c 'sleep 600 & echo $! > {path}.new; mv {path}.new {path}; exit' &"
    subprocess.run(["/bin/sh", "-c", command], check=True)
    while not Path(path).exists():
        time.sleep(0.01)
    return os.getpid()


@app.task
def background(path: str) -> int:
    child = subprocess.Popen(["sleep", "600"], start_new_session=True)
    Path(path).write_text(str(child.pid))
    return os.getpid()


@app.task
def forget_an_ended_child() -> list:
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return [os.getpid(), child.pid]


@app.task
def pool() -> list:
    with multiprocessing.get_context("fork").Pool(2) as workers:
        return [os.getpid(), workers.map(abs, [-1, -2])]


@app.task
def executor() -> list:
    with ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as workers:
        return [os.getpid(), list(workers.map(abs, [-1, -2]))]


@app.task
def terminated() -> list:
    context = multiprocessing.get_context("fork")
    children = [context.Process(target=time.sleep, args=(600,)) for _ in range(2)]
    for child in children:
        child.start()
        child.terminate()
        child.join(20)
    return [os.getpid(), [child.exitcode for child in children]]


@app.task
async def async_terminated() -> list:
    return terminated.function()[1]


@app.task
def process_id() -> int:
    return os.getpid()


@app.task
def helper_state() -> list:
    return [os.getpid(), helper.pid, helper.poll()]


@app.task
def hide_a_child_and_hang(path: str) -> None:
    hide_a_child.function(path)
    time.sleep(600)


@app.task
def hide_a_child_and_leave(path: str) -> None:
    hide_a_child.function(path)
    os._exit(3)


@app.task
async def async_hide_a_child(path: str) -> int:
    return hide_a_child.function(path)
"""


def lives(pid: int) -> bool:
    """Whether a process runs; one that waits to be waited for does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def hidden_child(worker: PythonWorker, name: str, path: Path) -> tuple[int, int]:
    """The task's process and what it has hidden."""
    pid = await worker.result(worker.start(name, path=str(path)))
    return pid, int(await text_in(path))


async def test_c125_a_function_that_returns_leaves_nothing_running_however_it_hid_it(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        for number, name in enumerate(["hide_a_child", "background"]):
            pid, child = await hidden_child(worker, name, tmp_path / f"child-{number}")
            assert not lives(child), f"what {name} left is gone when its end is told"
            assert not lives(pid), "nobody knows what state such a process is in"
            assert await worker.result(worker.start("process_id")) != pid


async def test_a_function_that_ends_what_it_starts_keeps_its_process(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        pid = await worker.result(worker.start("process_id"))
        assert await worker.result(worker.start("pool")) == [pid, [1, 2]]
        assert await worker.result(worker.start("executor")) == [pid, [1, 2]]
        assert await worker.result(worker.start("process_id")) == pid


async def test_a_task_can_terminate_the_processes_that_it_has_forked(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        pid = await worker.result(worker.start("process_id"))
        assert await worker.result(worker.start("terminated")) == [pid, [-signal.SIGTERM] * 2]
        assert await worker.result(worker.start("async_terminated")) == [-signal.SIGTERM] * 2


async def test_an_ended_child_that_was_never_waited_for_costs_no_process_and_is_cleared(
    tmp_path: Path,
) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        pid, child = await worker.result(worker.start("forget_an_ended_child"))
        assert await worker.result(worker.start("process_id")) == pid
        assert not psutil.pid_exists(child)


async def test_children_of_the_imports_stay(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        before = await worker.result(worker.start("helper_state"))
        await worker.result(worker.start("forget_an_ended_child"))
        assert before[2] is None
        assert await worker.result(worker.start("helper_state")) == before


async def test_c125_a_killed_function_takes_with_it_what_it_hid(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("hide_a_child_and_hang", path=str(tmp_path / "child"))
        child = int(await text_in(tmp_path / "child"))
        worker.executor.stop(start.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=0)
        await worker.failure(start)
        assert not lives(child)


async def test_c125_a_function_whose_process_ends_by_itself_takes_with_it_what_it_hid(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        failure = await worker.failure(worker.start("hide_a_child_and_leave", path=str(tmp_path / "child")))
        assert failure.code == "EXIT_3"
        assert not lives(int(await text_in(tmp_path / "child")))


async def test_what_a_coroutine_hides_ends_with_the_loop_process(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        _, child = await hidden_child(worker, "async_hide_a_child", tmp_path / "child")
        # The shell that hid it writes its note before it exits.
        await until(lambda: psutil.Process(child).ppid() == worker.executor.loop_process_id)
    assert not lives(child)


async def test_what_an_isolated_coroutine_hides_ends_with_it(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("async_hide_a_child", isolation="process", path=str(tmp_path / "child"))
        await worker.result(start)
        assert not lives(int(await text_in(tmp_path / "child")))


_ORPHANS = """
import os, subprocess
from ostinato.worker.leftovers import OrphanEntries

def forget():
    child = subprocess.Popen(["true"])
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    return child

entries = OrphanEntries()
child = forget()
assert entries.clear({"a", "b"}) == 0, "a or b may still wait for it"
assert entries.clear({"b", "c"}) == 0, "b may"
late = forget()
assert entries.clear({"c"}) == 1, "nobody can wait for the first any more, c for the second"
assert entries.clear({"d"}) == 1
try:
    os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
except ChildProcessError:
    print("none left")
"""


def test_an_ended_child_is_cleared_when_nobody_can_wait_for_it_any_more() -> None:
    finished = subprocess.run([sys.executable, "-c", _ORPHANS], capture_output=True, text=True, check=False)
    assert (finished.stdout, finished.returncode) == ("none left\n", 0), finished.stderr
