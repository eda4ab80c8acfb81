"""I8: one instance per (trigger, scheduled instant, shard); a live idempotency key has one instance."""

from __future__ import annotations

from typing import NamedTuple

from ostinato.control.submit import KEY_LIFETIME_US
from ostinato.core.model import Instance
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, SubmissionAnswered


class _Key(NamedTuple):
    instance_id: str
    expires_us: int


class OneInstancePerFire(Checker):
    """Knows every fire that has an instance, and every key that is live."""

    invariant = "I8"
    listens = (Transaction, SubmissionAnswered)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._fires: Remembered[tuple[str, int, int], str] = Remembered()
        #: By task (namespace, name), then by key.
        self._keys: dict[tuple[str, str], Remembered[str, _Key]] = {}
        self._key_of: Remembered[str, str] = Remembered(KEY_LIFETIME_US)
        #: When the key of each instance has ended.
        self._ends_us: Remembered[str, int] = Remembered(KEY_LIFETIME_US)

    def on(self, event: Event) -> None:
        match event:
            case Transaction():
                for task in event.tasks:
                    if task.before is not None and task.after is None:
                        # A task of that name that comes back does not answer with instances of this one.
                        self._keys.pop((task.before.ref.namespace, task.before.ref.name), None)
                for row in event.rows:
                    if row.before is None and row.after is not None:
                        self._take(event.at_us, row.after)
            case SubmissionAnswered() if event.key and not event.error_code:
                if self._key_of.get(event.instance_id) != event.key:
                    self.violate(
                        event.at_us,
                        event.instance_id,
                        f"the submission with key {event.key} was answered with an instance of "
                        f"key {self._key_of.get(event.instance_id)}",
                    )
                self._check_age(event)

    def _check_age(self, event: SubmissionAnswered) -> None:
        """Once a key has ended, whoever uses it gets an instance of its own."""
        ends_us = self._ends_us.get(event.instance_id)
        if ends_us is None or event.asked_us is None or event.instance_id == event.chosen_id:
            # A chosen id that is repeated is the same submission, however old.
            return
        asked_us, _ = self.known.believed_us(event.asked_us)
        if asked_us - self.known.time_tolerance_us > ends_us:
            self.violate(
                event.at_us,
                event.instance_id,
                f"the submission with key {event.key} was answered with it "
                f"{asked_us - ends_us} us after that key had ended",
            )

    def _take(self, at_us: int, instance: Instance) -> None:
        if instance.fire_us is not None:
            fire = (instance.fire_trigger, instance.fire_us, instance.shard)
            other_id = self._fires.get(fire)
            if other_id is None:
                self._fires.put(fire, instance.id, at_us=at_us)
            elif other_id != instance.id:
                self.violate(
                    at_us,
                    instance.id,
                    f"the fire of {instance.task} at {instance.fire_us} has another instance, {other_id}",
                )
        if instance.key:
            task = (instance.namespace, instance.task)
            keys = self._keys.get(task)
            if keys is None:
                keys = self._keys[task] = Remembered(KEY_LIFETIME_US)
            live = keys.get(instance.key)
            # What a clock that was ahead has ended has ended: retention may have taken it away.
            _, latest_us = self.known.believed_us(at_us)
            if live is not None and live.expires_us > latest_us:
                self.violate(
                    at_us,
                    instance.id,
                    f"key {instance.key} of {instance.task} is live and belongs to {live.instance_id}",
                )
            ends_us = instance.created_us + self.known.key_lifetime_us
            keys.put(instance.key, _Key(instance.id, ends_us), at_us=at_us)
            self._key_of.put(instance.id, instance.key, at_us=at_us)
            self._ends_us.put(instance.id, ends_us, at_us=at_us)
