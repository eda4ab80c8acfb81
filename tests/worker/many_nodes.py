"""Several scripted nodes and one worker that has a stream to each, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from random import Random

from ostinato.core.definition import TaskRef
from ostinato.core.model import Outcome
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import Assignment
from ostinato.worker.config import WorkerConfig
from ostinato.worker.supervisor import Supervisor
from tests.worker.scripted_node import ScriptedNode, specs
from tests.worker.scripted_node import spec as spec_of
from tests.worker.worker_stories import FUNCTIONS, Functions


class ManyNodes:
    """`nodes` own the partitions 0, 1, 2 … in turn, and know of each other unless a story says otherwise."""

    def __init__(
        self, count: int, functions: Functions, *, capacity: Mapping[str, int], given: Sequence[str]
    ) -> None:
        self.clock = VirtualClock()
        self.network = InProcessNetwork()
        names = [f"node-{number}" for number in range(count)]
        self.nodes = [ScriptedNode(self.network, address=name, node_id=f"id-{name}") for name in names]
        for number, node in enumerate(self.nodes):
            node.nodes = names
            self.own(node, number)
        named = {TaskRef("default", name): function for name, function in functions.items()}
        self.worker = Supervisor(
            WorkerConfig(
                worker_name="worker-1",
                scheduler=",".join(given),
                capacity=dict(capacity),
                data_dir=Path("unused"),
            ),
            clock=self.clock,
            transport=self.network.worker_transport(),
            executors=[InlineExecutor(named, clock=self.clock)],
            rng=Random(1),
        )

    def own(self, node: ScriptedNode, *partitions: int, epoch: int = 1) -> None:
        """From now on the node says that it owns these."""
        owned = frozenset(partitions)
        node.owned, node.epochs = list(partitions), [epoch] * len(partitions)
        node.records = lambda outcome: outcome.partition in owned

    async def pass_time(self, duration_us: int) -> None:
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)

    async def assign(self, node: ScriptedNode, *assignments: Assignment) -> None:
        """Send assignments as the node's credits would allow, with the specs that they need."""
        names = {item.ref.name for item in assignments}
        await node.send(specs(*(spec_of(name) for name in sorted(names))))
        await node.assign(*assignments)

    def free(self, pool: str = "async") -> list[int]:
        """Unused credits of each node."""
        return [node.ledger.available(pool) for node in self.nodes]

    def recorded(self, node: ScriptedNode) -> list[Outcome]:
        """Outcomes that a node has heard of and that are of its partitions."""
        return [outcome for outcome in node.outcomes if node.records(outcome)]


def play(
    story: Callable[[ManyNodes], Awaitable[None]],
    *,
    count: int = 3,
    functions: Functions | None = None,
    capacity: Mapping[str, int] | None = None,
    given: Sequence[str] = ("node-0",),
    waits: bool = True,
    runs: bool = True,
    prepare: Callable[[ManyNodes], None] = lambda _: None,
) -> None:
    """Play `story` once all nodes have welcomed the worker, or at once; `prepare` comes before all of it."""

    async def whole() -> None:
        made = ManyNodes(
            count,
            FUNCTIONS if functions is None else functions,
            capacity={"async": 9} if capacity is None else capacity,
            given=given,
        )
        prepare(made)
        for node in made.nodes:
            await node.start()
        running = asyncio.create_task(made.worker.run() if runs else asyncio.sleep(0))
        try:
            if waits:
                for node in made.nodes:
                    await node.connected()
            await story(made)
        finally:
            running.cancel()
            await asyncio.wait([running])
            for node in made.nodes:
                await node.kill()
        if not running.cancelled():
            running.result()

    run_virtual(whole())
