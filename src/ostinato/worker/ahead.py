"""Attempts that wait ahead of a pool's slots: a slot whose attempt has ended finds the next one here.

Without them each attempt pays the way to the scheduler and back while its slot is idle, which for one of a
millisecond is most of its time. So a worker promises more than its slots while the attempts of a pool are
short, and only then: what waits here cannot run elsewhere.

* **How many**: what the slots do in 50 ms by the mean run time of recent attempts, 1,000 at most, and as many
  as have ended in quick succession beyond one a slot. None while the mean is 25 ms or more.
* **Not for long**: one that has waited for a second is handed back unstarted, and counts nothing. The number
  falls to 0 then, as it does when no attempt of the pool has ended for a second.
* **They do not run**: an executor hears of an attempt once a slot is free for it, so its time-outs have not
  begun, and what it holds (memory, a process of its own) is free. Its lease has begun, and ends it here too.
"""

from __future__ import annotations

from itertools import islice, takewhile

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.worker.attempt import RunningAttempt
from ostinato.worker.executors.protocol import AttemptFinished

#: Work that may wait for each slot, as the time that it takes to run.
AHEAD_US = 50 * MILLISECOND
#: Mean run time from which on nothing waits ahead.
SHORT_US = 25 * MILLISECOND
#: Attempts that may wait ahead of a pool's slots, however many and fast these are.
AHEAD_COUNT_MAX = 1_000
#: Longest wait of an attempt for a slot.
WAIT_US_MAX = SECOND
#: How long the mean counts without a new end. One of hundreds of workers gets its next run after seconds.
REMEMBERED_US = 3 * SECOND
#: Of the mean: the newest attempt counts as much as one of so many.
_MEAN_COUNT = 8


class QueueAhead:
    """Of one pool: its slots, and the attempts that wait for one, in the order of their coming.

    All times are boot time.
    """

    def __init__(self, slot_count: int) -> None:
        self._slot_count = slot_count
        self._busy_count = 0
        #: Attempts by id, and since when each waits.
        self._waiting: dict[str, tuple[RunningAttempt, int]] = {}
        self._mean_us = 0.0
        #: Attempts that have ended with no longer pause between two of them, and when the newest did.
        self._ended_count = 0
        self._ended_us = 0
        #: How many attempts may wait.
        self.count_max = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def enter(self, attempt: RunningAttempt, *, now_us: int) -> bool:
        """Give an attempt a slot; False if it has to wait for one."""
        if self._busy_count < self._slot_count and not self._waiting:
            self._busy_count += 1
            return True
        self._waiting[attempt.assignment.attempt_id] = attempt, now_us
        return False

    def take(self) -> list[RunningAttempt]:
        """Those that have waited longest, as many as there are slots for: they have these now."""
        count = min(self._slot_count - self._busy_count, len(self._waiting))
        taken = [self._waiting.pop(next(iter(self._waiting)))[0] for _ in range(count)]
        self._busy_count += count
        return taken

    def leave(self, finished: AttemptFinished, *, now_us: int, is_isolated: bool = False) -> None:
        """An attempt has ended, or waits no longer.

        `is_isolated`: a process was started for it alone, which takes longer than what is short here.
        """
        if self._waiting.pop(finished.attempt_id, None) is not None:
            return
        self._busy_count -= 1
        if is_isolated:
            self._close()
        elif finished.started_us is not None:
            if now_us >= self._ended_us + REMEMBERED_US:
                # What ended longer ago is no quick succession with this.
                self._close()
            self._ended_us = now_us
            self._ended_count += 1
            weight = min(self._ended_count, _MEAN_COUNT)
            # Never negative, whatever the wall clock did meanwhile.
            run_us = max(0, finished.finished_us - finished.started_us)
            self._mean_us += (run_us - self._mean_us) / weight
            self._follow_mean()

    def _follow_mean(self) -> None:
        if self._mean_us >= SHORT_US:
            self.count_max = 0
            return
        count = int(self._slot_count * AHEAD_US / max(self._mean_us, 1))
        count = max(0, min(count, AHEAD_COUNT_MAX, self._ended_count - self._slot_count))
        # What was promised is not asked back for a little: the mean goes up and down all the time.
        if count > self.count_max or count < self.count_max // 2:
            self.count_max = count

    @property
    def waiting(self) -> list[RunningAttempt]:
        """Attempts that wait, in the order of their coming."""
        return [attempt for attempt, _ in self._waiting.values()]

    def holds(self, attempt_id: str) -> bool:
        """Whether that attempt waits here."""
        return attempt_id in self._waiting

    def overdue(self, now_us: int) -> list[RunningAttempt]:
        """Attempts that have waited too long and are to leave; none may follow them."""
        late = takewhile(lambda entry: now_us >= entry[1] + WAIT_US_MAX, self._waiting.values())
        found = [attempt for attempt, _ in late]
        if found or now_us >= self._ended_us + REMEMBERED_US:
            self._close()
        return found

    def _close(self) -> None:
        """Let nothing wait until attempts have been short anew."""
        self.count_max = self._ended_count = 0
        self._mean_us = 0.0

    def look_us(self) -> int | None:
        """When to ask for those that are `overdue` next; None while nothing waits, or may."""
        # The first has waited longest.
        times = [since_us + WAIT_US_MAX for _, since_us in islice(self._waiting.values(), 1)]
        if self.count_max:
            times.append(self._ended_us + REMEMBERED_US)
        return min(times, default=None)
