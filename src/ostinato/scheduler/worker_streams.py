"""One worker's stream from its ``Hello`` to its end: adoption, heartbeats, outcomes, output."""

from __future__ import annotations

import msgspec

from ostinato.control.apply import apply
from ostinato.core.definition import decode_definition
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import lose_attempt
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UserError
from ostinato.observe.records import TaskModuleFailed, WorkerConnected, WorkerDisconnected
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.output_loop import OutputLoop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.sessions import WorkerSession
from ostinato.scheduler.trigger_loop import TriggerLoop
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Cancel,
    Draining,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    Outcomes,
    Output,
    Progress,
    Rejected,
    Welcome,
    WorkerMessage,
)
from ostinato.wire.protocol import NodeStream


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
    ) -> None:
        self._config = parts.config
        self._store = parts.store
        self._clock = parts.clock
        self._rng = parts.rng
        self._hooks = parts.hooks
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._sessions = parts.sessions
        self._dispatch = dispatch
        self._outcomes = outcomes
        self._output = output
        self._triggers = triggers
        self._health = health

    async def handle(self, stream: NodeStream) -> None:
        """Serve a stream until it ends; every way of ending is reported once."""
        try:
            session, rest = await self._welcome(stream)
        except OstinatoError as error:
            self._hooks.emit(WorkerDisconnected(worker_id="", worker_name=stream.peer, reason=str(error)))
            return
        if session is None:
            return
        reason = "the stream ended"
        try:
            await self._receive(session, rest)
            while True:
                await self._receive(session, await stream.receive())
        except OstinatoError as error:
            reason = str(error)
        finally:
            is_gone = self._sessions.remove(session)
            await session.close()
            if is_gone:
                self._hooks.emit(
                    WorkerDisconnected(
                        worker_id=session.worker_id, worker_name=session.worker_name, reason=reason
                    )
                )

    async def _welcome(self, stream: NodeStream) -> tuple[WorkerSession | None, list[WorkerMessage]]:
        first, *rest = await stream.receive()
        if not isinstance(first, Hello):
            return await _refuse(stream, "PROTOCOL_MISMATCH", "the first message of a stream must be Hello")
        if first.protocol != PROTOCOL_VERSION:
            newer = "worker" if first.protocol > PROTOCOL_VERSION else "scheduler"
            return await _refuse(
                stream,
                "PROTOCOL_MISMATCH",
                f"worker speaks protocol {first.protocol}, scheduler {PROTOCOL_VERSION}; "
                f"the {newer} is newer, update the other",
            )
        try:
            await self._apply_declarations(first)
        except UserError as error:
            return await _refuse(stream, error.code, f"{error.subject}: {error}")
        session = WorkerSession(first, stream, boot_us=self._clock.boot_us())
        old = self._sessions.add(session)
        if old is not None:
            await old.close()
        session.post(
            [
                Welcome(
                    protocol=PROTOCOL_VERSION,
                    node_id=self._ownership.node_id,
                    worker_lease_us=self._config.worker_lease_us,
                    heartbeat_us=self._config.heartbeat_us,
                )
            ]
        )
        await self._adopt(session)
        self._announce(session, stream.peer)
        self._dispatch.wake()
        self._health.wake()
        return session, list(rest)

    async def _apply_declarations(self, hello: Hello) -> None:
        if not hello.declarations:
            return
        try:
            definitions = [decode_definition(encoded) for encoded in hello.declarations]
        except msgspec.MsgspecError as error:
            raise UserError("INVALID_APP", f"a declaration cannot be read: {error}") from error
        receipts = await apply(self._store, definitions, now_us=self._time.now_us())
        if any(receipt.outcome != "unchanged" for receipt in receipts):
            self._triggers.wake()

    async def _adopt(self, session: WorkerSession) -> None:
        """What the worker has goes on; what it was given and has not is lost with certainty."""
        reported = {report.attempt_id: report for report in session.hello.running}
        effects = Effects()
        now_us = self._time.now_us()
        for attempt in list(self._ownership.memory.running.values()):
            if attempt.attempt_id in reported:
                attempt.worker_id = session.worker_id
                attempt.acknowledged = True
                if attempt.cancel_requested:
                    session.post([Cancel(attempt.instance_id, attempt.attempt_id, attempt.cancel_reason)])
                del reported[attempt.attempt_id]
            elif attempt.worker_id == session.worker_id:
                lose_attempt(
                    attempt,
                    code="WORKER_LOST" if attempt.acknowledged else "NOT_ACKNOWLEDGED",
                    message=f"worker {session.worker_name} came back without it",
                    now_us=now_us,
                    rng=self._rng,
                    into=effects,
                )
        await self._committer.commit(effects)
        await self._end_strangers(session, [report.instance_id for report in reported.values()])

    async def _end_strangers(self, session: WorkerSession, instance_ids: list[str]) -> None:
        """Attempts that the database no longer shows as running there must end (I1)."""
        if not instance_ids:
            return
        rows = await self._store.get_instances(instance_ids)
        for report in session.hello.running:
            row = rows.get(report.instance_id)
            if row is None or report.instance_id not in instance_ids:
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
                session.ledger.update(message.granted)
                self._outcomes.add(session.worker_id, message.items)
            elif isinstance(message, Heartbeat):
                self._heartbeat(session, message)
            elif isinstance(message, Accepted):
                session.acknowledge(message.attempt_ids)
            elif isinstance(message, Output):
                self._output.add(message.chunks)
            elif isinstance(message, Draining):
                session.in_rotation = False
            elif isinstance(message, Progress):
                continue
            else:
                raise UserError("PROTOCOL_MISMATCH", "a second Hello on one stream")

    def _heartbeat(self, session: WorkerSession, message: Heartbeat) -> None:
        session.ledger.update(message.granted)
        session.heartbeat_sequence = message.sequence
        session.heard_boot_us = self._clock.boot_us()
        if self._ownership.is_believed:
            session.post(
                [
                    HeartbeatAcknowledged(
                        sequence=message.sequence,
                        sent_boot_us=message.sent_boot_us,
                        partitions=self._ownership.owned(),
                    )
                ]
            )
        self._dispatch.wake()


async def _refuse(
    stream: NodeStream, code: str, message: str
) -> tuple[WorkerSession | None, list[WorkerMessage]]:
    await stream.send([Rejected(code, message)])
    return None, []
