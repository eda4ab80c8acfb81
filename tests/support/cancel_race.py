"""Cancels that cross assignment, start and end of attempts in a real worker, over a cluster on any clock."""

from __future__ import annotations

import asyncio
from collections import Counter
from pathlib import Path
from random import Random

from support.cluster import ADDRESS, Cluster, python_task

from ostinato.core.definition import TaskRef
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.sdk.context import current_context
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor


class CancelRace:
    """A cluster and a worker whose task sees for itself what runs, beside all that is reported of it."""

    def __init__(
        self,
        cluster: Cluster,
        data_dir: Path,
        *,
        lead_us: int = 5 * MILLISECOND,
        spread_us: int = 10 * MILLISECOND,
        look_us: int = MILLISECOND // 10,
    ) -> None:
        """`data_dir` is the worker's; `lead_us` from a submission to when it is due.

        `spread_us`: how long a run lasts at most, and the time around a moment in which it is cancelled. A
        real database needs more of it, since a request reaches the owner so much later than it was made.
        `look_us`: how often each asks what has become of its run.
        """
        self.chance = Random(129)
        self._lead_us = lead_us
        self._spread_us = spread_us
        self._look_us = look_us
        #: What it last took from being due to running.
        self._lag_us = 0
        self.cluster = cluster
        self.task = python_task(grace_us=SECOND)
        self.worker = Supervisor(
            WorkerConfig(worker_name="w", scheduler=ADDRESS, capacity={"async": 20}, data_dir=data_dir),
            clock=self.cluster.clock,
            transport=self.cluster.network.worker_transport(),
            executors=[InlineExecutor({TaskRef("default", "t"): self.work}, clock=self.cluster.clock)],
            rng=self.cluster.rng,
        )
        self.durations_us: dict[str, int] = {}
        self.running: set[str] = set()
        self.due_boot_us: dict[str, int] = {}
        self.starts: Counter[str] = Counter()
        self.ended: list[Instance] = []

    async def work(self) -> str:
        identity = current_context().instance_id
        lag_us = self.cluster.clock.boot_us() - self.due_boot_us[identity]
        self._lag_us = min(lag_us, self._spread_us)
        self.starts[identity] += 1
        self.running.add(identity)
        try:
            await self.cluster.sleep(self.durations_us[identity])
        finally:
            self.running.discard(identity)
        return "done"

    async def one(self) -> tuple[State, str]:
        """Submit and cancel; the final state and the answer."""
        cluster, chance = self.cluster, self.chance
        due_us = cluster.clock.wall_us() + self._lead_us
        identity = new_id(due_us, chance)
        due_boot_us = self.due_boot_us[identity] = cluster.clock.boot_us() + self._lead_us
        duration_us = self.durations_us[identity] = chance.randrange(self._spread_us)
        await cluster.submit(self.task, id=identity, due_us=due_us)
        # Assignment and start come when it is due, the end a duration later.
        around_us = due_boot_us + self._lag_us + chance.choice((0, 0, duration_us))
        half_us = self._spread_us // 2
        await cluster.clock.sleep_until_us(around_us + chance.randrange(-half_us, half_us + 1))
        await turns(chance.randrange(60))
        asking = asyncio.create_task(cluster.ask("cancel", instance_id=identity))
        row = await end_of(cluster, identity, look_us=self._look_us)
        assert identity not in self.running
        answer = await asking
        assert self.starts[identity] == row.attempt <= 1
        self.ended.append(row)
        return row.state, answer


async def turns(count: int) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def end_of(cluster: Cluster, identity: str, *, look_us: int = MILLISECOND // 10) -> Instance:
    """The first terminal state that anybody could read, who looks this often."""
    while (row := await cluster.instance(identity)).state not in TERMINAL_STATES:
        await cluster.sleep(look_us)
    return row
