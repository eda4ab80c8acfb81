"""What a node makes of a database that takes no writes for an hour, as on a full disk; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US

from ostinato.clock import Clock
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import OutputChunk
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import DatabaseFull, DatabaseWritable, LoopFailed, PartitionsLost
from ostinato.scheduler.loop import Loop
from ostinato.store.batches import CommitBatch, CommitReport, Submission, SubmitReceipt
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import HeartbeatAcknowledged


class FullStore(MemoryStore):
    """Takes no writes while `is_full`; ownership rests on a lock, as with SQLite, unless told otherwise."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.is_full = False
        #: What a write is answered with then.
        self.error: OstinatoError = UnavailableError("DATABASE_FULL", "the disk is full")
        self.has_lock = True
        self.refused_count = 0

    def _write(self) -> None:
        if self.is_full:
            self.refused_count += 1
            raise self.error

    async def renew_node(self, node_id: str) -> bool:
        self._write()
        return await super().renew_node(node_id)

    async def owns_by_lock(self, node_id: str) -> bool:
        return self.has_lock

    async def commit(self, batch: CommitBatch) -> CommitReport:
        self._write()
        return await super().commit(batch)

    async def submit(self, submissions: Sequence[Submission]) -> list[SubmitReceipt]:
        self._write()
        return await super().submit(submissions)

    async def append_output(self, chunks: Sequence[OutputChunk]) -> None:
        self._write()
        await super().append_output(chunks)

    async def remove_node(self, node_id: str) -> None:
        self._write()
        await super().remove_node(node_id)


def _full_cluster() -> tuple[Cluster, FullStore]:
    clock = VirtualClock()
    store = FullStore(clock)
    return Cluster(store=store), store


def test_c123_an_hour_without_room_loses_no_attempt_and_is_said_once() -> None:
    """Attempts go on past every lease; what ends meanwhile counts once, as soon as there is room."""

    async def story() -> None:
        cluster, store = _full_cluster()
        tick = IntervalTrigger(every_us=10 * MINUTE)
        task = python_task()
        await cluster.start(task, python_task("tick", triggers=[tick]))
        worker = await worker_of(cluster, lambda item: None)
        ends, lasts = await cluster.submit(task), await cluster.submit(task)
        for identity in (ends, lasts):
            await cluster.in_state(identity, State.RUNNING)
        store.is_full = True
        full_us = cluster.clock.boot_us()
        await cluster.sleep(10 * SECOND)
        items = {item.instance_id: item for item in worker.assigned}
        await worker.finish(items[ends], b"1")
        with pytest.raises(UnavailableError):
            await cluster.submit(task)
        await cluster.sleep(HOUR)
        assert not worker.acknowledged
        state = cluster.node.ready()
        assert (state["ready"], state["database"]) == (False, "the disk is full")
        heard = [message for message in worker.messages if isinstance(message, HeartbeatAcknowledged)]
        assert cluster.clock.boot_us() - heard[-1].sent_boot_us <= 2 * SECOND
        assert all(message.partitions for message in heard)
        assert {(await cluster.instance(identity)).state for identity in (ends, lasts)} == {State.RUNNING}
        # Renewals every second, and the loops that have something to write every five.
        assert store.refused_count <= 2 * HOUR // SECOND
        store.is_full = False
        free_us = cluster.clock.boot_us()
        done = await cluster.in_state(ends, State.SUCCESS)
        await cluster.until(lambda: value_of(worker.acknowledged == [items[ends].attempt_id]))
        await cluster.until(lambda: value_of(bool(cluster.node.ready()["ready"])))
        assert cluster.clock.boot_us() - free_us <= 6 * SECOND
        await worker.finish(items[lasts], b"2")
        last = await cluster.in_state(lasts, State.SUCCESS)
        assert [(row.attempt, row.result) for row in (done, last)] == [(1, b"1"), (1, b"2")]
        assert await cluster.store.history(ends) == await cluster.store.history(lasts) == []
        _assert_said_once(cluster, full_us=free_us - full_us)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_database_that_somebody_holds_for_minutes_ends_no_belief() -> None:
    """The write of the renewal neither succeeds nor fails; the lock is proof meanwhile."""

    class HeldStore(FullStore):
        def __init__(self, clock: Clock) -> None:
            super().__init__(clock)
            self.free = asyncio.Event()
            self.free.set()

        async def renew_node(self, node_id: str) -> bool:
            await self.free.wait()
            return await super().renew_node(node_id)

    async def story() -> None:
        store = HeldStore(VirtualClock())
        cluster = Cluster(store=store)
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        store.free.clear()
        worker.messages.clear()
        await cluster.sleep(5 * MINUTE)
        heard = [message for message in worker.messages if isinstance(message, HeartbeatAcknowledged)]
        assert len(heard) > 5 * MINUTE // (2 * SECOND)
        store.free.set()
        row = await cluster.instance(identity)
        assert (row.state, row.attempt) == (State.RUNNING, 1)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c123_a_worker_that_connects_anew_during_it_without_an_attempt_is_heard_and_keeps_the_others() -> (
    None
):
    async def story() -> None:
        cluster, store = _full_cluster()
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        missing, lasts = await cluster.submit(task), await cluster.submit(task)
        for identity in (missing, lasts):
            await cluster.in_state(identity, State.RUNNING)
        store.is_full = True
        await worker.disconnect()
        gone = next(item for item in worker.assigned if item.instance_id == missing)
        del worker.running[gone.attempt_id]
        worker.messages.clear()
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.sleep(MINUTE)
        heard = [message for message in worker.messages if isinstance(message, HeartbeatAcknowledged)]
        assert cluster.clock.boot_us() - heard[-1].sent_boot_us <= 2 * SECOND
        store.is_full = False
        await cluster.until(lambda: value_of(len(worker.assigned) == 3))
        again = await cluster.instance(missing)
        assert (again.attempt, again.counters.lost) == (2, 1)
        kept = await cluster.instance(lasts)
        assert (kept.state, kept.attempt) == (State.RUNNING, 1)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def _assert_said_once(cluster: Cluster, *, full_us: int) -> None:
    records = cluster.recorder.records
    (began,) = [record for record in records if isinstance(record, DatabaseFull)]
    (ended,) = [record for record in records if isinstance(record, DatabaseWritable)]
    assert (began.error_code, began.error_message) == ("DATABASE_FULL", "the disk is full")
    assert full_us - SECOND <= ended.full_us <= full_us + 6 * SECOND
    failures = [record for record in records if isinstance(record, LoopFailed)]
    assert all(record.is_repeated for record in failures)
    assert not [record for record in records if isinstance(record, PartitionsLost)]


@pytest.mark.parametrize(
    "error",
    [
        UnavailableError("DATABASE_UNAVAILABLE", "disk I/O error"),
        UserError("DATABASE_UNUSABLE", "the file is read-only"),
    ],
    ids=lambda error: error.code,
)
def test_c123_an_hour_of_errors_of_the_disk_loses_no_attempt_either(error: OstinatoError) -> None:
    async def story() -> None:
        cluster, store = _full_cluster()
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        ends, lasts = await cluster.submit(task), await cluster.submit(task)
        for identity in (ends, lasts):
            await cluster.in_state(identity, State.RUNNING)
        store.is_full, store.error = True, error
        items = {item.instance_id: item for item in worker.assigned}
        await worker.finish(items[ends], b"1")
        await cluster.sleep(HOUR)
        state = cluster.node.ready()
        assert (state["ready"], state["database"]) == (False, error.message)
        assert not worker.acknowledged
        store.is_full = False
        done = await cluster.in_state(ends, State.SUCCESS)
        await worker.finish(items[lasts], b"2")
        last = await cluster.in_state(lasts, State.SUCCESS)
        assert [(row.attempt, row.result) for row in (done, last)] == [(1, b"1"), (1, b"2")]
        await cluster.until(lambda: value_of(cluster.node.ready()["database"] == "ok"))
        records = cluster.recorder.records
        assert not [record for record in records if isinstance(record, DatabaseFull | PartitionsLost)]
        said = [record for record in records if isinstance(record, LoopFailed) and not record.is_repeated]
        # Each loop once a minute.
        assert 0 < len(said) <= 2 * HOUR // MINUTE + 2
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_belief_that_rests_on_renewals_ends_on_a_full_disk() -> None:
    async def story() -> None:
        cluster, store = _full_cluster()
        await cluster.start()
        store.is_full, store.has_lock = True, False
        await cluster.sleep(4 * SECOND)
        assert not cluster.node.parts.ownership.is_believed
        store.is_full = False
        await cluster.sleep(2 * SECOND)
        assert cluster.node.parts.ownership.is_believed
        await cluster.stop()

    run_virtual(story())


def test_a_node_stops_in_good_order_on_a_full_disk() -> None:
    async def story() -> None:
        cluster, store = _full_cluster()
        task = python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        store.is_full = True
        (item,) = worker.assigned
        await worker.finish(item, b"1")
        began_us = cluster.clock.boot_us()
        await cluster.node.stop()
        assert cluster.clock.boot_us() - began_us <= 5 * SECOND
        assert not worker.acknowledged
        assert "not handed over: the disk is full" in str(cluster.recorder.records[-1])
        await worker.disconnect()
        await cluster.store.close()

    run_virtual(story())


def test_c123_an_error_that_lasts_is_said_once_a_minute_and_anew_after_a_good_round() -> None:
    class Failing(Loop):
        name = "failing"
        poll_us = SECOND
        is_broken = True

        async def run_once(self) -> int | None:
            if self.is_broken:
                raise UserError("DATABASE_UNUSABLE", "the file is read-only")
            return None

    async def story() -> None:
        cluster = Cluster()
        loop = Failing(cluster.clock, Hooks([cluster.recorder]))
        loop.start()

        def said() -> int:
            told = [record for record in cluster.recorder.records if isinstance(record, LoopFailed)]
            return sum(not record.is_repeated for record in told)

        await cluster.sleep(10 * MINUTE - 10 * SECOND)
        assert said() == 10
        loop.is_broken = False
        await cluster.sleep(10 * SECOND)
        loop.is_broken = True
        await cluster.sleep(5 * SECOND)
        assert said() == 11
        await loop.stop()

    run_virtual(story())
