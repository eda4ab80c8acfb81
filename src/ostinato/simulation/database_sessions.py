"""Sessions with the simulated database: one connection, its transaction, its statements under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

from ostinato.store.server.database import Role
from ostinato.store.server.faults import Fault

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer
    from ostinato.simulation.database_locks import LockWait, Resource
    from ostinato.simulation.database_wire import Wire

#: Any: what the statement answers, which its caller knows.
Answer: TypeAlias = Any
Action: TypeAlias = Callable[["Session"], Answer]


class StatementFailedError(Exception):
    """A statement, or its connection, has failed in a way that the real drivers tell too."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(fault.reason)
        self.fault = fault


class DeadlineOverError(Exception):
    """The time of the call is over."""


class Failed:
    """An answer that is an error."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def lost(reason: str) -> Failed:
    """The connection is gone, and whether the statement under way took effect is unknown."""
    return Failed(StatementFailedError(Fault("lost", reason)))


#: Says that the answer comes later: the statement waits.
BLOCKED = object()


class Session:
    """One connection: how the server sees it, and what the client remembers of it."""

    __slots__ = (
        "arrives_us",
        "has_sent_commit",
        "held_locks",
        "idle_since_us",
        "in_transaction",
        "is_broken",
        "is_committing",
        "is_ended",
        "is_ending",
        "locks",
        "process",
        "request",
        "role",
        "seen_held",
        "waiting",
        "wire",
    )

    def __init__(self, wire: Wire, *, process: str, role: Role) -> None:
        """`process` is its name, for the history."""
        self.wire = wire
        self.process = process
        self.role: Role = role
        # ── at the server ──
        #: Rolled back, its locks free; of no use any more.
        self.is_ended = False
        self.in_transaction = False
        #: COMMIT is being carried out: nothing ends it any more.
        self.is_committing = False
        #: To end once that is done.
        self.is_ending = False
        #: Since when the client is silent amid a transaction.
        self.idle_since_us: int | None = None
        self.request: Request | None = None
        self.locks: dict[Resource, None] = {}
        self.waiting: LockWait | None = None
        # ── in between ──
        #: Nothing of it arrives any more: each end finds out by itself.
        self.is_broken = False
        #: When the newest message arrives: what is sent later does not overtake it.
        self.arrives_us = 0
        # ── at the client ──
        self.has_sent_commit = False
        #: Session locks that it believes to hold, and those of others that it has seen held.
        self.held_locks: set[str] = set()
        self.seen_held: set[str] = set()


class Request:
    """One statement on its way to the server, and its answer on the way back."""

    __slots__ = ("action", "answer", "ends_us", "is_timed", "server", "session")

    def __init__(
        self, server: DatabaseServer, session: Session, *, action: Action | None, ends_us: int
    ) -> None:
        """`ends_us`, in true time: the client waits no longer. Without an `action`: the client hangs up."""
        self.server = server
        self.session = session
        self.action = action
        self.ends_us = ends_us
        self.answer: asyncio.Future[Answer] = server.loop.create_future()
        self.is_timed = False

    def watch_deadline(self) -> None:
        """The answer may take too long. Called only then: a timer for each statement would cost too much."""
        if not self.is_timed:
            self.is_timed = True
            self.server.later(max(0, self.ends_us - self.server.now_us()), self._give_up)

    def deliver(self, answer: Answer) -> None:
        """To the client; nothing where it has given up."""
        if not self.answer.done():
            self.answer.set_result(answer)

    def _give_up(self) -> None:
        self.deliver(Failed(DeadlineOverError()))
