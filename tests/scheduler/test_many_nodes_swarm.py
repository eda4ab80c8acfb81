"""Random faults of nodes and workers, then quiet; what must hold is checked by what was written and run."""

from __future__ import annotations

import os
from random import Random

import pytest
from support.cluster import python_task
from support.fleet import OWNERSHIP_LEASE_US, WORKER_LEASE_US, Fleet

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.testing.virtual_clock import run_virtual

#: At full size: OSTINATO_TEST_SEEDS=200.
SEED_COUNT = int(os.environ.get("OSTINATO_TEST_SEEDS", "8"))
FAULT_COUNT = 25
RETRY = RetryPolicy(interval_us=SECOND, max_retry=3, max_lost=50)
EVERY_US = 5 * SECOND
ADDRESSES = ("a", "b", "c")


class Swarm:
    """One run: three addresses, three workers, one seed."""

    def __init__(self, seed: int) -> None:
        self.chance = Random(seed)
        self.fleet = Fleet(seed=seed, travel_us_max=60 * MILLISECOND)
        self.names = [f"t{number}" for number in range(6)]
        self.log: list[str] = []

    async def body(self, _: object) -> bytes | Failure:
        await self.fleet.sleep(self.chance.randrange(100 * MILLISECOND, 12 * SECOND))
        if self.chance.random() < 0.2:
            return safe_failure("ECONNRESET", "reset by the test")
        return b"1"

    async def run(self) -> None:
        fleet, chance = self.fleet, self.chance
        every = (IntervalTrigger(every_us=EVERY_US, misfire="fire_all"),)
        tasks = [
            python_task(name, retry=RETRY, overlap="allow", triggers=every if number < 2 else ())
            for number, name in enumerate(self.names)
        ]
        await fleet.open(" ".join(ADDRESSES), *tasks)
        for name in ("w1", "w2", "w3"):
            fleet.add_worker(name, self.body, tasks=" ".join(self.names))
        for step in range(FAULT_COUNT):
            for _ in range(chance.randrange(4)):
                await fleet.submit(chance.choice(tasks[2:]))
            await self.fault(step)
            await fleet.sleep(chance.randrange(6 * SECOND))
        await self.heal()

    async def fault(self, step: int) -> None:
        fleet, chance = self.fleet, self.chance
        address = chance.choice(ADDRESSES)
        member = fleet.nodes.get(address)
        if member is None:
            await fleet.add(address)
            self.log.append(f"add {address}")
            return
        kind = chance.choice(("kill", "stop", "freeze", "thaw", "cut", "heal", "worker", "row", "link"))
        self.log.append(f"{kind} {address}")
        if kind in ("kill", "stop"):
            member.thaw()
            await fleet.end(address, how="kill" if kind == "kill" or member.gate.is_cut_off else "stop")
        elif kind == "freeze":
            member.freeze()
        elif kind == "thaw":
            member.thaw()
        elif kind == "cut":
            member.gate.is_cut_off = True
        elif kind == "heal":
            member.gate.is_cut_off = False
        elif kind == "row":
            await fleet.store.remove_node(member.node_id)
        elif kind == "link":
            # One way only is cut: this worker hears of this node no more.
            chance.choice(fleet.workers).toggle(address)
        else:
            worker = chance.choice(fleet.workers)
            await worker.kill()
            fleet.workers.remove(worker)
            fresh = fleet.add_worker(f"{worker.worker_id}-{step}", self.body, tasks=" ".join(self.names))
            for other in sorted(set(ADDRESSES) - set(fleet.nodes)):
                fresh.dial(other)

    async def heal(self) -> None:
        """Everything works again: what is there must come to its end (I2, I9)."""
        fleet = self.fleet
        for member in fleet.nodes.values():
            member.thaw()
            member.gate.is_cut_off = False
        for address in sorted(set(ADDRESSES) - set(fleet.nodes)):
            await fleet.add(address)
        for worker in fleet.workers:
            for address in ADDRESSES:
                worker.dial(address)
        healed_us = fleet.clock.wall_us()
        await fleet.settled()
        await fleet.sleep(2 * OWNERSHIP_LEASE_US + WORKER_LEASE_US + 2 * SECOND)
        for row in await fleet.instances(states=(State.RUNNING,)):
            # I9: nothing is left of what the faults have interrupted. What runs now has been begun since.
            has = any(row.attempt_id in worker.holding for worker in fleet.workers)
            assert has or (row.assigned_us or 0) > fleet.clock.wall_us() - SECOND, (row.id, row.worker_name)
        await fleet.until(lambda: self.have_ended(created_before_us=healed_us))
        await self.check_rows(until_us=healed_us)
        await fleet.close()

    async def have_ended(self, *, created_before_us: int) -> bool:
        rows = await self.fleet.instances(created_before_us=created_before_us)
        return all(row.state in TERMINAL_STATES for row in rows)

    async def check_rows(self, *, until_us: int) -> None:
        """I2 and I8 of fires: none missing, none twice. I3: no more attempts than the policy allows."""
        rows = await self.fleet.instances()
        for name in self.names[:2]:
            fires = [row.fire_us for row in rows if row.task == name and row.fire_us is not None]
            due = sorted(fire_us for fire_us in fires if fire_us <= until_us)
            assert due == list(range(due[0], until_us + 1, EVERY_US)), name
        for row in [await self.fleet.instance(row.id) for row in rows]:
            assert row.counters.failures <= RETRY.max_retry + 1, "I3"
            assert row.counters.lost <= RETRY.max_lost + 1, "I3"
            assert row.attempt >= 1 or row.created_us > until_us, "I2"


@pytest.mark.parametrize("seed", range(SEED_COUNT))
def test_whatever_happens_to_nodes_and_workers_what_must_hold_holds(seed: int) -> None:
    async def story() -> None:
        swarm = Swarm(seed)
        try:
            await swarm.run()
        except AssertionError as error:
            raise AssertionError(f"seed {seed}, after {swarm.log}: {error}") from error

    run_virtual(story())
