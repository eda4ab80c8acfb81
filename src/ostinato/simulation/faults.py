"""The driver of the faults: breaks and mends as often as the options say, tells it, keeps hosts running.

Each kind comes by chance at its own mean interval. `heal` mends whatever is broken, and from then on nothing
is.
"""

from __future__ import annotations

import asyncio
from random import Random

from ostinato.core.instants import SECOND
from ostinato.simulation.cluster import Cluster
from ostinato.simulation.fault_kinds import KINDS, Kind, Plan
from ostinato.simulation.history import Fault
from ostinato.simulation.swarm import UNDER_WAY_MAX

#: A service manager starts again what has ended, after at most this.
KEEPER_US = SECOND // 2
#: How long a healed cluster is waited for, until every node has started.
_STARTED_US_MAX = 60 * SECOND


class FaultDriver:
    """Runs as the world. `start` it once."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._options = cluster.options
        self._under_way: dict[str, tuple[str, Plan]] = {}
        self._down: set[str] = set()
        self._count = 0
        self._is_healed = False
        self._tasks: list[asyncio.Task[None]] = []

    def start(self) -> None:
        """Let faults come, and keep every host running that no fault keeps down."""
        world = self._cluster.loop.world
        self._tasks.append(world.spawn(self._keep_running(), name="keeper"))
        for name, mean_us in self._options.faults.items():
            rng = self._cluster.loop.random_for("fault", name)
            work = self._come_and_go(name, KINDS[name], rng=rng, mean_us=mean_us)
            self._tasks.append(world.spawn(work, name=name))

    async def heal(self) -> None:
        """Mend everything, and wait until every node has started again."""
        self._is_healed = True
        for name, plan in list(self._under_way.values()):
            self._mend(name, plan)
        cluster = self._cluster
        cluster.server.tell_of_breaks()
        until_us = cluster.loop.true_us + _STARTED_US_MAX
        while cluster.loop.true_us < until_us:
            if all(host.is_running and host.node is not None for host in cluster.nodes):
                return
            await cluster.sleep(SECOND // 4)

    async def _keep_running(self) -> None:
        while True:
            for host in self._cluster.hosts:
                if host.name not in self._down:
                    host.start()
            await self._cluster.sleep(KEEPER_US)

    async def _come_and_go(self, name: str, kind: Kind, *, rng: Random, mean_us: int) -> None:
        while True:
            await self._cluster.sleep(int(rng.expovariate(1.0) * mean_us))
            plan = kind(self._cluster, rng)
            lasts_us = rng.randrange(self._options.fault_us_max)
            if (
                self._is_healed
                or plan.subject in self._under_way
                or len(self._under_way) >= UNDER_WAY_MAX
                or self._count >= self._options.fault_count_max
            ):
                continue
            self._count += 1
            self._break(name, plan)
            self._cluster.loop.world.spawn(self._mend_later(name, plan, lasts_us), name=name)

    def _break(self, name: str, plan: Plan) -> None:
        self._under_way[plan.subject] = (name, plan)
        if plan.keeps_down:
            self._down.add(plan.target)
        self._tell(name, plan, ends=False)
        plan.break_it()

    async def _mend_later(self, name: str, plan: Plan, lasts_us: int) -> None:
        await self._cluster.sleep(lasts_us)
        self._mend(name, plan)

    def _mend(self, name: str, plan: Plan) -> None:
        if self._under_way.pop(plan.subject, None) is None:
            return
        plan.mend()
        self._down.discard(plan.target)
        self._tell(name, plan, ends=True)

    def _tell(self, name: str, plan: Plan, *, ends: bool) -> None:
        at_us = self._cluster.loop.true_us
        self._cluster.tell(Fault(at_us=at_us, kind=name, target=plan.target, detail=plan.detail, ends=ends))
