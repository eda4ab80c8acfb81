"""Workers, nodes and partitions as people see them, and the drain that they ask for."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.cluster import ADDRESS, Cluster, value_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.control.cluster import (
    drain_worker,
    get_worker,
    list_nodes,
    list_partitions,
    list_workers,
    silent_nodes,
    without_past,
)
from ostinato.control.requests import Asker
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.errors import UnavailableError, UserError
from ostinato.store.batches import NodeRow, WorkerRow
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual
from ostinato.wire.messages import Drain


def asker_of(cluster: Cluster) -> Asker:
    return Asker(clock=cluster.clock, rng=cluster.rng, by="ada")


def row(identity: str, **changes: object) -> WorkerRow:
    base: dict[str, object] = {
        "worker_id": identity,
        "worker_name": "crunch",
        "node_id": "n1",
        "state": "connected",
        "labels": {"gpu": "yes"},
        "capacity": {"process": 4},
        "running_count": 1,
        "tasks": ["default/t"],
        "executors": ["python"],
        "protocol": 1,
        "connected_us": START_US,
        "seen_us": START_US,
    }
    return WorkerRow(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


async def store_of(*rows: WorkerRow) -> MemoryStore:
    store = MemoryStore(VirtualClock())
    await store.open()
    for node in ("n1", "n2"):
        await store.register_node(NodeRow(node, 0, f"{node}:1", START_US))
    await store.record_workers(rows, gone_before_us=0)
    return store


async def worker(cluster: Cluster, identity: str = "worker-1") -> ScriptedWorker:
    found = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
    found.worker_id = identity
    await found.connect(ADDRESS)
    found.beat(HEARTBEAT_US)

    async def is_listed() -> bool:
        return identity in [shape.id for shape in await list_workers(cluster.store) if shape.nodes]

    await cluster.until(is_listed)
    return found


def test_a_worker_on_several_nodes_is_one_worker() -> None:
    async def story() -> None:
        store = await store_of(
            row("w1"),
            row("w1", node_id="n2", running_count=2, seen_us=START_US + SECOND, labels={"gpu": "no"}),
            row("w2", worker_name="a", state="gone", connected_us=START_US - SECOND),
        )
        first, second = await list_workers(store)
        assert (first.id, first.state, first.nodes, first.running) == ("w2", "gone", [], 0)
        assert first.connected == "2025-12-31T23:59:59Z"
        assert (second.id, second.state, second.running, second.nodes) == ("w1", "connected", 3, ["n1", "n2"])
        assert (second.labels, second.capacity, second.tasks) == (
            {"gpu": "no"},
            {"process": 4},
            ["default/t"],
        )
        assert second.seen == "2026-01-01T00:00:01Z"
        assert msgspec.to_builtins(second)["executors"] == ["python"]

    run_virtual(story())


@pytest.mark.parametrize(
    ("states", "shown"),
    [
        (("connected", "draining"), "draining"),
        (("connected", "gone"), "connected"),
        (("gone", "draining"), "draining"),
        (("gone", "gone"), "gone"),
    ],
)
def test_the_state_of_a_worker_is_that_of_the_nodes_it_is_connected_to(
    states: tuple[str, str], shown: str
) -> None:
    async def story() -> None:
        store = await store_of(row("w1", state=states[0]), row("w1", node_id="n2", state=states[1]))
        (shape,) = await list_workers(store)
        assert shape.state == shown

    run_virtual(story())


def test_a_row_of_a_node_that_is_no_more_shows_a_worker_that_is_gone() -> None:
    async def story() -> None:
        store = await store_of(row("w1"))
        await store.remove_node("n1")
        (shape,) = await list_workers(store)
        assert (shape.state, shape.nodes, shape.running) == ("gone", [], 0)

    run_virtual(story())


def test_a_worker_is_found_by_id_and_by_its_name_while_that_is_one() -> None:
    async def story() -> None:
        store = await store_of(
            row("w1", state="gone", seen_us=START_US + 9),
            row("w2"),
            row("w3", worker_name="twin"),
            row("w4", worker_name="twin"),
            row("w5", worker_name="past", state="gone"),
            row("w6", worker_name="past", state="gone", seen_us=START_US + 9),
        )
        assert (await get_worker(store, "w1")).state == "gone"
        assert (await get_worker(store, "crunch")).id == "w2"
        assert (await get_worker(store, "past")).id == "w6"
        assert (await get_worker(store, "w3")).name == "twin"
        with pytest.raises(UserError) as caught:
            await get_worker(store, "twin")
        assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "worker")
        assert caught.value.hint == "give the id of one: w3, w4"

    run_virtual(story())


@pytest.mark.parametrize("name", ["crunsh", "", "x" * 200, "ä", "'; drop"])
def test_a_worker_that_nobody_knows_is_said_to_be_so(name: str) -> None:
    async def story() -> None:
        with pytest.raises(UserError) as caught:
            await get_worker(await store_of(row("w1")), name)
        assert caught.value.code == "WORKER_NOT_FOUND"
        assert caught.value.exit_code == 5
        assert (caught.value.hint == "did you mean crunch?") is (name == "crunsh")
        with pytest.raises(UserError, match="no worker is or was connected"):
            await get_worker(await store_of(), name)
        with pytest.raises(UserError) as caught:
            await get_worker(await store_of(), "a\0")
        assert caught.value.field == "worker"

    run_virtual(story())


def test_a_drained_worker_is_told_why_and_twice_is_fine() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        connected = await worker(cluster)
        for _ in range(2):
            answer = await drain_worker(cluster.store, "scripted", reason="kernel", asker=asker_of(cluster))
            assert answer.code == "OK"
            assert "scripted drains" in answer.message
        told = [message.reason for message in connected.messages if isinstance(message, Drain)]
        assert told == ["kernel", "kernel"]

        async def is_draining() -> bool:
            return (await get_worker(cluster.store, "worker-1")).state == "draining"

        await cluster.until(is_draining)
        await connected.disconnect()

        async def is_gone() -> bool:
            return (await get_worker(cluster.store, "worker-1")).state == "gone"

        await cluster.until(is_gone)
        with pytest.raises(UserError) as caught:
            await drain_worker(cluster.store, "scripted", asker=asker_of(cluster))
        assert caught.value.code == "WORKER_NOT_FOUND"
        assert "is not connected" in caught.value.message
        with pytest.raises(UserError) as caught:
            await drain_worker(cluster.store, "scripted", reason="x" * 1_001, asker=asker_of(cluster))
        assert caught.value.field == "reason"
        await cluster.stop()

    run_virtual(story())


def test_without_a_scheduler_a_drain_is_recorded() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        connected = await worker(cluster)
        await cluster.node.stop()
        with pytest.raises(UnavailableError) as caught:
            await drain_worker(cluster.store, "worker-1", asker=asker_of(cluster))
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        await connected.disconnect()
        await cluster.store.close()

    run_virtual(story())


def test_nodes_and_partitions_are_listed_with_their_owner() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        await cluster.until(lambda: value_of(True))
        (node,) = await list_nodes(cluster.store)
        assert (node.id, node.partitions) == (cluster.node.node_id, cluster.store.partition_count)
        assert node.started is not None
        partitions = await list_partitions(cluster.store)
        assert [shape.partition for shape in partitions] == list(range(cluster.store.partition_count))
        assert {(shape.owner, shape.epoch) for shape in partitions} == {(node.id, 1)}
        await cluster.node.stop()
        assert await list_nodes(cluster.store) == []
        assert {shape.owner for shape in await list_partitions(cluster.store)} == {None}
        await cluster.store.close()

    run_virtual(story())


def test_silent_node_is_told_from_one_that_renews_itself_and_its_workers_are_unknown() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock)
        await store.open()
        for node in ("n1", "n2"):
            await store.register_node(NodeRow(node, 0, f"{node}:1", START_US))
        await store.record_workers(
            [row("w1"), row("w2", node_id="n2"), row("w3"), row("w3", node_id="n2")], gone_before_us=0
        )

        async def renew() -> None:
            while True:
                await clock.sleep_until_us(clock.boot_us() + SECOND)
                await store.renew_node("n2")

        renewing = asyncio.create_task(renew())
        shown = {node.id: node.alive for node in await list_nodes(store, clock=clock)}
        assert shown == {"n1": False, "n2": True}
        assert {node.alive for node in await list_nodes(store)} == {None}
        silent = await silent_nodes(store, clock=clock)
        assert silent == {"n1"}
        states = {worker.id: worker.state for worker in await list_workers(store, silent=silent)}
        assert states == {"w1": "unknown", "w2": "connected", "w3": "connected"}
        assert (await get_worker(store, "w1", silent=silent)).state == "unknown"
        renewing.cancel()
        await asyncio.wait([renewing])

    run_virtual(story())


def test_gone_workers_that_nobody_misses_are_left_out() -> None:
    async def story() -> None:
        store = await store_of(
            row("w1", state="gone", seen_us=START_US),
            row("w2"),
            row("w3", worker_name="old", state="gone", seen_us=START_US - HOUR - SECOND),
            row("w4", worker_name="fresh", state="gone", seen_us=START_US - HOUR),
        )
        kept = without_past(await list_workers(store), now_us=START_US)
        assert [worker.id for worker in kept] == ["w2", "w4"]

    run_virtual(story())


def test_of_gone_workers_that_had_one_name_after_each_other_the_last_is_kept() -> None:
    async def story() -> None:
        store = await store_of(
            row("w1", worker_name="rack-7", state="gone", seen_us=START_US - MINUTE),
            row("w2", worker_name="rack-7", state="gone", seen_us=START_US - SECOND),
            row("w3", worker_name="rack-7", state="gone", seen_us=START_US - 2 * MINUTE),
        )
        kept = without_past(await list_workers(store), now_us=START_US)
        assert [worker.id for worker in kept] == ["w2"]

    run_virtual(story())
