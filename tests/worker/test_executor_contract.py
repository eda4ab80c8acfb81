"""The executor contract on every executor."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from typing import NoReturn

import pytest
from support.fake_engine import FakeEngine, fake_engine

from ostinato.clock import SystemClock
from ostinato.core.definition import HttpSpec, PythonSpec, ShellSpec, TaskRef
from ostinato.core.failure.signals import TaskError
from ostinato.sdk.context import current_context
from ostinato.testing.contracts.executor import ExecutorContract
from ostinato.testing.contracts.executor_harness import ExecutorCase, attempt_of, opened, task_spec
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.wire.messages import TaskSpec
from ostinato.worker.executors.http import HttpExecutor
from ostinato.worker.executors.protocol import Executor
from ostinato.worker.executors.python import build_python_executor
from ostinato.worker.executors.shell import ShellExecutor
from tests.worker.containers import container_task, make_executor


def python_task(name: str, *, is_async: bool = False) -> TaskSpec:
    return task_spec(name, PythonSpec(call="", is_async=is_async))


class DefCase:
    def __init__(self, app: Path) -> None:
        self._app = app
        self.succeeds = python_task("nothing")
        self.fails = (python_task("fail"), "NO_CUSTOMER")
        self.waits = python_task("wait_for_cancel")
        self.stubborn: TaskSpec | None = python_task("sleep_long")
        self.broken = python_task("no_such_task")
        self.talks: TaskSpec | None = python_task("talk")

    def make(self) -> Executor:
        return build_python_executor(app=str(self._app), clock=SystemClock(), process_slots=2)


class AsyncCase:
    def __init__(self, app: Path) -> None:
        self._app = app
        self.succeeds = python_task("async_nothing", is_async=True)
        self.fails = (python_task("async_fail", is_async=True), "NEVER")
        self.waits = python_task("async_wait", is_async=True)
        self.stubborn: TaskSpec | None = python_task("async_stubborn", is_async=True)
        self.broken = python_task("no_such_task", is_async=True)
        self.talks: TaskSpec | None = python_task("async_talk", is_async=True)

    def make(self) -> Executor:
        return build_python_executor(app=str(self._app), clock=SystemClock(), process_slots=0)


class ShellCase:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.succeeds = task_spec("ok", ShellSpec(command="true"))
        self.fails = (task_spec("bad", ShellSpec(command="exit 3")), "EXIT_3")
        self.waits = task_spec("wait", ShellSpec(command=("sleep", "600")))
        stubborn = ShellSpec(command="trap '' TERM; sleep 600 & while true; do wait; done")
        self.stubborn: TaskSpec | None = task_spec("stubborn", stubborn)
        self.broken = task_spec("broken", ShellSpec(command=("no-such-command",)))
        self.talks: TaskSpec | None = task_spec("talk", ShellSpec(command="echo one; echo two"))

    def make(self) -> Executor:
        return ShellExecutor(clock=SystemClock(), data_dir=self._folder)


class ContainerCase:
    def __init__(self, engine: FakeEngine, folder: Path) -> None:
        self._engine = engine
        self._folder = folder
        self.succeeds = container_task("true")
        self.fails = (container_task("exit 3"), "EXIT_3")
        self.waits = container_task(("sleep", "600"))
        stubborn = "trap '' TERM; sleep 600 & while true; do wait; done"
        self.stubborn: TaskSpec | None = container_task(stubborn)
        self.broken = container_task("true", image="missing/image:1")
        self.talks: TaskSpec | None = container_task("echo one; echo two")

    def make(self) -> Executor:
        return make_executor(self._engine, self._folder)


class HttpCase:
    def __init__(self, url: str) -> None:
        self.succeeds = task_spec("ok", HttpSpec(method="GET", url=f"{url}/ok"))
        self.fails = (task_spec("bad", HttpSpec(method="GET", url=f"{url}/missing")), "HTTP_404")
        self.waits = task_spec("wait", HttpSpec(method="GET", url=f"{url}/wait"))
        self.stubborn: TaskSpec | None = None
        self.broken = task_spec("broken", HttpSpec(method="GET", url="gopher://nowhere/"))
        self.talks: TaskSpec | None = None

    def make(self) -> Executor:
        return HttpExecutor(clock=SystemClock())


class InlineCase:
    def __init__(self) -> None:
        self.succeeds = python_task("ok")
        self.fails = (python_task("bad"), "NO_CUSTOMER")
        self.waits = python_task("wait")
        self.stubborn: TaskSpec | None = python_task("stubborn")
        self.broken = python_task("missing")
        self.talks: TaskSpec | None = python_task("talk")

    def make(self) -> Executor:
        functions = {"ok": _ok, "bad": _bad, "wait": _wait, "stubborn": _stubborn, "talk": _talk}
        named = {TaskRef("default", name): function for name, function in functions.items()}
        return InlineExecutor(named, clock=SystemClock())


def _ok() -> str:
    return "fine"


def _bad() -> NoReturn:
    raise TaskError("no such customer", code="NO_CUSTOMER")


async def _wait() -> None:
    await asyncio.Event().wait()


async def _stubborn() -> None:
    # Ends at the second request, as close() needs it to; a stop makes only one.
    try:
        await asyncio.Event().wait()
    except asyncio.CancelledError:
        await asyncio.Event().wait()


def _talk() -> None:
    context = current_context()
    context.logger.info("one")
    context.logger.info("two")


class TestDefTasks(ExecutorContract):
    @pytest.fixture
    def case(self, app_file: Path) -> ExecutorCase:
        return DefCase(app_file)


class TestAsyncTasks(ExecutorContract):
    @pytest.fixture
    def case(self, app_file: Path) -> ExecutorCase:
        return AsyncCase(app_file)


class TestShellTasks(ExecutorContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> ExecutorCase:
        return ShellCase(tmp_path)


class TestContainers(ExecutorContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Iterator[ExecutorCase]:
        with fake_engine(tmp_path) as engine:
            yield ContainerCase(engine, tmp_path)
            assert engine.containers == {}, "every container is removed"


class TestInlineTasks(ExecutorContract):
    @pytest.fixture
    def case(self) -> ExecutorCase:
        return InlineCase()

    async def test_output_arrives_in_order_before_the_end(self, case: ExecutorCase) -> None:
        # Its output is log lines, which carry a level and a logger.
        assert case.talks is not None
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.talks)
            executor.start([start])
            await sink.end_of(start.assignment.attempt_id)
            text = sink.text_of(start.assignment.attempt_id, "log")
        assert [line.split(": ")[1] for line in text.splitlines()] == ["one", "two"]


class TestHttpTasks(ExecutorContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> Iterator[ExecutorCase]:
        is_over = Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/wait":
                    is_over.wait(60)
                    return
                self.send_response(200 if self.path == "/ok" else 404)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: object) -> None:
                return

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever)
            thread.start()
            yield HttpCase(f"http://127.0.0.1:{server.server_port}")
            is_over.set()
            server.shutdown()
            thread.join()
