"""Which workers the node writes down, and what becomes of one that is asked to drain; on virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.fleet import Fleet, lasting
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.clock import Clock
from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND
from ostinato.core.states import Hold, State
from ostinato.errors import UnavailableError
from ostinato.observe.records import LoopFailed, WorkerDraining
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import NodeRow, WorkerRow
from ostinato.store.memory import MemoryStore
from ostinato.store.memory.tables import Tables
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Drain, Draining, Welcome


class CountingStore(MemoryStore):
    """Counts records of workers; refuses them while `is_full`."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.record_count = 0
        self.is_full = False

    async def record_workers(self, rows: Sequence[WorkerRow], *, gone_before_us: int) -> None:
        if self.is_full:
            raise UnavailableError("DATABASE_FULL", "the disk is full")
        self.record_count += 1
        await super().record_workers(rows, gone_before_us=gone_before_us)


def counting_cluster() -> tuple[Cluster, CountingStore]:
    store = CountingStore(VirtualClock())
    cluster = Cluster(store=store)
    store._clock = cluster.clock
    return cluster, store


async def only_row(cluster: Cluster, state: str) -> WorkerRow:
    async def look() -> WorkerRow | None:
        rows = await cluster.store.workers()
        return rows[0] if len(rows) == 1 and rows[0].state == state else None

    return await cluster.until(look)


def drains(worker: ScriptedWorker) -> list[str]:
    return [message.reason for message in worker.messages if isinstance(message, Drain)]


def test_a_worker_is_recorded_when_it_comes_while_it_works_and_when_it_goes() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        came_us = cluster.clock.wall_us()
        worker = await worker_of(cluster, lambda item: None)
        row = await only_row(cluster, "connected")
        assert cluster.clock.wall_us() - came_us <= 1_100_000
        assert (row.worker_id, row.worker_name, row.node_id) == ("worker-1", "scripted", cluster.node.node_id)
        assert (row.tasks, row.executors) == (["default/t"], ["http", "python", "shell"])
        assert (row.capacity, row.protocol) == ({"async": 10, "process": 10}, 1)
        assert 0 <= row.connected_us - came_us <= SECOND
        await cluster.submit(task)

        async def shows_one() -> bool:
            return (await cluster.store.workers())[0].running_count == 1

        await cluster.until(shows_one, within_us=16 * SECOND)
        seen_us = (await cluster.store.workers())[0].seen_us
        await cluster.sleep(16 * SECOND)
        assert (await cluster.store.workers())[0].seen_us > seen_us
        await worker.disconnect()
        gone = await only_row(cluster, "gone")
        assert (gone.running_count, gone.tasks) == (0, ["default/t"])
        await cluster.stop()

    run_virtual(story())


def test_a_worker_that_is_gone_stays_in_the_list_for_a_day() -> None:
    async def story() -> None:
        slow = NodeConfig(
            worker_lease_us=DAY, ownership_lease_us=HOUR, renewal_us=20 * MINUTE, safety_poll_us=20 * MINUTE
        )
        cluster = Cluster(config=slow)
        await cluster.start()
        worker = await worker_of(cluster, lambda item: b"1")
        await only_row(cluster, "connected")
        await worker.disconnect()
        await only_row(cluster, "gone")
        await cluster.sleep(DAY - MINUTE)
        assert len(await cluster.store.workers()) == 1
        await cluster.sleep(HOUR + 2 * MINUTE)
        assert await cluster.store.workers() == []
        await cluster.stop()

    run_virtual(story())


def test_at_a_clean_stop_its_workers_are_gone_and_a_killed_nodes_workers_at_the_next_start() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        worker = await worker_of(cluster, lambda item: b"1")
        row = await only_row(cluster, "connected")
        await cluster.node.stop()
        assert [row.state for row in await cluster.store.workers()] == ["gone"]
        # As one that was killed leaves it.
        await cluster.store.register_node(NodeRow(cluster.node.node_id, 9, "", 0))
        await cluster.store.record_workers([row], gone_before_us=0)
        assert [row.state for row in await cluster.store.workers()] == ["connected"]
        await cluster.store.remove_node(cluster.node.node_id)
        cluster.node = cluster._node()
        await cluster.node.start()
        assert (await only_row(cluster, "gone")).node_id == row.node_id
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_many_changes_are_one_record_a_second() -> None:
    async def story() -> None:
        cluster, store = counting_cluster()
        await cluster.start()
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.sleep(2 * SECOND)
        before = store.record_count
        for _ in range(100):
            await worker.disconnect()
            await worker.connect(ADDRESS)
            await cluster.sleep(SECOND // 20)
        assert 4 <= store.record_count - before <= 6
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("away_us", [0, MINUTE])
def test_connected_workers_stand_in_the_lists_of_a_database_that_was_made_anew(away_us: int) -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task()
        members = await fleet.open("a b", task)
        fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.sleep(20 * SECOND)
        for member in members:
            member.gate.is_cut_off = away_us > 0
        await fleet.sleep(away_us)
        fleet.store._tables = Tables(fleet.store.partition_count)
        for member in members:
            member.gate.is_cut_off = False
        await fleet.sleep(30 * SECOND)
        rows = [row for row in await fleet.store.workers() if row.state == "connected"]
        assert {row.node_id for row in rows} == {member.node_id for member in members}
        await fleet.close()

    run_virtual(story())


def test_a_worker_whose_stream_outlasts_the_node_s_identity_is_recorded_under_the_new_one() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        worker = await worker_of(cluster, lambda item: b"1")
        former = (await only_row(cluster, "connected")).node_id
        # The end of the stream, by which a worker greets anew, is on its way for long.
        cluster.node.membership.on_rejoined = lambda: None
        await cluster.store.remove_node(former)
        await cluster.until(lambda: value_of(cluster.node.node_id != former))

        async def is_recorded() -> bool:
            rows = await cluster.store.workers()
            return any((row.node_id, row.state) == (cluster.node.node_id, "connected") for row in rows)

        await cluster.until(is_recorded, within_us=30 * SECOND)
        assert [row.state for row in await cluster.store.workers() if row.node_id == former] == ["gone"]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_database_that_takes_no_records_hurts_nothing_else() -> None:
    async def story() -> None:
        cluster, store = counting_cluster()
        task = python_task()
        await cluster.start(task)
        store.is_full = True
        worker = await worker_of(cluster, lambda item: b"1")
        done = await cluster.in_state(await cluster.submit(task), State.SUCCESS)
        assert done.attempt == 1
        await cluster.sleep(10 * MINUTE)
        failed = [record for record in cluster.recorder.records if isinstance(record, LoopFailed)]
        assert {record.loop for record in failed} == {"registry"}
        store.is_full = False
        await only_row(cluster, "connected")
        await cluster.until(lambda: value_of(bool(cluster.node.ready()["ready"])))
        store.is_full = True
        await worker.disconnect()
        await cluster.stop()
        assert await cluster.store.nodes() == []

    run_virtual(story())


def test_what_a_hostile_worker_says_of_itself_is_stored_safely_and_bounded() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        worker = ScriptedWorker(
            cluster.network, cluster.clock, lambda item: b"1", tasks=["\ud800x", "n\0", "y" * 100_000]
        )
        await worker.connect(ADDRESS)
        row = await only_row(cluster, "connected")
        assert len(row.tasks) == 3
        assert all(len(name) <= 600 and name.encode() for name in row.tasks)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_worker_that_was_asked_to_drain_gets_no_new_work_and_is_told_once_more_on_a_new_stream() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        first = await cluster.submit(task)
        await cluster.in_state(first, State.RUNNING)
        body = {"worker_id": "worker-1", "reason": "new machine"}
        assert await cluster.ask("drain", body=body) == "OK"
        waits = await cluster.submit(task)

        async def is_held() -> bool:
            return (await cluster.instance(waits)).hold is Hold.NO_WORKER

        await cluster.until(is_held)
        assert drains(worker) == ["new machine"]
        await only_row(cluster, "draining")
        # Its stream is lost, perhaps with the wish.
        await worker.disconnect()
        worker.messages.clear()
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.until(lambda: value_of(drains(worker) == ["new machine"]))
        assert isinstance(worker.messages[0], Welcome)
        assert await cluster.ask("drain", body=body) == "OK"
        await cluster.sleep(MINUTE)
        assert [item.instance_id for item in worker.assigned] == [first]
        await worker.finish(worker.assigned[0], b"1")
        await cluster.in_state(first, State.SUCCESS)
        await worker.disconnect()
        assert await cluster.ask("drain", body=body) == "WORKER_NOT_FOUND"
        other = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"2", tasks=["t"])
        other.worker_id = "worker-2"
        await other.connect(ADDRESS)
        other.beat(HEARTBEAT_US)
        await cluster.in_state(waits, State.SUCCESS)
        await cluster.sleep(MINUTE)
        assert cluster.node.parts.sessions._drains == {}
        await other.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_several_drains_are_answered_and_one_for_nobody_is_refused() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        workers: list[ScriptedWorker] = []
        for number in range(3):
            worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"1", tasks=["t"])
            worker.worker_id = f"w{number}"
            await worker.connect(ADDRESS)
            workers.append(worker)
        await cluster.until(lambda: value_of(all(worker.welcome is not None for worker in workers)))
        for number in range(3):
            assert await cluster.ask("drain", body={"worker_id": f"w{number}"}) == "OK"
        assert await cluster.ask("drain", body={"worker_id": "w9"}) == "WORKER_NOT_FOUND"
        for worker in workers:
            await cluster.until(lambda worker=worker: value_of(drains(worker) == ["asked for by test"]))
            await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("by_itself", [False, True])
def test_work_that_waits_for_a_draining_worker_says_that_there_is_none(by_itself: bool) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None, slots=1)
        ids = [await cluster.submit(task) for _ in range(2)]

        async def hold_is(hold: Hold) -> bool:
            return any([(await cluster.instance(identity)).hold is hold for identity in ids])

        await cluster.in_state(ids[0], State.RUNNING)
        await cluster.ask("pause", task="t")
        await cluster.until(lambda: hold_is(Hold.PAUSED))
        await cluster.ask("resume", task="t")
        if by_itself:
            assert worker._stream is not None
            await worker._stream.send([Draining("the worker stops")])
        else:
            assert await cluster.ask("drain", body={"worker_id": "worker-1"}) == "OK"
        await cluster.until(lambda: hold_is(Hold.NO_WORKER))
        told = [record for record in cluster.recorder.records if isinstance(record, WorkerDraining)]
        assert len(told) == (1 if by_itself else 0)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_workers_that_know_the_same_tasks_share_what_says_so() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        for number in range(3):
            worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
            worker.worker_id, worker.tasks = f"worker-{number}", ["u" if number == 1 else "t"]
            await worker.connect(ADDRESS)
        sessions = cluster.node.parts.sessions.by_id
        await cluster.until(lambda: value_of(len(sessions) == 3))
        first, other, last = (sessions[f"worker-{number}"].view().tasks for number in range(3))
        assert first is last
        assert first != other
        await cluster.stop()

    run_virtual(story())
