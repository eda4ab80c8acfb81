"""One seed gives one history, byte for byte, whatever the interpreter does with hashes and memory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from random import Random

from support.simulated import SimulatedCluster, assert_single_execution

from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.simulation.executions import work_for
from ostinato.simulation.network import Delay


class Storm:
    """A few minutes in which everything that can befall a process or a machine does."""

    def __init__(self, seed: int, *, suspends: bool = True) -> None:
        self.suspends = suspends
        self.chance = Random(f"storm {seed}")
        self.cluster = SimulatedCluster(seed, nodes=3, workers=3, skew_us=40 * SECOND, drift_ppm=200)
        every = (IntervalTrigger(every_us=5 * SECOND, misfire="fire_all"),)
        for number in range(4):
            triggers = every if number < 2 else ()
            self.cluster.task(
                f"t{number}", self.body, is_async=number % 2 == 0, overlap="allow", triggers=triggers
            )

    async def body(self) -> int:
        await work_for(self.chance.randrange(100 * MILLISECOND, 12 * SECOND))
        if self.chance.random() < 0.2:
            raise ConnectionResetError("reset by the test")
        return 1

    async def story(self, made: SimulatedCluster) -> None:
        made.network.set_delay(Delay(us_min=100, us_max=5_000, spike_share=0.02, spike_us_max=2 * SECOND))
        await made.open()
        await made.sleep(3 * SECOND)
        for _ in range(40):
            made.client.do(made.submit(f"t{self.chance.randrange(2, 4)}"))
            self.break_something(made)
            await made.sleep(self.chance.randrange(6 * SECOND))
        self.heal(made)
        await made.sleep(MINUTE)

    def break_something(self, made: SimulatedCluster) -> None:
        chance = self.chance
        node, worker = chance.choice(made.nodes), chance.choice(made.workers)
        machines = [host.name for host in (*made.nodes, *made.workers)]
        first, second = chance.sample(machines, 2)
        clock = chance.choice([*made.nodes, *made.workers]).machine.clock
        faults = [
            node.kill, node.freeze, node.thaw, node.stop, node.start, node.crash_machine,
            worker.kill, worker.freeze, worker.thaw, worker.start, worker.start, worker.drain,
            worker.kill_guardian, worker.freeze_guardian, worker.thaw_guardian,
            worker.crash_machine, lambda: worker.crash_machine(keeps_disk=False),
            lambda: made.network.silence(first, second), made.network.mend_all,
            lambda: made.network.break_streams(node.name, worker.name, half_open_us_max=4 * SECOND),
            lambda: made.network.refuse(node.address), lambda: made.network.accept(node.address),
            lambda: clock.jump_wall(chance.randrange(-MINUTE, MINUTE)),
            lambda: clock.set_drift(chance.randrange(-200, 200)),
        ]  # fmt: skip  # a table of faults, several in a line
        if self.suspends:
            faults += [host.machine.suspend for host in (node, worker)]
            faults += [host.machine.wake for host in (node, worker)]
        chance.choice(faults)()

    def heal(self, made: SimulatedCluster) -> None:
        made.network.mend_all()
        for worker in made.workers:
            worker.machine.wake()
            worker.thaw()
            worker.thaw_guardian()
            worker.start()
        for node in made.nodes:
            node.machine.wake()
            node.thaw()
            node.start()

    def run(self) -> str:
        """The fingerprint of everything that happened."""
        self.cluster.run(self.story)
        return self.cluster.fingerprint


def test_the_same_seed_gives_the_same_history_and_another_another() -> None:
    first = Storm(1)
    assert first.run() == Storm(1).run()
    assert len(first.cluster.events) > 500
    assert first.cluster.fingerprint != Storm(2).run()


def test_the_history_does_not_depend_on_hashes() -> None:
    """`set` and `dict` of texts are ordered by a number that each interpreter draws anew."""
    code = "from simulation.test_determinism import Storm; print(Storm(3).run())"
    fingerprints = set()
    for hash_seed in ("0", "1", "4242"):
        told = subprocess.run(
            [sys.executable, "-c", code],
            env={**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[1])},
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            check=True,
            text=True,
        )
        fingerprints.add(told.stdout)
    assert len(fingerprints) == 1


def test_no_execution_begins_while_another_of_its_instance_runs() -> None:
    """I1, where no machine is suspended: one that wakes runs a moment before its guardian does."""
    for seed in range(4):
        storm = Storm(seed, suspends=False)
        storm.run()
        assert_single_execution(storm.cluster.events)
