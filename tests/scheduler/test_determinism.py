"""The real node and the real worker on virtual time: one seed gives one history."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import msgspec
from support.cluster import ADDRESS, Cluster, python_task

from ostinato.core.definition import TaskRef
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import TERMINAL_STATES
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import run_virtual
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor


async def history_of(seed: int, data_dir: Path) -> tuple[bytes, list[str]]:
    """Run a busy half hour; everything that the store knows afterwards, and the final states."""
    cluster = Cluster(seed=seed)
    chance = Random(seed)
    flaky = python_task("flaky", retry=RetryPolicy(interval_us=SECOND, jitter="full", max_retry=4))
    steady = python_task("steady", triggers=(IntervalTrigger(every_us=7 * SECOND),))

    async def fail_often(**_: object) -> int:
        await cluster.sleep(chance.randrange(3 * SECOND))
        if chance.random() < 0.5:
            raise ConnectionResetError("reset by the test")
        return 1

    async def work(**_: object) -> str:
        await cluster.sleep(chance.randrange(10 * SECOND))
        return "done"

    await cluster.start(flaky, steady)
    workers = [
        Supervisor(
            WorkerConfig(
                worker_name=f"w{number}", scheduler=ADDRESS, capacity={"async": 3}, data_dir=data_dir
            ),
            clock=cluster.clock,
            transport=cluster.network.worker_transport(),
            executors=[
                InlineExecutor(
                    {TaskRef("default", "flaky"): fail_often, TaskRef("default", "steady"): work},
                    clock=cluster.clock,
                )
            ],
            rng=cluster.rng,
        )
        for number in (1, 2)
    ]
    running = [asyncio.create_task(worker.run()) for worker in workers]
    for _ in range(40):
        await cluster.submit(flaky, priority=chance.randrange(10))
        await cluster.sleep(chance.randrange(2 * SECOND))
    await cluster.sleep(30 * MINUTE)
    for worker in workers:
        worker.drain()
    await asyncio.gather(*running)
    rows = await cluster.instances()
    whole = [await cluster.instance(row.id) for row in rows]
    histories = [await cluster.store.history(row.id) for row in rows]
    await cluster.stop()
    return msgspec.json.encode([whole, histories]), [row.state for row in rows]


def test_the_same_seed_gives_identical_histories(tmp_path: Path) -> None:
    first, states = run_virtual(history_of(11, tmp_path))
    second, _ = run_virtual(history_of(11, tmp_path))
    assert first == second
    assert len(states) > 200
    assert set(states) <= TERMINAL_STATES
    assert {"success", "failed", "skipped"} <= set(states)


def test_another_seed_gives_another_history(tmp_path: Path) -> None:
    first, _ = run_virtual(history_of(11, tmp_path))
    other, _ = run_virtual(history_of(12, tmp_path))
    assert first != other
