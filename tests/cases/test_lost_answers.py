"""C141 on servers: COMMIT arrives and its answer does not; what is said again acts once.

SQLite has no connection on which an answer could be lost; the kill matrix ends its processes there.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from random import Random

import pytest
from support.cluster import python_task, worker_of
from support.lost_answers import LosingWay, losing_way
from support.real_stores import Place, RealCluster, place_of
from support.servers import SERVER_KINDS

from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.changes import Request
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import State
from ostinato.errors import UnavailableError
from ostinato.observe.records import NodeRejoined
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import NodeRow, Proof, SubmitReceipt, TriggerAdvance
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_fires import put_in_force
from ostinato.testing.contracts.store_kit import (
    MINUTE,
    NODE,
    T0,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_instance,
    make_submission,
    make_trigger,
)

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"

#: Of each kind 1,000 at full size, in parts that each end before a test has to.
PART_COUNT, ROUND_COUNT = (10, 100) if FULL else (1, 8)
LOST_COUNT = 100 if FULL else 25


@pytest.fixture(scope="module", params=SERVER_KINDS)
def module_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def place(module_place: Place) -> Place:
    module_place.clean()
    return module_place


@pytest.fixture
async def way(place: Place) -> AsyncIterator[LosingWay]:
    assert place.server is not None
    async with losing_way(place.server) as way:
        yield way


@pytest.fixture
async def store(place: Place, way: LosingWay) -> AsyncIterator[Store]:
    async with place.opened(way.url) as store:
        # Hints have transactions of their own, at any time.
        store.announce = _nothing  # type: ignore[attr-defined] # of servers' stores
        yield store


def _nothing() -> None:
    return


# ── said again to the store ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c141_a_submission_whose_answer_is_lost_is_one_instance(
    store: Store, way: LosingWay, part: int
) -> None:
    for turn in range(ROUND_COUNT):
        row = make_submission(f"s{turn}", key=f"order-{turn}")
        row.key_expires_us = 2**62
        way.lose_next()
        with pytest.raises(UnavailableError, match="unknown"):
            await store.submit([row])
        assert await store.submit([row]) == [SubmitReceipt(f"s{turn}", created=False)]
        # Somebody else with the same key, and one without it.
        other = make_submission(f"other-{turn}", key=f"order-{turn}")
        assert await store.submit([other]) == [SubmitReceipt(f"s{turn}", created=False)]
    assert way.lost_count == ROUND_COUNT
    assert await counts(store) == {"pending": ROUND_COUNT}


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c141_an_outcome_whose_answer_is_lost_counts_once(
    store: Store, way: LosingWay, part: int
) -> None:
    owner = await Owner.of(store)
    for turn in range(ROUND_COUNT):
        (row,) = await owner.run(make_instance(turn))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(row)]
        batch.history = [history_row(row)]
        way.lose_next()
        with pytest.raises(UnavailableError, match="unknown"):
            await store.commit(batch)
        written = await owner.get(row.id)
        assert written.state is State.RETRY_WAITING
        assert (await store.commit(batch)).unmatched == {row.id}
        assert await owner.get(row.id) == written
        assert len(await store.history(row.id)) == 1
    assert way.lost_count == ROUND_COUNT
    assert await counts(store) == {"retry_waiting": ROUND_COUNT}


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c141_a_fire_whose_answer_is_lost_makes_one_instance(
    store: Store, way: LosingWay, part: int
) -> None:
    owner = await Owner.of(store)
    partition = await put_in_force(owner, make_trigger("t1", partition=0, next_us=T0))
    for turn in range(ROUND_COUNT):
        at_us, next_us = T0 + turn * MINUTE, T0 + (turn + 1) * MINUTE
        batch = owner.batch()
        batch.inserts = [make_instance(turn, partition=partition, fire_trigger="t1", fire_us=at_us)]
        batch.advances = [TriggerAdvance("t1", partition, at_us, next_us, at_us)]
        way.lose_next()
        with pytest.raises(UnavailableError, match="unknown"):
            await store.commit(batch)
        await store.commit(batch)
        # By somebody who knows nothing of it, under another id.
        again = owner.batch()
        again.inserts = [make_instance(500_000 + turn, partition=partition, fire_trigger="t1", fire_us=at_us)]
        assert (await store.commit(again)).unmatched == {f"i{500_000 + turn:06}"}
        due = await store.find_due_triggers([partition], now_us=at_us, limit=9)
        assert (due.triggers, due.next_us) == ([], next_us)
    assert way.lost_count == ROUND_COUNT
    assert await counts(store) == {"pending": ROUND_COUNT}


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c141_a_renewal_or_a_take_over_whose_answer_is_lost_shows_in_the_next_look(
    store: Store, way: LosingWay, part: int
) -> None:
    await Owner.of(store)
    for turn in range(ROUND_COUNT):
        way.lose_next()
        with pytest.raises(UnavailableError, match="unknown"):
            await store.renew_node(NODE)
        assert [node.renewals for node in await store.nodes()] == [2 * turn + 1]
        assert await store.renew_node(NODE)
    await store.register_node(NodeRow("node-2", 0, "", T0))
    way.lose_next()
    with pytest.raises(UnavailableError, match="unknown"):
        await store.take_partitions("node-2", [3, 4], dead_nodes={NODE: 2 * ROUND_COUNT})
    assert (await store.partition_owners())[3:5] == [Proof(3, "node-2", 2), Proof(4, "node-2", 2)]
    assert [node.id for node in await store.nodes()] == ["node-2"]
    assert not await store.renew_node(NODE)
    assert way.lost_count == ROUND_COUNT + 1


async def test_c141_a_request_whose_answer_is_lost_is_asked_once(store: Store, way: LosingWay) -> None:
    for turn in range(ROUND_COUNT):
        request = Request(
            id=f"r{turn}", partition=3, kind="cancel", namespace="default", created_us=T0, instance_id="i"
        )
        way.lose_next()
        with pytest.raises(UnavailableError, match="unknown"):
            await store.add_requests([request])
        await store.add_requests([request])
    found = await store.find_requests([3], limit=2 * ROUND_COUNT)
    assert [each.id for each in found] == [f"r{turn}" for turn in range(ROUND_COUNT)]


# ── a node that loses answers all the time ────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c141_a_node_that_hears_only_some_answers_does_everything_once(
    place: Place, way: LosingWay, part: int
) -> None:
    """A fifth of all its answers is lost: those to submissions, fires, assignments, outcomes, renewals.

    Its lease outlasts any row of lost renewals: what it does once it believes in nothing is another story,
    and needs a worker that connects anew.
    """
    config = NodeConfig(worker_lease_us=6 * SECOND, ownership_lease_us=MINUTE)
    chance = Random(part)
    ticking = python_task("tick", triggers=(IntervalTrigger(every_us=250 * MILLISECOND),))
    task = python_task()
    async with RealCluster(place, url=way.url, seed=part, config=config) as cluster:
        await cluster.start(task, ticking)
        worker = await worker_of(cluster, lambda _: b"1", tasks=["t", "tick"])
        way.lose(lambda: chance.random() < 0.2)
        ids: list[str] = []
        while way.lost_count < LOST_COUNT:
            ids.append(await _submitted(cluster, f"order-{len(ids)}"))
        way.pass_all()
        for identity in ids:
            await cluster.in_state(identity, State.SUCCESS)
        rows = await cluster.instances()
        await worker.disconnect()
        rejoined = [record for record in cluster.recorder.records if isinstance(record, NodeRejoined)]
    assert len(ids) == len(set(ids)) == sum(row.task == "t" for row in rows)
    fires = Counter(row.fire_us for row in rows if row.task == "tick")
    assert set(fires.values()) == {1}
    assert rejoined == []
    executed = Counter(item.instance_id for item in worker.assigned)
    assert {executed[row.id] for row in rows if row.state is State.SUCCESS} == {1}
    assert {row.attempt for row in rows if row.state is State.SUCCESS} == {1}
    assert {row.state for row in rows} <= {State.SUCCESS, State.SKIPPED, State.PENDING, State.RUNNING}


async def _submitted(cluster: RealCluster, key: str) -> str:
    """As a client does that repeats itself until it is answered."""
    request = SubmitRequest(task="t", key=key)
    for _ in range(20):
        try:
            now_us = await cluster.store.now_us()
            (receipt,) = await submit(cluster.store, [request], now_us=now_us, rng=cluster.rng)
        except UnavailableError:
            continue
        return receipt.instance_id
    raise AssertionError(f"{key} was never answered")
