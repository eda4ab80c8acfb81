"""No fire is missing: a trigger moves on together with what it fires, and is late only for a moment.

``fire_all`` makes an instance for every instant of its schedule, up to its bound; the other modes at least
one instance, if only a skipped one, for what was due. A resume, an enable and an edit may leave the past
behind. A trigger that was deleted and made anew by a clock that was put back comes to instants for which it
has fired before: there is one instance of each (I8).
"""

from __future__ import annotations

from collections import deque

from ostinato.core.changes import TriggerRow
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.instants import MINUTE, SECOND, format_instant
from ostinato.core.model import Instance
from ostinato.core.schedule.trigger import next_fire
from ostinato.scheduler.shared_time import CONFIRM_AFTER_US
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, Phase, Tick

#: A trigger in force fires no later than this, once everything is mended.
LATE_US = 10 * SECOND
#: And so much later after the database's clock has jumped: nobody fires before the jump is confirmed, which
#: its samples do that are taken once a second.
DOUBT_US = CONFIRM_AFTER_US + 2 * SECOND
#: Its next time is its first from so long ahead on at the latest: the furthest that a clock was believed.
AHEAD_US = 2 * MINUTE


class Fires(Checker):
    """Knows every trigger in force and the flags of its task."""

    invariant = "fires"
    listens = (Transaction, Phase, Tick)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._triggers: dict[str, TriggerRow] = {}
        self._tasks: dict[TaskRef, TaskRow] = {}
        #: When each version of a task was made. It may come into force while there is a newer one.
        self._edited_us: Remembered[tuple[TaskRef, int], int] = Remembered()
        #: Trigger and instant of what has fired.
        self._fired: Remembered[tuple[str, int], None] = Remembered()
        self._healed_us: int | None = None
        self._told_late: set[str] = set()

    def on(self, event: Event) -> None:
        if isinstance(event, Phase) and event.name == "healed":
            self._healed_us = event.at_us
        elif isinstance(event, Tick) and self._healed_us is not None:
            if event.at_us - self._healed_us > LATE_US:
                self._look(event.at_us)
        elif isinstance(event, Transaction):
            self._take(event)

    def _take(self, event: Transaction) -> None:
        if not (event.triggers or event.tasks):
            self._check_unadvanced(event, advanced=set())
            return
        flagged = self._take_tasks(event)
        fired: dict[str, set[int]] = {}
        for row in event.rows:
            if row.before is None and row.after is not None and row.after.fire_us is not None:
                fired.setdefault(row.after.fire_trigger, set()).add(row.after.fire_us)
        advanced: set[str] = set()
        for change in event.triggers:
            before, after = change.before, change.after
            identity = (before or after).id  # type: ignore[union-attr]  # one of the two is there
            advanced.add(identity)
            if after is None:
                self._triggers.pop(identity, None)
            else:
                self._triggers[identity] = after
            if before is None:
                continue
            if before.ref in flagged:
                self._check_switch(event.at_us, before, after)
            elif after is not None:
                self._check_advance(event.at_us, before, after, fired=fired.get(identity, set()))
        self._check_unadvanced(event, advanced=advanced)
        self._check_shards(event)
        for identity, instants in fired.items():
            for fire_us in instants:
                self._fired.put((identity, fire_us), None, at_us=event.at_us)

    def _look(self, at_us: int) -> None:
        # By a clock that has just been put forward all would be late, and nobody has heard of it yet.
        now_us, latest_us = self.known.believed_us(at_us)
        patience_us = LATE_US if now_us == latest_us else LATE_US + DOUBT_US
        for trigger in self._triggers.values():
            task = self._tasks.get(trigger.ref)
            if task is None or task.paused or task.disabled or trigger.next_us is None:
                continue
            if now_us - trigger.next_us > patience_us and trigger.id not in self._told_late:
                self._told_late.add(trigger.id)
                late = format_instant(trigger.next_us)
                self.violate(at_us, f"{trigger.ref}", f"its trigger {trigger.id} has not fired since {late}")
            self._check_ahead(at_us, trigger)

    def _check_ahead(self, at_us: int, trigger: TriggerRow) -> None:
        now_us = self.known.shared_us(at_us)
        first_us = next_fire(
            trigger.spec,
            now_us + AHEAD_US,
            created_us=min(trigger.created_us, now_us),
            spread_key=str(trigger.ref),
        )
        if first_us is None or trigger.next_us is None or trigger.next_us <= first_us:
            return
        if trigger.id not in self._told_late:
            self._told_late.add(trigger.id)
            ahead = format_instant(trigger.next_us)
            self.violate(at_us, f"{trigger.ref}", f"its trigger {trigger.id} fires not before {ahead}")

    def _take_tasks(self, event: Transaction) -> set[TaskRef]:
        """Tasks of which a flag or a version has changed, or that are gone."""
        flagged: set[TaskRef] = set()
        for change in event.tasks:
            if change.after is not None:
                self._tasks[change.after.ref] = change.after
                version = change.after.ref, change.after.version
                self._edited_us.put(version, change.after.updated_us, at_us=event.at_us)
                flagged.add(change.after.ref)
            elif change.before is not None:
                self._tasks.pop(change.before.ref, None)
                flagged.add(change.before.ref)
        # A flag that is set to what it was changes no row of a task.
        flagged.update(
            TaskRef(request.namespace, request.task)
            for request in event.requests
            if request.kind in ("resume", "enable") and request.answer_code
        )
        return flagged

    def _check_switch(self, at_us: int, before: TriggerRow, after: TriggerRow | None) -> None:
        """What was due when the definition was edited has fired under the old version first (C029)."""
        task = self._tasks.get(before.ref)
        if task is None or task.paused or task.disabled or before.next_us is None:
            return
        if task.scheduled_version == before.task_version or (
            after is not None and after.next_us == before.next_us
        ):
            return
        # An edit that is dated by a clock which nobody believed is not older than what is due by the owner's.
        now_us, _ = self.known.believed_us(at_us)
        edited_us = self._edited_us.get((task.ref, task.scheduled_version))
        is_due = before.next_us <= min(task.updated_us if edited_us is None else edited_us, now_us)
        if is_due and (after is None or after.task_version != before.task_version):
            due = format_instant(before.next_us)
            self.violate(at_us, f"{before.ref}", f"an edit dropped the fire of {due} that was due before it")

    def _check_advance(self, at_us: int, before: TriggerRow, after: TriggerRow, *, fired: set[int]) -> None:
        if before.next_us is None or before.next_us == after.next_us:
            return
        subject = f"{before.ref}"
        if not fired and (before.id, before.next_us) not in self._fired:
            self.violate(
                at_us, subject, f"trigger {before.id} moved on from {before.next_us} and fired nothing"
            )
            return
        if after.spec.misfire != "fire_all":
            return
        now_us = self.known.shared_us(at_us) + self.known.time_tolerance_us
        last_us = now_us if after.next_us is None else after.next_us - 1
        missing = [
            fire_us
            for fire_us in _due(before, last_us=last_us, count=after.spec.misfire_bound)
            if fire_us not in fired and (before.id, fire_us) not in self._fired
        ]
        if missing:
            listed = ", ".join(format_instant(fire_us) for fire_us in missing[:3])
            self.violate(at_us, subject, f"fire_all, and {len(missing)} fires are missing: {listed}")

    def _check_shards(self, event: Transaction) -> None:
        """A fire makes all of its shards at once, but for those that it has made before."""
        made: dict[tuple[str, int], list[Instance]] = {}
        for row in event.rows:
            if row.before is None and row.after is not None and row.after.fire_us is not None:
                made.setdefault((row.after.fire_trigger, row.after.fire_us), []).append(row.after)
        for fire, shards in made.items():
            total = shards[0].shard_total
            if len(shards) < total and fire not in self._fired:
                sentence = f"trigger {fire[0]} made {len(shards)} of {total} shards"
                self.violate(event.at_us, shards[0].id, sentence)

    def _check_unadvanced(self, event: Transaction, *, advanced: set[str]) -> None:
        for row in event.rows:
            instance = row.after
            if row.before is not None or instance is None or instance.fire_us is None:
                continue
            if instance.fire_trigger not in advanced:
                sentence = f"trigger {instance.fire_trigger} fired and did not move on"
                self.violate(event.at_us, instance.id, sentence)


def _due(trigger: TriggerRow, *, last_us: int, count: int) -> list[int]:
    """The last `count` instants of the schedule, from the one that is next up to `last_us`."""
    first_us = trigger.next_us
    assert first_us is not None, "only what has a next time moves on"
    back_us = MINUTE
    while True:
        # A clock may have been put forward by years: their instants are not gone through.
        from_us = max(last_us - back_us, first_us - 1)
        found: deque[int] = deque(maxlen=count)
        at_us = _next(trigger, from_us) if from_us >= first_us else first_us
        while at_us is not None and at_us <= last_us:
            found.append(at_us)
            at_us = _next(trigger, at_us)
        if len(found) == count or from_us < first_us:
            return list(found)
        back_us *= 2


def _next(trigger: TriggerRow, after_us: int) -> int | None:
    return next_fire(trigger.spec, after_us, created_us=trigger.created_us, spread_key=str(trigger.ref))
