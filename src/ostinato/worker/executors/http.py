"""Sends one HTTP request per attempt; the status decides.

Every request carries the attempt's fencing token (``Ostinato-Instance``, ``-Attempt``, ``-Attempt-Id``) and
an ``Idempotency-Key`` that is the same for all attempts of one generation, so that the server can refuse what
it has already done. The task's own headers win over these.

A task without a body whose method takes one sends its payload as JSON. The answer's body is read up to
`http_body.BODY_BYTES_MAX`, as sent and as decoded; the rest is left unread and the result says so. Nothing
about the body of a complete answer makes the attempt fail: what it asked for has been done.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ostinato.clock import Clock
from ostinato.core.definition import HttpSpec
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import AttemptTasks, StopRequest, until_stopped_or

if TYPE_CHECKING:
    from ostinato.worker.executors.http_exchange import HttpExchanges


class HttpExecutor:
    """Executor of kind ``http``."""

    kind = "http"

    def __init__(self, *, clock: Clock) -> None:
        self._clock = clock
        self._sink: EventSink | None = None
        self._attempts: AttemptTasks | None = None
        self._exchanges: HttpExchanges | None = None

    async def open(self, sink: EventSink) -> None:
        self._sink = sink
        self._attempts = AttemptTasks(self._run, clock=self._clock, sink=sink, kind="request")

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.start(attempts)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.stop(attempt_id, reason=reason, grace_us=grace_us)

    async def close(self) -> None:
        if self._attempts is not None:
            await self._attempts.close()
        if self._exchanges is not None:
            await self._exchanges.close()

    async def _run(self, start: AttemptStart, stop: StopRequest) -> AttemptFinished:
        assert self._sink is not None, "open() comes first"
        spec = start.spec.executor
        assert isinstance(spec, HttpSpec)
        started_us = self._clock.wall_us()
        self._sink.started([start.assignment.attempt_id])
        exchange = asyncio.create_task(self._exchange(start, spec))
        await until_stopped_or(stop, exchange)
        # An answer that has arrived together with the stop still counts.
        if not exchange.done():
            exchange.cancel()
        with suppress(asyncio.CancelledError):
            await asyncio.wait([exchange])
        result: bytes | None = None
        failure: Failure | None = None
        if exchange.cancelled():
            failure = safe_failure(
                "EXECUTOR_ERROR", "the request was given up because the attempt was stopped"
            )
        else:
            result, failure = exchange.result()
        return AttemptFinished(
            attempt_id=start.assignment.attempt_id,
            started_us=started_us,
            finished_us=self._clock.wall_us(),
            result=result,
            failure=failure,
        )

    async def _exchange(self, start: AttemptStart, spec: HttpSpec) -> tuple[bytes | None, Failure | None]:
        if self._exchanges is None:
            made = await asyncio.to_thread(_new_exchanges, self._clock)
            # Another request may have been first.
            self._exchanges = self._exchanges or made
        return await self._exchanges.exchange(start, spec)


def _new_exchanges(clock: Clock) -> HttpExchanges:
    # Not at the top: most workers never send a request, and httpx takes a fifth of a second and 5 MB.
    from ostinato.worker.executors.http_exchange import HttpExchanges

    return HttpExchanges(clock)
