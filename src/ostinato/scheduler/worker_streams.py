"""A stream from its greeting to its end: a worker's adoption, heartbeats, outcomes, output.

Streams of guardians are let in here and served by ``guardian_streams``.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress

import msgspec

from ostinato.control.apply import apply
from ostinato.core.definition import decode_definition
from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UserError
from ostinato.observe.records import (
    TaskModuleFailed,
    WorkerConnected,
    WorkerDisconnected,
    WorkerDraining,
    WorkerNameShared,
    WorkerRefused,
)
from ostinato.scheduler.adoption import adopt_greeting, adopt_report
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.greeting import check_greeting
from ostinato.scheduler.guardian_streams import GuardianStreams
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.output_loop import OutputLoop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.registry_loop import RegistryLoop
from ostinato.scheduler.sessions import WorkerSession
from ostinato.scheduler.trigger_loop import TriggerLoop
from ostinato.scheduler.unreported import Unreported
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    Draining,
    GuardianHello,
    Heartbeat,
    Hello,
    Outcomes,
    Output,
    Progress,
    Rejected,
    Report,
    Welcome,
    WorkerMessage,
)
from ostinato.wire.protocol import NodeStream

#: Longest wait for the first message of a stream.
GREETING_US_MAX = 10 * SECOND


class WorkerStreams:
    """Handles the streams that a transport accepts."""

    def __init__(
        self,
        parts: NodeParts,
        *,
        dispatch: DispatchLoop,
        outcomes: OutcomeLoop,
        output: OutputLoop,
        triggers: TriggerLoop,
        health: HealthLoop,
        registry: RegistryLoop,
    ) -> None:
        self._config = parts.config
        self._store = parts.store
        self._clock = parts.clock
        self._hooks = parts.hooks
        self._time = parts.time
        self._ownership = parts.ownership
        self._sessions = parts.sessions
        self._held = parts.held
        self._dispatch = dispatch
        self._outcomes = outcomes
        self._output = output
        self._triggers = triggers
        self._health = health
        self._registry = registry
        self._unreported = Unreported(parts.ownership, parts.clock)
        self._guardians = GuardianStreams(parts, outcomes=outcomes)

    async def handle(self, stream: NodeStream) -> None:
        """Serve a stream until it ends; every way of ending is reported once."""
        first: WorkerMessage | None = None
        try:
            async with asyncio.timeout(GREETING_US_MAX / SECOND):
                first, *rest = await stream.receive()
            hello = await self._let_in(first)
        except TimeoutError:
            error = UserError("PROTOCOL_MISMATCH", "no greeting came in time")
            await self._refuse(stream, None, error)
            return
        except OstinatoError as error:
            await self._refuse(stream, first, error)
            return
        if isinstance(hello, Hello) and self._sessions.has_reached(hello):
            reason = "another stream of this worker has reached this node already"
            with suppress(OstinatoError):
                # Whoever has gone meanwhile need not hear it.
                await stream.send([Rejected("ALREADY_CONNECTED", reason, self._ownership.node_id)])
        elif isinstance(hello, Hello):
            await self._serve(hello, stream, rest)
        else:
            await self._serve_guardian(hello, stream, rest)

    async def _serve_guardian(
        self, hello: GuardianHello, stream: NodeStream, rest: list[WorkerMessage]
    ) -> None:
        try:
            await self._guardians.serve(hello, stream, first=rest)
        except OstinatoError as error:
            if error.code != "CONNECTION_CLOSED":
                await self._refuse(stream, hello, error)

    async def _let_in(self, first: WorkerMessage) -> Hello | GuardianHello:
        """The greeting. Raises ``UserError`` for one that can never be accepted."""
        if not isinstance(first, Hello | GuardianHello):
            raise UserError("PROTOCOL_MISMATCH", "the first message of a stream must be Hello")
        check_greeting(first, join_token=self._config.join_token)
        if isinstance(first, Hello):
            await self._apply_declarations(first)
        return first

    async def _refuse(self, stream: NodeStream, first: WorkerMessage | None, error: OstinatoError) -> None:
        hello = first if isinstance(first, Hello | GuardianHello) else None
        self._hooks.emit(
            WorkerRefused(
                worker_id=hello.worker_id if hello is not None else "",
                worker_name=hello.worker_name if hello is not None else "",
                peer=stream.peer,
                error_code=error.code,
                reason=str(error),
            )
        )
        if isinstance(error, UserError):
            with suppress(OstinatoError):
                # Whoever has gone meanwhile need not hear it.
                await stream.send([Rejected(error.code, str(error))])

    async def _serve(self, hello: Hello, stream: NodeStream, rest: list[WorkerMessage]) -> None:
        session = WorkerSession(hello, stream, boot_us=self._clock.boot_us())
        reason = "the stream ended"
        try:
            await self._welcome(session, stream.peer)
            await self._receive(session, rest)
            while True:
                await self._receive(session, await stream.receive())
        except OstinatoError as error:
            reason = str(error)
        finally:
            is_gone = self._sessions.remove(session)
            await session.close()
            if is_gone:
                self._disconnected(session, reason)
                self._workers_changed()

    async def _welcome(self, session: WorkerSession, peer: str) -> None:
        self._announce(session, peer)
        old = self._sessions.add(session)
        if self._sessions.shares_name(session):
            self._hooks.emit(
                WorkerNameShared(worker_id=session.worker_id, worker_name=session.worker_name, peer=peer)
            )
        nodes = self._sessions.addresses()
        session.note_nodes(nodes)
        session.post(
            [
                Welcome(
                    protocol=PROTOCOL_VERSION,
                    node_id=self._ownership.node_id,
                    worker_lease_us=self._config.worker_lease_us,
                    heartbeat_us=self._config.heartbeat_us,
                    nodes=nodes,
                )
            ]
        )
        self._sessions.repeat_drain(session)
        # With no await before the look at what is missing there: nothing has been assigned on the new stream.
        await self._adopt(session)
        if old is not None:
            await old.close()
            self._disconnected(old, "the worker has connected anew")
        self._workers_changed()
        self._health.wake()

    def _workers_changed(self) -> None:
        self._held.workers_changed()
        self._dispatch.wake()
        self._registry.wake()

    def _disconnected(self, session: WorkerSession, reason: str) -> None:
        self._hooks.emit(
            WorkerDisconnected(worker_id=session.worker_id, worker_name=session.worker_name, reason=reason)
        )

    async def _apply_declarations(self, hello: Hello) -> None:
        if not hello.declarations:
            return
        try:
            definitions = [decode_definition(encoded) for encoded in hello.declarations]
        except (msgspec.MsgspecError, RecursionError) as error:
            raise UserError("INVALID_APP", f"a declaration cannot be read: {error}") from error
        receipts = await apply(self._store, definitions, now_us=self._time.now_us())
        if any(receipt.outcome != "unchanged" for receipt in receipts):
            self._triggers.wake()

    async def _adopt(self, session: WorkerSession) -> None:
        """What the worker has goes on; what it was given and has not is lost.

        The health loop records that, at once where it can: a full disk must not keep the worker from being
        heard, or what it does have would end with its lease.
        """
        unknown = adopt_greeting(
            session,
            self._ownership.memory.running.values(),
            connected=self._sessions.by_id,
            boot_us=self._clock.boot_us(),
        )
        await self._end_strangers(session, unknown)

    def _take_report(self, session: WorkerSession, message: Report) -> None:
        memory = self._ownership.memory
        if adopt_report(session, message, attempts=memory.running.values(), epochs=memory.epochs):
            self._health.wake()

    async def _end_strangers(self, session: WorkerSession, attempt_ids: set[str]) -> None:
        """Attempts that the database no longer shows as running must end (I1), whoever owns their partition.

        One that it does show is another owner's, or was taken over a moment ago.
        """
        reports = [report for report in session.hello.running if report.attempt_id in attempt_ids]
        if not reports:
            return
        rows = await self._store.get_instances([report.instance_id for report in reports])
        for report in reports:
            row = rows.get(report.instance_id)
            if row is None:
                continue
            if row.attempt_id != report.attempt_id or row.state is not State.RUNNING:
                reason = "it is no longer the attempt that counts"
                session.post([Cancel(report.instance_id, report.attempt_id, reason)])

    def _announce(self, session: WorkerSession, peer: str) -> None:
        hello = session.hello
        self._hooks.emit(
            WorkerConnected(
                worker_id=hello.worker_id,
                worker_name=hello.worker_name,
                peer=peer,
                task_count=len(hello.tasks),
                running_count=len(hello.running),
            )
        )
        for problem in hello.problems:
            self._hooks.emit(TaskModuleFailed(worker_name=hello.worker_name, problem=problem))

    async def _receive(self, session: WorkerSession, messages: list[WorkerMessage]) -> None:
        for message in messages:
            if isinstance(message, Outcomes):
                session.ahead = message.ahead
                if session.ledger.update(message.granted):
                    self._dispatch.wake()
                self._outcomes.add(session.worker_id, message.items)
            elif isinstance(message, Heartbeat):
                self._heartbeat(session, message)
            elif isinstance(message, Accepted):
                session.acknowledge(message.attempt_ids)
            elif isinstance(message, Output):
                self._output.add(message.chunks)
            elif isinstance(message, Draining):
                self._draining(session, message.reason)
            elif isinstance(message, Report):
                self._take_report(session, message)
            elif isinstance(message, Progress):
                continue
            else:
                raise UserError("PROTOCOL_MISMATCH", "a second Hello on one stream")

    def _draining(self, session: WorkerSession, reason: str) -> None:
        session.is_draining = True
        self._hooks.emit(
            WorkerDraining(worker_id=session.worker_id, worker_name=session.worker_name, reason=reason)
        )
        self._workers_changed()

    def _heartbeat(self, session: WorkerSession, message: Heartbeat) -> None:
        session.ledger.update(message.granted)
        session.ahead = message.ahead
        session.ledger.want(message.wanted)
        self._dispatch.return_credits(session)
        session.heard_boot_us = self._clock.boot_us()
        if self._ownership.is_believed:
            if session.is_undated:
                session.is_undated = False
                self._date_attempts(session.worker_id, message.sequence)
            # Leases of later assignments rest on it, so only what an owner has processed counts.
            session.heartbeat_sequence = message.sequence
            was_stale = self._dispatch.is_stale(session)
            session.leased_boot_us = self._clock.boot_us()
            if was_stale:
                self._held.workers_changed()
            session.acknowledge_heartbeat(
                message,
                dict(self._ownership.memory.epochs),
                nodes=self._sessions.addresses(),
                demand=self._dispatch.demand_for(session),
                asks_report=self._unreported.asks(session.worker_id),
            )
        self._dispatch.wake()

    def _date_attempts(self, worker_id: str, sequence: int) -> None:
        """What a worker had before a heartbeat was assigned under that one at most."""
        for attempt in self._ownership.memory.running.values():
            if attempt.worker_id != worker_id or attempt.heartbeat_sequence is not None:
                continue
            if attempt.is_confirmed:
                attempt.heartbeat_sequence = sequence
