"""Attempts that wait ahead of the slots: as many as short attempts allow, never for long, never running."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import msgspec
import pytest

from ostinato.core.definition import Pool
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Outcome
from ostinato.testing.virtual_clock import VirtualClock
from ostinato.wire.messages import Accepted, Assignments, Cancel, Heartbeat, Outcomes
from ostinato.worker.ahead import AHEAD_COUNT_MAX, AHEAD_US, REMEMBERED_US, WAIT_US_MAX
from ostinato.worker.config import POOLS
from tests.worker.many_nodes import ManyNodes
from tests.worker.many_nodes import play as play_many
from tests.worker.one_stream import STREAM, credits_of
from tests.worker.scripted_node import HEARTBEAT_US, WORKER_LEASE_US, Cluster, assignment, spec, specs
from tests.worker.test_attempts import MARGIN_US, Frozen
from tests.worker.test_attempts import play as play_frozen
from tests.worker.worker_stories import Functions, forever, nothing, on_virtual_time

SLOTS = 2
LONG_US = SECOND


class Tasks:
    """Functions that take a known time, and how many of them ever ran at once."""

    def __init__(self) -> None:
        self.running = self.running_max = 0

    def taking(self, duration_us: int) -> Callable[[], Awaitable[None]]:
        async def work() -> None:
            self.running += 1
            self.running_max = max(self.running_max, self.running)
            clock = VirtualClock()
            await clock.sleep_until_us(clock.boot_us() + duration_us)
            self.running -= 1

        return work

    @property
    def functions(self) -> Functions:
        return {
            "quick": self.taking(MILLISECOND),
            "slow": self.taking(30 * MILLISECOND),
            "long": self.taking(LONG_US),
            "nothing": nothing,
            "forever": forever,
        }


def play(story: Callable[[Cluster, Tasks], Awaitable[None]], *, pool: Pool = "process") -> None:
    """Play `story` with a worker of two slots, of one pool, whose node has told all versions."""
    tasks = Tasks()

    async def whole(made: Cluster) -> None:
        await made.node.send(specs(*(spec(name, is_async=pool == "async") for name in tasks.functions)))
        await story(made, tasks)

    on_virtual_time(whole, tasks.functions, capacity={pool: SLOTS})


def credit_count(made: Cluster) -> int:
    """Credits of the one pool that the worker has."""
    return sum(map(made.node.ledger.available, made.node.ledger.pools))


async def give(made: Cluster, name: str, *attempt_ids: str) -> None:
    """Assign, as the node's credits allow."""
    (pool,) = made.node.ledger.pools
    made.node.ledger.use(pool, len(attempt_ids))
    await made.node.assign(*(assignment(name, attempt_id) for attempt_id in attempt_ids))


async def work_off(made: Cluster, name: str, count: int) -> None:
    """Run so many attempts of a task, each as soon as there is a credit for it."""
    waiting = [f"{name}-{len(made.node.heard)}-{number}" for number in range(count)]
    given: list[str] = []
    while waiting:
        await made.node.until(lambda: credit_count(made) > 0)
        batch, waiting = waiting[: credit_count(made)], waiting[credit_count(made) :]
        await give(made, name, *batch)
        given += batch
    for attempt_id in given:
        outcome = await made.node.outcome_of(attempt_id)
        assert outcome.result == b"null", outcome
    await made.pass_time(0)


def waiting_time_us(outcome: Outcome, since_us: int) -> int:
    return outcome.finished_us - since_us


# ── how many ──────────────────────────────────────────────────────────────────────────────────────────────


def test_nothing_waits_ahead_before_attempts_have_been_short() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        assert credit_count(made) == SLOTS
        await work_off(made, "quick", SLOTS)
        assert credit_count(made) == SLOTS

    play(story)


def test_what_ended_long_ago_is_no_quick_succession() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        for _ in range(3):
            await work_off(made, "quick", SLOTS)
            assert credit_count(made) == SLOTS
            await made.pass_time(REMEMBERED_US)

    play(story)


@pytest.mark.parametrize("pool", POOLS)
def test_as_many_wait_as_the_slots_do_in_fifty_milliseconds_and_no_more_run_than_there_are_slots(
    pool: Pool,
) -> None:
    async def story(made: Cluster, tasks: Tasks) -> None:
        await work_off(made, "quick", 300)
        count = SLOTS * AHEAD_US // MILLISECOND
        assert credit_count(made) == SLOTS + count
        assert tasks.running_max == SLOTS
        # So that the node gives a worker with a free slot what would only wait here.
        assert made.node.all(Outcomes)[-1].ahead == {pool: count}
        await made.pass_time(HEARTBEAT_US)
        assert made.node.all(Heartbeat)[-1].ahead == {}

    play(story, pool=pool)


def test_however_fast_they_are_the_number_is_bounded() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        await work_off(made, "nothing", 5_000)
        assert credit_count(made) == SLOTS + AHEAD_COUNT_MAX

    play(story)


def test_nothing_waits_ahead_of_attempts_that_are_not_short() -> None:
    async def story(made: Cluster, tasks: Tasks) -> None:
        await work_off(made, "slow", 50)
        assert credit_count(made) == SLOTS
        assert tasks.running_max == SLOTS

    play(story)


def test_an_assignment_beyond_slots_and_queue_is_refused() -> None:
    async def story(made: Cluster, tasks: Tasks) -> None:
        await work_off(made, "quick", 300)
        count = credit_count(made)
        await made.node.assign(*(assignment("quick", f"more-{number}") for number in range(count + 3)))
        refused = [await made.node.outcome_of(f"more-{count + number}") for number in range(3)]
        assert all("no free slot in its process pool" in outcome.unstarted_reason for outcome in refused)
        assert (await made.node.outcome_of(f"more-{count - 1}")).result == b"null"
        assert tasks.running_max == SLOTS

    play(story)


# ── when it falls ─────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_attempt_makes_the_number_fall_and_the_credits_are_asked_back_at_once() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        await work_off(made, "quick", 300)
        await give(made, "long", "l1")
        began_us = made.clock.boot_us()
        await made.node.outcome_of("l1")
        await made.node.until(lambda: credit_count(made) == SLOTS)
        assert made.clock.boot_us() - began_us < LONG_US + HEARTBEAT_US // 5

    play(story)


def test_an_attempt_with_a_process_of_its_own_is_not_short_however_soon_it_ends() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        isolated = msgspec.structs.replace(spec("nothing", is_async=False), version=2, isolation="process")
        await made.node.send(specs(isolated))
        await work_off(made, "quick", 300)
        made.node.ledger.use("process", 1)
        await made.node.assign(msgspec.structs.replace(assignment("nothing", "n1"), version=2))
        began_us = made.clock.boot_us()
        await made.node.outcome_of("n1")
        await made.node.until(lambda: credit_count(made) == SLOTS)
        assert made.clock.boot_us() - began_us < WAIT_US_MAX // 10

    play(story)


def test_a_pool_in_which_nothing_has_ended_for_three_seconds_has_no_queue_any_more() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        await work_off(made, "quick", 300)
        began_us = made.clock.boot_us()
        await made.node.until(lambda: credit_count(made) == SLOTS)
        assert WAIT_US_MAX < made.clock.boot_us() - began_us <= REMEMBERED_US
        await work_off(made, "quick", 300)
        assert credit_count(made) > SLOTS

    play(story)


def test_what_has_waited_a_second_behind_long_attempts_is_handed_back_unstarted() -> None:
    async def story(made: Cluster, tasks: Tasks) -> None:
        await work_off(made, "quick", 300)
        await give(made, "forever", "f1", "f2")
        began_us = made.clock.wall_us()
        await give(made, "quick", "q1", "q2", "q3")
        outcomes = [await made.node.outcome_of(attempt_id) for attempt_id in ("q1", "q2", "q3")]
        assert [outcome.unstarted_reason for outcome in outcomes] == ["its slot was not free in time"] * 3
        assert all(outcome.started_us is None and outcome.failure is None for outcome in outcomes)
        assert [waiting_time_us(outcome, began_us) for outcome in outcomes] == [WAIT_US_MAX] * 3
        assert made.worker.running_count == 2
        await made.node.until(lambda: credit_count(made) == 0)

    play(story)


# ── what befalls those that wait ──────────────────────────────────────────────────────────────────────────


async def two_running_and_one_waiting(made: Cluster) -> None:
    await work_off(made, "quick", 300)
    await give(made, "forever", "f1", "f2")
    await give(made, "quick", "q1")
    await made.node.until(lambda: any("q1" in message.attempt_ids for message in made.node.all(Accepted)))


def test_one_that_waits_is_cancelled_at_once_without_having_run() -> None:
    async def story(made: Cluster, tasks: Tasks) -> None:
        await two_running_and_one_waiting(made)
        ran, asked_us = tasks.running_max, made.clock.wall_us()
        await made.node.send(Cancel("instance-of-q1", "q1", "by ada"))
        outcome = await made.node.outcome_of("q1")
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.started_us) == ("CANCELLED", None)
        assert (tasks.running, tasks.running_max, outcome.finished_us) == (0, ran, asked_us)

    play(story)


def test_a_drain_hands_back_at_once_what_waits_and_lets_go_on_what_runs() -> None:
    async def story(made: Cluster, _: Tasks) -> None:
        await two_running_and_one_waiting(made)
        asked_us = made.clock.wall_us()
        made.worker.drain("by ada")
        outcome = await made.node.outcome_of("q1")
        assert (outcome.unstarted_reason, outcome.finished_us) == ("by ada", asked_us)
        assert made.worker.running_count == 2

    play(story)


def test_i1_one_that_waits_when_its_lease_ends_is_handed_back_without_having_run() -> None:
    tasks = Tasks()

    async def story(frozen: Frozen) -> None:
        attempts = frozen.attempts
        attempts.learn(STREAM, [spec(name, is_async=False) for name in ("forever", "quick")])
        # Half a second before the strict attempts under that lease are stopped.
        await frozen.clock.sleep_until_us(frozen.clock.boot_us() + WORKER_LEASE_US - MARGIN_US - SECOND // 2)
        attempts.assign(
            STREAM,
            Assignments(
                0, [assignment("forever", "f1"), assignment("quick", "q1"), assignment("quick", "q2")]
            ),
        )
        attempts.stop_overdue()
        assert len(attempts) == 3
        await frozen.clock.sleep_until_us(frozen.clock.boot_us() + SECOND // 2)
        attempts.stop_overdue()
        await attempts.is_idle.wait()
        outcomes = {outcome.attempt_id: outcome for outcome in frozen.outbox.unacknowledged}
        assert outcomes["f1"].failure is not None
        assert outcomes["f1"].failure.code == "LEASE_EXPIRED"
        for waited in ("q1", "q2"):
            assert outcomes[waited].unstarted_reason == "its lease ended before its start"
            assert outcomes[waited].started_us is None
        assert tasks.running_max == 0

    credits = credits_of({"process": 1})
    credits.set_ahead("process", 5)
    play_frozen(story, tasks.functions, credits=credits)


def test_i1_what_waited_while_the_supervisor_was_frozen_is_not_started_when_it_thaws() -> None:
    """Its lease may have ended meanwhile, and have been taken for ended by everybody."""
    tasks = Tasks()

    async def story(frozen: Frozen) -> None:
        attempts = frozen.attempts
        attempts.learn(STREAM, [spec(name, is_async=False) for name in ("long", "quick")])
        attempts.assign(STREAM, Assignments(0, [assignment("long", "l1"), assignment("quick", "q1")]))
        # Nobody looks at the time until the slot is free.
        await attempts.is_idle.wait()
        outcomes = {outcome.attempt_id: outcome for outcome in frozen.outbox.unacknowledged}
        assert outcomes["l1"].result == b"null"
        assert outcomes["q1"].unstarted_reason == "its slot was not free in time"
        assert tasks.running_max == 1

    credits = credits_of({"process": 1})
    credits.set_ahead("process", 5)
    play_frozen(story, tasks.functions, credits=credits)


def test_two_nodes_share_the_places_ahead_as_they_share_slots() -> None:
    tasks = Tasks()

    async def story(made: ManyNodes) -> None:
        first, second = made.nodes
        for node in made.nodes:
            await node.send(specs(spec("quick", is_async=False)))
        given = 0
        for _ in range(200):
            for node in made.nodes:
                if (count := node.ledger.available("process")) > 0:
                    node.ledger.use("process", count)
                    ids = [f"q{given + number}" for number in range(count)]
                    given += count
                    partition = made.nodes.index(node)
                    await node.assign(*(assignment("quick", one, partition=partition) for one in ids))
            await made.pass_time(5 * MILLISECOND)
        assert given > 500
        await made.pass_time(100 * MILLISECOND)
        free = made.free("process")
        assert sum(free) == SLOTS + SLOTS * AHEAD_US // MILLISECOND
        assert min(free) > 0
        assert tasks.running_max == SLOTS
        # Once nothing has ended for a while both are asked for what is too much.
        await made.pass_time(REMEMBERED_US + SECOND)
        assert sum(made.free("process")) == SLOTS
        assert {outcome.result for outcome in [*first.outcomes, *second.outcomes]} == {b"null"}

    play_many(story, count=2, functions=tasks.functions, capacity={"process": SLOTS})
