"""The worker's stream to its node: opened, greeted, kept, and opened again for as long as the worker lives.

What runs does not notice that a stream was lost. The next ``Hello`` reports it, unacknowledged outcomes go
first, and the node adopts what it finds (design section 3, Leases).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from contextlib import suppress
from random import Random

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.errors import CODES, EXIT_BAD_INPUT, UnavailableError, UserError
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Assignments,
    Cancel,
    Drain,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    OutcomesAcknowledged,
    Rejected,
    Specs,
    Welcome,
)
from ostinato.wire.protocol import WorkerStream, WorkerTransport
from ostinato.worker.attempts import Attempts
from ostinato.worker.config import WorkerConfig
from ostinato.worker.credits import Credits
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.outbox import Outbox
from ostinato.worker.sending import send_what_fits
from ostinato.worker.spool import Spool
from ostinato.worker.waiting import within

_log = logging.getLogger("ostinato.worker")

BACKOFF_US_MIN = 100 * MILLISECOND
#: Cap of the back-off, which is also capped by a sixth of the worker lease once a node has told that.
BACKOFF_US_MAX = 5 * SECOND
#: A scheduler that stays away is a warning at first, and then once in this time.
UNREACHABLE_TOLD_US = MINUTE


class Connection:
    """Keeps one stream to the configured address. `on_drain` is called when the node asks for a drain.

    `is_connected` is set while a node serves the stream.
    """

    def __init__(
        self,
        config: WorkerConfig,
        *,
        worker_id: str,
        clock: Clock,
        transport: WorkerTransport,
        rng: Random,
        attempts: Attempts,
        outbox: Outbox,
        credits: Credits,
        lease: LeaseGuard,
        known: KnownTasks,
        executors: Sequence[str],
        on_drain: Callable[[str], None],
        is_connected: asyncio.Event,
        on_leases_moved: Callable[[], None],
        spool: Spool | None = None,
    ) -> None:
        self._config = config
        self._worker_id = worker_id
        self._clock = clock
        self._transport = transport
        self._rng = rng
        self._attempts = attempts
        self._outbox = outbox
        self._credits = credits
        self._lease = lease
        self._known = known
        self._executors = list(executors)
        self._on_drain = on_drain
        self._sequence = 0
        #: When a heartbeat of this stream was last acknowledged, or the stream welcomed (boot time).
        self._heard_us = 0
        self._failures = 0
        self._was_welcome = False
        self._unreachable_told_us: int | None = None
        self._is_connected = is_connected
        self._on_leases_moved = on_leases_moved
        self._spool = spool

    async def run(self) -> None:
        """Connect for ever. Raises what the first node says if it refuses the worker for good."""
        while True:
            try:
                await self._one_stream()
            except (UnavailableError, TimeoutError) as error:
                self._tell_failure(str(error))
            finally:
                self._is_connected.clear()
            await self._clock.sleep_until_us(self._clock.boot_us() + self._backoff_us())

    def _tell_failure(self, reason: str) -> None:
        told = {"address": self._config.scheduler, "reason": reason}
        if self._is_connected.is_set():
            self._unreachable_told_us = None
            _log.warning("scheduler_lost", extra=told)
            return
        now_us = self._clock.boot_us()
        last_us = self._unreachable_told_us
        if last_us is not None and now_us - last_us < UNREACHABLE_TOLD_US:
            _log.debug("scheduler_unreachable", extra=told)
            return
        self._unreachable_told_us = now_us
        _log.warning("scheduler_unreachable", extra=told)

    def _backoff_us(self) -> int:
        """Pause before the next connection: doubled each time, at most 5 s or a sixth of the worker lease."""
        lease_us = self._lease.worker_lease_us
        cap_us = BACKOFF_US_MAX if lease_us is None else min(BACKOFF_US_MAX, lease_us // 6)
        pause_us = min(cap_us, BACKOFF_US_MIN << min(self._failures, 20))
        self._failures += 1
        return round(pause_us * self._rng.uniform(0.5, 1.0))

    async def _one_stream(self) -> None:
        limit_us = self._config.connect_timeout_us
        if self._spool is not None:
            # So that what workers that are gone have left is in this stream's first report; a slow disk is
            # no reason to stay away.
            with suppress(TimeoutError):
                await within(self._clock, self._spool.take_over(), limit_us=limit_us)
        stream = await within(self._clock, self._transport.connect(self._config.scheduler), limit_us=limit_us)
        try:
            welcome, early = await within(self._clock, self._greet(stream), limit_us=limit_us)
            self._failures = 0
            self._was_welcome = True
            self._heard_us = self._clock.boot_us()
            self._outbox.begin_stream()
            self._is_connected.set()
            _log.info(
                "scheduler_found", extra={"address": self._config.scheduler, "node_id": welcome.node_id}
            )
            await self._serve(stream, early, heartbeat_us=welcome.heartbeat_us)
        finally:
            await stream.close()

    async def _greet(self, stream: WorkerStream) -> tuple[Welcome, list[NodeMessage]]:
        """Say hello and hear the answer; also what came along with it."""
        sent_us = self._clock.boot_us()
        await send_what_fits(stream, [self._hello()])
        early: list[NodeMessage] = []
        while True:
            for message in await stream.receive():
                if isinstance(message, Rejected):
                    raise self._rejection(message)
                if isinstance(message, Welcome):
                    self._take_welcome(message, hello_sent_us=sent_us)
                early.append(message)
            welcome = next((message for message in early if isinstance(message, Welcome)), None)
            if welcome is not None:
                return welcome, [message for message in early if message is not welcome]

    def _take_welcome(self, message: Welcome, *, hello_sent_us: int) -> None:
        if message.protocol != PROTOCOL_VERSION:
            newer = "scheduler" if message.protocol > PROTOCOL_VERSION else "worker"
            raise self._rejection(
                Rejected(
                    "PROTOCOL_MISMATCH",
                    f"scheduler speaks protocol {message.protocol}, worker {PROTOCOL_VERSION}; "
                    f"the {newer} is newer, update the other",
                )
            )
        self._lease.welcome(worker_lease_us=message.worker_lease_us, hello_sent_us=hello_sent_us)

    def _hello(self) -> Hello:
        config, known = self._config, self._known
        self._credits.begin_stream()
        self._attempts.begin_stream()
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self._worker_id,
            worker_name=config.worker_name,
            token=config.token,
            labels=config.labels,
            capacity=config.capacity,
            tasks=known.tasks,
            executors=self._executors,
            running=self._attempts.reports(),
            problems=known.problems,
            declarations=[] if self._was_welcome else known.declarations,
            granted=self._credits.granted(),
            ended_workers=[] if self._spool is None else self._spool.ended_workers,
        )

    def _rejection(self, message: Rejected) -> Exception:
        entry = CODES.get(message.code)
        if entry is not None and entry.exit_code == EXIT_BAD_INPUT and not self._was_welcome:
            return UserError(message.code, message.message, subject=self._config.scheduler)
        # A worker that has been welcome once has attempts to keep: it waits until it is again.
        return UnavailableError(
            "SCHEDULER_UNREACHABLE",
            f"the scheduler refused the worker: {message.message}",
            subject=self._config.scheduler,
        )

    async def _silence_loop(self) -> None:
        """Raise once no heartbeat has been acknowledged for half a worker lease: the stream may be half open.

        Half, so that a new stream comes in time for what runs (C113); the transport's own check takes longer.
        """
        lease_us = self._lease.worker_lease_us
        assert lease_us is not None, "a stream is served once its node has told the lease"
        limit_us = lease_us // 2
        while (now_us := self._clock.boot_us()) < self._heard_us + limit_us:
            await self._clock.sleep_until_us(max(self._heard_us + limit_us, now_us + 1))
        raise UnavailableError(
            "CONNECTION_CLOSED",
            f"no heartbeat was acknowledged for {limit_us / SECOND:g} s",
            subject=self._config.scheduler,
        )

    async def _serve(self, stream: WorkerStream, early: list[NodeMessage], *, heartbeat_us: int) -> None:
        loops = [
            asyncio.create_task(self._receive_loop(stream, early)),
            asyncio.create_task(self._send_loop(stream)),
            asyncio.create_task(self._heartbeat_loop(stream, heartbeat_us)),
            asyncio.create_task(self._silence_loop()),
        ]
        try:
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()
        finally:
            for loop in loops:
                loop.cancel()
            await asyncio.wait(loops)

    async def _receive_loop(self, stream: WorkerStream, early: list[NodeMessage]) -> None:
        messages = early
        while True:
            for message in messages:
                self._on_message(message)
            messages = await stream.receive()

    def _on_message(self, message: NodeMessage) -> None:
        if isinstance(message, Assignments):
            self._attempts.assign(message)
        elif isinstance(message, OutcomesAcknowledged):
            self._outbox.acknowledge(message.attempt_ids)
        elif isinstance(message, Specs):
            self._attempts.learn(message.items)
        elif isinstance(message, HeartbeatAcknowledged):
            self._heard_us = self._clock.boot_us()
            self._lease.acknowledged(message.sent_boot_us, message.partitions)
            self._attempts.lease_extended(message.partitions)
            self._on_leases_moved()
        elif isinstance(message, Cancel):
            self._attempts.cancel(message)
        elif isinstance(message, Drain):
            self._on_drain(message.reason)

    async def _send_loop(self, stream: WorkerStream) -> None:
        while True:
            await self._outbox.has_mail.wait()
            messages = self._outbox.take()
            if messages:
                await send_what_fits(stream, messages)

    async def _heartbeat_loop(self, stream: WorkerStream, heartbeat_us: int) -> None:
        while True:
            now_us = self._clock.boot_us()
            self._outbox.count_heartbeat()
            self._sequence += 1
            self._lease.sent(self._sequence, now_us)
            await stream.send([Heartbeat(self._sequence, now_us, self._credits.granted())])
            await self._clock.sleep_until_us(now_us + heartbeat_us)
