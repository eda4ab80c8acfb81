"""Limits that a process sets for itself between fork and exec, or just before it runs a task.

Memory is counted as address space, process by process; a process may lift its own limit. Where the worker has
a control group for the attempt (see ``resources.py``), it counts and bounds all processes together instead,
and all that is done here is to join it.
"""

from __future__ import annotations

import os
import resource
from contextlib import suppress
from pathlib import Path

import msgspec

#: Enough for any number of workers and connections; tables of descriptors take memory.
DESCRIPTORS_MAX = 65_536


class _Descriptors:
    """What this process has changed."""

    soft_before: int | None = None


class ProcessLimits(msgspec.Struct, frozen=True, array_like=True):
    """Memory in bytes of address space, and how many CPUs may be used; None: not limited."""

    memory_bytes: int | None = None
    cpu_count: int | None = None
    #: Directory of the control group to join; empty for none.
    cgroup: str = ""


def apply_limits(limits: ProcessLimits) -> None:
    """Limit this process and what it starts. Raises ``OSError`` and ``ValueError``."""
    if limits.cgroup:
        # 0 is the writing process itself.
        (Path(limits.cgroup) / "cgroup.procs").write_text("0")
    if limits.memory_bytes is not None:
        # The soft limit alone: with it a process of tasks can still report that it has hit it.
        _, hard = resource.getrlimit(resource.RLIMIT_AS)
        memory_bytes = limits.memory_bytes
        if hard != resource.RLIM_INFINITY:
            memory_bytes = min(memory_bytes, hard)
        resource.setrlimit(resource.RLIMIT_AS, (memory_bytes, hard))
    if limits.cpu_count is not None:
        os.sched_setaffinity(0, _own_share(sorted(os.sched_getaffinity(0)), limits.cpu_count))


def apply_limits_to_attempt(limits: ProcessLimits) -> None:
    """As `apply_limits` in a process that has memory already: only what is added counts, as in a group."""
    if limits.memory_bytes is not None:
        limits = msgspec.structs.replace(limits, memory_bytes=limits.memory_bytes + _address_space_bytes())
    apply_limits(limits)


def lift_memory_limit() -> None:
    """Undo the limit of memory in this process, so that what comes after the task has room."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


def raise_descriptor_limit() -> None:
    """Let this process have as many open files as it may; what it starts for tasks has the old limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = DESCRIPTORS_MAX if hard == resource.RLIM_INFINITY else min(hard, DESCRIPTORS_MAX)
    if soft == resource.RLIM_INFINITY or soft >= wanted:
        return
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    except (OSError, ValueError):
        # Some systems allow less than they say; then it stays as it was.
        return
    _Descriptors.soft_before = soft


def restore_descriptor_limit(pid: int) -> None:
    """Give a process just started, and what it will start, the limit from before `raise_descriptor_limit`.

    Programs that go through all possible descriptors, or use ``select``, break with many.
    """
    soft_before = _Descriptors.soft_before
    if soft_before is None:
        return
    with suppress(ProcessLookupError):
        _, hard = resource.prlimit(pid, resource.RLIMIT_NOFILE)
        resource.prlimit(pid, resource.RLIMIT_NOFILE, (soft_before, hard))


def _own_share(cpus: list[int], count: int) -> list[int]:
    """`count` of the CPUs, others for each process, so that not all crowd on the first."""
    start = os.getpid() % len(cpus)
    return (cpus[start:] + cpus[:start])[:count]


def _address_space_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    return pages * resource.getpagesize()
