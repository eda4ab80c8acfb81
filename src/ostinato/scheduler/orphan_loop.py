"""Looks for instances that the database shows as running and that this node knows nothing of.

There are none unless something is broken: memory and database change together. But nothing would ever end
such an instance while the node lives (I9), so it is adopted as after a restart: its worker is made to
connect anew and report what it runs, and what nobody reports is lost.
"""

from __future__ import annotations

from ostinato.core.instants import MINUTE
from ostinato.core.model import Instance
from ostinato.core.partition.state import running_attempt
from ostinato.core.states import State
from ostinato.observe.records import OrphanFound
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts

#: Between two looks, in intervals of the backlog's count: a minute.
INTERVAL_COUNT = 4
#: Longer than any commit takes: an assignment may be in the database before it is in memory.
SETTLED_US = MINUTE
BATCH_COUNT = 1000


class OrphanLoop(Loop):
    """Now and then compares what runs in the database with memory, by the index of running rows alone."""

    name = "orphan"

    def __init__(self, parts: NodeParts, *, health: HealthLoop) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._definitions = parts.definitions
        self._sessions = parts.sessions
        self._health = health
        self._is_first = True

    async def run_once(self) -> int | None:
        """Look once; adopt what is found."""
        next_us = self._clock.boot_us() + INTERVAL_COUNT * self._config.backlog_us
        if self._is_first:
            # The warm-up has just read the same.
            self._is_first = False
            return next_us
        partitions = self._ownership.owned()
        after_id = ""
        while partitions:
            rows = await self._store.running_instances(partitions, after_id=after_id, limit=BATCH_COUNT)
            await self._adopt([row for row in rows if self._is_unknown(row)])
            if len(rows) < BATCH_COUNT:
                break
            after_id = rows[-1].id
        return next_us

    def _is_unknown(self, row: Instance) -> bool:
        assigned_us = row.due_us if row.assigned_us is None else row.assigned_us
        return (
            row.id not in self._ownership.memory.running
            and row.partition in self._ownership.memory.epochs
            and assigned_us < self._time.now_us() - SETTLED_US
        )

    async def _adopt(self, suspects: list[Instance]) -> None:
        if not suspects:
            return
        # Read again: an attempt may have ended between the first look at the database and that at memory.
        found = await self._store.get_instances([row.id for row in suspects])
        await self._definitions.load(found.values())
        for suspect in suspects:
            row = found.get(suspect.id)
            if row is None or row.state is not State.RUNNING or row.attempt_id != suspect.attempt_id:
                continue
            definition = self._definitions.pinned(row.ref, row.task_version)
            if definition is None or not self._is_unknown(row):
                continue
            self._ownership.memory.running[row.id] = running_attempt(
                row, definition, known_since_boot_us=self._clock.boot_us()
            )
            self._hooks.emit(
                OrphanFound(
                    instance_id=row.id, namespace=row.namespace, task=row.task, worker_name=row.worker_name
                )
            )
            self._health.wake()
            session = self._sessions.by_id.get(row.worker_id)
            if session is not None:
                await session.close()
