"""A running API: a real node over a real SQLite file, a worker whose answers a test decides, a client."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random
from typing import Any, TypeVar

import httpx
import msgspec
from support.cluster import ADDRESS, python_task
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.api.app import build_app
from ostinato.api.guard import Limits
from ostinato.api.server import ApiServer
from ostinato.assembly import build_observation
from ostinato.clock import SystemClock
from ostinato.control.pressure import PressureGate
from ostinato.core.definition import HttpSpec, Parameter, PythonSpec, ShellSpec, TaskDefinition
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.pressure import Limits as PressureLimits
from ostinato.core.retry.policy import RetryPolicy
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.settings import Address
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import Assignment

Value = TypeVar("Value")

#: Tasks that every API under test has: one that succeeds, one that fails for good, one that never ends.
TASKS = ("add", "closed", "endless")


def definitions() -> list[TaskDefinition]:
    """`TASKS`, and a command."""
    return [
        python_task(
            "add",
            executor=PythonSpec(
                "shop:add",
                is_async=True,
                parameters=(Parameter("first", required=False), Parameter("second")),
            ),
            payload=msgspec.Raw(b'{"second":1}'),
        ),
        python_task("closed", retry=RetryPolicy(max_retry=0)),
        python_task("endless"),
        TaskDefinition(namespace="default", name="backup", executor=ShellSpec("pg_dump shop")),
        TaskDefinition(
            namespace="other", name="call", executor=HttpSpec(method="GET", url="http://example.org/")
        ),
    ]


def script(item: Assignment) -> bytes | Failure | None:
    """What the worker answers, by name of the task."""
    name = item.ref.name
    if name == "add":
        return b"3"
    if name == "closed":
        return Failure(code="CLOSED", category="permanent", message="the account is closed")
    return None


class Rest:
    """What a test of the API works with."""

    def __init__(
        self, client: httpx.AsyncClient, *, store: Store, node: SchedulerNode, worker: ScriptedWorker
    ) -> None:
        self.client = client
        self.store = store
        self.node = node
        self.worker = worker
        self.clock = SystemClock()

    async def start_node(self) -> None:
        """Have what waits carried out from now on."""
        await self.node.start()
        await self.worker.connect(ADDRESS)
        self.worker.beat(HEARTBEAT_US)

    @property
    def address(self) -> tuple[str, int]:
        """Host and port, for whoever speaks HTTP by hand."""
        return "127.0.0.1", self.client.base_url.port or 0

    async def get(self, path: str, **options: Any) -> httpx.Response:
        return await self.client.get(f"/api/v1{path}", **options)

    async def post(self, path: str, body: object = None, **options: Any) -> httpx.Response:
        said = {} if body is None else {"json": body}
        return await self.client.post(f"/api/v1{path}", **said, **options)

    async def put(self, path: str, body: object, **options: Any) -> httpx.Response:
        return await self.client.put(f"/api/v1{path}", json=body, **options)

    async def submit(self, task: str = "add", **body: object) -> str:
        """Id of a new instance of a task in ``default``."""
        answer = await self.post(f"/namespaces/default/tasks/{task}/instances", body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["instance_id"])

    async def in_state(self, instance_id: str, state: str) -> dict[str, Any]:
        """The instance once it is in a state."""

        async def look() -> dict[str, Any] | None:
            story: dict[str, Any] = (await self.get(f"/instances/{instance_id}")).json()
            return story if story["state"] == state else None

        return await self.until(look)

    async def until(
        self, look: Callable[[], Awaitable[Value | None]], *, within_us: int = 20 * SECOND
    ) -> Value:
        """Wait until `look` gives something."""
        end_us = self.clock.boot_us() + within_us
        while (value := await look()) is None:
            assert self.clock.boot_us() < end_us, "the condition did not come true in time"
            await self.clock.sleep_until_us(self.clock.boot_us() + 10 * MILLISECOND)
        return value

    async def raw(self, *lines: bytes) -> bytes:
        """Everything that is answered to bytes sent as they are, until the other side closes."""
        reader, writer = await asyncio.open_connection(*self.address)
        try:
            writer.write(b"".join(lines))
            await writer.drain()
            return await asyncio.wait_for(reader.read(), 20)
        finally:
            writer.close()


@asynccontextmanager
async def running_rest(
    directory: Path,
    *,
    database: str = "",
    limits: Limits | None = None,
    wait_us: int = 10 * SECOND,
    with_node: bool = True,
    pressure: PressureLimits | None = None,
) -> AsyncGenerator[Rest, None]:
    """An API from start to stop; without a node nobody carries out requests, until a test starts it.

    `database` is the URL of an empty one; else it is a SQLite file in `directory`.
    """
    clock, network = SystemClock(), InProcessNetwork()
    store = open_store_from_url(database or f"sqlite:///{directory}/rest.db", clock=clock)
    await store.open()
    in_python = [each for each in definitions() if isinstance(each.executor, PythonSpec)]
    others = [each for each in definitions() if each not in in_python]
    await store.apply(in_python, now_us=clock.wall_us(), origin="app")
    await store.apply(others, now_us=clock.wall_us(), origin="document")
    hooks, registry = build_observation()
    gate = None if pressure is None else PressureGate(store, pressure, clock=clock, hooks=hooks)
    node = SchedulerNode(
        NodeConfig(),
        store=store,
        transport=network.node_transport(ADDRESS),
        clock=clock,
        rng=Random(1),
        hooks=hooks,
        pressure=gate,
    )
    worker = ScriptedWorker(network, clock, script, tasks=[*TASKS])
    api = build_app(store=store, clock=clock, rng=Random(2), limits=limits, wait_us=wait_us, pressure=gate)
    server = ApiServer(Address("127.0.0.1", 0), readiness=lambda: {"ready": True}, registry=registry, api=api)
    address = await server.start()
    try:
        # Less than the idle time after which the server closes a connection.
        kept = httpx.Limits(keepalive_expiry=2)
        async with httpx.AsyncClient(base_url=f"http://{address}", timeout=30, limits=kept) as client:
            rest = Rest(client, store=store, node=node, worker=worker)
            if with_node:
                await rest.start_node()
            yield rest
    finally:
        await server.stop()
        await worker.disconnect()
        await node.stop()
        await store.close()
