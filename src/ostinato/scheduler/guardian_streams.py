"""The stream of a worker's guardian: it brings what the worker could not, then says what has ended.

Outcomes come first and are committed before anything is declared lost, so that what did end well is not run
again. What a report frees depends on who is gone:

* **the supervisor** (no heartbeat named): nothing of the worker runs any more, whatever it was assigned.
* **a lease** (a heartbeat named): the processes of strict attempts that were assigned under that heartbeat or
  an older one have ended. A later assignment is not concerned, also when the report arrives late; nor is an
  attempt of which this node does not know the heartbeat (adopted a moment ago), nor a request, which has no
  process. These are waited for as if no report had come.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from ostinato.core.definition import HttpSpec
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import lose_attempt
from ostinato.core.partition.running import RunningAttempt
from ostinato.errors import UnavailableError, UserError
from ostinato.observe.records import TreeEndReported
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.sessions import Mailbox
from ostinato.wire.messages import (
    GuardianHello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    TreeEnded,
    TreeEndedRecorded,
    WorkerMessage,
)
from ostinato.wire.protocol import NodeStream


class GuardianSession:
    """One guardian's stream: the outcomes that it waits for, and the report that waits for them."""

    def __init__(self, hello: GuardianHello, stream: NodeStream) -> None:
        self.hello = hello
        self._stream = stream
        self._mailbox = Mailbox(stream, name=f"guardian-{hello.worker_name}")
        self._unacknowledged: set[str] = set()
        self._is_settled = asyncio.Event()
        self._is_settled.set()

    def owe(self, attempt_ids: Sequence[str]) -> None:
        """Outcomes of these attempts have come and are not on record yet."""
        self._unacknowledged.update(attempt_ids)
        self._is_settled.clear()

    def post(self, messages: Sequence[NodeMessage]) -> None:
        """As ``Mailbox.post``; acknowledgements settle what is owed, and so does a refusal."""
        for message in messages:
            if isinstance(message, OutcomesAcknowledged):
                self._unacknowledged.difference_update(message.attempt_ids, message.unowned)
        if not self._unacknowledged:
            self._is_settled.set()
        self._mailbox.post(messages)

    async def settle(self) -> list[WorkerMessage]:
        """Wait until nothing is owed, then return nothing; or what arrives before. Raises as `receive`."""
        settled = asyncio.ensure_future(self._is_settled.wait())
        receiving = asyncio.ensure_future(self._stream.receive())
        try:
            await asyncio.wait([settled, receiving], return_when=asyncio.FIRST_COMPLETED)
            return receiving.result() if receiving.done() else []
        finally:
            # A receive that is given up loses nothing.
            settled.cancel()
            receiving.cancel()
            await asyncio.wait([settled, receiving])

    @property
    def is_settled(self) -> bool:
        """Whether every outcome that came is on record."""
        return self._is_settled.is_set()

    async def stop(self) -> None:
        """Send nothing more; whoever accepted the stream ends it."""
        await self._mailbox.stop()


class GuardianStreams:
    """Serves streams that begin with ``GuardianHello``."""

    def __init__(self, parts: NodeParts, *, outcomes: OutcomeLoop) -> None:
        self._rng = parts.rng
        self._hooks = parts.hooks
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._outcomes = outcomes

    async def serve(
        self, hello: GuardianHello, stream: NodeStream, *, first: Sequence[WorkerMessage]
    ) -> None:
        """Serve the stream of a guardian that has been let in, until it ends. Raises how it ended."""
        session = GuardianSession(hello, stream)
        self._sessions.guardians[hello.worker_id] = session
        try:
            await self._receive(session, stream, first)
        finally:
            if self._sessions.guardians.get(hello.worker_id) is session:
                del self._sessions.guardians[hello.worker_id]
            await session.stop()

    async def _receive(
        self, session: GuardianSession, stream: NodeStream, messages: Sequence[WorkerMessage]
    ) -> None:
        reports: list[TreeEnded] = []
        while True:
            for message in messages:
                if isinstance(message, Outcomes):
                    session.owe([outcome.attempt_id for outcome in message.items])
                    self._outcomes.add(session.hello.worker_id, message.items, by_guardian=True)
                elif isinstance(message, TreeEnded):
                    reports.append(message)
                else:
                    kind = type(message).__name__
                    raise UserError("PROTOCOL_MISMATCH", f"{kind} does not belong on a guardian's stream")
            if reports and session.is_settled:
                await self._record(session.hello, reports.pop(0))
                session.post([TreeEndedRecorded()])
                messages = []
            else:
                messages = await (session.settle() if reports else stream.receive())

    async def _record(self, hello: GuardianHello, report: TreeEnded) -> None:
        """Lose the attempts whose processes have ended, and let their worker say anew what it has."""
        if not self._ownership.is_believed:
            # The guardian dials again; by then this node may decide, or another.
            raise UnavailableError("CONNECTION_CLOSED", "this node cannot decide at the moment")
        what = "is gone" if report.heartbeat_sequence is None else "did not answer and its lease has ended"
        message = (
            f"the guardian of worker {hello.worker_name} reports that the supervisor {what} and that the "
            f"processes of the attempt have ended" + (f": {report.reason}" if report.reason else "")
        )
        await self._definitions.load_tasks({attempt.ref: None for attempt in self._freed(hello, report)})
        lost = self._freed(hello, report)
        effects = Effects()
        now_us = self._time.now_us()
        for attempt in lost:
            lose_attempt(
                attempt,
                code="WORKER_LOST",
                message=message,
                now_us=now_us,
                rng=self._rng,
                into=effects,
                withdrawn=self._definitions.withdrawn(attempt.ref),
            )
        await self._committer.commit(effects)
        session = self._sessions.by_id.get(hello.worker_id)
        if session is not None:
            await session.close()
        self._hooks.emit(
            TreeEndReported(
                worker_id=hello.worker_id,
                worker_name=hello.worker_name,
                heartbeat_sequence=report.heartbeat_sequence,
                reason=report.reason,
                lost_count=len(lost),
            )
        )

    def _freed(self, hello: GuardianHello, report: TreeEnded) -> list[RunningAttempt]:
        # The worker itself may have brought an outcome that is not on record yet.
        undecided = self._outcomes.undecided()
        return [
            attempt
            for attempt in self._ownership.memory.running.values()
            if attempt.worker_id == hello.worker_id
            and attempt.attempt_id not in undecided
            and _is_ended(attempt, report.heartbeat_sequence)
        ]


def _is_ended(attempt: RunningAttempt, heartbeat_sequence: int | None) -> bool:
    """Whether a report frees an attempt of its worker; None: the supervisor is gone."""
    if heartbeat_sequence is None:
        return True
    if attempt.definition.exclusive != "strict" or isinstance(attempt.definition.executor, HttpSpec):
        return False
    return attempt.heartbeat_sequence is not None and attempt.heartbeat_sequence <= heartbeat_sequence
