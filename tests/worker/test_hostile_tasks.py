"""Tasks that damage the process they run in: they harm themselves, not their neighbours nor the next one."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import PythonSpec
from ostinato.core.failure.failure import Failure
from ostinato.testing.contracts.executor_harness import RecordingSink, attempt_of, opened, task_spec
from ostinato.wire.messages import TaskSpec
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart
from ostinato.worker.executors.python import PythonExecutor, build_python_executor

APP_SOURCE = r"""
import asyncio
import logging
import os
import signal
import socket
import sys
import tempfile

from ostinato.sdk.app import App
from ostinato.sdk.context import Context

app = App("hostile")


@app.task
def look() -> dict:
    print("printed")
    print("to stderr", file=sys.stderr)
    os.write(1, b"written\n")
    old = os.umask(0)
    os.umask(old)
    return {
        "pid": os.getpid(),
        "directory": os.getcwd(),
        "variable": os.environ.get("OSTINATO_TEST_LEFT", ""),
        "path": os.environ.get("PATH", ""),
        "umask": old,
        "term": signal.getsignal(signal.SIGTERM) is not signal.SIG_DFL,
        "input": sys.stdin.read(),
    }


def gone_directory():
    with tempfile.TemporaryDirectory() as path:
        os.chdir(path)


class OnlyWrites:
    def write(self, text):
        return len(text)


def replace_stdout():
    sys.stdout = OnlyWrites()


def patch_stdout():
    sys.stdout.write = lambda text: len(text)


def stdout_to_none():
    sys.stdout = None


def change_environment():
    os.environ["OSTINATO_TEST_LEFT"] = "behind"
    del os.environ["PATH"]


def replace_environment():
    os.environ = {}


def close_kept_descriptors():
    channel = int(sys.argv[1])
    for number in range(3, 64):
        try:
            is_socket = socket.socket(fileno=os.dup(number)).family == socket.AF_UNIX
        except OSError:
            is_socket = False
        if number != channel and not is_socket:
            try:
                os.close(number)
            except OSError:
                pass
    os.close(1)


DAMAGE = {
    "close_one": lambda: os.close(1),
    "close_all": lambda: os.closerange(0, 3),
    "point_elsewhere": lambda: os.dup2(os.open("/dev/null", os.O_WRONLY), 1),
    "close_stdout": lambda: sys.stdout.close(),
    "close_stdin": lambda: sys.stdin.close(),
    "detach_stderr": lambda: sys.stderr.detach(),
    "narrow_stdout": lambda: sys.stdout.reconfigure(encoding="ascii", errors="strict"),
    "stdout_to_none": stdout_to_none,
    "replace_stdout": replace_stdout,
    "patch_stdout": patch_stdout,
    "gone_directory": gone_directory,
    "change_environment": change_environment,
    "replace_environment": replace_environment,
    "default_sigterm": lambda: signal.signal(signal.SIGTERM, signal.SIG_DFL),
    "umask": lambda: os.umask(0o777),
    "close_kept_descriptors": close_kept_descriptors,
}


@app.task
def damage(kind: str) -> str:
    DAMAGE[kind]()
    return "done"


@app.task
def half_a_line() -> None:
    sys.stdout.write("half")
    sys.stdout = None


class Speechless:
    def __repr__(self):
        raise RuntimeError("no words")


@app.task
def log_badly() -> str:
    logging.getLogger("shop").error("%d", "x")
    logging.getLogger("shop").error("%d", Speechless())
    logging.getLogger("shop").error("fine")
    return "done"


@app.task
def log_after_clearing() -> str:
    logging.getLogger("shop").info("heard")
    logging.getLogger().handlers.clear()
    return "done"


@app.task
def bad_progress(context: Context, kind: str) -> str:
    if kind == "text":
        context.progress(0.5, 5)
    elif kind == "truth":
        context.progress(True)
    elif kind == "nan":
        context.progress(float("nan"))
    else:
        context.progress("half")
    return "done"


@app.task
def odd_progress(context: Context) -> str:
    context.progress(0.5, "a\0b\ud800" + "x" * 5000)
    return "done"


def garbage(data):
    os.write(int(sys.argv[1]), data)


NOT_A_MESSAGE = b"\x00\x00\x00\x03xyz"


@app.task
def talk_nonsense() -> None:
    garbage(NOT_A_MESSAGE)
    signal.pause()


@app.task
def talk_text() -> None:
    garbage(b"hello there")
    signal.pause()


@app.task
async def async_bad_progress(context: Context) -> str:
    context.progress(0.5, 5)
    return "done"


@app.task
async def async_talk_nonsense() -> None:
    garbage(NOT_A_MESSAGE)
    await asyncio.sleep(600)


class Gate:
    event = None


@app.task
async def async_wait_for_gate() -> str:
    Gate.event = asyncio.Event()
    await Gate.event.wait()
    return "through"


@app.task
async def async_open_gate() -> str:
    Gate.event.set()
    return "opened"


@app.task
async def async_leave() -> None:
    os._exit(3)


@app.task
async def async_stop_loop() -> str:
    asyncio.get_running_loop().stop()
    await asyncio.sleep(0)
    return "stopped"


@app.task
async def async_exit_in_subtask() -> None:
    async def leave():
        sys.exit(5)

    await asyncio.create_task(leave())


@app.task
async def async_cancel_all() -> str:
    for task in asyncio.all_tasks():
        if task is not asyncio.current_task():
            task.cancel()
    return "cancelled"


@app.task
async def async_cancel_itself() -> None:
    asyncio.current_task().cancel()
    await asyncio.sleep(600)


@app.task
async def async_close_stdout() -> str:
    sys.stdout.close()
    print("printed")
    return "done"
"""

DAMAGES = [
    "close_one",
    "close_all",
    "point_elsewhere",
    "close_stdout",
    "close_stdin",
    "detach_stderr",
    "narrow_stdout",
    "stdout_to_none",
    "replace_stdout",
    "patch_stdout",
    "gone_directory",
    "change_environment",
    "replace_environment",
    "default_sigterm",
    "umask",
]


@pytest.fixture(scope="module")
def hostile_app(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("hostile") / "hostile_tasks.py"
    path.write_text(APP_SOURCE)
    return path


class Worker:
    """A Python executor with the sink it reports to."""

    def __init__(self, executor: PythonExecutor, sink: RecordingSink) -> None:
        self.executor = executor
        self.sink = sink

    async def begin(self, name: str, **payload: str) -> AttemptStart:
        """Start an attempt and wait until it runs."""
        start = attempt_of(_spec(name), msgspec.json.encode(payload))
        self.executor.start([start])
        await self.sink.start_of(start.assignment.attempt_id)
        return start

    async def end_of(self, start: AttemptStart) -> AttemptFinished:
        return await self.sink.end_of(start.assignment.attempt_id)

    async def end(self, name: str, **payload: str) -> AttemptFinished:
        return await self.end_of(await self.begin(name, **payload))

    def text_of(self, finished: AttemptFinished, stream: str) -> str:
        return self.sink.text_of(finished.attempt_id, stream)


def _spec(name: str) -> TaskSpec:
    return task_spec(name, PythonSpec(call="", is_async=name.startswith("async_")))


@asynccontextmanager
async def worker(app: Path, *, slots: int = 1) -> AsyncIterator[Worker]:
    executor = build_python_executor(app=str(app), clock=SystemClock(), process_slots=slots)
    async with opened(executor) as sink:
        yield Worker(executor, sink)


def failure_of(finished: AttemptFinished) -> Failure:
    assert finished.failure is not None
    return finished.failure


# ── a slot is clean for the next attempt ──────────────────────────────────────────────────────────────────


async def test_the_next_attempt_in_a_slot_finds_nothing_of_what_one_has_changed(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        before = await made.end("look")
        for kind in DAMAGES:
            damaged = await made.end("damage", kind=kind)
            after = await made.end("look")
            assert (kind, damaged.failure, damaged.result) == (kind, None, b'"done"')
            # The process id is in there: it is the same process.
            assert (kind, after.failure, after.result) == (kind, None, before.result)
            assert (kind, made.text_of(after, "stdout")) == (kind, "printed\nwritten\n")
            assert (kind, made.text_of(after, "stderr")) == (kind, "to stderr\n")


async def test_a_slot_that_cannot_be_put_in_order_is_replaced(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        before = await made.end("look")
        damaged = await made.end("damage", kind="close_kept_descriptors")
        after = await made.end("look")
    assert damaged.result == b'"done"'
    assert before.result is not None
    assert after.result is not None
    old, new = msgspec.json.decode(before.result), msgspec.json.decode(after.result)
    assert old.pop("pid") != new.pop("pid")
    assert new == old
    assert made.text_of(after, "stdout") == "printed\nwritten\n"


async def test_text_without_a_line_end_stays_with_the_attempt_that_wrote_it(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        half = await made.end("half_a_line")
        after = await made.end("look")
    assert made.text_of(half, "stdout").rstrip("\n") == "half"
    assert made.text_of(after, "stdout") == "printed\nwritten\n"


async def test_a_log_line_that_is_none_is_kept_as_text_and_fails_nothing(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        finished = await made.end("log_badly")
    first, second, third = made.text_of(finished, "log").splitlines()
    assert finished.result == b'"done"'
    assert "'%d' with arguments ('x',)" in first
    assert "cannot be shown (RuntimeError)" in second
    assert third == "ERROR shop: fine"


async def test_logging_works_after_a_task_has_removed_every_handler(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        for _ in range(2):
            finished = await made.end("log_after_clearing")
            assert made.text_of(finished, "log") == "INFO shop: heard\n"


# ── what a child says ─────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("kind", "says"), [("text", "not int"), ("truth", "True"), ("nan", "nan"), ("word", "'half'")]
)
async def test_wrong_progress_is_an_error_inside_the_task(hostile_app: Path, kind: str, says: str) -> None:
    async with worker(hostile_app) as made:
        failure = failure_of(await made.end("bad_progress", kind=kind))
        after = await made.end("look")
    assert failure.classes[0] == "ostinato.errors.UserError"
    assert says in failure.message
    assert after.failure is None


async def test_the_text_of_progress_is_made_safe_and_cut(hostile_app: Path) -> None:
    async with worker(hostile_app) as made:
        finished = await made.end("odd_progress")
    assert finished.result == b'"done"'
    (beat,) = made.sink.beats
    assert beat.text.startswith("a␀b\ufffdxxx")
    assert len(beat.text.encode()) <= 1024


async def test_wrong_progress_in_the_loop_process_leaves_the_neighbours_alone(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        neighbour = await made.begin("async_wait_for_gate")
        failure = failure_of(await made.end("async_bad_progress"))
        await made.end("async_open_gate")
        finished = await made.end_of(neighbour)
    assert "not int" in failure.message
    assert finished.result == b'"through"'


@pytest.mark.parametrize("name", ["talk_nonsense", "talk_text"])
async def test_what_cannot_be_read_is_a_failure_that_says_so(hostile_app: Path, name: str) -> None:
    async with worker(hostile_app) as made:
        failure = failure_of(await made.end(name))
        after = await made.end("look")
    assert failure.code == "EXECUTOR_ERROR"
    assert "cannot read" in failure.message
    assert after.failure is None


async def test_nonsense_from_the_loop_process_is_lost_where_several_run(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        neighbour = await made.begin("async_wait_for_gate")
        failures = [
            failure_of(await made.end("async_talk_nonsense")),
            failure_of(await made.end_of(neighbour)),
        ]
        alone = failure_of(await made.end("async_talk_nonsense"))
    assert {(failure.code, failure.category) for failure in failures} == {("EXECUTOR_ERROR", "lost")}
    assert (alone.code, alone.category) == ("EXECUTOR_ERROR", "transient")


# ── neighbours in the loop process ────────────────────────────────────────────────────────────────────────


async def test_a_loop_process_that_ends_by_itself_loses_all_of_several_attempts(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        neighbour = await made.begin("async_wait_for_gate")
        guilty, innocent = await made.end("async_leave"), await made.end_of(neighbour)
    for finished in (guilty, innocent):
        assert (failure_of(finished).code, failure_of(finished).category) == ("EXIT_3", "lost")
        assert "2 attempts" in failure_of(finished).message
        assert not finished.collateral


async def test_an_attempt_alone_in_the_loop_process_bears_its_end_itself(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        failure = failure_of(await made.end("async_leave"))
    assert (failure.code, failure.category) == ("EXIT_3", "transient")


async def test_a_stopped_loop_goes_on_for_everybody(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        neighbour = await made.begin("async_wait_for_gate")
        stopped = await made.end("async_stop_loop")
        left = failure_of(await made.end("async_exit_in_subtask"))
        await made.end("async_open_gate")
        finished = await made.end_of(neighbour)
    assert stopped.result == b'"stopped"'
    assert left.code == "EXIT_5"
    assert finished.result == b'"through"'


async def test_an_attempt_that_a_neighbour_cancels_is_collateral(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        neighbour = await made.begin("async_wait_for_gate")
        guilty = await made.end("async_cancel_all")
        cancelled = await made.end_of(neighbour)
        itself = await made.end("async_cancel_itself")
    assert guilty.result == b'"cancelled"'
    assert cancelled.collateral
    assert failure_of(cancelled).code == "COLLATERAL"
    assert not itself.collateral
    assert failure_of(itself).code == "PYTHON_ERROR"


async def test_an_attempt_cancelled_by_a_neighbour_before_its_first_step_still_ends(
    hostile_app: Path,
) -> None:
    async with worker(hostile_app, slots=0) as made:
        starts = [attempt_of(_spec(name)) for name in ("async_cancel_all", "async_wait_for_gate")]
        made.executor.start(starts)
        cancelled = [await made.end_of(start) for start in starts][1]
    assert cancelled.collateral


async def test_no_coroutine_can_close_the_output_of_the_others(hostile_app: Path) -> None:
    async with worker(hostile_app, slots=0) as made:
        for _ in range(2):
            finished = await made.end("async_close_stdout")
            assert made.text_of(finished, "stdout") == "printed\n"
