"""The gate that submissions pass: who passes, waits or is refused, and that nothing accepted is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from ostinato.control.apply import apply
from ostinato.control.pressure import DELAYED_COUNT_MAX, STALE_US, PressureGate, passing
from ostinato.control.submit import KEY_LIFETIME_US, SubmitRequest, submit
from ostinato.core.changes import CommitBatch, EndWaiting
from ostinato.core.definition import PythonSpec, TaskDefinition
from ostinato.core.ids import new_id
from ostinato.core.instants import HOUR, MILLISECOND, SECOND
from ostinato.core.pressure import DELAY_US_MAX, DELAY_US_MIN, Limits
from ostinato.core.states import State
from ostinato.errors import ConflictError, UnavailableError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import PressureChanged, Record, SubmissionsHeldBack
from ostinato.sdk.gateway.address import SaidUrl
from ostinato.sdk.gateway.database import DatabaseGateway
from ostinato.store.batches import NodeRow
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

TASK = TaskDefinition(namespace="default", name="t", executor=PythonSpec("m:f", accepts_any=True))
OWNER = "n1"


class CountingStore(MemoryStore):
    """Notes how often what waits was counted; may be away, and may take a while."""

    def __init__(self, clock: VirtualClock) -> None:
        super().__init__(clock)
        self.clock = clock
        self.count = 0
        self.is_away = False
        self.takes_us = 0

    async def count_waiting(self, *, now_us: int, limit: int) -> int:
        self.count += 1
        if self.takes_us:
            await self.clock.sleep_until_us(self.clock.boot_us() + self.takes_us)
        if self.is_away:
            raise UnavailableError("DATABASE_UNAVAILABLE", "the database is away")
        return await super().count_waiting(now_us=now_us, limit=limit)


class Desk:
    """Submissions through a gate to a store whose work a test ends."""

    def __init__(self, **limits: int) -> None:
        self.clock = VirtualClock()
        self.store = CountingStore(self.clock)
        self.rng = Random(1)
        self.records: list[Record] = []
        self.gate = PressureGate(self.store, Limits(**limits), clock=self.clock, hooks=Hooks([self]))
        self.accepted: list[str] = []

    def on(self, record: Record) -> None:
        self.records.append(record)

    @property
    def changes(self) -> list[tuple[str, str]]:
        return [(each.before, each.level) for each in self.records if isinstance(each, PressureChanged)]

    @property
    def held_back(self) -> list[tuple[str, int]]:
        return [(each.how, each.count) for each in self.records if isinstance(each, SubmissionsHeldBack)]

    async def open(self) -> Desk:
        await self.store.open()
        await apply(self.store, [TASK], now_us=START_US)
        await self.store.register_node(NodeRow(OWNER, 0, "n1:1", START_US))
        self.proofs = await self.store.take_partitions(OWNER, range(self.store.partition_count))
        return self

    async def submit(self, *requests: SubmitRequest) -> list[str]:
        """Ids of what has been accepted; one plain request if none is given."""
        given = requests or (SubmitRequest(task="t"),)
        async with passing(self.gate, given):
            receipts = await submit(self.store, given, now_us=self.clock.wall_us(), rng=self.rng)
        self.accepted += [receipt.instance_id for receipt in receipts if receipt.created]
        return [receipt.instance_id for receipt in receipts]

    async def fill(self, count: int) -> None:
        """So many at once, whatever the level is then."""
        requests = [SubmitRequest(task="t")] * count
        receipts = await submit(self.store, requests, now_us=self.clock.wall_us(), rng=self.rng)
        self.accepted += [receipt.instance_id for receipt in receipts]

    async def end(self, count: int) -> None:
        """Work off the oldest that wait."""
        found = await self.store.find_work(
            range(self.store.partition_count), now_us=self.clock.wall_us(), limit=count
        )
        batch = CommitBatch(proofs=self.proofs)
        batch.ended_waiting = [
            EndWaiting(
                row.id, row.partition, row.state, row.attempt, State.CANCELLED, "", self.clock.wall_us()
            )
            for row in found.instances
        ]
        await self.store.commit(batch)

    async def pass_time(self, duration_us: int = STALE_US) -> None:
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)

    async def refusal(self, *requests: SubmitRequest) -> UnavailableError:
        with pytest.raises(UnavailableError) as caught:
            await self.submit(*requests)
        return caught.value

    async def took_us(self, call: Callable[[], Awaitable[object]]) -> int:
        before_us = self.clock.boot_us()
        await call()
        return self.clock.boot_us() - before_us

    async def nothing_is_lost(self) -> None:
        assert set(await self.store.get_instances(self.accepted)) == set(self.accepted)


def test_the_backlog_rises_to_red_and_falls_to_green_and_each_change_is_told() -> None:
    async def story() -> None:
        desk = await Desk(yellow=10, red=20).open()
        for _ in range(10):
            assert await desk.took_us(desk.submit) == 0
        waits = [await desk.took_us(desk.submit) for _ in range(10)]
        # Of the first it is measured that they do wait.
        assert waits[0] == 50 * MILLISECOND + DELAY_US_MIN
        assert waits[1:] == sorted(waits[1:])
        assert DELAY_US_MIN < waits[1] < waits[-1] < DELAY_US_MAX
        error = await desk.refusal()
        assert (error.code, error.http_status, error.exit_code) == ("BACKPRESSURE", 429, 3)
        assert "20 instances wait to start" in error.message
        # One more has room only once a tenth of the limit has been worked off.
        await desk.end(1)
        await desk.pass_time()
        assert (await desk.refusal()).code == "BACKPRESSURE"
        await desk.end(1)
        await desk.pass_time()
        assert await desk.took_us(desk.submit) > DELAY_US_MIN
        await desk.end(19)
        await desk.pass_time()
        assert await desk.took_us(desk.submit) == 0
        assert desk.changes == [
            ("green", "yellow"),
            ("yellow", "red"),
            ("red", "yellow"),
            ("yellow", "green"),
        ]
        assert len(desk.accepted) == 22
        await desk.nothing_is_lost()
        assert ("refused", 1) in desk.held_back

    run_virtual(story())


def test_a_flood_at_one_instant_is_cut_at_the_red_limit() -> None:
    """What has been let in counts at once, committed or not."""

    async def story() -> None:
        desk = await Desk(red=20).open()
        answers = await asyncio.gather(*(desk.submit() for _ in range(500)), return_exceptions=True)
        refused = [each for each in answers if isinstance(each, UnavailableError)]
        assert (len(desk.accepted), len(refused)) == (20, 480)
        await desk.nothing_is_lost()
        # Not one count for each that is refused.
        assert desk.store.count <= 3

    run_virtual(story())


def test_work_that_is_done_as_fast_as_it_comes_is_never_held_back() -> None:
    """More pass between two measurements than may wait: whether they do wait is found out first."""

    async def story() -> None:
        desk = await Desk(yellow=10, red=20).open()
        for _ in range(40):
            for _ in range(5):
                assert await desk.took_us(desk.submit) <= 50 * MILLISECOND
            await desk.end(5)
            await desk.pass_time(20 * MILLISECOND)
        assert len(desk.accepted) == 200
        assert desk.changes == desk.held_back == []

    run_virtual(story())


def test_a_backlog_that_stands_at_the_limit_does_not_flap() -> None:
    async def story() -> None:
        desk = await Desk(red=100).open()
        await desk.fill(99)
        for _ in range(30):
            await desk.fill(1)
            await desk.gate.measure()
            await desk.end(5)
            await desk.gate.measure()
            await desk.fill(4)
        assert desk.changes == [("green", "red")]

    run_virtual(story())


def test_of_many_submissions_all_pass_or_none_by_the_level_before_them() -> None:
    async def story() -> None:
        desk = await Desk(red=20).open()
        many = [SubmitRequest(task="t")] * 15
        assert len(await desk.submit(*many)) == 15
        assert len(await desk.submit(*many)) == 15
        before = list(desk.accepted)
        assert (await desk.refusal(*many)).code == "BACKPRESSURE"
        assert desk.accepted == before
        assert await desk.store.count_waiting(now_us=START_US + HOUR, limit=1_000) == 30
        async with passing(desk.gate, []):
            pass

    run_virtual(story())


def test_what_is_due_later_does_not_wait_but_what_is_held_does() -> None:
    async def story() -> None:
        desk = await Desk(red=10).open()
        await desk.submit(*[SubmitRequest(task="t", delay_us=HOUR)] * 9)
        await desk.pass_time()
        shape = await desk.gate.look()
        assert (shape.level, shape.waiting, shape.yellow, shape.red) == ("green", 0, None, 10)
        await desk.fill(10)
        await desk.pass_time()
        shape = await desk.gate.look()
        assert (shape.level, shape.waiting) == ("red", 10)

    run_virtual(story())


# ── repeated submissions ──────────────────────────────────────────────────────────────────────────────


def test_what_has_been_accepted_is_answered_also_while_it_is_red() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        chosen = [
            SubmitRequest(task="t", id=new_id(START_US, desk.rng), payload=b'{"n":%d}' % number)
            for number in range(3)
        ]
        keyed = SubmitRequest(task="t", key="once", payload=b'{"n":9}')
        ids = await desk.submit(*chosen)
        (keyed_id,) = await desk.submit(keyed)
        await desk.fill(5)
        await desk.pass_time()
        assert (await desk.refusal()).code == "BACKPRESSURE"
        assert await desk.submit(chosen[1]) == [ids[1]]
        assert await desk.submit(keyed) == [keyed_id]
        assert await desk.submit(*chosen, keyed) == [*ids, keyed_id]
        with pytest.raises(ConflictError) as caught:
            await desk.submit(SubmitRequest(task="t", key="once", payload=b'{"n":8}'))
        assert caught.value.code == "KEY_CONFLICT"
        assert await desk.store.count_waiting(now_us=START_US + HOUR, limit=1_000) == 9

    run_virtual(story())


def test_one_that_is_new_among_repeated_ones_has_all_refused() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        first = SubmitRequest(task="t", key="first")
        await desk.submit(first)
        await desk.fill(5)
        await desk.pass_time()
        fresh = SubmitRequest(task="t", id=new_id(START_US, desk.rng))
        for requests in ((first, fresh), (fresh, first), (first, SubmitRequest(task="t", key="other"))):
            assert (await desk.refusal(*requests)).code == "BACKPRESSURE"
        assert await desk.store.count_waiting(now_us=START_US + HOUR, limit=1_000) == 6

    run_virtual(story())


def test_a_key_that_has_ended_is_a_new_submission() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        await desk.submit(SubmitRequest(task="t", key="once"))
        await desk.fill(5)
        await desk.pass_time(KEY_LIFETIME_US)
        assert (await desk.refusal(SubmitRequest(task="t", key="once"))).code == "BACKPRESSURE"

    run_virtual(story())


# ── cost and trouble ──────────────────────────────────────────────────────────────────────────────────


def test_measuring_takes_a_tenth_of_the_time_at_most() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        desk.store.takes_us = 20 * MILLISECOND
        await desk.fill(5)
        before_us, before = desk.clock.boot_us(), desk.store.count
        while desk.clock.boot_us() < before_us + 10 * SECOND:
            assert (await desk.refusal()).code == "BACKPRESSURE"
            await desk.pass_time(MILLISECOND)
        # It is red by what was measured, so that only age asks for another.
        assert desk.store.count - before <= 8
        await desk.end(5)
        await desk.pass_time()
        before_us, before = desk.clock.boot_us(), desk.store.count
        while desk.clock.boot_us() < before_us + 10 * SECOND:
            await desk.submit()
            await desk.end(1)
            await desk.pass_time(MILLISECOND)
        assert desk.store.count - before <= 52

    run_virtual(story())


def test_no_more_than_some_wait_at_once_and_the_others_are_refused() -> None:
    """Else they would take the places of all other requests of a node."""

    async def story() -> None:
        desk = await Desk(yellow=1).open()
        await desk.fill(2)
        await desk.gate.measure()
        answers = await asyncio.gather(
            *(desk.submit() for _ in range(DELAYED_COUNT_MAX + 5)), return_exceptions=True
        )
        refused = [each for each in answers if isinstance(each, UnavailableError)]
        assert len(refused) == 5
        assert "submissions wait their turn already" in refused[0].message
        assert len(desk.accepted) == 2 + DELAYED_COUNT_MAX
        assert await desk.took_us(desk.submit) == DELAY_US_MAX

    run_virtual(story())


def test_whoever_leaves_while_waiting_makes_room_and_submits_nothing() -> None:
    async def story() -> None:
        desk = await Desk(yellow=1).open()
        await desk.fill(2)
        await desk.gate.measure()
        for _ in range(2):
            waiting = [asyncio.create_task(desk.submit()) for _ in range(DELAYED_COUNT_MAX)]
            await desk.pass_time(DELAY_US_MIN // 2)
            for task in waiting:
                task.cancel()
            await asyncio.wait(waiting)
        assert await desk.store.count_waiting(now_us=START_US + HOUR, limit=1_000) == 2

    run_virtual(story())


def test_a_database_that_is_away_is_asked_once_by_all_who_wait() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        desk.store.is_away, desk.store.takes_us = True, 5 * SECOND

        async def submit_all() -> None:
            answers = await asyncio.gather(*(desk.submit() for _ in range(50)), return_exceptions=True)
            assert {getattr(each, "code", None) for each in answers} == {"DATABASE_UNAVAILABLE"}

        assert await desk.took_us(submit_all) == 5 * SECOND
        assert desk.store.count == 1
        desk.store.is_away = False
        assert len(await desk.submit()) == 1

    run_virtual(story())


def test_an_app_on_the_database_comes_back_a_few_times_and_then_says_so() -> None:
    async def story() -> None:
        desk = await Desk(red=5).open()
        gateway = DatabaseGateway(
            desk.store, SaidUrl("", ""), clock=desk.clock, rng=desk.rng, by="shop", pressure=desk.gate
        )
        await desk.fill(5)

        async def refused() -> None:
            with pytest.raises(UnavailableError) as caught:
                await gateway.submit([SubmitRequest(task="t")])
            assert caught.value.code == "BACKPRESSURE"

        assert await desk.took_us(refused) == 2 * SECOND

        async def worked_off() -> None:
            await desk.pass_time(SECOND // 2)
            await desk.end(3)

        _, receipts = await asyncio.gather(worked_off(), gateway.submit([SubmitRequest(task="t")]))
        assert receipts[0].created

    run_virtual(story())
