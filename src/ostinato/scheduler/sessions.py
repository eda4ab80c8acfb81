"""The workers that are connected, what each may be given, and when each was last heard of."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from typing import Protocol

from msgspec.structs import replace

from ostinato.core.definition import TaskRef
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.routing import WorkerView
from ostinato.errors import OstinatoError
from ostinato.wire.ledgers import CreditLedger
from ostinato.wire.messages import (
    Assignment,
    Assignments,
    Cancel,
    Drain,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    OutcomesAcknowledged,
    Specs,
    TaskSpec,
)
from ostinato.wire.protocol import NodeStream


class Mailbox:
    """What a stream has yet to send. `post` never waits: a slow reader holds up nobody but itself."""

    def __init__(self, stream: NodeStream, *, name: str) -> None:
        self._stream = stream
        self._waiting: list[NodeMessage] = []
        self._has_mail = asyncio.Event()
        #: The receiving side sees the same end and reports it; nothing sent counts until acknowledged.
        self.is_broken = False
        self._is_ending = False
        self._sender = asyncio.create_task(self._send(), name=f"ostinato-send-{name}")

    def post(self, messages: Sequence[NodeMessage]) -> None:
        """Send as soon as the stream takes it; what a broken stream loses the worker's next report shows."""
        if len(self._waiting) >= _WAITING_MAX:
            # Nobody reads there: only the newest acknowledgement of a heartbeat says anything.
            self._waiting = [
                message for message in self._waiting if not isinstance(message, HeartbeatAcknowledged)
            ]
        self._waiting.extend(messages)
        self._has_mail.set()

    def end_soon(self) -> None:
        """Send nothing more, then end the stream; needs no waiting."""
        self._waiting.clear()
        self._is_ending = True
        self._has_mail.set()

    async def stop(self) -> None:
        """Send nothing more; the stream stays open."""
        self._sender.cancel()
        await asyncio.wait([self._sender])

    async def close(self) -> None:
        """End the stream and its sender."""
        await self.stop()
        await self._stream.close()

    async def _send(self) -> None:
        while True:
            await self._has_mail.wait()
            self._has_mail.clear()
            messages, self._waiting = self._waiting, []
            if self._is_ending:
                await self._stream.close()
                return
            try:
                await self._stream.send(messages)
            except OstinatoError:
                self.is_broken = True
                return


#: Acknowledgements of heartbeats that are remembered, for the reports that answer them.
_ACKNOWLEDGEMENTS_KEPT = 32
#: Messages that may wait for a stream before those that have been overtaken are left out.
_WAITING_MAX = 1_000


class Reporter(Protocol):
    """Whoever brings outcomes and is told which of them are on record."""

    def post(self, messages: Sequence[NodeMessage]) -> None: ...


class WorkerSession:
    """One worker's stream."""

    def __init__(self, hello: Hello, stream: NodeStream, *, boot_us: int) -> None:
        self.worker_id = hello.worker_id
        self.worker_name = hello.worker_name
        self.hello = hello
        self.ledger = CreditLedger(hello.granted)
        #: By pool: how many of the worker's credits are places ahead of its slots.
        self.ahead: dict[str, int] = {}
        #: Newest heartbeat that was processed while this node believed in its partitions.
        self.heartbeat_sequence = 0
        #: Monotonic time of its arrival, the greeting counting as the first.
        self.leased_boot_us = boot_us
        #: Attempts may have been adopted since the newest heartbeat: the next one dates them.
        self.is_undated = True
        self._acknowledgements: deque[tuple[int, dict[int, int]]] = deque(maxlen=_ACKNOWLEDGEMENTS_KEPT)
        self._nodes_told: list[str] = []
        #: Newest acknowledgement, to be repeated when something else that it says has changed.
        self.newest_acknowledgement: HeartbeatAcknowledged | None = None
        #: Monotonic time of the newest heartbeat's arrival.
        self.heard_boot_us = boot_us
        self.connected_boot_us = boot_us
        #: It takes no new work and ends once what it has has ended: it says so, or has been asked to.
        self.is_draining = False
        self._is_closed = False
        self.turn = 0
        #: Ids of attempts that the worker has said on this stream that it has.
        self.reported = {report.attempt_id for report in hello.running}
        self.tasks = frozenset(hello.tasks)
        self._executors = frozenset(hello.executors)
        self._unacknowledged: dict[str, RunningAttempt] = {}
        self._specs_sent: set[tuple[TaskRef, int]] = set()
        self._mailbox = Mailbox(stream, name=hello.worker_name)

    @property
    def in_rotation(self) -> bool:
        """Whether it may be given work."""
        return not (self.is_draining or self._is_closed or self._mailbox.is_broken)

    def post(self, messages: Sequence[NodeMessage]) -> None:
        """As ``Mailbox.post``."""
        for message in messages:
            if isinstance(message, OutcomesAcknowledged):
                self.reported.difference_update(message.attempt_ids)
        self._mailbox.post(messages)

    def assign(self, attempts: Sequence[tuple[RunningAttempt, Assignment]]) -> None:
        """Send assignments, after the task versions that this stream has not seen.

        What somebody has cancelled between its commit and now follows as cancelled: the signal that the wish
        gave was too early for the worker.
        """
        specs: list[TaskSpec] = []
        for attempt, assignment in attempts:
            self._unacknowledged[attempt.attempt_id] = attempt
            attempt.heartbeat_sequence = self.heartbeat_sequence or None
            key = (assignment.ref, assignment.version)
            if key not in self._specs_sent:
                self._specs_sent.add(key)
                specs.append(task_spec(attempt))
        messages: list[NodeMessage] = [Specs(specs)] if specs else []
        messages.append(Assignments(self.heartbeat_sequence, [assignment for _, assignment in attempts]))
        messages.extend(
            Cancel(attempt.instance_id, attempt.attempt_id, attempt.cancel_reason)
            for attempt, _ in attempts
            if attempt.cancel_requested
        )
        self.post(messages)

    def acknowledge(self, attempt_ids: Sequence[str]) -> None:
        """The worker has these assignments."""
        self.reported.update(attempt_ids)
        for attempt_id in attempt_ids:
            attempt = self._unacknowledged.pop(attempt_id, None)
            if attempt is not None:
                attempt.acknowledged = True

    def acknowledge_heartbeat(
        self,
        heartbeat: Heartbeat,
        epochs: dict[int, int],
        *,
        nodes: list[str],
        demand: dict[str, int],
        asks_report: bool,
    ) -> None:
        """Confirm a heartbeat as the owner of partitions, by their epochs, and say what else is new."""
        acknowledged = HeartbeatAcknowledged(
            sequence=heartbeat.sequence,
            sent_boot_us=heartbeat.sent_boot_us,
            partitions=list(epochs),
            nodes=[] if nodes == self._nodes_told else nodes,
            returned=self.ledger.returned,
            demand=demand,
            asks_report=asks_report,
            epochs=list(epochs.values()),
        )
        self._nodes_told = nodes
        self._acknowledgements.append((heartbeat.sequence, epochs))
        self.newest_acknowledgement = acknowledged
        self.post([acknowledged])

    @property
    def knows_demand(self) -> bool:
        """Whether the newest acknowledgement says that more could be placed; or there is none to repeat."""
        return self.newest_acknowledgement is None or bool(self.newest_acknowledgement.demand)

    def tell_demand(self, demand: dict[str, int]) -> None:
        """Say at once what could be placed with more credits, unless the newest acknowledgement did."""
        newest = self.newest_acknowledgement
        if newest is None or newest.demand or not demand:
            return
        self.newest_acknowledgement = replace(newest, nodes=[], demand=demand, returned=self.ledger.returned)
        self.post([self.newest_acknowledgement])

    def tell_returned(self) -> None:
        """Say at once which credits have been given back, not only with the next acknowledgement."""
        if self.newest_acknowledgement is not None:
            newest = replace(self.newest_acknowledgement, nodes=[], returned=self.ledger.returned)
            self.newest_acknowledgement = newest
            self.post([newest])

    def listed(self, sequence: int) -> dict[int, int]:
        """Epochs by partition as the acknowledgement of a recent heartbeat listed them."""
        found = (epochs for known, epochs in self._acknowledgements if known == sequence)
        return next(found, {})

    def note_nodes(self, nodes: list[str]) -> None:
        """The worker has been told of these nodes."""
        self._nodes_told = nodes

    def view(self) -> WorkerView:
        """What routing needs, with the credits of this moment."""
        capacity = self.hello.capacity
        return WorkerView(
            worker_id=self.worker_id,
            worker_name=self.worker_name,
            labels=self.hello.labels,
            tasks=self.tasks,
            executors=self._executors,
            capacity=capacity,
            free={pool: self.ledger.available(pool) for pool in capacity},
            ahead=self.ahead,
            turn=self.turn,
        )

    def end_soon(self) -> None:
        """Give it no more work, and let whoever serves it end the stream."""
        self._is_closed = True
        self._mailbox.end_soon()

    async def close(self) -> None:
        """End the stream."""
        self._is_closed = True
        await self._mailbox.close()


class Sessions:
    """Connected workers by id, and when workers that have left were last heard of."""

    def __init__(self) -> None:
        self.by_id: dict[str, WorkerSession] = {}
        #: Guardians' streams by the id of the worker that each guards.
        self.guardians: dict[str, Reporter] = {}
        self._names_told: set[str] = set()
        self._left_boot_us: dict[str, int] = {}
        #: Number of the newest stream that each worker has had to this node, if it counts them.
        self._newest_streams: dict[str, int] = {}
        #: Addresses of all nodes, for workers; empty: not known.
        self.addresses: Callable[[], list[str]] = list
        #: Workers that have been asked to drain, and why: a stream that was lost may have lost the wish too.
        self._drains: dict[str, str] = {}

    def add(self, session: WorkerSession) -> WorkerSession | None:
        """Register a session; returns the one that it replaces, a broken stream of the same process."""
        old = self.by_id.pop(session.worker_id, None)
        same = (other.tasks for other in self.by_id.values() if other.tasks == session.tasks)
        # One object for all that know the same: whether they do is asked in every round.
        session.tasks = next(same, session.tasks)
        self.by_id[session.worker_id] = session
        self._left_boot_us.pop(session.worker_id, None)
        self._newest_streams[session.worker_id] = session.hello.stream
        return old

    def has_reached(self, hello: Hello) -> bool:
        """Whether another stream of the worker has come to this node, by another address, and is not over.

        Its greeting would say nothing of what was assigned there meanwhile: it must not replace that one.
        """
        newest = self._newest_streams.get(hello.worker_id, 0)
        return hello.stream > 0 and (newest in hello.open_streams or hello.stream <= newest)

    def drain(self, worker_id: str, reason: str) -> WorkerSession | None:
        """Ask a worker to drain; it gets no new work from now on. None: it is not connected."""
        session = self.by_id.get(worker_id)
        if session is not None:
            self._drains[worker_id] = reason
            self.repeat_drain(session)
        return session

    def repeat_drain(self, session: WorkerSession) -> None:
        """Tell a worker, on a new stream again, that it has been asked to drain; nothing if it has not."""
        reason = self._drains.get(session.worker_id)
        if reason is not None:
            session.is_draining = True
            session.post([Drain(reason)])

    def shares_name(self, session: WorkerSession) -> bool:
        """Whether another worker of the same name is connected; True once for each name."""
        name = session.worker_name
        if name in self._names_told:
            return False
        others = [other for other in self.by_id.values() if other.worker_name == name]
        if len(others) < 2:
            return False
        self._names_told.add(name)
        return True

    def reporter(self, worker_id: str, *, is_guardian: bool) -> Reporter | None:
        """The present stream of whoever brought an outcome; None if there is none."""
        return self.guardians.get(worker_id) if is_guardian else self.by_id.get(worker_id)

    def remove(self, session: WorkerSession) -> bool:
        """Forget a session; False when another one of the same worker has replaced it."""
        if self.by_id.get(session.worker_id) is not session:
            return False
        del self.by_id[session.worker_id]
        self._left_boot_us[session.worker_id] = session.heard_boot_us
        return True

    def heard_boot_us(self, worker_id: str) -> int | None:
        """Monotonic time of a worker's newest heartbeat; None if this node has never heard of it."""
        session = self.by_id.get(worker_id)
        return session.heard_boot_us if session is not None else self._left_boot_us.get(worker_id)

    def newest_heard_boot_us(self) -> int | None:
        """When the newest heartbeat of a connected worker came; None: no worker is connected."""
        return max((session.heard_boot_us for session in self.by_id.values()), default=None)

    def forget_left(self, before_boot_us: int) -> None:
        """Drop workers that left before; their attempts have been dealt with."""
        self._left_boot_us = {
            worker_id: left_us
            for worker_id, left_us in self._left_boot_us.items()
            if left_us >= before_boot_us
        }
        self._newest_streams = {
            worker_id: stream
            for worker_id, stream in self._newest_streams.items()
            if worker_id in self.by_id or worker_id in self._left_boot_us
        }
        self._drains = {
            worker_id: reason
            for worker_id, reason in self._drains.items()
            if worker_id in self.by_id or worker_id in self._left_boot_us
        }

    def in_rotation(self) -> list[WorkerSession]:
        """Sessions that may be given work, in order of connection."""
        return [session for session in self.by_id.values() if session.in_rotation]


def task_spec(attempt: RunningAttempt) -> TaskSpec:
    """What the worker must know of the version that an attempt pins."""
    definition = attempt.definition
    return TaskSpec(
        ref=definition.ref,
        version=attempt.task_version,
        executor=definition.executor,
        timeout_us=definition.timeout_us,
        grace_us=definition.grace_us,
        heartbeat_timeout_us=definition.heartbeat_timeout_us,
        exclusive=definition.exclusive,
        isolation=definition.isolation,
        memory_limit_bytes=definition.memory_limit_bytes,
        cpu_limit=definition.cpu_limit,
    )
