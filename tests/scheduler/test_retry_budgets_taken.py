"""A take-over lets no retry start that the budget does not allow, and what waits for it goes on."""

from __future__ import annotations

import pytest
from support.budgets import Starts, failing
from support.cluster import python_task
from support.fleet import Fleet

from ostinato.core.failure.failure import Failure
from ostinato.core.instants import SECOND
from ostinato.core.retry.policy import RetryBudget, RetryPolicy
from ostinato.core.states import Hold
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Assignment

BUDGET = RetryBudget(0.5, 1, SECOND)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_new_owner_begins_with_an_empty_bucket_and_knows_what_waits_for_it(how: str) -> None:
    async def story() -> None:
        policy = RetryPolicy(backoff="fixed", interval_us=SECOND, max_retry=100, budget=BUDGET)
        fleet, task = Fleet(), python_task(retry=policy)
        await fleet.open("a b", task)
        starts = Starts(fleet.clock.boot_us)
        script = starts.script(failing)

        async def body(item: Assignment) -> bytes | Failure:
            answer = script(item)
            assert answer is not None
            return answer

        fleet.add_worker("w1", body, slots=50)
        begin_us = fleet.clock.boot_us()
        identities = [await fleet.submit(task) for _ in range(40)]
        await fleet.until(lambda: _most_wait(fleet, identities), within_us=30 * SECOND)
        partition = (await fleet.instance(identities[0])).partition
        before = len(starts.retries)
        assert before >= 20
        await fleet.end(fleet.owner(partition).address, how=how)
        await fleet.until(lambda: _is_owned(fleet, partition))
        taken_us = fleet.clock.boot_us()
        await fleet.sleep(10 * SECOND)
        # Half of 40 first attempts are recent still, and count for nothing with the new owner.
        since = [each_us for each_us in starts.retries if each_us >= taken_us]
        assert 8 <= len(since) <= 11
        starts.check(BUDGET, begin_us=begin_us)
        await fleet.close()

    run_virtual(story())


async def _most_wait(fleet: Fleet, identities: list[str]) -> bool:
    """But for the one that has just failed again."""
    rows = await fleet.store.get_instances(identities)
    return sum(row.hold is Hold.BUDGET for row in rows.values()) >= len(rows) - 2


async def _is_owned(fleet: Fleet, partition: int) -> bool:
    return any(partition in member.owned for member in fleet.nodes.values())
