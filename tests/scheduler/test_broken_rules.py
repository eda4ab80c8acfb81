"""A rule that must always hold is broken for one instance: its partition stops, the others go on."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.observe.records import InvariantBroken, PartitionsLost
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual

BAD, GOOD = "bad", "t"


class WrongStore(MemoryStore):
    """Shows instances of task ``bad`` as due that have ended, as no database may."""

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        found = await super().find_work(partitions, now_us=now_us, limit=limit, held=held)
        found.instances = [
            msgspec.structs.replace(row, state=State.SUCCESS) if row.task == BAD else row
            for row in found.instances
        ]
        return found


def test_a_broken_rule_stops_its_partition_and_no_other_work() -> None:
    """A row that cannot be decided about must neither hold up the round nor be decided about again."""

    async def story() -> None:
        clock = VirtualClock()
        cluster = Cluster(store=WrongStore(clock))
        bad, good = python_task(BAD), python_task(GOOD)
        await cluster.start(bad, good)
        worker = await worker_of(cluster, lambda item: b"1", tasks=[BAD, GOOD])
        assert cluster.node.ready()["stopped_partitions"] == []
        broken = await cluster.submit(bad)
        partition = (await cluster.instance(broken)).partition
        others = [await cluster.submit(good) for _ in range(3)]
        for identity in others:
            assert (await cluster.in_state(identity, State.SUCCESS)).partition != partition
        await cluster.sleep(60 * SECOND)
        assert (await cluster.instance(broken)).state is State.PENDING
        state = cluster.node.ready()
        assert (state["ready"], state["stopped_partitions"]) == (False, [partition])
        records = cluster.recorder.records
        (told,) = [record for record in records if isinstance(record, InvariantBroken)]
        assert told.subject == broken
        (lost,) = [record for record in records if isinstance(record, PartitionsLost)]
        assert (lost.count, lost.reason) == (1, f"stopped: a rule is broken for instance {broken}")
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_result_of_a_stopped_partition_waits_for_the_next_owner() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(retry=RetryPolicy(max_retry=0))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await cluster.node.parts.ownership.stop_partition_of(identity)
        (item,) = worker.assigned
        await worker.finish(item, safe_failure("ECONNREFUSED", "refused"))
        await cluster.sleep(10 * SECOND)
        assert not worker.acknowledged
        assert (await cluster.instance(identity)).state is State.RUNNING
        await worker.disconnect()
        await cluster.restart()
        assert cluster.node.ready()["ready"]
        await worker.connect("node")
        await worker.finish(item, b"1")
        await cluster.until(lambda: value_of(worker.acknowledged == [item.attempt_id]))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
