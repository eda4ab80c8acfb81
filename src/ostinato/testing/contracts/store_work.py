"""Contract of stores: how an owner finds work, held work, expired work, and what runs."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from ostinato.core.definition import TaskRef
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State
from ostinato.store.batches import CommitReport, EndWaiting, HeldQuery, HoldWaiting
from ostinato.store.protocol import Store
from ostinato.store.rules import TOLD_COUNT
from ostinato.testing.contracts.store_kit import (
    ALL,
    HOUR,
    MINUTE,
    REF,
    SECOND,
    T0,
    Owner,
    end_attempt,
    make_assign,
    make_instance,
    make_success,
)

OTHER = TaskRef("default", "other")


async def _find(store: Store, *, limit: int = 100, now_us: int = T0) -> list[str]:
    return [row.id for row in (await store.find_work(ALL, now_us=now_us, limit=limit)).instances]


async def _hold(owner: Owner, hold: Hold, *rows: Instance) -> None:
    batch = owner.batch()
    batch.holds = [
        HoldWaiting(row.id, row.partition, row.state, row.attempt, hold, f"held: {hold}") for row in rows
    ]
    assert await owner.store.commit(batch) == CommitReport()


async def _waiting(store: Store, partitions: Sequence[int], *, limit: int, now_us: int = T0) -> set[str]:
    found = await store.waiting_tasks(partitions, now_us=now_us, first=None, limit=limit)
    assert found.next_ref is None
    return {ref.name for ref in found.refs}


class WorkContract:
    async def test_an_empty_queue_has_nothing_now_or_later(self, store: Store) -> None:
        found = await store.find_work(ALL, now_us=T0, limit=10)
        assert (found.instances, found.more, found.next_due_us) == ([], False, None)
        assert await store.next_expiry_us(ALL) is None
        assert await store.held_tasks(ALL) == []

    async def test_what_waits_is_counted_whatever_holds_it_up_to_a_limit(self, store: Store) -> None:
        assert await store.count_waiting(now_us=T0, limit=10) == 0
        owner = await Owner.of(store)
        held = [make_instance(number, partition=number, priority=number) for number in range(3)]
        waiting = [make_instance(10 + number, partition=60 + number % 4, due_us=T0) for number in range(5)]
        await owner.submit(*held, *waiting, make_instance(20, due_us=T0 + 1))
        await _hold(owner, Hold.PAUSED, *held)
        running = await owner.run(make_instance(30), make_instance(31))
        assert await store.count_waiting(now_us=T0, limit=100) == 8
        assert await store.count_waiting(now_us=T0 + 1, limit=100) == 9
        assert await store.count_waiting(now_us=T0 - 1, limit=100) == 0
        assert [await store.count_waiting(now_us=T0, limit=limit) for limit in (2, 4, 8)] == [2, 4, 8]
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(running[0], State.RETRY_WAITING)]
        batch.successes = [make_success(running[1])]
        await store.commit(batch)
        assert await store.count_waiting(now_us=T0 + HOUR, limit=100) == 10

    async def test_work_is_found_at_its_due_time_and_not_before(self, store: Store) -> None:
        """I4."""
        owner = await Owner.of(store)
        await owner.submit(make_instance(1, due_us=T0), make_instance(2, due_us=T0 + 1))
        assert (await store.find_work(ALL, now_us=T0 - 1, limit=10)).instances == []
        found = await store.find_work(ALL, now_us=T0, limit=10)
        assert found.instances == [make_instance(1)]
        assert (found.more, found.next_due_us) == (False, T0 + 1)
        assert await _find(store, now_us=T0 + 1) == ["i000001", "i000002"]

    async def test_priority_ages_by_one_a_minute(self, store: Store) -> None:
        """Order is ``due_us - priority * 60 s``: two minutes more of waiting beat one priority more."""
        owner = await Owner.of(store)
        await owner.submit(
            make_instance("low-old", priority=5, due_us=T0 - 2 * MINUTE),
            make_instance("high", priority=6, due_us=T0),
            make_instance("low-new", priority=5, due_us=T0),
            make_instance("same-b", priority=9, due_us=T0),
            make_instance("same-a", priority=8, due_us=T0 - MINUTE),
            make_instance("lowest", priority=0, due_us=T0 - HOUR),
        )
        expected = ["lowest", "same-a", "same-b", "low-old", "high", "low-new"]
        assert await _find(store) == expected
        assert await _find(store, limit=3) == expected[:3]

    async def test_order_equals_a_sort_of_all_due_rows(self, store: Store) -> None:
        owner = await Owner.of(store)
        rng = random.Random(7)
        rows = [
            make_instance(
                number,
                priority=rng.randrange(10),
                due_us=T0 - rng.randrange(600) * SECOND,
                partition=rng.randrange(64),
            )
            for number in range(500)
        ]
        await owner.submit(*rows)
        ranked = sorted(rows, key=lambda row: (row.due_us - row.priority * MINUTE, row.id))
        assert await _find(store, limit=500) == [row.id for row in ranked]
        found = await store.find_work(range(10), now_us=T0, limit=20)
        mine = [row.id for row in ranked if row.partition < 10]
        assert [row.id for row in found.instances] == mine[:20]
        assert found.more == (len(mine) > 20)

    async def test_more_says_whether_due_rows_are_left(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(*[make_instance(number) for number in range(10)])
        assert (await store.find_work(ALL, now_us=T0, limit=9)).more
        assert not (await store.find_work(ALL, now_us=T0, limit=10)).more
        assert (await store.find_work(ALL, now_us=T0, limit=0)).more

    async def test_only_waiting_rows_of_the_partitions_asked_for_are_work(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.run(make_instance("running"))
        await owner.finish(make_instance("finished"))
        (retry,) = await owner.run(make_instance("retry"))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(retry, due_us=T0)]
        await store.commit(batch)
        await owner.submit(
            make_instance("blocked", state=State.BLOCKED),
            make_instance("pending"),
            make_instance("foreign", partition=9),
            make_instance("later-foreign", partition=9, due_us=T0 + 1),
        )
        mine = [number for number in ALL if number != 9]
        found = await store.find_work(mine, now_us=T0, limit=10)
        assert [row.id for row in found.instances] == ["pending", "retry"]
        assert found.next_due_us is None
        assert (await store.find_work([9], now_us=T0, limit=10)).next_due_us == T0 + 1
        assert found.instances[1].attempt == 1
        assert found.instances[1].counters.failures == 1

    async def test_no_instance_is_found_twice(self, store: Store) -> None:
        owner = await Owner.of(store)
        rows = [make_instance(number) for number in range(6)]
        await owner.submit(*rows)
        await _hold(owner, Hold.BUSY, *rows[:3])
        held = [HeldQuery(REF, (Hold.BUSY, Hold.BUSY, Hold.NO_WORKER), 10), HeldQuery(REF, (Hold.BUSY,), 10)]
        found = await store.find_work(ALL, now_us=T0, limit=10, held=held)
        identifiers = [row.id for row in found.instances]
        assert sorted(identifiers) == [row.id for row in rows]

    # ── tasks of which work waits ────────────────────────────────────────────────────────────────────

    async def test_tasks_whose_work_waits_are_those_with_a_row_that_is_due_and_not_held(
        self, store: Store
    ) -> None:
        owner = await Owner.of(store)
        await owner.run(make_instance("runs", task="runs"), make_instance("first", task="both"))
        await owner.finish(make_instance("ended", task="ended"))
        (retry,) = await owner.run(make_instance("retry", task="retry"))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(retry, due_us=T0)]
        await store.commit(batch)
        await owner.submit(
            make_instance("second", task="both", created_us=T0 - HOUR),
            make_instance("later", task="later", due_us=T0 + 1),
            make_instance("held", task="held", hold=Hold.BUSY),
            make_instance("blocked", task="blocked", state=State.BLOCKED),
            make_instance("foreign", task="foreign", partition=9),
        )
        mine = [number for number in ALL if number != 9]
        assert await _waiting(store, mine, limit=100) == {"both", "retry"}
        assert await _waiting(store, mine, limit=100, now_us=T0 + 1) == {"both", "retry", "later"}
        assert await _waiting(store, [9], limit=100) == {"foreign"}

    @pytest.mark.parametrize("limit", [1, 2, 3, 50])
    async def test_tasks_whose_work_waits_come_in_pages_each_once(self, store: Store, limit: int) -> None:
        owner = await Owner.of(store)
        names = ["mail", "A", "a", "a b", "b", "z" * 30, "é"]
        await owner.submit(
            *[make_instance(number, task=name) for number, name in enumerate(names)],
            make_instance(90, namespace="other", task="a"),
            make_instance(91, namespace="a", task="z"),
            make_instance(92, task="held", hold=Hold.PAUSED),
            make_instance(93, task="b", created_us=T0 + 5),
        )
        found: list[TaskRef] = []
        first: TaskRef | None = None
        for _ in range(20):
            page = await store.waiting_tasks(ALL, now_us=T0, first=first, limit=limit)
            assert len(page.refs) <= limit
            found += page.refs
            first = page.next_ref
            if first is None:
                break
        expected = [TaskRef("default", name) for name in names]
        assert sorted(found) == sorted([*expected, TaskRef("other", "a"), TaskRef("a", "z")])

    async def test_where_to_look_on_need_not_be_there_any_more(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(*[make_instance(name, task=name) for name in ("a", "b", "c")])
        page = await store.waiting_tasks(ALL, now_us=T0, first=None, limit=1)
        gone = page.next_ref
        assert gone == TaskRef("default", "b")
        batch = owner.batch()
        batch.ended_waiting = [EndWaiting("b", 3, State.PENDING, 0, State.CANCELLED, "", T0)]
        await store.commit(batch)
        rest = await store.waiting_tasks(ALL, now_us=T0, first=gone, limit=5)
        names = {ref.name for ref in [*page.refs, *rest.refs]}
        assert (names, rest.next_ref) == ({"a", "c"}, None)

    async def test_a_task_of_which_more_lives_than_is_looked_at_may_have_work_that_waits(
        self, store: Store
    ) -> None:
        owner = await Owner.of(store)
        held = [make_instance(number, hold=Hold.PAUSED, created_us=T0 + 1) for number in range(TOLD_COUNT)]
        await owner.submit(*held)
        assert await _waiting(store, ALL, limit=9) == set()
        await owner.submit(make_instance("old", created_us=T0))
        assert await _waiting(store, ALL, limit=9) == {REF.name}
        assert await _waiting(store, [9], limit=9) == set()

    # ── held work ────────────────────────────────────────────────────────────────────────────────────

    async def test_a_held_row_leaves_the_queue_and_is_found_by_its_task(self, store: Store) -> None:
        owner = await Owner.of(store)
        rows = [
            make_instance(1, due_us=T0 - MINUTE),
            make_instance(2, priority=7),
            make_instance(3),
            make_instance(4, task="other"),
            make_instance(5),
        ]
        await owner.submit(*rows)
        await _hold(owner, Hold.NO_WORKER, rows[0], rows[3])
        await _hold(owner, Hold.BUSY, rows[1])
        await _hold(owner, Hold.PAUSED, rows[2])
        found = await store.find_work(ALL, now_us=T0, limit=10)
        assert ([row.id for row in found.instances], found.more, found.next_due_us) == (
            ["i000005"],
            False,
            None,
        )
        query = HeldQuery(REF, (Hold.NO_WORKER, Hold.BUSY), 10)
        found = await store.find_work(ALL, now_us=T0, limit=0, held=[query])
        assert [row.id for row in found.instances] == ["i000002", "i000001"]
        assert found.instances[0].hold is Hold.BUSY
        found = await store.find_work(ALL, now_us=T0, limit=10, held=[HeldQuery(REF, query.holds, 1)])
        assert [row.id for row in found.instances] == ["i000005", "i000002"]
        assert (await store.find_work([9], now_us=T0, limit=9, held=[query])).instances == []
        assert await store.held_tasks(ALL) == [
            (OTHER, Hold.NO_WORKER),
            (REF, Hold.BUSY),
            (REF, Hold.NO_WORKER),
            (REF, Hold.PAUSED),
        ]
        assert await store.held_tasks([9]) == []

    @pytest.mark.parametrize("hold", list(Hold))
    async def test_whatever_holds_a_row_is_kept_and_the_row_found_by_it(
        self, store: Store, hold: Hold
    ) -> None:
        owner = await Owner.of(store)
        rows = [make_instance(1), make_instance(2)]
        await owner.submit(*rows)
        await _hold(owner, hold, rows[0])
        assert await store.held_tasks(ALL) == [(REF, hold)]
        others = tuple(other for other in Hold if other is not hold)
        queries = [HeldQuery(REF, others, 10), HeldQuery(REF, (hold,), 10)]
        (found,) = (await store.find_work(ALL, now_us=T0, limit=0, held=queries)).instances
        assert (found.id, found.hold, found.reason) == (rows[0].id, hold, f"held: {hold}")

    async def test_a_held_row_is_found_though_the_time_is_before_it(self, store: Store) -> None:
        """The clock by which it was due has been put back; whoever asks must not take it for gone."""
        owner = await Owner.of(store)
        rows = [make_instance(1, due_us=T0 + MINUTE), make_instance(2, due_us=T0)]
        await owner.submit(*rows)
        await _hold(owner, Hold.BUSY, *rows)
        query = HeldQuery(REF, (Hold.BUSY,), 10)
        found = await store.find_work(ALL, now_us=T0, limit=10, held=[query])
        assert [row.id for row in found.instances] == ["i000002", "i000001"]
        assert found.next_due_us is None

    async def test_overlap_lets_the_earliest_start_once_nothing_else_lives(self, store: Store) -> None:
        owner = await Owner.of(store)
        (running,) = await owner.run(make_instance("runs"))
        rows = [
            make_instance("b", created_us=T0, fire_us=T0 + 2, fire_trigger="t", hold=Hold.OVERLAP),
            make_instance("c", created_us=T0, fire_us=T0 + 1, fire_trigger="t", hold=Hold.OVERLAP),
            make_instance("a", created_us=T0 + 1, fire_us=T0 + 1, fire_trigger="u", hold=Hold.OVERLAP),
        ]
        await owner.submit(*rows)
        assert await store.find_overlap_ready([REF, OTHER]) == []
        batch = owner.batch()
        batch.successes = [make_success(running)]
        await store.commit(batch)
        assert [row.id for row in await store.find_overlap_ready([REF, OTHER, REF])] == ["c"]
        batch = owner.batch()
        batch.assigns = [make_assign(rows[1])]
        await store.commit(batch)
        assert await store.find_overlap_ready([REF]) == []

    async def test_the_shards_of_a_fire_start_together_and_one_fire_after_the_other(
        self, store: Store
    ) -> None:
        owner = await Owner.of(store)
        (running,) = await owner.run(make_instance("runs"))
        rows = [
            make_instance(
                f"{fire_number}{shard}",
                created_us=T0,
                fire_trigger="t",
                fire_us=T0 + fire_number,
                shard=shard,
                shard_total=3,
                hold=Hold.OVERLAP,
            )
            for fire_number in (2, 1)
            for shard in range(3)
        ]
        await owner.submit(*rows)
        assert await store.find_overlap_ready([REF]) == []
        batch = owner.batch()
        batch.successes = [make_success(running)]
        await store.commit(batch)
        ready = await store.find_overlap_ready([REF])
        assert sorted(row.id for row in ready) == ["10", "11", "12"]
        assert {row.shard: row for row in ready}[2] == rows[5]
        # One has started, the others have found no worker: it does not stand in their way.
        batch = owner.batch()
        batch.assigns = [make_assign(rows[3])]
        await store.commit(batch)
        assert sorted(row.id for row in await store.find_overlap_ready([REF])) == ["11", "12"]
        batch = owner.batch()
        batch.assigns = [make_assign(rows[4]), make_assign(rows[5])]
        await store.commit(batch)
        assert await store.find_overlap_ready([REF]) == []

    @pytest.mark.parametrize("state", [State.PENDING, State.BLOCKED])
    async def test_overlap_counts_whatever_is_not_terminal(self, store: Store, state: State) -> None:
        owner = await Owner.of(store)
        await owner.submit(make_instance(2, hold=Hold.OVERLAP), make_instance(1, state=state))
        assert await store.find_overlap_ready([REF]) == []
        batch = owner.batch()
        batch.ended_waiting = [EndWaiting("i000001", 3, state, 0, State.CANCELLED, "", T0)]
        await store.commit(batch)
        assert [row.id for row in await store.find_overlap_ready([REF])] == ["i000002"]

    async def test_what_is_younger_and_has_not_started_overlaps_nothing(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(
            make_instance(2, created_us=T0, hold=Hold.OVERLAP),
            make_instance(1, created_us=T0 + 1, due_us=T0 + HOUR),
            make_instance(3, created_us=T0, due_us=T0 - 1),
        )
        assert [row.id for row in await store.find_overlap_ready([REF])] == ["i000002"]
        await owner.run(make_instance(4, created_us=T0 + 1))
        assert await store.find_overlap_ready([REF]) == []

    # ── expiry, live and running rows ────────────────────────────────────────────────────────────────

    async def test_what_could_not_start_in_time_is_found_earliest_first(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.run(make_instance("running", expires_us=T0 - HOUR))
        rows = [
            make_instance("late", expires_us=T0 - 1),
            make_instance("later", expires_us=T0 - 2, hold=Hold.NO_WORKER),
            make_instance("exactly", expires_us=T0),
            make_instance("future", expires_us=T0 - 1, due_us=T0 + HOUR),
            make_instance("never"),
        ]
        await owner.submit(*rows)
        found = await store.find_expired(ALL, now_us=T0, limit=10)
        assert [row.id for row in found] == ["later", "future", "late"]
        assert found[0] == rows[1]
        assert [row.id for row in await store.find_expired(ALL, now_us=T0, limit=1)] == ["later"]
        assert await store.find_expired([9], now_us=T0, limit=10) == []
        assert await store.next_expiry_us(ALL) == T0 - 2
        assert await store.next_expiry_us([9]) is None

    async def test_live_instances_are_those_not_terminal(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.finish(make_instance("finished"))
        await owner.run(make_instance("running", created_us=T0 + 1))
        await owner.submit(
            make_instance("waiting", created_us=T0 + 3),
            make_instance("held", created_us=T0 + 2, hold=Hold.BUSY),
            make_instance("blocked", created_us=T0 + 4, state=State.BLOCKED),
            make_instance("foreign", task="other"),
        )
        found = await store.live_instances([REF, TaskRef("default", "none")], limit=3)
        assert [row.id for row in found[REF]] == ["running", "held", "waiting"]
        assert found[TaskRef("default", "none")] == []
        assert found[REF][1] == make_instance("held", created_us=T0 + 2, hold=Hold.BUSY, payload=b"")

    async def test_running_instances_come_by_id_in_pages(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.run(*[make_instance(number, partition=number % 2) for number in range(7)])
        await owner.submit(make_instance(50))
        page = await store.running_instances([0, 1], after_id="", limit=4)
        rest = await store.running_instances([0, 1], after_id=page[-1].id, limit=4)
        assert [row.id for row in page + rest] == [f"i{number:06}" for number in range(7)]
        assert (page[0].attempt_id, page[0].payload) == ("a1-i000000", b"")
        mine = await store.running_instances([1], after_id="", limit=10)
        assert [row.id for row in mine] == ["i000001", "i000003", "i000005"]
