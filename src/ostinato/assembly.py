"""The composition root of a node: settings become a store, a node and its API; the file that names adapters.

``run_dev``, ``run_scheduler`` and ``run_worker`` are what the commands run: they start the parts in order,
wait for a signal, and stop them in reverse order. The worker's is ``worker_assembly``.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import msgspec
from prometheus_client import CollectorRegistry

from ostinato.api.asgi import Api
from ostinato.api.server import ApiServer, listen
from ostinato.clock import Clock, SystemClock
from ostinato.control.pressure import PressureGate
from ostinato.core.definition import TaskRef
from ostinato.observe.hooks import Hook, Hooks
from ostinato.observe.logs import LogHook
from ostinato.observe.metrics import MetricsHook, export_store
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.settings import Address, Settings, read_join_token
from ostinato.settings_readers import is_wildcard
from ostinato.stop_signals import StopSignals
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.protocol import NodeTransport
from ostinato.wire.tls import NodeTls, TlsFile
from ostinato.worker.process_limits import raise_descriptor_limit


class Running(msgspec.Struct, frozen=True):
    """A node that accepts workers, for whoever tells people about it."""

    store: Store
    clock: Clock
    #: Address of health and metrics.
    api: Address
    #: Address that workers connect to.
    workers: str
    #: Tasks that the app of the worker in the same process declares, and what could not be imported.
    tasks: list[TaskRef] = []
    problems: list[str] = []


#: Called once everything runs.
OnReady = Callable[[Running], Awaitable[None]]


# ── parts ─────────────────────────────────────────────────────────────────────────────────────────────


def build_observation(*hooks: Hook) -> tuple[Hooks, CollectorRegistry]:
    """Metrics in a registry of their own, beside the given hooks."""
    registry = CollectorRegistry()
    metrics = MetricsHook(registry)
    fan_out = Hooks([metrics, *hooks])
    metrics.watch(fan_out)
    return fan_out, registry


def build_node(
    settings: Settings,
    *,
    store: Store,
    transport: NodeTransport,
    clock: Clock,
    hooks: Hooks,
    tells_nodes: bool = True,
    pressure: PressureGate | None = None,
) -> SchedulerNode:
    """A scheduler node over an open store, not started. `tells_nodes`: its workers can reach other nodes."""
    config = NodeConfig(
        address=str(_advertised(settings)),
        tells_nodes=tells_nodes,
        strategy=settings.routing,
        worker_lease_us=settings.worker_lease_us,
        success_retention_us=settings.retention_success_us,
        other_retention_us=settings.retention_other_us,
        join_token=read_join_token(settings),
    )
    return SchedulerNode(
        config,
        store=store,
        transport=transport,
        clock=clock,
        rng=Random(),
        hooks=hooks,
        pressure=pressure,
    )


def _advertised(settings: Settings) -> Address:
    """Where workers reach this node: as told, or where it listens; by the machine's name if everywhere."""
    if settings.advertise is not None:
        return settings.advertise
    bind = settings.worker_bind
    return Address(socket.gethostname() or bind.host, bind.port) if is_wildcard(bind.host) else bind


def _build_api(*, store: Store, clock: Clock, pressure: PressureGate | None) -> Api:
    """``/api/v1`` over an open store."""
    # Not at the top: it brings Litestar, which neither a worker nor a command needs.
    from ostinato.api.app import build_app

    return build_app(store=store, clock=clock, rng=Random(), pressure=pressure)


@asynccontextmanager
async def running_node(
    settings: Settings, *, transport: NodeTransport, clock: Clock, log_hook: Hook, tells_nodes: bool = True
) -> AsyncGenerator[Running, None]:
    """Store, health and node, from start to clean stop; `tells_nodes` as in `build_node`."""
    hooks, registry = build_observation(log_hook)
    async with AsyncExitStack() as stack:
        store = open_store_from_url(settings.database, clock=clock)
        stack.push_async_callback(store.close)
        export_store(
            registry,
            repeats=lambda: store.counters().repeats,
            listener_losses=lambda: store.counters().listener_losses,
        )
        await store.open()
        limits = settings.pressure
        pressure = PressureGate(store, limits, clock=clock, hooks=hooks) if limits.is_set else None
        node = build_node(
            settings,
            store=store,
            transport=transport,
            clock=clock,
            hooks=hooks,
            tells_nodes=tells_nodes,
            pressure=pressure,
        )
        api = ApiServer(
            settings.bind,
            readiness=node.ready,
            registry=registry,
            api=_build_api(store=store, clock=clock, pressure=pressure),
        )
        # Before the node: a taken port is found out before any partition is owned.
        api_address = await api.start()
        stack.push_async_callback(api.stop)
        await node.start()
        stack.push_async_callback(node.stop)
        yield Running(store, clock, api_address, node.address)


def check_before_database(settings: Settings, *, clock: Clock) -> None:
    """Refuse what would be refused later, when a database has been made already.

    Raises ``INVALID_SETTING``, ``PORT_IN_USE``.
    """
    open_store_from_url(settings.database, clock=clock)
    read_join_token(settings)
    require_free(settings.bind, field=settings.source("bind"))


def require_free(address: Address, *, field: str) -> None:
    """Raise ``PORT_IN_USE`` where somebody listens, ``INVALID_SETTING`` where nobody here could."""
    listen(address, field=field).close()


# ── whole processes ───────────────────────────────────────────────────────────────────────────────────


async def run_scheduler(settings: Settings, *, on_ready: OnReady) -> signal.Signals:
    """A scheduler node until a signal comes; returns it. Raises ``INVALID_SETTING`` for an unusable file."""
    raise_descriptor_limit()
    clock = SystemClock()
    tls = _node_tls(settings, clock=clock)
    check_before_database(settings, clock=clock)
    require_free(settings.worker_bind, field=settings.source("worker_bind"))
    signals = StopSignals(asyncio.get_running_loop())
    transport = GrpcNodeTransport(str(settings.worker_bind), tls=tls)
    try:
        async with running_node(settings, transport=transport, clock=clock, log_hook=LogHook()) as running:
            await on_ready(running)
            return await signals.first
    finally:
        signals.end()


def _node_tls(settings: Settings, *, clock: Clock) -> NodeTls | None:
    if settings.tls_certificate is None or settings.tls_key is None:
        return None
    return NodeTls(
        TlsFile(settings.tls_certificate, settings.source("tls_certificate")),
        TlsFile(settings.tls_key, settings.source("tls_key")),
        wall_us=clock.wall_us,
    )
