"""The way between one machine and the simulated database: time, silence, broken connections."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ostinato.core.instants import SECOND
from ostinato.simulation.database_sessions import Answer, Request, Session, lost

if TYPE_CHECKING:
    from ostinato.simulation.database import DatabaseServer

#: What one way takes unless something is wrong: at least, and less than.
WAY_US = (50, 500)
#: The server finds a silent machine dead after this long: at least, and less than.
KEEPALIVE_US = (2 * SECOND, 3 * SECOND)
#: A broken connection is noticed within this time where it is noticed at all before the deadline.
_NOTICED_US = SECOND


class Wire:
    """Carries requests of one machine there, and their answers back; messages of one connection in order."""

    def __init__(self, server: DatabaseServer, name: str) -> None:
        self._server = server
        self._rng = server.rng
        self.name = name
        self.there_us = WAY_US
        self.back_us = WAY_US
        #: Nothing arrives, and nobody is told: kept until it is mended, as TCP sends again.
        self.is_silent_there = False
        self.is_silent_back = False
        #: Every connection is broken at once, and new ones are refused.
        self.is_refused = False
        #: Share of the messages with which the connection breaks.
        self.broken_there_share = 0.0
        self.broken_back_share = 0.0
        self.breaks_commits_only = False
        self._held_there: list[Request] = []
        self._held_back: list[tuple[Request, Answer]] = []
        #: Their connection is broken, and the client has not been told.
        self._unnoticed: list[Request] = []

    @property
    def is_cut(self) -> bool:
        """Something of what is sent does not arrive."""
        return self.is_silent_there or self.is_silent_back or self.is_refused

    def carry(self, request: Request) -> None:
        """From the client to the server."""
        if self.is_silent_there:
            self._held_there.append(request)
            request.watch_deadline()
        elif self.is_refused:
            self._server.transactions.end_session(request.session)
            self._server.later(self._draw(self.there_us), request.deliver, lost("the connection was reset"))
        elif self.broken_there_share and self._is_breaking(request, self.broken_there_share):
            self._break(request)
        else:
            session, server = request.session, self._server
            low_us, high_us = self.there_us
            arrives_us = server.now_us() + low_us + int(self._rng.random() * (high_us - low_us))
            session.arrives_us = arrives_us = max(arrives_us, session.arrives_us)
            if arrives_us >= request.ends_us:
                request.watch_deadline()
            server.at(arrives_us, server.arrive, request)

    def bring(self, request: Request, answer: Answer) -> None:
        """From the server to the client."""
        if request.answer.done():
            return
        if self.is_silent_back:
            self._held_back.append((request, answer))
            request.watch_deadline()
        elif self.is_refused or (
            self.broken_back_share and self._is_breaking(request, self.broken_back_share)
        ):
            self._break(request)
        else:
            server = self._server
            low_us, high_us = self.back_us
            arrives_us = server.now_us() + low_us + int(self._rng.random() * (high_us - low_us))
            if arrives_us >= request.ends_us:
                request.watch_deadline()
            server.at(arrives_us, request.deliver, answer)

    def hang_up(self, session: Session) -> None:
        """The client has closed the connection; the server rolls back when it hears of it."""
        if not session.is_ended and not session.is_broken:
            self.carry(Request(self._server, session, action=None, ends_us=self._server.now_us()))

    def end(self, session: Session) -> None:
        """The client is dead. What it has sent, and has not arrived in a silence, is sent no more."""
        self._held_there = [request for request in self._held_there if request.session is not session]
        if self.is_silent_there or self.is_silent_back:
            after_us = self._draw(KEEPALIVE_US)
        else:
            after_us = max(self._draw(self.there_us), session.arrives_us - self._server.now_us())
        self._server.later(after_us, self._server.transactions.end_session, session)

    def go_on(self) -> None:
        """What was sent meanwhile arrives, as far as silence has ended."""
        if not self.is_silent_there:
            held, self._held_there = self._held_there, []
            for request in held:
                self.carry(request)
        if not self.is_silent_back:
            kept, self._held_back = self._held_back, []
            for request, answer in kept:
                self.bring(request, answer)

    def way_us(self) -> int:
        """Time of one way there."""
        return self._draw(self.there_us)

    def _is_breaking(self, request: Request, share: float) -> bool:
        if self.breaks_commits_only and not request.session.has_sent_commit:
            return False
        return self._rng.random() < share

    def _break(self, request: Request) -> None:
        """The connection of `request` breaks: each end notices in its own time, or by its time-out alone."""
        session = request.session
        if not session.is_broken:
            session.is_broken = True
            ends_us = 0 if self._rng.random() < 0.5 else self._draw(KEEPALIVE_US)
            self._server.later(ends_us, self._server.transactions.end_session, session)
        if self._rng.random() < 0.5:
            noticed_us = self._rng.randrange(_NOTICED_US)
            self._server.later(noticed_us, request.deliver, lost("the connection was reset"))
        else:
            self._unnoticed = [each for each in self._unnoticed if not each.answer.done()]
            self._unnoticed.append(request)
        request.watch_deadline()

    def tell_of_breaks(self) -> None:
        """Nothing is in the way any more: that the server has closed a connection, sent again, arrives."""
        unnoticed, self._unnoticed = self._unnoticed, []
        for request in unnoticed:
            self._server.later(_NOTICED_US, request.deliver, lost("the connection was reset"))

    def _draw(self, bounds_us: tuple[int, int]) -> int:
        low_us, high_us = bounds_us
        return low_us + int(self._rng.random() * (high_us - low_us))
