"""What an owner reads of partitions that it has taken, before anything is decided about them.

The take-over has committed by then, and it waited for the former owner's last transaction, so what is read
here is what that owner has left. Running attempts are adopted: those that a connected worker has reported go
on at once; the others are waited for until their workers have had time to say what they have, and no lease
of the former owner can run any more.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ostinato.core.partition.running import RunningAttempt
from ostinato.core.partition.state import running_attempt
from ostinato.core.states import Hold
from ostinato.observe.records import PartitionsTaken
from ostinato.scheduler.adoption import adopt_reported
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.ownership import Taken
from ostinato.scheduler.parts import NodeParts

BATCH_COUNT = 1000


class WarmUpLoop(Loop):
    """Woken when partitions have been taken."""

    name = "warm_up"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        # Nothing is decided about these partitions meanwhile.
        self.retry_last_us = parts.config.renewal_us
        self._config = parts.config
        self._store = parts.store
        self._ownership = parts.ownership
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._held = parts.held
        self._budgets = parts.budgets
        #: When this node began to accept workers; None: not yet.
        self.accepting_since_boot_us: int | None = None
        #: Called with the partitions that are decided about from now on.
        self.on_warm: Callable[[], None] = _nothing_more

    async def run_once(self) -> int | None:
        """Warm up everything that has been taken; what is lost meanwhile is left out."""
        taken = dict(self._ownership.warming)
        if not taken:
            return None
        running = await self._running(taken)
        held = await self._store.held_tasks(list(taken))
        # From here on without an await: a worker's greeting comes before all of this or after.
        warm = self._ownership.activate(taken, running)
        self._definitions.forget_partitions(warm)
        for known in (self._held, self._budgets):
            known.forget_partitions(warm, partition_count=self._store.partition_count)
        for ref, cause in held:
            self._held.note(ref, cause)
            if cause is not Hold.OVERLAP and self._sessions.by_id:
                # The former owner may have changed the task and no more. Before the first worker has greeted,
                # nothing is known that could be said instead; its greeting has all of them looked at.
                self._held.stale(ref)
        adopted = [attempt for attempt in running if attempt.partition in warm]
        adopt_reported(adopted, self._sessions)
        if warm:
            self._hooks.emit(
                PartitionsTaken(
                    node_id=self._ownership.node_id,
                    count=len(warm),
                    running_count=len(adopted),
                    owned_count=len(self._ownership.memory.epochs),
                )
            )
            self.on_warm()
        return self._clock.boot_us() if self._ownership.warming else None

    async def _running(self, taken: Mapping[int, Taken]) -> list[RunningAttempt]:
        found: list[RunningAttempt] = []
        after_id = ""
        while True:
            rows = await self._store.running_instances(list(taken), after_id=after_id, limit=BATCH_COUNT)
            await self._definitions.load(rows)
            for row in rows:
                definition = self._definitions.pinned(row.ref, row.task_version)
                if definition is not None:
                    attempt = running_attempt(row, definition, known_since_boot_us=self._clock.boot_us())
                    attempt.is_confirmed = False
                    attempt.certain_from_boot_us = self._certain_from_us(taken[row.partition])
                    found.append(attempt)
            if len(rows) < BATCH_COUNT:
                return found
            after_id = rows[-1].id

    def _certain_from_us(self, taken: Taken) -> int:
        """From when on an attempt that nobody reports is lost (design section 3, Leases)."""
        if not self._store.capabilities.many_nodes:
            # The former node is certainly gone, and so are its streams: a greeting tells everything.
            return 0
        lease_us = self._config.worker_lease_us
        patience_us = lease_us if taken.was_free else self._config.ownership_lease_us + lease_us
        accepting_us = self.accepting_since_boot_us
        if accepting_us is None:
            # The node is starting; workers are accepted from now on at the earliest.
            accepting_us = self._clock.boot_us()
        return max(taken.boot_us + patience_us, accepting_us + lease_us)


def _nothing_more() -> None:
    """What follows a warm-up until the node says otherwise."""
