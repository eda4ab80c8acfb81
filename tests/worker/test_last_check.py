"""The last look at the lease, inside the process and just before user code (I1)."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import PythonSpec
from ostinato.core.instants import SECOND
from ostinato.testing.contracts.executor_harness import attempt_of, task_spec
from ostinato.worker.executors.protocol import AttemptFinished
from ostinato.worker.frames import (
    Configure,
    Finished,
    Run,
    RunItem,
    ToProcess,
    decode_for_supervisor,
    encode_frame,
)
from ostinato.worker.framing import FrameSplitter
from ostinato.worker.lease_guard import DRIFT_US
from ostinato.worker.loop_process import LOOP_MODULE
from ostinato.worker.slots import SLOT_MODULE

_WAIT_SECONDS = 60.0


class Process:
    """A process of tasks without a supervisor or guardian: what it does is its own decision."""

    def __init__(self, module: str, app: Path, data_dir: Path) -> None:
        self.channel, theirs = socket.socketpair()
        self.channel.settimeout(_WAIT_SECONDS)
        with theirs:
            self._child = subprocess.Popen(
                [sys.executable, "-X", "utf8", "-m", module, str(theirs.fileno())],
                pass_fds=[theirs.fileno()],
                # At the end of its channel it kills its process group.
                start_new_session=True,
            )
        self._splitter = FrameSplitter()
        self._send(Configure(str(app), 0, str(data_dir)))

    def run(self, name: str, *, lease_ends_us: int | None) -> AttemptFinished:
        """How one attempt of `name` ends there."""
        assignment = attempt_of(task_spec(name, PythonSpec(call="")), b'{"a": 2, "b": 3}').assignment
        self._send(Run([RunItem(assignment, "", None, lease_ends_us=lease_ends_us)]))
        while data := self.channel.recv(65_536):
            for body in self._splitter.feed(data):
                for message in decode_for_supervisor(body):
                    if isinstance(message, Finished):
                        return message.items[0]
        raise AssertionError("the process ended without a word")

    def close(self) -> None:
        self.channel.close()
        self._child.wait(_WAIT_SECONDS)

    def _send(self, message: ToProcess) -> None:
        self.channel.sendall(encode_frame([message]))


@pytest.fixture(params=[SLOT_MODULE, LOOP_MODULE], ids=["slot", "loop"])
def process(request: pytest.FixtureRequest, app_file: Path, tmp_path: Path) -> Iterator[Process]:
    made = Process(request.param, app_file, tmp_path)
    yield made
    made.close()


def test_a_process_starts_nothing_whose_lease_is_over_and_goes_on_with_what_has_one(
    process: Process,
) -> None:
    clock = SystemClock(0)
    refused = process.run("add", lease_ends_us=clock.boot_us() + DRIFT_US)
    assert refused.refused == "its lease was over just before its start"
    assert (refused.started_us, refused.result, refused.failure) == (None, None, None)
    for lease_ends_us in (clock.boot_us() + 60 * SECOND, None):
        ran = process.run("add", lease_ends_us=lease_ends_us)
        assert (ran.result, ran.refused) == (b"5", "")
