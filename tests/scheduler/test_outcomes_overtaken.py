"""I6: whatever changes while outcomes are being decided, none is acknowledged that is not on record."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

import msgspec
from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.changes import CommitBatch, CommitReport
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, Instance, Outcome
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.ended import lose_attempt
from ostinato.core.states import State
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Assignment, OutcomesAcknowledged


class _OvertakenStore(MemoryStore):
    """Something happens during one read of instances, or just before one commit."""

    cluster: Cluster | None = None
    loses_memory = False
    loses_partition = False
    loses_attempt = False
    rejects = False

    async def get_instances(self, ids: Sequence[str]) -> dict[str, Instance]:
        found = await super().get_instances(ids)
        if self.loses_memory:
            self.loses_memory = False
            self._lose_partitions()
        return found

    async def commit(self, batch: CommitBatch) -> CommitReport:
        if self.loses_partition and any(row.kind is HistoryKind.LATE_RESULT for row in batch.history):
            self.loses_partition = False
            return CommitReport(lost_partitions=frozenset(proof.partition for proof in batch.proofs))
        if self.loses_attempt and batch.successes:
            self.loses_attempt = False
            await self._lose(batch)
        if self.rejects and batch.successes:
            self.rejects = False
            self._lose_partitions()
            return CommitReport(rejected={batch.successes[0].instance_id: "it cannot be stored"})
        return await super().commit(batch)

    def _lose_partitions(self) -> None:
        assert self.cluster is not None
        ownership = self.cluster.node.parts.ownership
        ownership.lose(list(ownership.memory.epochs), "another node has taken them over")

    async def _lose(self, batch: CommitBatch) -> None:
        assert self.cluster is not None
        (success,) = batch.successes
        attempt = self.cluster.node.parts.ownership.memory.running[success.instance_id]
        effects = Effects()
        lose_attempt(
            attempt,
            code="WORKER_LOST",
            message="its lease has ended",
            now_us=self.cluster.clock.wall_us(),
            rng=Random(1),
            into=effects,
        )
        effects.batch.proofs = batch.proofs
        await super().commit(effects.batch)


async def _cluster() -> tuple[Cluster, _OvertakenStore]:
    clock = VirtualClock()
    store = _OvertakenStore(clock)
    cluster = Cluster(store=store, clock=clock)
    store.cluster = cluster
    await cluster.start(python_task())
    return cluster, store


def _success(item: Assignment, cluster: Cluster) -> Outcome:
    now_us = cluster.clock.wall_us()
    return Outcome(
        instance_id=item.instance_id,
        attempt=item.attempt,
        attempt_id=item.attempt_id,
        started_us=now_us,
        finished_us=now_us,
        result=b"7",
    )


def _answers(messages: Sequence[object]) -> list[OutcomesAcknowledged]:
    return [message for message in messages if isinstance(message, OutcomesAcknowledged)]


def test_a_result_whose_partition_is_lost_while_others_are_looked_up_is_not_taken_for_that_of_none() -> None:
    """The look-up was slow, and the partition went away under it (seed 373)."""

    async def story() -> None:
        cluster, store = await _cluster()
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(python_task())
        await cluster.in_state(identity, State.RUNNING)
        (item,) = worker.assigned
        finished = _success(item, cluster)
        unknown = msgspec.structs.replace(finished, instance_id="0" * 26, attempt_id="0" * 16)
        store.loses_memory = True
        await worker.report([unknown, finished])
        await cluster.until(lambda: value_of(bool(_answers(worker.messages))))
        assert worker.acknowledged == [unknown.attempt_id]
        assert _answers(worker.messages)[0].unowned == [finished.attempt_id]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_late_result_is_not_acknowledged_when_its_refusal_could_not_be_written() -> None:
    async def story() -> None:
        cluster, store = await _cluster()
        worker = await worker_of(cluster, lambda item: b"7")
        identity = await cluster.submit(python_task())
        await cluster.in_state(identity, State.SUCCESS)
        (item,) = worker.assigned
        await cluster.sleep(SECOND)
        before_count = len(_answers(worker.messages))
        late = msgspec.structs.replace(_success(item, cluster), attempt_id="0" * 16)
        store.loses_partition = True
        await worker.report([late])
        await cluster.until(lambda: value_of(len(_answers(worker.messages)) > before_count))
        assert _answers(worker.messages)[-1] == OutcomesAcknowledged([], [late.attempt_id])
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_result_that_comes_while_its_attempt_is_being_declared_lost_stands_in_the_history() -> None:
    async def story() -> None:
        cluster, store = await _cluster()
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(python_task())
        await cluster.in_state(identity, State.RUNNING)
        (item,) = worker.assigned
        store.loses_attempt = True
        await worker.finish(item, b"7")
        await cluster.until(lambda: value_of(item.attempt_id in worker.acknowledged))
        told = [row for row in await store.history(identity) if row.kind is HistoryKind.LATE_RESULT]
        assert [row.attempt_id for row in told] == [item.attempt_id]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_result_that_the_database_rejects_when_its_partition_has_gone_is_not_acknowledged() -> None:
    async def story() -> None:
        cluster, store = await _cluster()
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(python_task())
        await cluster.in_state(identity, State.RUNNING)
        (item,) = worker.assigned
        store.rejects = True
        await worker.finish(item, b"7")
        await cluster.until(lambda: value_of(bool(_answers(worker.messages))))
        assert _answers(worker.messages) == [OutcomesAcknowledged([], [item.attempt_id])]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
