"""The ``Executor`` protocol: how a kind of task is run on a worker.

Batched and callback-free of results: the supervisor starts lists of attempts and hears of everything that
happens to them through one sink. An executor enforces no time-out of its own; the supervisor decides when an
attempt must end and calls `stop`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Protocol, runtime_checkable

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment, TaskSpec


class AttemptStart(msgspec.Struct):
    """One attempt to run. `deadline_us` is its UTC deadline for the task's own information.

    `lease_ends_us` is boot time, None for a relaxed attempt; the supervisor moves it while the lease is
    extended, so it is read when the attempt really begins.
    """

    assignment: Assignment
    spec: TaskSpec
    deadline_us: int | None = None
    lease_ends_us: int | None = None


class StopReason(StrEnum):
    """Why the supervisor ends an attempt before it has ended by itself."""

    TIMEOUT = "timeout"
    CANCELLED = "cancelled"
    HEARTBEAT_TIMEOUT = "heartbeat_timeout"
    LEASE_ENDED = "lease_ended"
    DRAIN = "drain"


class AttemptFinished(msgspec.Struct, array_like=True):
    """An attempt has ended and everything that it had is free again.

    An attempt that was stopped reports whatever happened to it (a result, a failure, its death); the
    supervisor turns that into the failure that the stop means.
    """

    attempt_id: str
    #: Instants (UTC). `started_us` is None if no user code ran.
    started_us: int | None
    finished_us: int
    result: bytes | None = None
    failure: Failure | None = None
    #: It died with a neighbour that had to be killed: lost, uncounted.
    collateral: bool = False
    #: Why none of it ran, if it was refused at the last moment: handed back, nothing counts.
    refused: str = ""


class AttemptBeat(msgspec.Struct, array_like=True):
    """The task called ``heartbeat()`` or ``progress()``. `fraction` below 0: unknown."""

    attempt_id: str
    fraction: float = -1.0
    text: str = ""


class EventSink(Protocol):
    """Where an executor reports; called on the supervisor's event loop, never blocks."""

    def started(self, attempt_ids: Sequence[str]) -> None:
        """These run from now on; their time-outs count from here, not from a wait for a process."""
        ...

    def finished(self, events: Sequence[AttemptFinished]) -> None: ...

    def output(self, chunks: Sequence[OutputChunk]) -> None: ...

    def beat(self, events: Sequence[AttemptBeat]) -> None: ...


class Executor(Protocol):
    """Runs attempts of one kind (``python``, ``shell``, ``http``, ``container``)."""

    @property
    def kind(self) -> str: ...

    async def open(self, sink: EventSink) -> None:
        """Make ready to run; called once."""
        ...

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        """Begin attempts; each ends in exactly one ``AttemptFinished``, also if it cannot be started."""
        ...

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """End an attempt: cooperatively or by SIGTERM at once, by SIGKILL after `grace_us`.

        Unknown or ended ones are ignored; a second call may only shorten the grace.
        """
        ...

    async def close(self) -> None:
        """Kill what still runs, wait for it, give everything back; idempotent."""
        ...


@runtime_checkable
class KeepsLeases(Protocol):
    """An executor whose processes a guardian ends if the supervisor does not; it must know their leases."""

    def leases_moved(self) -> None:
        """`lease_ends_us` of attempts that were started here has changed."""
        ...


@runtime_checkable
class ComesAndGoes(Protocol):
    """An executor that can run attempts at some times only; the worker says which it has now."""

    @property
    def is_ready(self) -> bool: ...

    def on_readiness(self, changed: Callable[[], None]) -> None:
        """Call `changed` whenever `is_ready` has changed."""
        ...
