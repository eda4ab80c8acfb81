"""Group commit of outcomes: result, verdict and next due time in one transaction, acknowledged after it.

Outcomes gather while the transaction before is under way, so groups grow with the load and a lone one waits
for nothing.
"""

from __future__ import annotations

from typing import NamedTuple

from ostinato.core.failure.failure import safe_failure
from ostinato.core.model import Instance, Outcome
from ostinato.core.partition.effects import Effects, EndedAttempt, RefusedOutcome
from ostinato.core.partition.ended import end_attempt, refuse_outcome
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.partition.state import running_attempt
from ostinato.core.states import State
from ostinato.errors import OstinatoError
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.wire.messages import OutcomesAcknowledged


class Sender(NamedTuple):
    """Who brought an outcome: a worker, or the guardian of its processes."""

    worker_id: str
    is_guardian: bool


class OutcomeLoop(Loop):
    """Turns what workers report into states."""

    name = "outcome"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._rng = parts.rng
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._waiting: list[tuple[Sender, Outcome]] = []
        #: Being decided and committed.
        self._group: list[tuple[Sender, Outcome]] = []
        #: Of partitions that are being warmed up, or will be because they are doubted.
        self._early: list[tuple[Sender, Outcome]] = []

    def add(self, worker_id: str, outcomes: list[Outcome], *, by_guardian: bool = False) -> None:
        """Take outcomes of a worker; whoever brought them hears once they are committed or refused."""
        sender = Sender(worker_id, by_guardian)
        self._waiting.extend((sender, outcome) for outcome in outcomes)
        self.wake()

    def undecided(self) -> set[str]:
        """Attempt ids of the outcomes that have come and are not on record: these attempts are not lost."""
        return {outcome.attempt_id for _, outcome in (*self._waiting, *self._group, *self._early)}

    def resume(self) -> None:
        """Partitions have been warmed up: decide what came too early for them."""
        self._waiting.extend(self._early)
        self._early.clear()
        self.wake()

    async def run_once(self) -> int | None:
        """Commit up to one batch of outcomes."""
        if not self._ownership.is_believed:
            return None
        group, self._waiting = (
            self._waiting[: self._config.batch_count],
            self._waiting[self._config.batch_count :],
        )
        if not group:
            return None
        self._group = group
        try:
            await self._commit_or_isolate(group)
        except BaseException:
            # Unacknowledged outcomes are kept: the worker repeats them only after a reconnect.
            self._waiting[:0] = group
            raise
        finally:
            self._group = []
        return self._clock.boot_us() if self._waiting else None

    async def _commit_or_isolate(self, group: list[tuple[Sender, Outcome]]) -> None:
        """Commit a group; where one outcome cannot be dealt with, the others go on without it.

        The offender becomes a failure of its attempt, with the cause in words (design section 3, Batches).
        """
        try:
            await self._commit(group)
        except OstinatoError:
            # The world, or a broken rule: nothing that the outcomes themselves are to blame for.
            raise
        except Exception as error:  # noqa: BLE001 - becomes the failure of the outcome that caused it
            if len(group) > 1:
                for item in group:
                    await self._commit_or_isolate([item])
                return
            sender, outcome = group[0]
            now_us = self._time.now_us()
            message = f"the outcome could not be recorded: {type(error).__name__}: {error}"
            bad = _as_failure(outcome, message, started_us=None, finished_us=now_us)
            await self._commit([(sender, bad)])

    async def _commit(self, group: list[tuple[Sender, Outcome]]) -> None:
        effects = Effects()
        now_us = self._time.now_us()
        outcomes = [outcome for _, outcome in group]
        await self._load_tasks(
            [item for item in outcomes if item.failure is not None or item.unstarted_reason]
        )
        strangers = await self._strangers(outcomes)
        firsts: dict[str, Outcome] = {}
        differing: list[tuple[Sender, Outcome]] = []
        unowned: set[str] = set()
        for item in group:
            outcome = item[1]
            if outcome.attempt_id in firsts:
                if outcome != firsts[outcome.attempt_id]:
                    differing.append(item)
                continue
            firsts[outcome.attempt_id] = outcome
            row = strangers.get(outcome.instance_id)
            attempt = self._running(outcome) or self._still_running(outcome, row)
            if attempt is not None:
                withdrawn = self._definitions.withdrawn(attempt.ref)
                end_attempt(attempt, outcome, now_us=now_us, rng=self._rng, into=effects, withdrawn=withdrawn)
            elif row is not None and row.partition not in self._ownership.memory.epochs:
                # Another owner's to record: whoever brought it sends it there, since nobody acknowledges it.
                unowned.add(outcome.attempt_id)
                if row.partition in self._ownership.warming or row.partition in self._ownership.doubted:
                    self._early.append(item)
            else:
                refuse_outcome(outcome, row, now_us=now_us, into=effects)
        result = await self._committer.commit(effects)
        if result.rejected:
            ended_ids = {ended.attempt_id for ended in effects.ended}
            unowned |= ended_ids & await self._fail_rejected(result.rejected, outcomes, now_us=now_us)
        if result.lost_partitions:
            told: list[EndedAttempt | RefusedOutcome] = [*effects.ended, *effects.refused]
            unowned |= {row.attempt_id for row in told if row.partition in result.lost_partitions}
        # Something was asked of the instance while this was decided, or another loop has ended the attempt:
        # decide anew, with what is known now. Nothing is acknowledged that neither counts nor is told.
        unmatched = {ended.attempt_id for ended in effects.ended if ended.instance_id in result.unmatched}
        again = [
            item
            for item in group
            if item[1].instance_id in result.still_running or item[1].attempt_id in unmatched
        ]
        unowned |= {outcome.attempt_id for _, outcome in again}
        # By then the first report of such an attempt is on record, so another one is refused, visibly (I6).
        later = [item for item in differing if item[1].attempt_id not in unowned]
        self._waiting[:0] = again + later
        undecided = {outcome.attempt_id for _, outcome in again}
        self._acknowledge([item for item in group if item not in later], unowned, undecided)

    def _running(self, outcome: Outcome) -> RunningAttempt | None:
        attempt = self._ownership.memory.running.get(outcome.instance_id)
        if attempt is None or (attempt.attempt, attempt.attempt_id) != (outcome.attempt, outcome.attempt_id):
            return None
        return attempt

    async def _strangers(self, outcomes: list[Outcome]) -> dict[str, Instance | None]:
        """Rows of the instances whose reported attempt is not in memory; None: there is no such instance."""
        rows: dict[str, Instance | None] = {}
        while True:
            # While some are read, memory may lose others with their partitions: none counts as gone unread.
            ids = [
                outcome.instance_id
                for outcome in outcomes
                if outcome.instance_id not in rows and self._running(outcome) is None
            ]
            if not ids:
                return rows
            found = await self._store.get_instances(ids)
            rows.update((instance_id, found.get(instance_id)) for instance_id in ids)
            await self._definitions.load(row for row in rows.values() if row is not None)

    async def _load_tasks(self, outcomes: list[Outcome]) -> None:
        """Have at hand whether the tasks of running attempts still exist and are enabled."""
        running = self._ownership.memory.running
        attempts = [running[outcome.instance_id] for outcome in outcomes if outcome.instance_id in running]
        await self._definitions.load_tasks({attempt.ref: None for attempt in attempts})

    def _still_running(self, outcome: Outcome, row: Instance | None) -> RunningAttempt | None:
        """An attempt that memory has not, but the database has: its own commit was the uncertain one."""
        if row is None or row.state is not State.RUNNING or row.attempt_id != outcome.attempt_id:
            return None
        definition = self._definitions.pinned(row.ref, row.task_version)
        if definition is None or row.partition not in self._ownership.memory.epochs:
            return None
        return running_attempt(row, definition, known_since_boot_us=self._clock.boot_us())

    async def _fail_rejected(
        self, rejected: dict[str, str], outcomes: list[Outcome], *, now_us: int
    ) -> set[str]:
        """Results that the database refuses as data become failures with a safe text.

        Returns attempts of which not even that could be recorded: they are another owner's by now.
        """
        effects = Effects()
        unrecorded: set[str] = set()
        await self._load_tasks([outcome for outcome in outcomes if outcome.instance_id in rejected])
        for outcome in outcomes:
            if outcome.instance_id not in rejected:
                continue
            attempt = self._running(outcome)
            if attempt is None:
                unrecorded.add(outcome.attempt_id)
                continue
            bad = _as_failure(
                outcome,
                f"the database refused the result: {rejected[outcome.instance_id]}",
                started_us=outcome.started_us,
                finished_us=outcome.finished_us,
            )
            withdrawn = self._definitions.withdrawn(attempt.ref)
            end_attempt(attempt, bad, now_us=now_us, rng=self._rng, into=effects, withdrawn=withdrawn)
        lost = (await self._committer.commit(effects)).lost_partitions
        return unrecorded | {ended.attempt_id for ended in effects.ended if ended.partition in lost}

    def _acknowledge(
        self, group: list[tuple[Sender, Outcome]], unowned: set[str], undecided: set[str]
    ) -> None:
        answers: dict[Sender, OutcomesAcknowledged] = {}
        for sender, outcome in group:
            if outcome.attempt_id in undecided:
                continue
            answer = answers.setdefault(sender, OutcomesAcknowledged([]))
            ids = answer.unowned if outcome.attempt_id in unowned else answer.attempt_ids
            ids.append(outcome.attempt_id)
        for sender, answer in answers.items():
            reporter = self._sessions.reporter(sender.worker_id, is_guardian=sender.is_guardian)
            if reporter is not None:
                reporter.post([answer])


def _as_failure(outcome: Outcome, message: str, *, started_us: int | None, finished_us: int) -> Outcome:
    """The same attempt's end as a failure ``BAD_RESULT``."""
    return Outcome(
        instance_id=outcome.instance_id,
        attempt=outcome.attempt,
        attempt_id=outcome.attempt_id,
        started_us=started_us,
        finished_us=finished_us,
        failure=safe_failure("BAD_RESULT", message),
    )
