"""One connection to the HTTP place: how many there may be, and how long one may keep us waiting.

Uvicorn bounds the time between two requests, and nothing else: a connection that sends half a head would
stay for ever, and a thousand of them would take every file descriptor that the scheduler needs.
"""

from __future__ import annotations

import asyncio
import resource
from typing import Any, ClassVar

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from ostinato.api.asgi import SAFE_HEADERS
from ostinato.api.problem import PROBLEM_TYPE, Problem, encode_problem, problem_of
from ostinato.errors import UnavailableError, UserError

CONNECTIONS_MAX = 256
#: From the connection, or the answer before, to the end of a request's head.
HEAD_SECONDS_MAX = 10
#: Longest silence between two requests.
KEEP_ALIVE_SECONDS_MAX = 5
#: How often a connection is looked at, and the longest time in which the rest of an answer may stand still.
_LOOK_SECONDS = 2
_STALL_SECONDS_MAX = 30
#: One that has waited so long for its head makes room for a new one when there is none left.
_YIELD_SECONDS_MIN = 1
#: Of all descriptors; the rest is for the database, for workers and for what has still to be opened.
_DESCRIPTOR_SHARE = 4


def connections_max() -> int:
    """How many connections are kept at once: few enough that this process has descriptors left."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return CONNECTIONS_MAX if soft < 0 else max(1, min(CONNECTIONS_MAX, soft // _DESCRIPTOR_SHARE))


class Connection(H11Protocol):
    """HTTP/1.1 of which a bounded number is open, each for a bounded time without a request."""

    connections_max: ClassVar[int] = CONNECTIONS_MAX
    head_seconds_max: ClassVar[float] = HEAD_SECONDS_MAX
    stall_seconds_max: ClassVar[float] = _STALL_SECONDS_MAX
    look_seconds: ClassVar[float] = _LOOK_SECONDS

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._look: asyncio.TimerHandle | None = None
        #: Loop time since when a head is waited for.
        self.waits_since = self.loop.time()
        self._unsent_bytes = 0
        self._moved_at = self.waits_since

    @property
    def waits_for_head(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override] # as uvicorn has it
        super().connection_made(transport)
        self.waits_since = self._moved_at = self.loop.time()
        if len(self.connections) > self.connections_max and not self._make_room():
            self._refuse(
                problem_of(
                    UnavailableError(
                        "OVERLOADED",
                        f"{self.connections_max} connections are open, and no more are kept",
                        hint="repeat it a little later",
                    )
                )
            )
        self._look = self.loop.call_later(self.look_seconds, self._look_after)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self.waits_since = self.loop.time()
        super().on_response_complete()

    def send_400_response(self, msg: str) -> None:
        """Answer what is no HTTP as a problem, too."""
        self._refuse(
            problem_of(UserError("INVALID_VALUE", "the request is not HTTP/1.1, or its head is too long"))
        )

    def _refuse(self, problem: Problem) -> None:
        body = encode_problem(problem)
        headers = [
            *SAFE_HEADERS,
            (b"content-type", PROBLEM_TYPE.encode()),
            (b"content-length", str(len(body)).encode()),
            (b"connection", b"close"),
        ]
        reason = b"Bad Request" if problem.status == 400 else b"Service Unavailable"
        for event in (
            h11.Response(status_code=problem.status, headers=headers, reason=reason),
            h11.Data(data=body),
            h11.EndOfMessage(),
        ):
            self.transport.write(self.conn.send(event) or b"")
        self.transport.close()

    def _make_room(self) -> bool:
        """End the connection that has waited longest for its head, if it has had its time."""
        waiting = [
            other
            for other in self.connections
            if isinstance(other, Connection) and other is not self and other.waits_for_head
        ]
        oldest = min(waiting, key=lambda other: other.waits_since, default=None)
        if oldest is None or self.loop.time() - oldest.waits_since < _YIELD_SECONDS_MIN:
            return False
        # Out of the count at once: the loop tells of its end only later, and others may come before.
        self.connections.discard(oldest)
        oldest.transport.abort()
        return True

    def _look_after(self) -> None:
        now = self.loop.time()
        unsent_bytes = self.transport.get_write_buffer_size()
        if unsent_bytes == 0 or unsent_bytes != self._unsent_bytes:
            self._unsent_bytes, self._moved_at = unsent_bytes, now
        if unsent_bytes:
            # Nobody else ends one whose answer has been given up or is written, but not taken.
            is_over = now - self._moved_at >= self.stall_seconds_max
        else:
            is_over = self.waits_for_head and now - self.waits_since >= self.head_seconds_max
        if is_over:
            self.transport.abort()
            return
        self._look = self.loop.call_later(self.look_seconds, self._look_after)
