"""The connections that a process has to the simulated database in one role."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from ostinato.simulation.database_sessions import DeadlineOverError, Session

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer


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

    def take_free(self) -> Session | None:
        """As `take`, if that need not wait."""
        return self._free.pop() if self._free else None

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
