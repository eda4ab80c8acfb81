"""C119, floors of queues: what enters a queue late is missed for no longer than a full look takes to come."""

from __future__ import annotations

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.store.batches import Submission
from ostinato.store.server.queue_floors import (
    FAST_US,
    LEFT_COUNT_MIN,
    LOWEST_US,
    MARGIN_US,
    REST_FACTOR,
    QueueFloors,
    QueueLook,
)
from ostinato.testing.contracts.store_kit import T0, Owner, make_assign, make_instance

BRANCH = (7, 5)


class SteppingClock:
    """Goes on when it is told to."""

    now_us = SECOND

    def boot_us(self) -> int:
        return self.now_us

    def wall_us(self) -> int:
        return T0

    async def sleep_until_us(self, boot_us: int) -> None:
        raise NotImplementedError


def slow_queues(clock: SteppingClock) -> QueueFloors:
    """Floors of a store that has taken many rows out of its queues since a look was fast."""
    floors = QueueFloors(clock)
    batch = Owner(None, []).batch()  # type: ignore[arg-type]  # nothing is written
    batch.assigns = [make_assign(make_instance(number)) for number in range(LEFT_COUNT_MIN)]
    floors.committed(batch)
    return floors


def look(
    floors: QueueFloors, clock: SteppingClock, first_us: int | None, *, takes_us: int = 50 * MILLISECOND
) -> tuple[QueueLook, int | None]:
    """A look that finds one row, or that the queue is empty."""
    with floors.look() as under_way:
        clock.now_us += takes_us
        firsts = {} if first_us is None else {BRANCH: first_us}
        empty = [] if firsts else [BRANCH]
        return under_way, floors.looked(under_way, firsts, empty=empty, now_us=T0)


def floor_of(floors: QueueFloors) -> int:
    with floors.look() as under_way:
        assert not under_way.is_full
        return under_way.floor_us(BRANCH)


def test_while_looks_are_fast_each_begins_at_the_very_beginning() -> None:
    clock = SteppingClock()
    floors = slow_queues(clock)
    for _ in range(3):
        under_way, again_us = look(floors, clock, T0 - SECOND, takes_us=FAST_US)
        assert (under_way.is_full, under_way.floor_us(BRANCH), again_us) == (True, LOWEST_US, None)


def test_a_slow_look_behind_which_few_rows_have_left_the_queues_changes_nothing() -> None:
    clock = SteppingClock()
    floors = QueueFloors(clock)
    assert look(floors, clock, T0)[1] is None
    assert look(floors, clock, T0)[0].is_full


def test_after_a_slow_look_the_next_begins_at_the_first_row_but_never_within_the_margin_of_now() -> None:
    clock = SteppingClock()
    floors = slow_queues(clock)
    look(floors, clock, T0 - 5 * SECOND)
    assert floor_of(floors) == T0 - 5 * SECOND
    look(floors, clock, T0)
    assert floor_of(floors) == T0 - MARGIN_US
    look(floors, clock, None)
    assert floor_of(floors) == T0 - MARGIN_US


def test_a_full_look_comes_again_after_a_rest_and_the_one_before_it_says_when() -> None:
    clock = SteppingClock()
    floors = slow_queues(clock)
    took_us = 50 * MILLISECOND
    _, again_us = look(floors, clock, T0, takes_us=took_us)
    assert again_us == T0 + REST_FACTOR * took_us
    under_way, again_us = look(floors, clock, T0, takes_us=SECOND // 4)
    assert (under_way.is_full, again_us) == (False, T0 + REST_FACTOR * took_us - SECOND // 4)
    clock.now_us += REST_FACTOR * took_us
    assert look(floors, clock, T0)[0].is_full


def test_what_this_store_puts_into_a_queue_lowers_its_floor_also_while_a_look_is_under_way() -> None:
    clock = SteppingClock()
    floors = slow_queues(clock)
    look(floors, clock, T0)
    floors.submitted([Submission(instance=make_instance(1, partition=7, due_us=T0 - 60 * SECOND))])
    assert floor_of(floors) == T0 - 60 * SECOND
    with floors.look() as under_way:
        floors.submitted([Submission(instance=make_instance(2, partition=7, due_us=T0 - 90 * SECOND))])
        floors.looked(under_way, {BRANCH: T0}, empty=[], now_us=T0)
    assert floor_of(floors) == T0 - 90 * SECOND


def test_a_take_over_forgets_every_floor_and_what_a_look_under_way_has_seen() -> None:
    clock = SteppingClock()
    floors = slow_queues(clock)
    look(floors, clock, T0)
    with floors.look() as under_way:
        floors.forget()
        floors.looked(under_way, {BRANCH: T0}, empty=[], now_us=T0)
    assert floor_of(floors) == LOWEST_US
