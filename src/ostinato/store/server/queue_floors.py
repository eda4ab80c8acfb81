"""Where the waiting rows of each queue begin, so that a look need not go through what is dead before them.

A row that leaves the queue leaves a dead entry at the front of its index. Servers clear these away, but not
while any transaction anywhere could still see the row: beside a report that runs for an hour every look would
go through an hour of them (C119). So when looks have become slow, each remembers the earliest waiting row of
each queue, its *floor*, and the next ones begin there.

What could stand below a floor is what entered the queue late:

* by this store: each commit and submission lowers the floors to what it has put there, also where its answer
  was lost, and also those that a look under way is about to set;
* by others, in a transaction that was committed later than its rows were due: floors keep a margin from now,
  and a *full look* from the very beginning comes again and again, though it takes no more than a small share
  of the time. Until then a look from the floors says when to look again, so that nothing waits for a hint;
* by another owner: what is taken over is forgotten here first.

While full looks are fast, as they are without such a transaction, every look is one, and nothing is
remembered.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TypeAlias

from ostinato.clock import Clock
from ostinato.core.changes import CommitBatch
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.store.batches import Submission

#: A full look that takes no longer is made every time, and so is one behind which so few rows have left the
#: queues that it must be something else that was slow.
FAST_US = 4 * MILLISECOND
LEFT_COUNT_MIN = 2_000
#: After a full look there is none for so many times as long as it took, and no longer than a poll may be.
REST_FACTOR = 20
REST_US_MAX = 5 * SECOND
#: Floors stay this far from now: most transactions are committed sooner than this after their rows are due.
MARGIN_US = SECOND
#: Below every due time.
LOWEST_US = -(1 << 62)

#: A queue: partition and priority.
Branch: TypeAlias = tuple[int, int]
#: What has entered a queue: partition and due time.
_Queued: TypeAlias = tuple[int, int]


class QueueLook:
    """One look at the queues: from their very beginning if it `is_full`, else from their floors."""

    def __init__(self, floors: Mapping[Branch, int], *, is_full: bool, began_us: int) -> None:
        self.is_full = is_full
        self.began_us = began_us
        self._floors = floors
        #: What has entered the queues since, by partition: the look may have missed it.
        self.lowered: dict[int, int] = {}
        self.is_outdated = False

    def floor_us(self, branch: Branch) -> int:
        """Due time from which on the queue has to be read."""
        return LOWEST_US if self.is_full else self._floors.get(branch, LOWEST_US)


class QueueFloors:
    """The floors of one store's queues."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._floors: dict[Branch, int] = {}
        self._looks: list[QueueLook] = []
        self._next_full_boot_us = 0
        #: Rows that this store has taken out of the queues since the last fast full look.
        self._left_count = 0

    @contextmanager
    def look(self) -> Iterator[QueueLook]:
        """While a look is under way."""
        now_us = self._clock.boot_us()
        look = QueueLook(self._floors, is_full=now_us >= self._next_full_boot_us, began_us=now_us)
        self._looks.append(look)
        try:
            yield look
        finally:
            self._looks.remove(look)

    def looked(
        self, look: QueueLook, firsts: Mapping[Branch, int], *, empty: Iterable[Branch], now_us: int
    ) -> int | None:
        """Remember what a look has seen. Returns the instant of the next full look, if others come before.

        `firsts` are the due times of the first waiting rows, `empty` the queues that have none; of others
        nothing is known. `now_us` is the time by which rows are due.
        """
        boot_us = self._clock.boot_us()
        if look.is_full:
            took_us = boot_us - look.began_us
            if took_us <= FAST_US:
                self._left_count = 0
            if self._left_count < LEFT_COUNT_MIN:
                self._floors.clear()
                return None
            self._next_full_boot_us = boot_us + min(REST_FACTOR * took_us, REST_US_MAX)
        if not look.is_outdated:
            latest_us = now_us - MARGIN_US
            for branch in empty:
                # One that never had a row costs nothing from the beginning either.
                if branch in self._floors:
                    self._set(branch, latest_us, look)
            for branch, first_us in firsts.items():
                self._set(branch, min(first_us, latest_us), look)
        return now_us + max(1, self._next_full_boot_us - boot_us)

    def submitted(self, submissions: Iterable[Submission]) -> None:
        """These were inserted, or may have been."""
        self._lower(_queued_of(submission.instance for submission in submissions))

    def committed(self, batch: CommitBatch) -> None:
        """This was committed, or may have been."""
        self._left_count += len(batch.assigns) + len(batch.holds) + len(batch.ended_waiting)
        self._lower(_queued_by(batch))

    def _lower(self, queued: Iterable[_Queued]) -> None:
        if not self._floors and not self._looks:
            return
        earliest: dict[int, int] = {}
        for partition, due_us in queued:
            earliest[partition] = min(due_us, earliest.get(partition, due_us))
        for look in self._looks:
            for partition, due_us in earliest.items():
                look.lowered[partition] = min(due_us, look.lowered.get(partition, due_us))
        for branch, floor_us in self._floors.items():
            self._floors[branch] = min(floor_us, earliest.get(branch[0], floor_us))

    def forget(self) -> None:
        """Others may have written until now."""
        self._floors.clear()
        for look in self._looks:
            look.is_outdated = True

    def _set(self, branch: Branch, floor_us: int, look: QueueLook) -> None:
        self._floors[branch] = min(floor_us, look.lowered.get(branch[0], floor_us))


def _queued_by(batch: CommitBatch) -> Iterator[_Queued]:
    """What a commit puts into the queues."""
    yield from _queued_of(batch.inserts)
    for replay in batch.replays:
        yield replay.partition, replay.due_us
    for ended in batch.ended_attempts:
        if ended.state is State.RETRY_WAITING:
            yield ended.partition, ended.due_us


def _queued_of(instances: Iterable[Instance]) -> Iterator[_Queued]:
    """What inserting these puts into the queues."""
    for instance in instances:
        if instance.state is State.PENDING and instance.hold is None:
            yield instance.partition, instance.due_us
