"""How many workers are told of what one look has found; on virtual time."""

from __future__ import annotations

from support.cluster import ADDRESS, Cluster, python_task, value_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Assignments, Heartbeat

WORKER_COUNT = 4
PLACES_AHEAD = 500


async def queueing_worker(cluster: Cluster, number: int) -> ScriptedWorker:
    """Its attempts have been short: it says so."""
    worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
    worker.worker_id = f"worker-{number}"
    await worker.connect(ADDRESS)
    stream = worker._stream
    assert stream is not None
    granted = {"async": worker.slots + PLACES_AHEAD}
    await stream.send([Heartbeat(1, cluster.clock.boot_us(), granted, ahead={"async": PLACES_AHEAD})])
    return worker


def sizes(worker: ScriptedWorker) -> list[int]:
    return [len(message.items) for message in worker.messages if isinstance(message, Assignments)]


def test_little_work_is_spread_and_of_much_each_worker_gets_a_run() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        workers = [await queueing_worker(cluster, number) for number in range(WORKER_COUNT)]
        await cluster.sleep(HEARTBEAT_US // 2)
        await cluster.node.dispatch.stop()
        for _ in range(WORKER_COUNT):
            await cluster.submit(task)
        await cluster.node.dispatch.run_once()
        await cluster.until(lambda: value_of(all(sizes(worker) for worker in workers)))
        assert [sizes(worker) for worker in workers] == [[1]] * WORKER_COUNT
        for _ in range(48):
            await cluster.submit(task)
        await cluster.node.dispatch.run_once()
        # Three at once: a look is spread over sixteen runs, and these go round.
        await cluster.until(lambda: value_of(sum(len(worker.assigned) for worker in workers) == 52))
        assert [sizes(worker) for worker in workers] == [[1, 12]] * WORKER_COUNT
        await cluster.stop()

    run_virtual(story())


def test_much_work_is_told_to_few_of_many_workers() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        workers = [await queueing_worker(cluster, number) for number in range(40)]
        await cluster.sleep(HEARTBEAT_US // 2)
        await cluster.node.dispatch.stop()
        for _ in range(160):
            await cluster.submit(task)
        await cluster.node.dispatch.run_once()
        await cluster.until(lambda: value_of(sum(len(worker.assigned) for worker in workers) == 160))
        assert sorted(sizes(worker) for worker in workers) == [[]] * 24 + [[10]] * 16
        await cluster.stop()

    run_virtual(story())
