"""Attempts whose worker is gone, and assignments that nobody acknowledges.

A worker's lease ends, for the one who waits, a worker lease after its newest heartbeat was *received*; the
worker itself counts from when it *sent* it and so has stopped before. Of a partition that was taken over,
nothing is lost before every lease that the former owner gave has ended, and every worker that lives has had
time to reconnect. The same holds after a time in which the node did not believe in its partitions, as when
the database was away: it has let nobody in that came for the first time, such as a worker that has taken over
the spool of another. An attempt whose outcome is here is not lost, however long that waits for the database.
A worker that is connected and has not reported what it should have is then made to connect anew: its greeting
tells.

Time-outs are the workers' to enforce. An attempt that is far beyond its own shows a worker that does not: it
is told to end it, once per worker lease (C103).
"""

from __future__ import annotations

import asyncio

from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import lose_attempt
from ostinato.core.partition.running import Loss, RunningAttempt
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.parts import NodeParts
from ostinato.wire.messages import Cancel

#: Two looks are at least this far apart.
ROUND_US = 100 * MILLISECOND
#: Longest time that a worker's process of tasks may take to start, which is not part of an attempt's time.
START_US_MAX = 2 * MINUTE
#: Between safety checks of instances held by overlap rules.
OVERLAP_CHECK_US = 5 * SECOND


class HealthLoop(Loop):
    """Declares attempts lost, exactly when nobody can be running them any more (I1, I9)."""

    name = "health"

    def __init__(self, parts: NodeParts, *, outcomes: OutcomeLoop, dispatch: DispatchLoop) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._rng = parts.rng
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._held = parts.held
        self._outcomes, self._dispatch = outcomes, dispatch
        self._overlaps_checked_us = 0

    async def run_once(self) -> int | None:
        """One look at every running attempt."""
        boot_us = self._clock.boot_us()
        if self._ownership.is_believed:
            lost = self._lost(boot_us)
            if lost:
                await self._definitions.load_tasks({attempt.ref: None for attempt, _ in lost})
                # Meanwhile a worker may have come back with what it has.
                await self._lose(self._lost(boot_us)[: self._config.batch_count])
            self._tell_overdue(boot_us)
            await self._drop_unresponsive(boot_us)
            if boot_us - self._overlaps_checked_us >= OVERLAP_CHECK_US:
                self._overlaps_checked_us = boot_us
                if self._held.recheck_overlaps():
                    self._dispatch.wake()
        self._sessions.forget_left(boot_us - 2 * self._patience_us)
        return self._next_look_us(boot_us)

    def _next_look_us(self, boot_us: int) -> int | None:
        """The next moment at which a lease can end or an acknowledgement be overdue."""
        running, sessions = self._ownership.memory.running, self._sessions.by_id
        if not running and not sessions:
            return None
        lease_us = self._config.worker_lease_us
        ends = [boot_us + self._config.acknowledgement_us]
        ends += [session.heard_boot_us + lease_us for session in sessions.values()]
        for attempt in running.values():
            ends.append(self._ends_us(attempt))
            if not attempt.is_confirmed and attempt.certain_from_boot_us > boot_us:
                ends.append(attempt.certain_from_boot_us)
        return max(min(ends), boot_us + ROUND_US)

    @property
    def _patience_us(self) -> int:
        return self._config.ownership_lease_us + self._config.worker_lease_us

    def _ends_us(self, attempt: RunningAttempt) -> int:
        """When the attempt is lost if its worker stays silent."""
        lease_us = self._config.worker_lease_us
        heard_us = self._sessions.heard_boot_us(attempt.worker_id)
        certain_us = attempt.certain_from_boot_us
        let_in_us = self._ownership.believed_since_boot_us + lease_us
        if heard_us is None:
            return max(certain_us or attempt.known_since_boot_us + self._patience_us, let_in_us)
        # Another node may have heard of it later than this one.
        return max(heard_us + lease_us, certain_us, let_in_us)

    def _why_lost(self, attempt: RunningAttempt, boot_us: int) -> Loss | None:
        if boot_us < self._ends_us(attempt):
            return None
        heard_us = self._sessions.heard_boot_us(attempt.worker_id)
        name = attempt.worker_name or attempt.worker_id
        if heard_us is None:
            return Loss("WORKER_LOST", f"worker {name} has not come back since this node took over")
        silence = f"{(boot_us - heard_us) / SECOND:.1f}s"
        return Loss("WORKER_LOST", f"worker {name} has not been heard of for {silence}; its lease has ended")

    def _lost(self, boot_us: int) -> list[tuple[RunningAttempt, Loss]]:
        lost = [
            (attempt, why)
            for attempt in self._ownership.memory.running.values()
            if (why := attempt.lost or self._why_lost(attempt, boot_us)) is not None
        ]
        undecided = self._outcomes.undecided() if lost else set()
        return [(attempt, why) for attempt, why in lost if attempt.attempt_id not in undecided]

    async def _lose(self, lost: list[tuple[RunningAttempt, Loss]]) -> None:
        effects = Effects()
        now_us = self._time.now_us()
        for attempt, why in lost:
            lose_attempt(
                attempt,
                code=why.code,
                message=why.message,
                now_us=now_us,
                rng=self._rng,
                into=effects,
                withdrawn=self._definitions.withdrawn(attempt.ref),
            )
        await self._committer.commit(effects)

    def _tell_overdue(self, boot_us: int) -> None:
        now_us, lease_us = self._time.now_us(), self._config.worker_lease_us
        for attempt in self._ownership.memory.running.values():
            timeout_us = attempt.definition.timeout_us
            if timeout_us is None:
                continue
            allowed_us = START_US_MAX + timeout_us + attempt.definition.grace_us + lease_us
            if now_us - attempt.assigned_us < allowed_us:
                continue
            told_us = attempt.timeout_told_boot_us
            session = self._sessions.by_id.get(attempt.worker_id)
            if session is None or (told_us is not None and boot_us - told_us < lease_us):
                continue
            attempt.timeout_told_boot_us = boot_us
            reason = "it has long been over its timeout, and its worker has not ended it"
            session.post([Cancel(attempt.instance_id, attempt.attempt_id, reason, is_timeout=True)])

    async def _drop_unresponsive(self, boot_us: int) -> None:
        """A worker that does not acknowledge in time gets no more work and must say anew what it has.

        Its next report shows what never arrived, which is then retried; no attempt is declared lost while
        it might still be started.
        """
        late = {
            attempt.worker_id
            for attempt in self._ownership.memory.running.values()
            if not attempt.acknowledged
            and boot_us - attempt.known_since_boot_us >= self._config.acknowledgement_us
        }
        late |= self._owing_reports(boot_us)
        # At once: one that does not read holds up its own end alone.
        await asyncio.gather(
            *(
                session.close()
                for session in list(self._sessions.by_id.values())
                if session.worker_id in late or self._is_silent(session.heard_boot_us, boot_us)
            )
        )

    def _owing_reports(self, boot_us: int) -> set[str]:
        """Workers whose greeting came too early to tell what a former owner's assignments have become."""
        sessions = self._sessions.by_id
        return {
            attempt.worker_id
            for attempt in self._ownership.memory.running.values()
            if not attempt.is_confirmed
            and attempt.worker_id in sessions
            and not sessions[attempt.worker_id].hello.stream
            and sessions[attempt.worker_id].connected_boot_us < attempt.certain_from_boot_us <= boot_us
        }

    def _is_silent(self, heard_boot_us: int, boot_us: int) -> bool:
        return boot_us - heard_boot_us >= self._config.worker_lease_us
