"""The executor contract at a real engine, where this machine has one: Docker, or Podman's socket."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import ContainerSpec
from ostinato.testing.contracts.executor import ExecutorContract
from ostinato.testing.contracts.executor_harness import ExecutorCase, task_spec
from ostinato.wire.messages import TaskSpec
from ostinato.worker.engine.blocking import call_engine
from ostinato.worker.executors.container import ContainerExecutor
from ostinato.worker.executors.protocol import Executor

SOCKET = os.environ.get("OSTINATO_TEST_ENGINE", "/var/run/docker.sock")
#: Small, and with a shell.
IMAGE = os.environ.get("OSTINATO_TEST_IMAGE", "docker.io/library/busybox:1.37")


def why_not() -> str:
    """Why there is no engine to test with; empty: there is one."""
    try:
        call_engine(SOCKET, "GET", target="/_ping", timeout_s=5)
    except OSError as error:
        return f"no container engine answers at {SOCKET} (OSTINATO_TEST_ENGINE may name one): {error}"
    return ""


def boxed(name: str, command: str | tuple[str, ...], image: str = IMAGE) -> TaskSpec:
    return task_spec(name, ContainerSpec(image, command))


class RealCase:
    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.succeeds = boxed("ok", "true")
        self.fails = (boxed("bad", "exit 3"), "EXIT_3")
        self.waits = boxed("wait", ("sleep", "600"))
        stubborn = "trap '' TERM; sleep 600 & while true; do wait; done"
        self.stubborn: TaskSpec | None = boxed("stubborn", stubborn)
        self.broken = boxed("broken", "true", image="localhost:1/no/such:image")
        self.talks: TaskSpec | None = boxed("talk", "echo one; echo two")

    def make(self) -> Executor:
        return ContainerExecutor(
            clock=SystemClock(),
            socket=Path(SOCKET),
            data_dir=self._folder / "workers" / "test",
            worker_id="test",
            worker_name="test",
        )


@pytest.mark.where_there_is_one
class TestRealEngine(ExecutorContract):
    @pytest.fixture
    def case(self, tmp_path: Path) -> ExecutorCase:
        reason = why_not()
        if reason:
            pytest.skip(reason)
        return RealCase(tmp_path)
