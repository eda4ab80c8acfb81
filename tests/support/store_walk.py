"""A random walk through two stores at once, which must answer alike at every step."""

from __future__ import annotations

import random
from collections.abc import Callable

from ostinato.core.model import Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.states import Hold, State
from ostinato.store.batches import (
    EndWaiting,
    HeldQuery,
    HoldWaiting,
    InstanceFilter,
    Replay,
    RequestCancel,
    Submission,
)
from ostinato.store.protocol import Store
from ostinato.store.rules import Move
from ostinato.testing.contracts.store_kit import (
    ALL,
    MINUTE,
    REF,
    SECOND,
    T0,
    Owner,
    end_attempt,
    history_row,
    make_assign,
    make_instance,
    make_success,
)

TASKS = ("report", "mail")


def _hold(rng: random.Random, row: Instance) -> Move:
    return HoldWaiting(row.id, row.partition, row.state, row.attempt, rng.choice(list(Hold)), "held")


def _end_waiting(rng: random.Random, row: Instance) -> Move:
    state = rng.choice([State.FAILED, State.CANCELLED, State.SKIPPED])
    return EndWaiting(row.id, row.partition, row.state, row.attempt, state, "ended", T0 + rng.randrange(99))


def _end_attempt(rng: random.Random, row: Instance) -> Move:
    state = rng.choice([State.RETRY_WAITING, State.FAILED, State.CANCELLED])
    return end_attempt(
        row,
        state,
        reason=rng.choice(["", "why", "\ud800"]),
        counters=Counters(failures=rng.randrange(3)),
        due_us=T0 + rng.randrange(-60, 60) * SECOND,
        expires_us=rng.choice([None, T0 + rng.randrange(-60, 60) * SECOND]),
    )


def _cancel(rng: random.Random, row: Instance) -> Move:
    return RequestCancel(row.id, row.partition, row.attempt, T0 + rng.randrange(99), "stop")


def _replay(rng: random.Random, row: Instance) -> Move:
    return Replay(
        row.id, row.partition, row.state, row.generation, 2, b"{}", T0, rng.choice([None, T0]), "again"
    )


_MOVES: dict[str, Callable[[random.Random, Instance], Move]] = {
    "assigns": lambda rng, row: make_assign(row, assigned_us=T0 + rng.randrange(99)),
    "successes": lambda rng, row: make_success(row, result=rng.choice([None, b"1", b""])),
    "ended_attempts": _end_attempt,
    "holds": _hold,
    "ended_waiting": _end_waiting,
    "cancel_requests": _cancel,
    "replays": _replay,
}


def _birth(rng: random.Random, number: int) -> Instance:
    return make_instance(
        number,
        task=rng.choice(TASKS),
        partition=rng.randrange(4),
        priority=rng.randrange(11) if rng.random() < 0.05 else rng.randrange(10),
        due_us=T0 + rng.randrange(-600, 60) * SECOND,
        created_us=T0 + number,
        expires_us=rng.choice([None, T0 + rng.randrange(-60, 60) * SECOND]),
        hold=rng.choice([None, None, None, Hold.OVERLAP]),
        fire_trigger=rng.choice(["t1", "t2"]),
        fire_us=rng.choice([None, T0 + rng.randrange(200)]),
    )


async def _seen(store: Store) -> list[object]:
    """Everything that a caller can see."""
    held = [HeldQuery(REF, tuple(Hold), 5)]
    page = await store.list_instances(InstanceFilter(), cursor=None, limit=10_000)
    refs = [REF, make_instance(task="mail").ref]
    return [
        page,
        await store.get_instances([row.id for row in page.instances]),
        [await store.history(row.id) for row in page.instances],
        await store.find_work([0, 1, 2], now_us=T0, limit=20, held=held),
        await store.find_work(ALL, now_us=T0 + MINUTE, limit=7),
        await store.find_expired(ALL, now_us=T0, limit=10),
        await store.next_expiry_us(ALL),
        await store.held_tasks(ALL),
        # In an order of each store's own.
        sorted((await store.waiting_tasks([0, 1, 2], now_us=T0, first=None, limit=10)).refs),
        await store.live_instances(refs, limit=10),
        await store.find_overlap_ready(refs),
        await store.running_instances([1, 2], after_id="", limit=10),
        await store.count_instances(InstanceFilter(), limit=10_000),
        await store.count_instances(InstanceFilter(task="mail"), limit=10_000),
    ]


STEPS = 25


async def walk_alike(first: Store, second: Store, rng: random.Random) -> int:
    """Open both, do the same to both, compare what can be seen, close both; returns the number of steps."""
    stores = [first, second]
    for store in stores:
        await store.open()
    try:
        owners = [await Owner.of(store) for store in stores]
        number = 0
        for _ in range(STEPS):
            number += await _step(owners[0], stores, rng, number=number)
        retention = {
            "success_before_us": T0 + 10 * SECOND,
            "other_before_us": T0 + 50,
            "keys_before_us": T0,
            "limit": 30,
        }
        assert await first.delete_finished(**retention) == await second.delete_finished(**retention)
        return STEPS
    finally:
        for store in stores:
            await store.close()


async def _step(owner: Owner, stores: list[Store], rng: random.Random, *, number: int) -> int:
    """Submissions, fires and moves, some of which cannot match or be stored; returns the number of births."""
    births = [_birth(rng, number + n) for n in range(rng.randrange(8))]
    submitted = [Submission(instance=row) for row in births[::2] if row.priority < 10]
    receipts = [await store.submit(submitted) for store in stores]
    assert receipts[0] == receipts[1]
    rows = (await stores[0].list_instances(InstanceFilter(), cursor=None, limit=10_000)).instances
    rng.shuffle(rows)
    batch = owner.batch()
    if rng.random() < 0.2:
        batch.proofs = batch.proofs[2:]
    batch.inserts = births[1::2]
    for row in rows[: rng.randrange(30)]:
        name = rng.choice(list(_MOVES))
        getattr(batch, name).append(_MOVES[name](rng, row))
        batch.history.append(history_row(row, unconditional=rng.random() < 0.3))
    reports = [await store.commit(batch) for store in stores]
    assert (reports[0].lost_partitions, reports[0].unmatched, set(reports[0].rejected)) == (
        reports[1].lost_partitions,
        reports[1].unmatched,
        set(reports[1].rejected),
    )
    assert await _seen(stores[0]) == await _seen(stores[1])
    return len(births)
