"""Builds a worker from settings, and runs one: the file that names its concrete adapters.

Apart from the node's, as its process holds no more than it needs: neither a store nor the API.
"""

from __future__ import annotations

import asyncio
import gc
import signal
from collections.abc import Callable, Coroutine
from random import Random

from ostinato.clock import Clock, SystemClock
from ostinato.core.ids import new_id
from ostinato.errors import UserError
from ostinato.observe.hooks import Hooks
from ostinato.observe.logs import LogHook
from ostinato.observe.records import ResourceLimits
from ostinato.settings import Settings, is_loopback, read_join_token
from ostinato.stop_signals import StopSignals
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.protocol import WorkerTransport
from ostinato.wire.tls import TlsFile, WorkerTls
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.container import ContainerExecutor
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
    executors = _executors(
        settings, clock=clock, spool=spool, guardian=guardian, resources=resources, runs_python=runs_python
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


def _executors(
    settings: Settings,
    *,
    clock: Clock,
    spool: Spool,
    guardian: Guardian,
    resources: Resources,
    runs_python: bool,
) -> list[Executor]:
    executors: list[Executor] = [
        ShellExecutor(clock=clock, data_dir=spool.own_directory, guardian=guardian, resources=resources),
        HttpExecutor(clock=clock),
    ]
    if settings.engine_socket is not None:
        executors.append(
            ContainerExecutor(
                clock=clock,
                socket=settings.engine_socket,
                data_dir=spool.own_directory,
                worker_id=spool.worker_id,
                worker_name=settings.worker_name,
                guardian=guardian,
            )
        )
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
    return executors


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


async def run_worker(settings: Settings) -> signal.Signals | None:
    """A worker until it has drained after a signal; returns that, None if the scheduler ended it."""
    raise_descriptor_limit()
    _refuse_open_token(settings)
    tls = _worker_tls(settings)
    signals = StopSignals(asyncio.get_running_loop())
    # What is imported stays: there is no garbage to be looked for in it again and again.
    gc.freeze()
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
