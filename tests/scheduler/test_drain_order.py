"""A wish to drain is told before its answer is on record, so one that nobody heard is asked for again."""

from __future__ import annotations

import msgspec
from support.cluster import ADDRESS, Cluster, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.changes import Request
from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Drain


class Unanswering(MemoryStore):
    """Takes no answers while `is_full`."""

    is_full = True
    refused_count = 0

    async def commit(self, batch: CommitBatch) -> CommitReport:
        if batch.answers and self.is_full:
            self.refused_count += 1
            raise UnavailableError("DATABASE_FULL", "the disk is full")
        return await super().commit(batch)


def _drains(worker: ScriptedWorker) -> list[str]:
    return [message.reason for message in worker.messages if isinstance(message, Drain)]


def test_a_drain_whose_answer_was_not_written_is_carried_out_again_by_the_next_node() -> None:
    async def story() -> None:
        store = Unanswering(VirtualClock())
        cluster = Cluster(store=store)
        store._clock = cluster.clock
        await cluster.start()
        worker = await worker_of(cluster, lambda item: None)
        await cluster.until(lambda: value_of(worker.welcome is not None))
        now_us = cluster.clock.wall_us()
        body = msgspec.json.encode({"worker_id": "worker-1", "reason": "new machine"})
        request = Request(
            id="r1", partition=0, kind="drain", namespace="", created_us=now_us, body=body, by="test"
        )
        await store.add_requests([request])
        # Told, though nothing of it is on record.
        await cluster.until(lambda: value_of(bool(_drains(worker))))
        assert store.refused_count >= 1
        assert await store.answers(["r1"]) == {}
        await worker.disconnect()
        # The next node knows nothing of it but the request.
        await cluster.restart()
        worker.messages.clear()
        await cluster.sleep(SECOND)
        store.is_full = False
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.until(lambda: store.answers(["r1"]))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
