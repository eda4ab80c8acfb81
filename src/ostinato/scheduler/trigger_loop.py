"""Time triggers: new definitions come into force, due fires become instances."""

from __future__ import annotations

from ostinato.core.changes import TriggerRow
from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.fire import DueTrigger, LiveTask, fire
from ostinato.core.partition.switch import overdue_before_edit, switch_version
from ostinato.scheduler.dispatch_loop import LIVE_COUNT_MAX
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.parts import NodeParts
from ostinato.store.batches import ChangedTask


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

    async def run_once(self) -> int | None:
        """Switch changed definitions, then fire what is due."""
        partitions = self._ownership.owned()
        if not partitions or self._time.is_in_doubt:
            return None
        changed = await self._store.find_changed_tasks(partitions, limit=self._config.batch_count)
        for change in changed:
            await self._switch(change)
        now_us = self._time.now_us()
        found = await self._store.find_due_triggers(partitions, now_us=now_us, limit=self._config.batch_count)
        if found.triggers:
            await self._fire(found.triggers, now_us=now_us)
        if found.triggers or len(changed) == self._config.batch_count:
            # What has fired has a next time of its own now: look again.
            return self._clock.boot_us()
        return None if found.next_us is None else self._time.boot_at(found.next_us)

    async def _switch(self, change: ChangedTask) -> None:
        """What was due up to the edit fires under the old version; then the new triggers are in force."""
        task, in_force = change.task, change.triggers
        definition = task.definition
        self._definitions.forget(definition.ref)
        overdue = overdue_before_edit(in_force, edited_us=task.updated_us)
        if overdue:
            await self._fire(overdue, now_us=self._time.now_us())
            in_force = await self._store.triggers_of(definition.ref)
        effects = Effects()
        switch_version(
            definition,
            version=task.version,
            partition=task.partition,
            in_force=in_force,
            edited_us=task.updated_us,
            into=effects,
        )
        await self._committer.commit(effects)

    async def _fire(self, triggers: list[TriggerRow], *, now_us: int) -> None:
        effects = Effects()
        refs = list({trigger.ref: None for trigger in triggers})
        await self._definitions.load_tasks(refs)
        pinned = await self._store.load_definitions(
            list({(trigger.ref, trigger.task_version): None for trigger in triggers})
        )
        live = await self._live(refs)
        for trigger in triggers:
            task = self._definitions.task(trigger.ref)
            definition = pinned.get((trigger.ref, trigger.task_version))
            if task is None or definition is None or task.paused or task.disabled:
                continue
            known = live.setdefault(trigger.ref, LiveTask(known={}))
            due = DueTrigger(trigger, definition, task)
            fire(due, known, now_us=now_us, rng=self._rng, into=effects)
        await self._committer.commit(effects)

    async def _live(self, refs: list[TaskRef]) -> dict[TaskRef, LiveTask]:
        """Live instances of the tasks whose overlap rule looks at them."""
        ruled = [
            ref
            for ref in refs
            if (task := self._definitions.task(ref)) is not None and task.definition.overlap != "allow"
        ]
        found: dict[TaskRef, list[Instance]] = (
            await self._store.live_instances(ruled, limit=LIVE_COUNT_MAX) if ruled else {}
        )
        return {ref: LiveTask(known={row.id: row for row in rows}) for ref, rows in found.items()}
