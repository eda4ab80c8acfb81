"""The composition root: settings become a store, a node, a worker; the one file that names adapters.

``run_dev``, ``run_scheduler`` and ``run_worker`` are what the commands run: they start the parts in order,
wait for a signal, and stop them in reverse order.
"""

from __future__ import annotations

import asyncio
import signal
import socket
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine
from contextlib import AsyncExitStack, asynccontextmanager
from random import Random

import msgspec
from prometheus_client import CollectorRegistry

from ostinato.api.asgi import Api
from ostinato.api.server import ApiServer, listen
from ostinato.clock import Clock, SystemClock
from ostinato.core.definition import TaskRef
from ostinato.core.ids import new_id
from ostinato.errors import UserError
from ostinato.observe.hooks import Hook, Hooks
from ostinato.observe.logs import LogHook
from ostinato.observe.metrics import MetricsHook, export_store
from ostinato.observe.records import ResourceLimits
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.settings import Address, Settings, is_loopback, read_join_token
from ostinato.settings_readers import is_wildcard
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.protocol import NodeTransport, WorkerTransport
from ostinato.wire.tls import NodeTls, TlsFile, WorkerTls
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.http import HttpExecutor
from ostinato.worker.executors.protocol import Executor
from ostinato.worker.executors.python import build_python_executor
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_messages import ReportTarget
from ostinato.worker.process_limits import raise_descriptor_limit
from ostinato.worker.resources import Resources, find_resources
from ostinato.worker.spool import Spool
from ostinato.worker.supervisor import Supervisor

#: Where the node of ``dev`` listens; not an address of the network.
IN_PROCESS_ADDRESS = "in-process"


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


class StopSignals:
    """SIGTERM and SIGINT: the first completes `first`, the second calls `on_second`, a third acts as ever."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.first: asyncio.Future[signal.Signals] = loop.create_future()
        self.on_second: Callable[[], None] = self.release
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._on_signal, number)

    def _on_signal(self, number: signal.Signals) -> None:
        if not self.first.done():
            self.first.set_result(number)
            return
        self.release()
        self.on_second()

    def release(self) -> None:
        """Give the signals back to the process; idempotent."""
        for number in (signal.SIGTERM, signal.SIGINT):
            self._loop.remove_signal_handler(number)

    def end(self) -> None:
        """Everything has been ended: after a first signal the next one ends the process as it is.

        An exception in the midst of the interpreter's own end would only be a traceback.
        """
        self.release()
        if self.first.done():
            for number in (signal.SIGTERM, signal.SIGINT):
                signal.signal(number, signal.SIG_DFL)


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
    return SchedulerNode(config, store=store, transport=transport, clock=clock, rng=Random(), hooks=hooks)


def _advertised(settings: Settings) -> Address:
    """Where workers reach this node: as told, or where it listens; by the machine's name if everywhere."""
    if settings.advertise is not None:
        return settings.advertise
    bind = settings.worker_bind
    return Address(socket.gethostname() or bind.host, bind.port) if is_wildcard(bind.host) else bind


def _build_api(*, store: Store, clock: Clock) -> Api:
    """``/api/v1`` over an open store."""
    # Not at the top: it brings Litestar, which neither a worker nor a command needs.
    from ostinato.api.app import build_app

    return build_app(store=store, clock=clock, rng=Random())


def build_worker(
    settings: Settings,
    *,
    scheduler: str,
    transport: WorkerTransport,
    clock: Clock,
    hooks: Hooks,
    resources: Resources | None = None,
    runs_python: bool = False,
) -> Supervisor:
    """A worker for the nodes at `scheduler`, one address or several separated by commas; not started.

    `resources` are those of an earlier worker of this process; `runs_python`: also where there is no app.
    """
    if resources is None:
        # Before there is any process of a task: it may move this one.
        resources = find_resources()
    hooks.emit(ResourceLimits(worker_name=settings.worker_name, how=resources.how, why=resources.why))
    rng = Random()
    spool = Spool(settings.data_dir, worker_id=new_id(clock.wall_us(), rng), clock=clock)
    guardian = Guardian(clock=clock, report=_report_target(settings, scheduler=scheduler, spool=spool))
    executors: list[Executor] = [
        ShellExecutor(clock=clock, data_dir=spool.own_directory, guardian=guardian, resources=resources),
        HttpExecutor(clock=clock),
    ]
    if settings.app or runs_python:
        executors.append(
            build_python_executor(
                app=settings.app,
                clock=clock,
                process_slots=settings.slots,
                guardian=guardian,
                data_dir=spool.own_directory,
                resources=resources,
            )
        )
    config = WorkerConfig(
        worker_name=settings.worker_name,
        scheduler=scheduler,
        capacity={"process": settings.slots, "async": settings.async_slots},
        data_dir=settings.data_dir,
        labels=settings.labels,
        app=settings.app or None,
        drain_timeout_us=settings.drain_timeout_us,
        token=read_join_token(settings),
        is_token_open=settings.join_token_file is not None and settings.tls_ca is None,
    )
    return Supervisor(
        config,
        clock=clock,
        transport=transport,
        executors=executors,
        rng=rng,
        hooks=hooks,
        spool=spool,
        guardian=guardian,
    )


def _report_target(settings: Settings, *, scheduler: str, spool: Spool) -> ReportTarget:
    """Where a guardian reports; to no node if that dies with the supervisor, being the same process."""
    return ReportTarget(
        worker_id=spool.worker_id,
        worker_name=settings.worker_name,
        addresses=[] if scheduler == IN_PROCESS_ADDRESS else scheduler.split(","),
        # It is encoded for the guardian, which takes a plain text.
        token=str(read_join_token(settings)),
        tls_ca="" if settings.tls_ca is None else str(settings.tls_ca.resolve()),
        tls_server_name=settings.tls_server_name,
        spool_path=str(spool.path.resolve()),
    )


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
        node = build_node(
            settings, store=store, transport=transport, clock=clock, hooks=hooks, tells_nodes=tells_nodes
        )
        api = ApiServer(
            settings.bind, readiness=node.ready, registry=registry, api=_build_api(store=store, clock=clock)
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


async def run_worker(settings: Settings) -> signal.Signals | None:
    """A worker until it has drained after a signal; returns that, None if the scheduler ended it."""
    raise_descriptor_limit()
    _refuse_open_token(settings)
    tls = _worker_tls(settings)
    signals = StopSignals(asyncio.get_running_loop())
    supervisor = build_worker(
        settings,
        scheduler=",".join(map(str, settings.scheduler)),
        transport=GrpcWorkerTransport(tls=tls),
        clock=SystemClock(),
        hooks=Hooks([LogHook()]),
    )
    try:
        return await _supervise(supervisor, signals, when_connected=_nothing)
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


def _worker_tls(settings: Settings) -> WorkerTls | None:
    if settings.tls_ca is None:
        return None
    authorities = TlsFile(settings.tls_ca, settings.source("tls_ca"))
    return WorkerTls(authorities, server_name=settings.tls_server_name)


def _refuse_open_token(settings: Settings) -> None:
    """A token on a network that others read is no secret any more."""
    if settings.join_token_file is None or settings.tls_ca is not None:
        return
    for address in settings.scheduler:
        if not is_loopback(address.host):
            raise UserError(
                "INVALID_SETTING",
                f"the join token would go to {address} unencrypted",
                field=settings.source("scheduler"),
                hint="give --tls-ca, the certificate of the scheduler or of its authority",
            )


async def _nothing() -> None:
    pass


async def _supervise(
    supervisor: Supervisor, signals: StopSignals, *, when_connected: Callable[[], Coroutine[None, None, None]]
) -> signal.Signals | None:
    """Run a worker to its end: drained by the first signal, stopped at once by the second."""
    work = asyncio.create_task(supervisor.run())
    telling = asyncio.create_task(_once(supervisor.is_connected, when_connected))
    try:
        await _first_of(work, telling, signals.first)
        if telling.done():
            telling.result()
            await _first_of(work, signals.first)
        if signals.first.done():
            signals.on_second = supervisor.stop
            supervisor.drain(f"{signals.first.result().name} came")
        await work
    finally:
        work.cancel()
        telling.cancel()
        await asyncio.wait([work, telling])
    return signals.first.result() if signals.first.done() else None


async def _first_of(*futures: asyncio.Future[None] | asyncio.Future[signal.Signals]) -> None:
    """Return when one has ended, whatever it ended with."""
    ended = asyncio.Event()
    for future in futures:
        future.add_done_callback(lambda _: ended.set())
    await ended.wait()


async def _once(event: asyncio.Event, act: Callable[[], Coroutine[None, None, None]]) -> None:
    await event.wait()
    await act()
