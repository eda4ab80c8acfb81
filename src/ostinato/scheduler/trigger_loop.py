"""Time triggers: new definitions come into force, due fires become instances."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice

from ostinato.core.changes import TriggerAdvance, TriggerRow
from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.fire import DueTrigger, LiveTask, fire
from ostinato.core.partition.switch import overdue_before_edit, switch_version
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.scheduler.placing import live_count_max
from ostinato.scheduler.shared_time import JUMP_US
from ostinato.store.batches import ChangedTask

#: Batches read at once, where one was not enough.
BATCHES_MAX = 4
#: Definitions put in force between two looks at due fires: a few tens of milliseconds of work.
SWITCH_COUNT = 250


class TriggerLoop(Loop):
    """Fires what is due, a bounded batch at a time; wakes exactly at the next fire."""

    name = "trigger"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        self._config = parts.config
        self._store = parts.store
        self._rng = parts.rng
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._definitions = parts.definitions
        self._held = parts.held
        #: More was due at the last look than it asked for.
        self._has_more = False

    async def run_once(self) -> int | None:
        """Fire what is due, then switch a few changed definitions: many of those delay no fire for long."""
        partitions = self._ownership.owned()
        if not partitions or self._time.is_in_doubt:
            return None
        now_us = self._time.now_us()
        limit = self._config.batch_count * (BATCHES_MAX if self._has_more else 1)
        found = await self._store.find_due_triggers(partitions, now_us=now_us, limit=limit)
        self._has_more = found.more
        advances = await self._fire(found.triggers) if found.triggers else []
        has_switched = await self._switch_changed(partitions)
        if found.more or has_switched or len(advances) < len(found.triggers):
            # What is in force now has a next time of its own, and what did not fire may have been paused.
            return self._clock.boot_us()
        # What has fired is not looked for again before its next time.
        times_us = [found.next_us, *(row.next_us for row in advances)]
        next_us = min((each_us for each_us in times_us if each_us is not None), default=None)
        return None if next_us is None else self._time.boot_at(next_us)

    async def _switch_changed(self, partitions: list[int]) -> bool:
        """Put the next changed definitions in force, in one commit; False if nothing came of it.

        What was due up to the edit fires under the old version first.
        """
        changed = await self._store.find_changed_tasks(partitions, limit=SWITCH_COUNT)
        if not changed:
            return False
        fired: set[tuple[TaskRef, int]] = set()
        overdue = [trigger for change in changed for trigger in _overdue(change)]
        if overdue:
            for change in changed:
                self._definitions.forget(change.task.definition.ref)
            edited_us = {change.task.definition.ref: change.task.updated_us for change in changed}
            await self._fire(overdue, edited_us=edited_us)
            fired = {_version_of(change) for change in changed if _overdue(change)}
            # Their triggers have moved. What has been edited again meanwhile has its turn in a later round.
            changed = await self._store.find_changed_tasks(partitions, limit=SWITCH_COUNT)
        if self._time.is_in_doubt:
            # A jump has shown since the round began, so what was due may not have fired: both come after it.
            return False
        effects = Effects()
        now_us = self._time.now_us()
        for change in changed:
            # Still overdue after it has fired: its task is paused or disabled.
            if not _overdue(change) or _version_of(change) in fired:
                self._switch(change, now_us=now_us, into=effects)
        outcome = await self._committer.commit(effects)
        for switch in effects.batch.switches:
            # Other labels have other workers.
            self._held.stale(TaskRef(switch.namespace, switch.task))
        # What cannot be stored stays as it is: it must not keep the loop busy.
        return bool(overdue) or len(effects.batch.switches) > len(outcome.rejected)

    def _switch(self, change: ChangedTask, *, now_us: int, into: Effects) -> None:
        task = change.task
        edited_us = task.updated_us
        if edited_us - now_us > JUMP_US:
            # The database's clock was ahead when the edit was made: its first fire is not years away (C165).
            edited_us = now_us
        self._definitions.forget(task.definition.ref)
        switch_version(
            task.definition,
            version=task.version,
            partition=task.partition,
            in_force=change.triggers,
            edited_us=edited_us,
            into=into,
        )

    async def _fire(
        self, triggers: Sequence[TriggerRow], *, edited_us: Mapping[TaskRef, int] = {}
    ) -> list[TriggerAdvance]:
        """What is due; of a task in `edited_us` only up to that instant. Where each trigger stands now.

        What decides about a batch is read while the one before is written. Nothing is told of a batch of
        which anything was not written.
        """
        advances: list[TriggerAdvance] = []
        effects = Effects()
        for batch in (*_batches(triggers, count=self._config.batch_count), []):
            loss_count = self._definitions.loss_count
            written, live = await asyncio.gather(
                self._write(effects), self._load(batch), return_exceptions=True
            )
            if isinstance(written, BaseException):
                raise written
            if isinstance(live, BaseException):
                raise live
            advances += written
            if self._definitions.loss_count != loss_count:
                # Another loop has changed a task meanwhile, or made room: what is not at hand would not fire.
                await self._definitions.load_versions(_versions(batch))
            effects = self._decide(batch, live, edited_us=edited_us)
        return advances

    async def _load(self, triggers: list[TriggerRow]) -> dict[TaskRef, LiveTask]:
        """Have definitions at hand; returns the live instances that are to be looked at."""
        await self._definitions.load_versions(_versions(triggers))
        return await self._live(list(dict.fromkeys(trigger.ref for trigger in triggers)))

    def _decide(
        self,
        triggers: list[TriggerRow],
        live: dict[TaskRef, LiveTask],
        *,
        edited_us: Mapping[TaskRef, int],
    ) -> Effects:
        effects = Effects()
        if self._time.is_in_doubt:
            return effects
        now_us = self._time.now_us()
        for trigger in triggers:
            ref = trigger.ref
            task = self._definitions.task(ref)
            definition = self._definitions.pinned(ref, trigger.task_version)
            if task is None or definition is None or task.paused or task.disabled:
                continue
            known = live.setdefault(ref, LiveTask(known={}))
            due = DueTrigger(trigger, definition, task, edited_us.get(ref))
            fire(due, known, now_us=now_us, rng=self._rng, into=effects)
        return effects

    async def _write(self, effects: Effects) -> list[TriggerAdvance]:
        outcome = await self._committer.commit(effects)
        return [] if outcome.dropped else effects.batch.advances

    async def _live(self, refs: list[TaskRef]) -> dict[TaskRef, LiveTask]:
        """Live instances of the tasks whose overlap rule looks at them."""
        ruled = [
            ref
            for ref in refs
            if (task := self._definitions.task(ref)) is not None and task.definition.overlap != "allow"
        ]
        found: dict[TaskRef, list[Instance]] = (
            await self._store.live_instances(ruled, limit=live_count_max(ruled, self._definitions))
            if ruled
            else {}
        )
        return {ref: LiveTask(known={row.id: row for row in rows}) for ref, rows in found.items()}


def _batches(triggers: Sequence[TriggerRow], *, count: int) -> Iterator[list[TriggerRow]]:
    """Those of `count` tasks each: what has fired of a task is known where more of it is decided."""
    by_task: dict[TaskRef, list[TriggerRow]] = {}
    for trigger in triggers:
        by_task.setdefault(trigger.ref, []).append(trigger)
    of_tasks = iter(by_task.values())
    while some := list(islice(of_tasks, count)):
        yield list(chain.from_iterable(some))


def _versions(triggers: Iterable[TriggerRow]) -> list[tuple[TaskRef, int]]:
    return [(trigger.ref, trigger.task_version) for trigger in triggers]


def _overdue(change: ChangedTask) -> list[TriggerRow]:
    return overdue_before_edit(change.triggers, edited_us=change.task.updated_us)


def _version_of(change: ChangedTask) -> tuple[TaskRef, int]:
    return change.task.definition.ref, change.task.version
