"""The worker's stream to one address: opened, greeted, kept, and opened again for as long as it is known.

What runs does not notice that a stream was lost. The next ``Hello`` reports it, unacknowledged outcomes go
first, and the node adopts what it finds (design section 3, Leases). Streams to several nodes know nothing of
each other's pace: each has its own mail, heartbeats and back-off.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.errors import CODES, EXIT_BAD_INPUT, UnavailableError, UserError
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Assignments,
    Cancel,
    Drain,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Rejected,
    Report,
    Specs,
    Welcome,
    WorkerMessage,
)
from ostinato.wire.protocol import WorkerStream
from ostinato.worker.mail import Mail
from ostinato.worker.sending import send_what_fits
from ostinato.worker.waiting import Alarm, gathering_us, within

if TYPE_CHECKING:
    from ostinato.worker.links import LinkParts, Links

_log = logging.getLogger("ostinato.worker")

BACKOFF_US_MIN = 100 * MILLISECOND
#: Cap of the back-off, which is also capped by a sixth of the worker lease once a node has told that.
BACKOFF_US_MAX = 5 * SECOND
#: A scheduler that stays away is a warning at first, and then once in this time.
UNREACHABLE_TOLD_US = MINUTE
#: How long an address rests whose node another stream has reached; that may change unnoticed.
SAME_NODE_US = MINUTE


class SameNodeError(Exception):
    """Another stream has reached the same node, which is named."""

    def __init__(self, node_id: str) -> None:
        super().__init__(f"another stream has reached node {node_id}")
        self.node_id = node_id


class Connection:
    """Keeps one stream to an address."""

    def __init__(self, address: str, *, parts: LinkParts, links: Links) -> None:
        self.address = address
        self._parts = parts
        self._links = links
        self._clock = parts.clock
        self._attempts = parts.attempts
        self._outbox = parts.outbox
        self._credits = parts.credits
        self._lease = parts.lease
        #: Number of the present stream, and the node that serves it; 0 and empty if there is none.
        self._stream = 0
        self._node_id = ""
        self._mail: Mail | None = None
        self._alarm = Alarm(parts.clock)
        self._is_hastened = False
        #: Another stream has reached this one's node.
        self._is_given_up = asyncio.Event()
        #: It ends for another reason: its greeting is out of date.
        self._is_renewed = False
        #: When a heartbeat of this stream was last acknowledged, or the stream welcomed (boot time).
        self._heard_us = 0
        self._failures = 0
        self._unreachable_told_us: int | None = None

    async def run(self) -> None:
        """Connect for ever. Raises what the node says that refuses for good, if none has welcomed yet."""
        while True:
            same_node_id = ""
            try:
                await self._one_stream()
            except SameNodeError as error:
                same_node_id = error.node_id
            except (UnavailableError, TimeoutError) as error:
                self._tell_failure(str(error))
            finally:
                self._leave()
            if same_node_id:
                _log.debug("scheduler_known", extra={"address": self.address, "node_id": same_node_id})
                with suppress(TimeoutError):
                    resting = self._links.until_node_leaves(same_node_id)
                    await within(self._clock, resting, limit_us=SAME_NODE_US)
            await self._clock.sleep_until_us(self._clock.boot_us() + self._backoff_us())

    def give_up(self) -> None:
        """End the present stream: another one has reached its node."""
        self._is_given_up.set()

    def renew(self) -> None:
        """End the present stream, and begin another at once: there is more to say in a greeting."""
        self._is_renewed = True
        self._is_given_up.set()

    def _leave(self) -> None:
        stream, self._stream = self._stream, 0
        node_id, self._node_id = self._node_id, ""
        self._mail = None
        self._is_given_up.clear()
        self._is_renewed = False
        self._links.end_stream(stream)
        self._links.left(self, node_id)
        self._outbox.close(stream)
        self._attempts.end_stream(stream)
        self._lease.end_stream(stream)
        self._credits.close(stream)

    def _tell_failure(self, reason: str) -> None:
        told = {"address": self.address, "reason": reason}
        if self._node_id:
            self._unreachable_told_us = None
            _log.warning("scheduler_lost", extra={**told, "node_id": self._node_id})
            return
        now_us = self._clock.boot_us()
        last_us = self._unreachable_told_us
        if last_us is not None and now_us - last_us < UNREACHABLE_TOLD_US:
            _log.debug("scheduler_unreachable", extra=told)
            return
        self._unreachable_told_us = now_us
        if not self._links.was_welcome:
            told["hint"] = "ostinato scheduler opens a port for workers, ostinato dev opens none"
        _log.warning("scheduler_unreachable", extra=told)

    def _backoff_us(self) -> int:
        """Pause before the next connection: doubled each time, at most 5 s or a sixth of the worker lease."""
        lease_us = self._lease.worker_lease_us
        cap_us = BACKOFF_US_MAX if lease_us is None else min(BACKOFF_US_MAX, lease_us // 6)
        pause_us = min(cap_us, BACKOFF_US_MIN << min(self._failures, 20))
        self._failures += 1
        return round(pause_us * self._parts.rng.uniform(0.5, 1.0))

    async def _one_stream(self) -> None:
        limit_us = self._parts.config.connect_timeout_us
        spool = self._parts.spool
        if spool is not None:
            # So that what workers that are gone have left is in this stream's first report; a slow disk is
            # no reason to stay away.
            with suppress(TimeoutError):
                await within(self._clock, spool.take_over(), limit_us=limit_us)
        connecting = self._parts.transport.connect(self.address)
        stream = await within(self._clock, connecting, limit_us=limit_us)
        try:
            welcome, early = await within(self._clock, self._greet(stream), limit_us=limit_us)
            self._failures = 0
            self._heard_us = self._clock.boot_us()
            self._node_id = welcome.node_id
            self._mail = self._outbox.open(
                self._stream, lambda: self._credits.granted(self._stream), ahead=lambda: self._credits.ahead
            )
            self._links.welcomed(self, welcome.node_id, nodes=welcome.nodes)
            self._credits.welcomed(self._stream)
            _log.info("scheduler_found", extra={"address": self.address, "node_id": welcome.node_id})
            await self._serve(stream, self._mail, early, heartbeat_us=welcome.heartbeat_us)
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
        self._lease.welcome(
            self._stream, worker_lease_us=message.worker_lease_us, hello_sent_us=hello_sent_us
        )

    def _hello(self) -> Hello:
        config, known, spool = self._parts.config, self._parts.known, self._parts.spool
        self._stream, open_streams = self._links.begin_stream()
        granted = self._credits.open(
            self._stream, on_granted=self._grants_changed, on_wanted=self._hasten_heartbeat
        )
        return Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self._parts.worker_id,
            worker_name=config.worker_name,
            token=config.token,
            labels=config.labels,
            capacity=config.capacity,
            tasks=known.tasks,
            executors=self._parts.executors(),
            running=self._attempts.reports(),
            problems=known.problems,
            declarations=known.declarations if self._links.declares(self) else [],
            granted=granted,
            ended_workers=[] if spool is None else spool.ended_workers,
            stream=self._stream,
            open_streams=open_streams,
        )

    def _grants_changed(self) -> None:
        if self._mail is not None:
            self._mail.grants_changed()

    def _hasten_heartbeat(self) -> None:
        """What is wanted back is said by a heartbeat: one that need not wait for its time."""
        self._is_hastened = True
        self._alarm.at_latest(self._clock.boot_us())

    def _rejection(self, message: Rejected) -> Exception:
        if message.code == "ALREADY_CONNECTED":
            return SameNodeError(message.node_id)
        entry = CODES.get(message.code)
        if entry is not None and entry.exit_code == EXIT_BAD_INPUT and not self._links.was_welcome:
            return UserError(message.code, message.message, subject=self.address)
        # A worker that has been welcome once has attempts to keep: it waits until it is again.
        return UnavailableError(
            "SCHEDULER_UNREACHABLE",
            f"the scheduler refused the worker: {message.message}",
            subject=self.address,
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
            subject=self.address,
        )

    async def _given_up(self) -> None:
        await self._is_given_up.wait()
        if self._is_renewed:
            return
        raise SameNodeError(self._node_id)

    async def _serve(
        self, stream: WorkerStream, mail: Mail, early: list[NodeMessage], *, heartbeat_us: int
    ) -> None:
        loops = [
            asyncio.create_task(self._receive_loop(stream, early)),
            asyncio.create_task(self._send_loop(stream, mail)),
            asyncio.create_task(self._heartbeat_loop(stream, mail, heartbeat_us)),
            asyncio.create_task(self._silence_loop()),
            asyncio.create_task(self._given_up()),
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
        stream = self._stream
        if isinstance(message, Assignments):
            self._attempts.assign(stream, message)
        elif isinstance(message, OutcomesAcknowledged):
            self._outbox.acknowledge(stream, message.attempt_ids, unowned=message.unowned)
        elif isinstance(message, Specs):
            self._attempts.learn(stream, message.items)
        elif isinstance(message, HeartbeatAcknowledged):
            self._heartbeat_acknowledged(message)
        elif isinstance(message, Cancel):
            self._attempts.cancel(message)
        elif isinstance(message, Drain):
            self._parts.on_drain(message.reason)

    def _heartbeat_acknowledged(self, message: HeartbeatAcknowledged) -> None:
        stream = self._stream
        self._heard_us = self._clock.boot_us()
        partitions = self._parts.epochs.current(message.partitions, message.epochs)
        self._lease.acknowledged(stream, message.sequence, partitions=partitions)
        self._attempts.lease_extended(partitions)
        self._parts.on_leases_moved()
        self._outbox.owned(stream, partitions)
        self._credits.heard(stream, returned=message.returned, demand=message.demand)
        if message.nodes:
            self._links.told(self, message.nodes)
        if message.asks_report and self._mail is not None:
            self._mail.report(Report(message.sequence, self._attempts.reports()))

    async def _heartbeat_loop(self, stream: WorkerStream, mail: Mail, heartbeat_us: int) -> None:
        next_us = self._clock.boot_us()
        while True:
            self._is_hastened = False
            now_us = self._clock.boot_us()
            if now_us >= next_us:
                mail.count_heartbeat()
                next_us = now_us + heartbeat_us
            sequence = self._links.next_sequence()
            self._lease.sent(self._stream, sequence, at_us=now_us)
            granted, wanted = self._credits.granted(self._stream), self._credits.wanted(self._stream)
            await stream.send([Heartbeat(sequence, now_us, granted, wanted, self._credits.ahead)])
            while not self._is_hastened and self._clock.boot_us() < next_us:
                await self._alarm.wait(next_us)

    async def _send_loop(self, stream: WorkerStream, mail: Mail) -> None:
        while True:
            await mail.has_mail.wait()
            if mail.has_acceptances_alone:
                # Nobody waits for it, and what has just been accepted may end soon.
                await self._gather(0)
            messages = mail.take()
            if messages:
                await send_what_fits(stream, messages)
                if not _is_alone(messages):
                    count = sum(len(each.items) for each in messages if isinstance(each, Outcomes))
                    await self._gather(count)

    async def _gather(self, count: int) -> None:
        """Wait after so many outcomes: a message costs both sides as much as some of these."""
        if self._parts.config.gathers:
            await self._clock.sleep_until_us(self._clock.boot_us() + gathering_us(count))


def _is_alone(messages: Sequence[WorkerMessage]) -> bool:
    """Whether an attempt was accepted that came alone: what it has to say next need not wait for others."""
    return all(isinstance(each, Accepted) and len(each.attempt_ids) == 1 for each in messages)
