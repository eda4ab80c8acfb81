"""Due work was placed on a worker, or cannot be placed: assignments and holds."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec

from ostinato.core.changes import Assign, HoldWaiting
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.ids import new_attempt_id
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.states import Hold, State, require_move


class Placement(msgspec.Struct):
    """A due instance and the worker chosen for it, with its pinned definition."""

    instance: Instance
    definition: TaskDefinition
    ref: TaskRef
    worker_id: str
    worker_name: str


def assign(placements: Sequence[Placement], *, now_us: int, boot_us: int, rng: Random, into: Effects) -> None:
    """waiting → running for each; the attempt gets the next number and a random id (its fencing token)."""
    for placement in placements:
        instance = placement.instance
        require_move("assign", instance.state, State.RUNNING, subject=instance.id)
        attempt_id = new_attempt_id(rng)
        into.batch.assigns.append(
            Assign(
                instance_id=instance.id,
                partition=instance.partition,
                expected_state=instance.state,
                expected_attempt=instance.attempt,
                attempt_id=attempt_id,
                worker_id=placement.worker_id,
                worker_name=placement.worker_name,
                assigned_us=now_us,
            )
        )
        into.started.append(
            RunningAttempt(
                instance_id=instance.id,
                partition=instance.partition,
                definition=placement.definition,
                task_version=instance.task_version,
                generation=instance.generation,
                attempt=instance.attempt + 1,
                attempt_id=attempt_id,
                worker_id=placement.worker_id,
                worker_name=placement.worker_name,
                assigned_us=now_us,
                due_us=instance.due_us,
                counters=instance.counters,
                known_since_boot_us=boot_us,
            )
        )


def hold(instance: Instance, cause: Hold, *, reason: str, into: Effects) -> None:
    """Take a due instance out of the queue; nothing is written when it already says so."""
    if instance.hold is cause and instance.reason == reason:
        return
    into.batch.holds.append(
        HoldWaiting(
            instance_id=instance.id,
            partition=instance.partition,
            expected_state=instance.state,
            expected_attempt=instance.attempt,
            hold=cause,
            reason=reason,
        )
    )
