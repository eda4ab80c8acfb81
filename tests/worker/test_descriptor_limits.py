"""A node or worker may have many files open; the processes of tasks have the limit that was there before."""

from __future__ import annotations

import resource
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec
from ostinato.testing.contracts.executor_harness import attempt_of, opened, task_spec
from ostinato.worker import process_limits
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.process_limits import (
    DESCRIPTORS_MAX,
    raise_descriptor_limit,
    restore_descriptor_limit,
)

SOFT_BEFORE = 300


@pytest.fixture
def raised(monkeypatch: pytest.MonkeyPatch) -> Iterator[int]:
    """The limit that is in force once a small one has been raised."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    monkeypatch.setattr(process_limits._Descriptors, "soft_before", None)
    resource.setrlimit(resource.RLIMIT_NOFILE, (SOFT_BEFORE, before[1]))
    raise_descriptor_limit()
    yield resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_limit_is_raised_towards_the_hard_one(raised: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    assert raised == (DESCRIPTORS_MAX if hard < 0 else min(hard, DESCRIPTORS_MAX))
    raise_descriptor_limit()
    assert process_limits._Descriptors.soft_before == SOFT_BEFORE


async def test_command_of_a_task_has_the_limit_from_before(raised: int, tmp_path: Path) -> None:
    executor = ShellExecutor(clock=SystemClock(), data_dir=tmp_path)
    async with opened(executor) as sink:
        start = attempt_of(task_spec("command", ShellSpec(command="ulimit -Sn; ulimit -Hn")), b"{}")
        executor.start([start])
        finished = await sink.end_of(start.assignment.attempt_id)
    assert finished.result is not None
    soft, hard = msgspec.json.decode(finished.result)["stdout_tail"].split()
    assert raised > SOFT_BEFORE
    assert soft == str(SOFT_BEFORE)
    assert hard in (str(resource.getrlimit(resource.RLIMIT_NOFILE)[1]), "unlimited")


def test_process_that_has_ended_already_is_no_error(raised: int) -> None:
    ended = subprocess.Popen([sys.executable, "-c", "pass"])
    ended.wait()
    restore_descriptor_limit(ended.pid)
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == raised
