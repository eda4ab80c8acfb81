"""What the owner of partitions keeps in memory, and how a committed batch changes it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.core.definition import TaskDefinition
from ostinato.core.model import Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.running import RunningAttempt


class Memory(msgspec.Struct):
    """What a node remembers of the partitions that it owns."""

    #: Epoch of each owned partition, part of every proof.
    epochs: dict[int, int] = {}
    #: Running attempts of all of them, by instance.
    running: dict[str, RunningAttempt] = {}
    #: By attempt id, those whose commit is under way. Until its answer arrives they are not in `running`, but
    #: the database may show them already, and somebody may cancel them.
    entering: dict[str, RunningAttempt] = {}

    def enter(self, attempt: RunningAttempt) -> None:
        """Remember a running attempt. What was known before of a wish to cancel it stays known."""
        known = self.running.get(attempt.instance_id)
        if known is not None and known.attempt_id == attempt.attempt_id and known.cancel_requested:
            attempt.cancel_requested, attempt.cancel_reason = True, known.cancel_reason
        self.running[attempt.instance_id] = attempt

    def lose(self, partitions: Sequence[int]) -> list[int]:
        """Forget partitions and their attempts; returns those that were known."""
        lost = [number for number in partitions if self.epochs.pop(number, None) is not None]
        if lost:
            self.running = {
                instance_id: attempt
                for instance_id, attempt in self.running.items()
                if attempt.partition in self.epochs
            }
        return lost


def running_attempt(
    instance: Instance, definition: TaskDefinition, *, known_since_boot_us: int
) -> RunningAttempt:
    """Memory of an instance that the database shows as running (warm-up after a take-over)."""
    return RunningAttempt(
        instance_id=instance.id,
        partition=instance.partition,
        definition=definition,
        task_version=instance.task_version,
        generation=instance.generation,
        attempt=instance.attempt,
        attempt_id=instance.attempt_id,
        worker_id=instance.worker_id,
        worker_name=instance.worker_name,
        assigned_us=instance.assigned_us if instance.assigned_us is not None else instance.due_us,
        due_us=instance.due_us,
        counters=instance.counters,
        cancel_requested=instance.cancel_requested_us is not None,
        cancel_reason=instance.cancel_reason,
        acknowledged=True,
        known_since_boot_us=known_since_boot_us,
    )


def settle(
    memory: Memory, effects: Effects, *, dropped: frozenset[str], kept: frozenset[str] = frozenset()
) -> None:
    """Apply a committed batch to memory. `dropped` are instances whose rows were not written.

    Of these `kept` are still running: their row was refused as data, or has changed meanwhile.
    """
    for attempt in effects.started:
        if attempt.instance_id not in dropped and attempt.partition in memory.epochs:
            memory.enter(attempt)
    for ended in effects.ended:
        current = memory.running.get(ended.instance_id)
        # A row that matched nothing shows that memory was wrong: either way this attempt is not running.
        if current is not None and current.attempt_id == ended.attempt_id and ended.instance_id not in kept:
            del memory.running[ended.instance_id]
    for wish in effects.cancel_signals:
        if wish.instance_id in dropped:
            continue
        current = memory.running.get(wish.instance_id)
        if current is None or current.attempt_id != wish.attempt_id:
            current = memory.entering.get(wish.attempt_id)
        if current is not None:
            current.cancel_requested = True
            current.cancel_reason = wish.reason
