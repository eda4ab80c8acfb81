"""A real node over the in-memory store on virtual time, with the calls that tests make of it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import msgspec
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.clock import Clock
from ostinato.core.changes import Request
from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRef
from ostinato.core.ids import new_id, partition_of
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import Record
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.store.batches import InstanceFilter, Submission
from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import VirtualClock
from ostinato.wire.inprocess import InProcessNetwork

ADDRESS = "node"
Value = TypeVar("Value")


class Recorder:
    """A hook that keeps every record."""

    def __init__(self) -> None:
        self.records: list[Record] = []

    def on(self, record: Record) -> None:
        self.records.append(record)


def python_task(name: str = "t", **changes: object) -> TaskDefinition:
    """An asynchronous Python task that takes anything."""
    base: dict[str, object] = {
        "namespace": "default",
        "name": name,
        "executor": PythonSpec(f"tasks:{name}", is_async=True, accepts_any=True),
    }
    return TaskDefinition(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


class Cluster:
    """One node; `store` outlives it, so that a restart finds everything."""

    def __init__(
        self,
        *,
        seed: int = 1,
        config: NodeConfig | None = None,
        store: Store | None = None,
        clock: Clock | None = None,
    ) -> None:
        self.clock = clock if clock is not None else VirtualClock()
        self.rng = Random(seed)
        self.store: Store = store if store is not None else MemoryStore(self.clock)
        self.network = InProcessNetwork()
        self.recorder = Recorder()
        self.config = config if config is not None else NodeConfig(worker_lease_us=6 * SECOND)
        self.node = self._node()

    def _node(self) -> SchedulerNode:
        return SchedulerNode(
            self.config,
            store=self.store,
            transport=self.network.node_transport(ADDRESS),
            clock=self.clock,
            rng=self.rng,
            hooks=Hooks([self.recorder]),
        )

    async def start(self, *definitions: TaskDefinition) -> None:
        """Open the store, apply definitions, start the node and wait until their triggers are in force."""
        await self.store.open()
        if definitions:
            await self.store.apply(list(definitions), now_us=self.clock.wall_us())
        await self.node.start()
        for definition in definitions:
            await self.until(lambda ref=definition.ref: self._is_scheduled(ref))

    async def restart(self) -> None:
        """A clean stop and a new node over the same store."""
        await self.node.stop()
        self.node = self._node()
        await self.node.start()

    async def _is_scheduled(self, ref: TaskRef) -> bool:
        row = (await self.store.get_tasks([ref]))[ref]
        return row.scheduled_version == row.version

    async def submit(self, definition: TaskDefinition, **changes: object) -> str:
        """Insert one pending instance, due now."""
        now_us = self.clock.wall_us()
        identity = new_id(now_us, self.rng)
        row = (await self.store.get_tasks([definition.ref]))[definition.ref]
        base: dict[str, object] = {
            "id": identity,
            "namespace": definition.namespace,
            "task": definition.name,
            "task_version": row.version,
            "partition": row.partition,
            "state": State.PENDING,
            "priority": definition.priority,
            "due_us": now_us,
            "created_us": now_us,
        }
        instance = Instance(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test
        await self.store.submit([Submission(instance=instance)])
        return identity

    async def ask(self, kind: str, *, task: str = "", instance_id: str = "", body: object = None) -> str:
        """Make a request and wait for the answer's code."""
        now_us = self.clock.wall_us()
        if instance_id:
            partition = (await self.instance(instance_id)).partition
        else:
            partition = partition_of("default", task, partition_count=self.store.partition_count)
        request = Request(
            id=new_id(now_us, self.rng),
            partition=partition,
            kind=kind,  # type: ignore[arg-type]  # a word of the literal, chosen per test
            namespace="default",
            created_us=now_us,
            task=task,
            instance_id=instance_id,
            body=msgspec.json.encode(body if body is not None else {}),
            by="test",
        )
        await self.store.add_requests([request])
        answers = await self.until(lambda: self.store.answers([request.id]))
        return answers[request.id].code

    async def instance(self, identity: str) -> Instance:
        return (await self.store.get_instances([identity]))[identity]

    async def instances(self, **where: object) -> list[Instance]:
        """Every instance, in order of creation."""
        chosen = InstanceFilter(**where)  # type: ignore[arg-type]  # chosen per test
        page = await self.store.list_instances(chosen, cursor=None, limit=100_000)
        return sorted(page.instances, key=lambda row: (row.created_us, row.id))

    async def in_state(self, identity: str, state: State) -> Instance:
        """Wait until an instance is in a state."""

        async def look() -> Instance | None:
            row = await self.instance(identity)
            return row if row.state is state else None

        return await self.until(look)

    async def until(self, look: Callable[[], Awaitable[Value]], *, within_us: int = 600 * SECOND) -> Value:
        """Wait on virtual time until `look` gives something true."""
        end_us = self.clock.boot_us() + within_us
        while not (value := await look()):
            assert self.clock.boot_us() < end_us, "the condition did not come true in time"
            await self.clock.sleep_until_us(self.clock.boot_us() + 10 * MILLISECOND)
        return value

    async def sleep(self, duration_us: int) -> None:
        """Let virtual time pass."""
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)

    async def stop(self) -> None:
        await self.node.stop()
        await self.store.close()


async def worker_of(cluster: Cluster, script: object, **options: object) -> ScriptedWorker:
    """A connected worker of task ``t`` that sends heartbeats and answers as its script says."""
    worker = ScriptedWorker(cluster.network, cluster.clock, script, **{"tasks": ["t"], **options})  # type: ignore[arg-type]  # chosen per test
    await worker.connect(ADDRESS)
    worker.beat(HEARTBEAT_US)
    return worker


async def value_of(condition: bool) -> bool:
    """A condition as something to await, for `Cluster.until`."""
    return condition
