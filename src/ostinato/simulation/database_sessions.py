"""Sessions with the simulated database: one connection, its transaction, and the pool that a process has."""

from __future__ import annotations

import asyncio
from collections import deque
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


class Pool:
    """The connections of one role of a process, made when they are needed."""

    def __init__(self, new_session: Callable[[], Session], server: DatabaseServer, *, size: int) -> None:
        self._new_session = new_session
        self._server = server
        self._size = size
        self._free: list[Session] = []
        self._waiters: deque[asyncio.Future[None]] = deque()
        #: In use or free, by age.
        self.sessions: dict[Session, None] = {}

    async def take(self, ends_us: int) -> Session:
        """A connection for one transaction. Raises what connecting does, and ``DeadlineOverError``."""
        while True:
            if self._free:
                return self._free.pop()
            if len(self.sessions) < self._size:
                return await self._connect(ends_us)
            await self._wait(ends_us)

    def give(self, session: Session) -> None:
        """Give back one that can be used again."""
        if session in self.sessions:
            self._free.append(session)
        self._wake_next()

    def discard(self, session: Session) -> None:
        """Throw one away: the server is told, as far as it can be reached."""
        if self.sessions.pop(session, self) is None:
            session.wire.hang_up(session)
        self._wake_next()

    def discard_idle(self) -> None:
        """Those that lie idle are no better than one that was lost."""
        while self._free:
            self.discard(self._free.pop())

    def close(self) -> None:
        self._free.clear()
        for session in list(self.sessions):
            self.discard(session)

    async def _connect(self, ends_us: int) -> Session:
        session = self._new_session()
        self.sessions[session] = None
        try:
            await self._server.ask(session, self._server.accept, ends_us=ends_us)
        except BaseException:
            self.discard(session)
            raise
        return session

    async def _wait(self, ends_us: int) -> None:
        left_us = ends_us - self._server.now_us()
        if left_us <= 0:
            raise DeadlineOverError
        turn: asyncio.Future[None] = self._server.loop.create_future()
        self._waiters.append(turn)
        alarm = self._server.later(left_us, turn.cancel)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self._wake_next()
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise DeadlineOverError from None
        finally:
            alarm.cancel()

    def _wake_next(self) -> None:
        while self._waiters:
            turn = self._waiters.popleft()
            if not turn.done():
                turn.set_result(None)
                return
