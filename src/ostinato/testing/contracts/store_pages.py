"""Contract of stores: pages, cursors and counts of lists with any filter."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import product

import pytest

from ostinato.core.failure.failure import Failure
from ostinato.core.ids import new_id
from ostinato.core.model import Instance
from ostinato.core.states import Hold, State
from ostinato.errors import UserError
from ostinato.store.batches import InstanceCounts, InstanceFilter
from ostinato.store.paging import SCANNED_ROWS_MAX
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    MINUTE,
    SECOND,
    T0,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_instance,
)

REFUSED = Failure("ECONNREFUSED", "transient", "no answer")
BROKEN = Failure("BrokenPipe", "transient", "broken")


async def _all(store: Store, where: InstanceFilter, *, limit: int) -> list[Instance]:
    """Every instance of `where`, page by page; each page of at most `limit`."""
    found: list[Instance] = []
    cursor: str | None = None
    while True:
        page = await store.list_instances(where, cursor=cursor, limit=limit)
        assert len(page.instances) <= limit
        found += page.instances
        cursor = page.cursor
        if cursor is None:
            return found


async def _mixed(store: Store) -> list[Instance]:
    """Instances of every state in several namespaces and tasks, a second between them, newest first."""
    rng = random.Random(7)
    owner = await Owner.of(store)
    made: list[Instance] = []
    for number in range(120):
        created_us = T0 + number * SECOND
        made.append(
            make_instance(
                new_id(created_us, rng),
                created_us=created_us,
                namespace=rng.choice(["default", "default", "else"]),
                task=rng.choice(["report", "mail"]),
                key=rng.choice(["", "", f"k{number % 5}"]),
            )
        )
    waiting, blocked, running = made[:40], made[40:50], made[50:]
    for row in waiting[:10]:
        row.hold = Hold.BUSY
    for row in blocked:
        row.state = State.BLOCKED
    await owner.submit(*waiting, *blocked)
    started = await owner.run(*running)
    batch = owner.batch()
    states = [State.RETRY_WAITING, State.FAILED, State.CANCELLED]
    batch.ended_attempts = [
        end_attempt(row, rng.choice(states), failure=rng.choice([None, REFUSED, BROKEN]))
        for row in started[:30]
    ]
    await store.commit(batch)
    await owner.finish(
        *[make_instance(new_id(T0 + n * SECOND, rng), created_us=T0 + n * SECOND) for n in range(30)]
    )
    return (await store.list_instances(InstanceFilter(), cursor=None, limit=1_000)).instances


def _filters() -> Iterator[InstanceFilter]:
    namespaces = (None, "default", "else", "none")
    tasks = (None, "report", "none")
    states: tuple[tuple[State, ...], ...] = (
        (),
        (State.PENDING,),
        (State.FAILED,),
        (State.SUCCESS,),
        (State.RUNNING, State.PENDING, State.PENDING),
        (State.FAILED, State.CANCELLED, State.PENDING),
        (State.SUCCESS, State.RETRY_WAITING),
    )
    times = ((None, None), (T0 + 20 * SECOND, T0 + 77 * SECOND + 1))
    rest = (("", None), ("k1", None), (None, None), (None, "ECONNREFUSED"))
    for namespace, task, chosen, (start, end), (key, code) in product(namespaces, tasks, states, times, rest):
        yield InstanceFilter(namespace, task, chosen, key, code, start, end)


def _is_meant(row: Instance, where: InstanceFilter) -> bool:
    """Said once more in plain words: the stores' own condition is what is tested."""
    wanted = {
        "namespace": where.namespace,
        "task": where.task,
        "key": where.key,
    }
    return (
        all(value is None or getattr(row, name) == value for name, value in wanted.items())
        and (not where.states or row.state in where.states)
        and (where.code is None or (row.failure is not None and row.failure.code == where.code))
        and (where.created_from_us is None or row.created_us >= where.created_from_us)
        and (where.created_before_us is None or row.created_us < where.created_before_us)
    )


class PageContract:
    async def test_c189_any_filter_gives_what_it_says_in_pages_and_in_counts(self, store: Store) -> None:
        rows = await _mixed(store)
        assert {row.state for row in rows} == set(State) - {State.SKIPPED}
        sizes = set()
        for where in _filters():
            expected = [row for row in rows if _is_meant(row, where)]
            assert await _all(store, where, limit=7) == expected, where
            assert sum((await counts(store, where)).values()) == len(expected), where
            sizes.add(len(expected))
        assert len(sizes) > 20

    async def test_times_of_creation_are_exact_to_the_microsecond(self, store: Store) -> None:
        rng = random.Random(1)
        owner = await Owner.of(store)
        times = [T0 + step for step in (-1_000, -1, 0, 1, 999, 1_000)]
        for at_us in times:
            await owner.submit(make_instance(new_id(at_us, rng), created_us=at_us))
        for start in times:
            for end in times:
                where = InstanceFilter(created_from_us=start, created_before_us=end)
                found = {row.created_us for row in await _all(store, where, limit=2)}
                assert found == {at_us for at_us in times if start <= at_us < end}
        for where, count in (
            (InstanceFilter(created_from_us=-(2**63)), 6),
            (InstanceFilter(created_from_us=2**63 - 1), 0),
            (InstanceFilter(created_before_us=2**63 - 1), 6),
            (InstanceFilter(created_before_us=-(2**63)), 0),
        ):
            assert len(await _all(store, where, limit=9)) == count

    @pytest.mark.parametrize(
        "cursor", ["", "x", "i000010", "a" * 10_000, "\ud800", "é", "'; DROP TABLE instance", "AAAA", "%00"]
    )
    async def test_a_cursor_that_no_page_gave_is_refused(self, store: Store, cursor: str) -> None:
        with pytest.raises(UserError) as caught:
            await store.list_instances(InstanceFilter(), cursor=cursor, limit=5)
        assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "cursor")

    async def test_a_cursor_that_has_been_cut_or_changed_is_refused(self, store: Store) -> None:
        await (await Owner.of(store)).submit(make_instance(1), make_instance(2))
        cursor = (await store.list_instances(InstanceFilter(), cursor=None, limit=1)).cursor
        assert cursor is not None
        assert len((await store.list_instances(InstanceFilter(), cursor=cursor, limit=5)).instances) == 1
        swapped = cursor[:-1] + ("A" if cursor[-1] != "A" else "B")
        for wrong in (cursor[:-1], cursor + "A", cursor + "=", " " + cursor, swapped, cursor.swapcase()):
            with pytest.raises(UserError) as caught:
                await store.list_instances(InstanceFilter(), cursor=wrong, limit=5)
            assert caught.value.field == "cursor"

    @pytest.mark.parametrize("field", ["namespace", "task", "key", "code", "created_from_us"])
    async def test_a_filter_that_no_database_takes_is_refused(self, store: Store, field: str) -> None:
        wrong: object = 2**63 if field.endswith("_us") else "\ud800"
        where = InstanceFilter(**{field: wrong})  # type: ignore[arg-type] # each case names a field
        with pytest.raises(UserError) as listed:
            await store.list_instances(where, cursor=None, limit=5)
        with pytest.raises(UserError) as counted:
            await store.count_instances(where, limit=5)
        assert [error.value.field for error in (listed, counted)] == [field, field]

    async def test_a_count_looks_at_no_more_rows_than_its_limit_and_says_so(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(*[make_instance(number) for number in range(10)])
        await owner.finish(*[make_instance(20 + number) for number in range(3)])
        where = InstanceFilter(task="report")
        counted = await store.count_instances(where, limit=5)
        assert not counted.exact
        assert sum(counted.by_state.values()) == 5
        assert await store.count_instances(where, limit=100) == InstanceCounts(
            {"pending": 10, "success": 3}, exact=True
        )
        # An index tells the states, whatever the limit.
        assert await store.count_instances(InstanceFilter(), limit=1) == InstanceCounts(
            {"pending": 10, "success": 3}, exact=True
        )
        assert await store.count_instances(InstanceFilter(states=(State.FAILED,)), limit=1) == InstanceCounts(
            {}, exact=True
        )

    async def test_c189_a_page_of_what_is_rare_may_be_empty_and_go_on(self, store: Store) -> None:
        """Far down a long table; each call ends, and the cursors lead to all of it."""
        rng = random.Random(3)
        owner = await Owner.of(store)
        old = [make_instance(new_id(T0 + n * SECOND, rng), created_us=T0 + n * SECOND) for n in range(3)]
        running = await owner.run(*old)
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(row, State.FAILED, failure=REFUSED) for row in running]
        await store.commit(batch)
        await owner.submit(
            *[
                make_instance(new_id(T0 + MINUTE + number, rng), created_us=T0 + MINUTE + number)
                for number in range(SCANNED_ROWS_MAX + 10)
            ]
        )
        where = InstanceFilter(code="ECONNREFUSED")
        first = await store.list_instances(where, cursor=None, limit=2)
        assert (first.instances, first.cursor is None) == ([], False)
        assert [row.id for row in await _all(store, where, limit=2)] == [row.id for row in reversed(old)]
        assert not (await store.count_instances(where, limit=100)).exact
        assert await counts(store, where) == {"failed": 3}

    async def test_history_comes_in_parts(self, store: Store) -> None:
        owner = await Owner.of(store)
        rows = [make_instance(1), make_instance(2)]
        await owner.submit(*rows)
        for number in range(5):
            batch = owner.batch()
            batch.history = [history_row(row, sentence=str(number)) for row in rows]
            await store.commit(batch)

        async def part(after: int, limit: int | None) -> list[str]:
            return [row.sentence for row in await store.history("i000001", after=after, limit=limit)]

        assert await part(0, 2) == ["0", "1"]
        assert await part(2, 2) == ["2", "3"]
        assert await part(4, 2) == ["4"]
        assert await part(5, 2) == await part(0, 0) == []
        assert await part(1, None) == ["1", "2", "3", "4"]
        assert (await store.count_history("i000001"), await store.count_history("i000003")) == (5, 0)
