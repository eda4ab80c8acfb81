"""C137, C139, C143 on every store: one key said by many at once, and a key whose time is over."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
from support.cluster import python_task, worker_of
from support.real_stores import STORE_KINDS, Place, RealCluster, place_of
from support.rest import running_rest

from ostinato.api.guard import Limits
from ostinato.core.failure.failure import Failure
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.observe.records import LoopFailed
from ostinato.store.batches import Submission
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import make_submission
from ostinato.wire.messages import Assignment

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"

#: 100 rounds at full size, in parts that each end before a test has to.
PART_COUNT, ROUND_COUNT = (10, 10) if FULL else (1, 2)
AT_ONCE = 200
#: How long keys live here, and how long one is asked for.
KEY_US, ASKING_US = (SECOND, 5 * SECOND) if FULL else (300 * MILLISECOND, 2 * SECOND)
CLIENT_COUNT = 8
ADD = "/namespaces/default/tasks/add/instances"


@pytest.fixture(scope="module", params=STORE_KINDS)
def module_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def place(module_place: Place) -> Place:
    module_place.clean()
    return module_place


# ── many at once ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c137_all_who_submit_one_key_at_once_are_answered_with_one_instance(
    place: Place, part: int, tmp_path: Path
) -> None:
    """As many as that at once are more than the API lets in, which would tell the others to come again."""
    limits = Limits(requests_at_once_max=AT_ONCE)
    async with running_rest(tmp_path, database=place.url, limits=limits, with_node=False) as rest:
        for turn in range(ROUND_COUNT):
            body = {"key": f"order-{turn}", "payload": {"first": turn}}
            answers = await asyncio.gather(*(rest.post(ADD, body) for _ in range(AT_ONCE)))
            assert {answer.status_code for answer in answers} <= {200, 201}
            told = [answer.json() for answer in answers]
            (identity,) = {each["instance_id"] for each in told}
            assert identity
            assert [each["created"] for each in told].count(True) == 1
            assert [answer.status_code for answer in answers].count(201) == 1
        listed = (await rest.get("/instances?task=add")).json()["items"]
        assert sorted(item["key"] for item in listed) == sorted(
            f"order-{turn}" for turn in range(ROUND_COUNT)
        )


async def test_c137_stores_of_several_processes_agree_on_who_was_first(place: Place) -> None:
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(place.opened()) for _ in range(4)]
        for turn in range(ROUND_COUNT):
            rows = [make_submission(f"t{turn}-{number:03}", key=f"k{turn}") for number in range(AT_ONCE)]
            for row in rows:
                row.key_expires_us = 2**62
            answers = await asyncio.gather(
                *(stores[number % 4].submit([row]) for number, row in enumerate(rows))
            )
            receipts = [receipt for (receipt,) in answers]
            assert len({receipt.instance_id for receipt in receipts}) == 1
            assert sum(receipt.created for receipt in receipts) == 1
            assert not any(receipt.conflict for receipt in receipts)


# ── keys whose time is over ───────────────────────────────────────────────────────────────────────────────


async def test_c139_a_key_ends_while_its_instance_waits_for_a_retry_and_both_are_done(place: Place) -> None:
    task = python_task(retry=RetryPolicy(interval_us=SECOND, max_retry=2))

    def fail_first(item: Assignment) -> bytes | Failure:
        return b"1" if item.attempt > 1 else Failure(code="ECONNREFUSED", category="transient", message="no")

    async with RealCluster(place) as cluster:
        await cluster.start(task)
        worker = await worker_of(cluster, fail_first)

        async def submit() -> tuple[str, bool]:
            now_us = await cluster.store.now_us()
            row = make_submission(
                new_id(now_us, cluster.rng),
                key="daily",
                task="t",
                partition=(await cluster.store.get_tasks([task.ref]))[task.ref].partition,
                due_us=now_us,
                created_us=now_us,
            )
            row.key_expires_us = now_us + 200 * MILLISECOND
            (receipt,) = await cluster.store.submit([row])
            return receipt.instance_id, receipt.created

        first, was_created = await submit()
        assert was_created
        await cluster.in_state(first, State.RETRY_WAITING)
        created_us = (await cluster.instance(first)).created_us
        while await cluster.store.now_us() <= created_us + 200 * MILLISECOND:
            pass
        second, was_created = await submit()
        assert was_created
        assert second != first
        for identity in (first, second):
            assert (await cluster.in_state(identity, State.SUCCESS)).attempt == 2
        assert {row.id for row in await cluster.instances(key="daily")} == {first, second}
        assert [record for record in cluster.recorder.records if isinstance(record, LoopFailed)] == []
        assert sorted(item.instance_id for item in worker.assigned) == sorted([first, second] * 2)
        await worker.disconnect()


async def test_c143_two_instances_of_a_key_are_made_at_least_its_lifetime_apart(place: Place) -> None:
    """A key is alive or not by the time at which its next instance says that it was made."""
    async with AsyncExitStack() as stack:
        stores = [await stack.enter_async_context(place.opened()) for _ in range(4)]
        ends_us = await stores[0].now_us() + ASKING_US
        made: list[str] = []
        async with asyncio.timeout(60):
            await asyncio.gather(
                *(
                    _ask_until(stores[number % 4], ends_us, name=f"c{number}", made=made)
                    for number in range(CLIENT_COUNT)
                )
            )
        found = await stores[0].get_instances(sorted(made))
    assert len(found) == len(made) > 3
    created_us = sorted(row.created_us for row in found.values())
    apart_us = [later - earlier for earlier, later in pairwise(created_us)]
    assert min(apart_us) >= KEY_US


async def _ask_until(store: Store, ends_us: int, *, name: str, made: list[str]) -> None:
    """Submit under one key about every 10 ms, until several instances have been made; notes their ids."""
    chance, number = Random(name), 0
    while (now_us := await store.now_us()) < ends_us or len(made) <= 3:
        number += 1
        row: Submission = make_submission(f"{name}-{number:05}", key="k", created_us=now_us)
        row.key_expires_us = now_us + KEY_US
        (receipt,) = await store.submit([row])
        if receipt.created:
            assert receipt.instance_id == row.instance.id
            made.append(row.instance.id)
        await asyncio.wait([asyncio.create_task(asyncio.sleep(chance.uniform(0, 0.02)))])
