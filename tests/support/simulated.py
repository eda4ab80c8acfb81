"""A small simulated cluster over the in-memory store, for tests of the simulator itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from hashlib import blake2b
from typing import Any, cast

import msgspec

from ostinato.clock import Clock
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import TERMINAL_STATES
from ostinato.scheduler.config import NodeConfig
from ostinato.simulation.client_host import ClientHost
from ostinato.simulation.clocks import ProcessClock
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.executions import work_for
from ostinato.simulation.history import Event, ExecutionBegan, ExecutionEnded, History
from ostinato.simulation.machine import Machine
from ostinato.simulation.network import Network
from ostinato.simulation.node_host import NodeHost
from ostinato.simulation.process import Process
from ostinato.simulation.worker_host import WorkerHost
from ostinato.store.batches import InstanceFilter
from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store


class _BoundStore:
    """One store as one process reaches it: a call takes a moment each way, and ends with its caller."""

    def __init__(self, store: MemoryStore, process: Process) -> None:
        self._store = store
        self._process = process
        self._rng = process.loop.random_for("store", process.name)

    def __getattr__(self, name: str) -> object:
        found = getattr(self._store, name)
        if not asyncio.iscoroutinefunction(found) or name == "wait_for_change":
            return found

        async def call(*args: object, **named: object) -> object:
            loop, process = self._process.loop, self._process
            answer: asyncio.Future[Any] = loop.create_future()

            async def serve() -> None:
                try:
                    result = await cast(Callable[..., Awaitable[Any]], found)(*args, **named)
                except Exception as error:  # noqa: BLE001 - raised where the call is awaited
                    answered: tuple[str, object] = ("set_exception", error)
                else:
                    answered = ("set_result", result)
                loop.call_at_us(loop.true_us + self._travel_us(), deliver, *answered)

            def deliver(how: str, value: object) -> None:
                if process.is_alive and not answer.done():
                    getattr(answer, how)(value)

            loop.run_in_world(
                loop.call_at_us,
                loop.true_us + self._travel_us(),
                lambda: loop.world.spawn(serve(), name="store"),
            )
            return await answer

        return call

    def _travel_us(self) -> int:
        return 100 + self._rng.randrange(900)


class SimulatedCluster:
    """Nodes, workers and one client; `run` a story on it."""

    def __init__(
        self,
        seed: int,
        *,
        nodes: int = 2,
        workers: int = 2,
        config: NodeConfig | None = None,
        skew_us: int = 0,
        drift_ppm: int = 0,
    ) -> None:
        self.loop = SimulatedLoop(seed)
        self.history = History(lambda: self.loop.true_us)
        self.events: list[Event] = []
        self._digest = blake2b(digest_size=16)
        self.history.listen(self._listen)
        self.rng = self.loop.random_for("story")
        self.network = Network(self.loop, self.history, rng=self.loop.random_for("network"))
        self.store = MemoryStore(self.loop.true_clock)
        self.config = config if config is not None else NodeConfig(worker_lease_us=6 * SECOND)
        self.calls: list[str] = []
        self._functions: dict[TaskRef, Callable[..., object]] = {}
        self.definitions: list[TaskDefinition] = []
        self._skew_us, self._drift_ppm = skew_us, drift_ppm
        self.nodes = [self._node(f"n{number + 1}") for number in range(nodes)]
        self._worker_count = workers
        self.workers: list[WorkerHost] = []
        self.client = ClientHost(self.machine("c1"), history=self.history, store_for=self.store_for)

    def _listen(self, event: Event) -> None:
        self.events.append(event)
        self._digest.update(type(event).__name__.encode() + msgspec.json.encode(event))

    @property
    def fingerprint(self) -> str:
        """Of every event so far, byte for byte."""
        return self._digest.hexdigest()

    def machine(self, name: str) -> Machine:
        rng = self.loop.random_for("clock", name)
        clock = ProcessClock(
            self.loop,
            wall_offset_us=rng.randint(-self._skew_us, self._skew_us),
            boot_offset_us=rng.randrange(10**12),
            drift_ppm=rng.randint(-self._drift_ppm, self._drift_ppm),
        )
        return Machine(self.loop, name, clock=clock)

    def store_for(self, process: Process, _clock: Clock) -> Store:
        return cast(Store, _BoundStore(self.store, process))

    def _node(self, name: str) -> NodeHost:
        return NodeHost(
            self.machine(name),
            network=self.network,
            history=self.history,
            store_for=self.store_for,
            config=self.config,
        )

    def task(self, name: str, function: Callable[..., object], *, is_async: bool = True, **said: Any) -> None:
        """Declare a task before the cluster is opened."""
        ref = TaskRef("default", name)
        self._functions[ref] = function
        said.setdefault("retry", RetryPolicy(interval_us=SECOND, max_retry=3, max_lost=50))
        self.definitions.append(
            TaskDefinition(
                namespace="default",
                name=name,
                executor=PythonSpec(call=f"app:{name}", is_async=is_async),
                **said,
            )
        )

    async def open(self) -> None:
        """Apply the tasks, start everything."""
        await self.client.open()
        await self.client.apply(self.definitions)
        for node in self.nodes:
            node.start()
        for number in range(self._worker_count):
            worker = WorkerHost(
                self.machine(f"w{number + 1}"),
                network=self.network,
                history=self.history,
                functions=self._functions,
                scheduler=",".join(node.address for node in self.nodes),
                capacity={"process": 4, "async": 4},
            )
            worker.start()
            self.workers.append(worker)

    async def submit(self, task: str) -> str:
        return await self.client.submit(SubmitRequest(task=task))

    async def sleep(self, duration_us: int) -> None:
        clock = self.loop.true_clock
        await clock.sleep_until_us(clock.boot_us() + duration_us)

    async def until(self, look: Callable[[], object], *, within_us: int = 120 * SECOND) -> None:
        """Wait until `look` gives something true."""
        end_us = self.loop.true_us + within_us
        while not look():
            assert self.loop.true_us < end_us, "the condition did not come true in time"
            await self.sleep(20 * MILLISECOND)

    async def instances(self) -> list[Instance]:
        page = await self.store.list_instances(InstanceFilter(), cursor=None, limit=100_000)
        return sorted(page.instances, key=lambda row: (row.created_us, row.id))

    async def all_ended(self, *, within_us: int = 300 * SECOND) -> None:
        """Wait until every instance is terminal."""
        end_us = self.loop.true_us + within_us
        while left := [row for row in await self.instances() if row.state not in TERMINAL_STATES]:
            assert self.loop.true_us < end_us, f"still there: {[(row.id, row.state) for row in left]}"
            await self.sleep(100 * MILLISECOND)

    def run(self, story: Callable[[SimulatedCluster], Awaitable[None]]) -> None:
        """Run a story to its end, and take everything apart."""

        async def main() -> None:
            await story(self)

        try:
            self.loop.run(main())
        finally:
            self.loop.close()
        assert self.loop.unhandled == []


async def short() -> str:
    """User code that takes half a second."""
    await work_for(SECOND // 2)
    return "done"


def executions(events: list[Event]) -> list[tuple[ExecutionBegan, ExecutionEnded | None]]:
    """Every execution with its end, None for one that still runs, in the order of their beginnings."""
    ended = {event.attempt_id: event for event in events if isinstance(event, ExecutionEnded)}
    return [(event, ended.get(event.attempt_id)) for event in events if isinstance(event, ExecutionBegan)]


def assert_single_execution(events: list[Event]) -> None:
    """I1: of one instance no execution begins while another runs, and each attempt begins once."""
    running: dict[str, str] = {}
    instance_of: dict[str, str] = {}
    for event in events:
        if isinstance(event, ExecutionBegan):
            assert event.attempt_id not in instance_of, f"I1: {event} began twice"
            other = running.get(event.instance_id)
            assert other is None, f"I1: {event} began while attempt {other} ran"
            running[event.instance_id] = event.attempt_id
            instance_of[event.attempt_id] = event.instance_id
        elif isinstance(event, ExecutionEnded):
            del running[instance_of[event.attempt_id]]
