"""The transport contract, on the simulated network without faults."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from random import Random

import pytest

from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.history import History
from ostinato.simulation.network import Delay, Network
from ostinato.testing.contracts.transport import TransportContract
from ostinato.wire.protocol import NodeTransport, WorkerTransport

AT_ONCE = Delay(us_min=0, us_max=1)


class SimulatedLinks:
    def __init__(self, loop: SimulatedLoop) -> None:
        self.loop = loop
        self._network = Network(loop, History(lambda: loop.true_us), rng=Random(1), delay=AT_ONCE)
        self._count = 0

    def node_transport(self, address: str | None = None) -> NodeTransport:
        self._count += 1
        name = f"node-{self._count}"
        return self._network.node_transport(self.loop.world, name if address is None else address)

    def worker_transport(self) -> WorkerTransport:
        return self._network.worker_transport(self.loop.world)

    def dead_address(self) -> str:
        return "nowhere"


def on_the_simulated_loop(test: Callable[..., object]) -> Callable[..., None]:
    @functools.wraps(test)
    def run(self: object, links: SimulatedLinks) -> None:
        links.loop.run(test(self, links))  # type: ignore[arg-type]  # each is a coroutine function

    return run


class TestSimulatedNetwork(TransportContract):
    @pytest.fixture
    def links(self) -> object:  # type: ignore[override]  # a generator that yields them
        loop = SimulatedLoop(1)
        yield SimulatedLinks(loop)
        loop.close()
        assert loop.unhandled == []


for _name, _test in inspect.getmembers(TransportContract, inspect.iscoroutinefunction):
    setattr(TestSimulatedNetwork, _name, on_the_simulated_loop(_test))
