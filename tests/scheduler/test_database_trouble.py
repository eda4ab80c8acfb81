"""A database that is read-only, away, or takes no commits: what a node says of it; on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.observe.records import DatabaseRecovered, LoopFailed, NodeStopped
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.testing.virtual_clock import run_virtual

_WRITES = (
    "register_node",
    "renew_node",
    "note_standing",
    "take_partitions",
    "release_partitions",
    "commit",
    "append_output",
    "record_workers",
    "delete_finished",
)
_READS = ("watch_nodes", "partition_owners", "now_us", "find_work", "find_requests", "count_instances")


class Trouble:
    """Makes calls of a cluster's store fail for a while."""

    def __init__(self, cluster: Cluster, names: tuple[str, ...], error: OstinatoError) -> None:
        self.is_on = False
        self._error = error
        for name in names:
            self._wrap(cluster.store, name)

    def _wrap(self, store: object, name: str) -> None:
        real = getattr(store, name)

        async def call(*arguments: object, **named: object) -> object:
            if self.is_on:
                raise self._error
            return await real(*arguments, **named)

        setattr(store, name, call)


def lines(cluster: Cluster) -> list[LoopFailed]:
    """What stands in the log at its usual level."""
    records = cluster.recorder.records
    return [record for record in records if isinstance(record, LoopFailed) and not record.is_repeated]


def recoveries(cluster: Cluster) -> list[DatabaseRecovered]:
    return [record for record in cluster.recorder.records if isinstance(record, DatabaseRecovered)]


@pytest.mark.parametrize(
    ("names", "error"),
    [
        (("record_workers",), UserError("DATABASE_UNUSABLE", "command denied for table worker")),
        (_WRITES, UnavailableError("DATABASE_UNAVAILABLE", "the server is read-only")),
        (_WRITES + _READS, UnavailableError("DATABASE_UNAVAILABLE", "connection refused")),
        (_WRITES + _READS, UserError("DATABASE_UNUSABLE", "no such database")),
    ],
    ids=["one-table", "read-only", "away", "refusing"],
)
def test_it_is_one_line_for_all_loops_then_one_a_minute_with_a_count_and_one_at_the_end(
    names: tuple[str, ...], error: OstinatoError
) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        trouble = Trouble(cluster, names, error)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.in_state(await cluster.submit(task), State.SUCCESS)
        trouble.is_on = True
        began_us = cluster.clock.boot_us()
        await cluster.sleep(HOUR)
        told = lines(cluster)
        assert 50 <= len(told) <= 60
        assert told[0].count == 1
        failures = [record for record in cluster.recorder.records if isinstance(record, LoopFailed)]
        last = max(place for place, record in enumerate(failures) if not record.is_repeated)
        assert sum(record.count for record in told) == last + 1
        # Each loop tries again with a pause, of five seconds in the end; renewals and looks every second.
        assert len(failures) <= 5 * HOUR // SECOND
        assert recoveries(cluster) == []
        assert cluster.node.ready()["database"] == str(error)
        trouble.is_on = False
        await cluster.until(lambda: value_of(bool(cluster.node.ready()["ready"])), within_us=30 * SECOND)
        await cluster.sleep(MINUTE)
        (recovered,) = recoveries(cluster)
        assert HOUR - MINUTE <= recovered.failing_us <= cluster.clock.boot_us() - began_us
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_trouble_that_comes_and_goes_is_told_at_most_once_a_minute() -> None:
    async def story() -> None:
        cluster = Cluster()
        trouble = Trouble(cluster, _WRITES, UnavailableError("DATABASE_UNAVAILABLE", "deadlock"))
        await cluster.start()
        for _ in range(120):
            trouble.is_on = not trouble.is_on
            await cluster.sleep(5 * SECOND)
        assert 5 <= len(lines(cluster)) <= 11
        assert len(recoveries(cluster)) <= len(lines(cluster))
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("deadline_us", [None, 10 * SECOND], ids=["for-ever", "to-its-deadline"])
def test_a_commit_that_hangs_makes_the_node_not_ready_until_it_is_through(deadline_us: int | None) -> None:
    """The server answers everything else: the node's own row is renewed, and it goes on believing."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        locked = asyncio.Event()
        locked.set()
        commit = cluster.store.commit

        async def waiting(batch: CommitBatch) -> CommitReport:
            ends_us = None if deadline_us is None else cluster.clock.boot_us() + deadline_us
            while not locked.is_set():
                if ends_us is not None and cluster.clock.boot_us() >= ends_us:
                    raise UnavailableError("DATABASE_UNAVAILABLE", "it did not end within 10000 ms")
                await cluster.sleep(SECOND // 10)
            return await commit(batch)

        cluster.store.commit = waiting  # type: ignore[method-assign]  # rows of instances are locked
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        await cluster.in_state(await cluster.submit(task), State.SUCCESS)
        assert cluster.node.ready()["ready"] is True
        locked.clear()
        began_us = cluster.clock.boot_us()
        identity = await cluster.submit(task)
        await cluster.until(lambda: value_of(not cluster.node.ready()["ready"]), within_us=MINUTE)
        assert cluster.clock.boot_us() - began_us <= 7 * SECOND
        assert "loop has been waiting for the database for 5s" in str(cluster.node.ready()["database"])
        assert cluster.node.parts.ownership.is_believed
        for _ in range(120):
            await cluster.sleep(SECOND)
            assert cluster.node.ready()["ready"] is False
        if deadline_us is not None:
            assert "did not end" in str(cluster.node.ready()["database"])
            assert [line.loop for line in lines(cluster)][:1] == ["commit"]
            assert len(lines(cluster)) <= 4
        locked.set()
        await cluster.in_state(identity, State.SUCCESS)
        await cluster.until(lambda: value_of(bool(cluster.node.ready()["ready"])), within_us=10 * SECOND)
        assert len(recoveries(cluster)) == (0 if deadline_us is None else 1)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize(
    "error", [UnavailableError("DATABASE_UNAVAILABLE", "away"), UserError("DATABASE_UNUSABLE", "gone")]
)
def test_a_node_stops_in_good_order_whatever_the_database_says(error: OstinatoError) -> None:
    async def story() -> None:
        cluster = Cluster()
        trouble = Trouble(cluster, ("remove_node", *_WRITES), error)
        await cluster.start()
        worker = await worker_of(cluster, lambda item: b"1")
        trouble.is_on = True
        await cluster.node.stop()
        (stopped,) = [record for record in cluster.recorder.records if isinstance(record, NodeStopped)]
        assert f"not handed over: {error}" in stopped.reason
        await worker.disconnect()
        await cluster.store.close()

    run_virtual(story())
