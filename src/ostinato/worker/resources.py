"""How limits of memory and CPU are enforced on this machine: by control groups, or by rlimits.

**Control groups** (version 2) bound all processes of an attempt together and exactly. They need a directory
that was *delegated* to the worker (see ``delegation.py``), with the controllers ``memory`` and ``cpu``::

    DELEGATED/                        where the worker was started
      ostinato-worker/                the worker's own processes: a group that passes controllers on to
                                      its children may hold no process itself
      ostinato-attempt-ATTEMPT_ID/    memory.max, memory.oom.group, cpu.max; gone with the attempt

**Rlimits** otherwise: the address space of each process by itself, and no more CPUs than the cores allowed,
rounded up. Either way what a Python process had before its attempt began is not counted.
"""

from __future__ import annotations

import errno
import select
import signal
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import NamedTuple, Protocol

import msgspec

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.sizes import format_size
from ostinato.wire.messages import TaskSpec
from ostinato.worker.delegation import CONTROLLERS, LEAF, CgroupUnavailable, find_delegated_cgroup
from ostinato.worker.process_limits import ProcessLimits

_ATTEMPT_PREFIX = "ostinato-attempt-"
_CPU_PERIOD_US = 100_000
#: Least share that the kernel takes.
_CPU_QUOTA_MIN_US = 1_000
#: Longest wait for killed processes to vanish: 20 times 100 ms.
_WAIT_MS = 100
_WAITS_MAX = 20
_ROUNDS_MAX = 100
#: Ways in which a process ends that was refused memory and did not expect it.
_CRASHES = frozenset(
    f"SIGNAL_{int(number)}" for number in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGKILL)
)


class Limits(NamedTuple):
    """What an attempt may take; None is no limit."""

    memory_bytes: int | None = None
    cpu_cores: float | None = None

    @staticmethod
    def of(spec: TaskSpec) -> Limits:
        """Those of a task."""
        return Limits(spec.memory_limit_bytes, spec.cpu_limit)


class Holding:
    """Limits of one attempt from before its process starts until after its end; this one has none."""

    #: What the process itself has to do; None: nothing.
    process_limits: ProcessLimits | None = None

    def explain(self, failure: Failure) -> Failure:
        """The failure, as the limits show it; call it when the process has ended, before `release`."""
        return failure

    def release(self) -> None:
        """End what is left and give everything back. May block for a moment; idempotent."""
        return


class Resources(Protocol):
    """One way to enforce limits: ``cgroup`` or ``rlimits``, and why it is this one."""

    @property
    def how(self) -> str: ...

    @property
    def why(self) -> str: ...

    def hold(self, attempt_id: str, limits: Limits) -> Holding:
        """Prepare the limits of an attempt. Raises ``LimitsUnavailable``."""
        ...


class LimitsUnavailable(Exception):
    """The limits of an attempt could not be prepared, so it is not started."""

    def __init__(self, error: OSError) -> None:
        super().__init__(str(error))
        self.failure = safe_failure("SPAWN_FAILED", f"its limits could not be prepared: {error}")


def find_resources() -> Resources:
    """The best way that this machine has; may move the calling process, so call it before all else."""
    try:
        directory = find_delegated_cgroup()
        return CgroupResources(directory)
    except (CgroupUnavailable, OSError) as error:
        return RlimitResources(str(error))


# ── rlimits ───────────────────────────────────────────────────────────────────────────────────────────


class RlimitResources:
    """Limits that each process of an attempt has by itself."""

    how = "rlimits"

    def __init__(self, why: str) -> None:
        self.why = why

    def hold(self, attempt_id: str, limits: Limits) -> Holding:
        return Holding() if limits == Limits() else _RlimitHolding(limits)


class _RlimitHolding(Holding):
    def __init__(self, limits: Limits) -> None:
        self._memory_bytes = limits.memory_bytes
        self.process_limits = ProcessLimits(
            memory_bytes=limits.memory_bytes,
            cpu_count=None if limits.cpu_cores is None else ceil(limits.cpu_cores),
        )

    def explain(self, failure: Failure) -> Failure:
        if self._memory_bytes is None:
            return failure
        limit = f"memory_limit {format_size(self._memory_bytes)} (rlimits: of address space, in each process)"
        if failure.code in ("OOM", "ENOMEM"):
            return _over_limit(failure, f"{failure.message}; the task has {limit}")
        if failure.code in _CRASHES:
            said = f"{failure.message}; the task has {limit}, which may be why"
            return msgspec.structs.replace(failure, message=said)
        return failure


def _over_limit(failure: Failure, message: str) -> Failure:
    return safe_failure(
        "OOM", message, classes=failure.classes, chain=failure.chain, traceback=failure.traceback
    )


# ── control groups ────────────────────────────────────────────────────────────────────────────────────


class CgroupFiles:
    """How groups are made, told and removed: by files, which the kernel answers."""

    def make(self, group: Path) -> None:
        """Make a group; its files appear with it."""
        group.mkdir(exist_ok=True)

    def write(self, file: Path, text: str) -> None:
        """Tell the kernel something."""
        file.write_text(text)

    def remove(self, group: Path) -> None:
        """Remove a group, which must be empty; its files go with it."""
        group.rmdir()


class CgroupResources:
    """A control group for each attempt, below a delegated directory."""

    how = "cgroup"

    def __init__(self, directory: Path, *, files: CgroupFiles | None = None) -> None:
        """Take the directory over: its processes move to a leaf. Raises ``OSError`` if that is refused."""
        self.why = f"{directory} is delegated to the worker"
        self._directory = directory
        self._files = files if files is not None else CgroupFiles()
        self._files.make(directory / LEAF)
        self._move_to_leaf()
        controllers = " ".join(f"+{name}" for name in CONTROLLERS)
        self._files.write(directory / "cgroup.subtree_control", controllers)
        self._remove_left_over()

    def hold(self, attempt_id: str, limits: Limits) -> Holding:
        if limits == Limits():
            return Holding()
        group = self._directory / f"{_ATTEMPT_PREFIX}{attempt_id}"
        holding = _CgroupHolding(group, limits, files=self._files)
        try:
            self._files.make(group)
            try:
                holding.write_limits()
            except OSError:
                holding.release()
                raise
        except OSError as error:
            raise LimitsUnavailable(error) from error
        return holding

    def _move_to_leaf(self) -> None:
        """Move every process of the directory; new ones may appear while that is done."""
        for _ in range(_ROUNDS_MAX):
            pids = (self._directory / "cgroup.procs").read_text().split()
            if not pids:
                return
            for pid in pids:
                # One that has ended meanwhile needs no move.
                with suppress(ProcessLookupError):
                    self._files.write(self._directory / LEAF / "cgroup.procs", pid)
        raise OSError(errno.EBUSY, "processes keep appearing", str(self._directory))

    def _remove_left_over(self) -> None:
        """Groups of a worker that was killed; those that still hold processes are another worker's."""
        for group in self._directory.glob(f"{_ATTEMPT_PREFIX}*"):
            try:
                if not _is_populated(group):
                    self._files.remove(group)
            except OSError as error:
                if error.errno not in (errno.EBUSY, errno.ENOENT):
                    raise


class _CgroupHolding(Holding):
    def __init__(self, group: Path, limits: Limits, *, files: CgroupFiles) -> None:
        self._group = group
        self._limits = limits
        self._files = files
        self._is_released = False
        self.process_limits = ProcessLimits(cgroup=str(group))

    def write_limits(self) -> None:
        """Set them, before any process joins."""
        memory_bytes, cpu_cores = self._limits
        if memory_bytes is not None:
            self._files.write(self._group / "memory.max", str(memory_bytes))
            # All of it or none: half a tree of processes is of no use to anybody.
            self._files.write(self._group / "memory.oom.group", "1")
            swap = self._group / "memory.swap.max"
            if swap.exists():
                # Else the limit would be one on speed.
                self._files.write(swap, "0")
        if cpu_cores is not None:
            quota_us = max(_CPU_QUOTA_MIN_US, round(cpu_cores * _CPU_PERIOD_US))
            self._files.write(self._group / "cpu.max", f"{quota_us} {_CPU_PERIOD_US}")

    def explain(self, failure: Failure) -> Failure:
        memory_bytes = self._limits.memory_bytes
        if memory_bytes is None or not _read_counter(self._group / "memory.events", "oom_kill"):
            return failure
        limit = f"memory_limit {format_size(memory_bytes)} (cgroup: of all its processes together)"
        return _over_limit(failure, f"killed because it went over its {limit}")

    def release(self) -> None:
        if self._is_released:
            return
        self._is_released = True
        kill = self._group / "cgroup.kill"
        if kill.exists() and _is_populated(self._group):
            self._files.write(kill, "1")
            _wait_until_empty(self._group)
        try:
            self._files.remove(self._group)
        except OSError as error:
            # The next start of a worker removes what cannot be removed now.
            if error.errno not in (errno.EBUSY, errno.ENOENT):
                raise


def _is_populated(group: Path) -> bool:
    return bool(_read_counter(group / "cgroup.events", "populated"))


def _wait_until_empty(group: Path) -> None:
    """Return when its last process is gone, or will not be for now."""
    with (group / "cgroup.events").open("rb") as events:
        poll = select.poll()
        # How the kernel says that the file has changed.
        poll.register(events, select.POLLPRI)
        for _ in range(_WAITS_MAX):
            events.seek(0)
            if b"populated 1" not in events.read():
                return
            poll.poll(_WAIT_MS)


def _read_counter(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
