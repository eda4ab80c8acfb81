"""``ostinato dev``: node and worker in one process, and a new worker beside the old one when code changes.

::

    a file changes ─► documents are read ─► the app is imported in a process of its own ─► a new worker starts
                          │ wrong               │ does not import                           connected │
                          └─────────────────────┴──► told; the old worker goes on                     ▼
                                                          the old worker takes nothing new, and ends once
                                                          what it runs has ended

Whatever is wrong before the start is found before there is a database.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from random import SystemRandom
from typing import Any, Protocol, TypeVar

import msgspec

from ostinato.assembly import OnReady, Running, check_before_database, running_node
from ostinato.clock import Clock, SystemClock
from ostinato.control.document.read import Document
from ostinato.control.plan import carry_out, plan
from ostinato.control.requests import Asker
from ostinato.core.instants import DAY, SECOND
from ostinato.dev_sources import (
    AppNotImported,
    ChangedFiles,
    Changes,
    Definitions,
    DevSources,
    Loaded,
    declared_tasks,
    failed_apps,
    forget_bytecode,
    load,
    read_all_documents,
    require_imported,
    with_app,
)
from ostinato.errors import OstinatoError, UserError
from ostinato.observe.hooks import Hook, Hooks
from ostinato.observe.records import Record, ResourceLimits, TaskModuleFailed, WorkerNameShared
from ostinato.settings import Settings
from ostinato.stop_signals import StopSignals
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.protocol import WorkerStream, WorkerTransport
from ostinato.worker.app_probe import PROBE_US_MAX
from ostinato.worker.process_limits import raise_descriptor_limit
from ostinato.worker.resources import Resources, find_resources
from ostinato.worker.supervisor import Supervisor
from ostinato.worker.task_environment import submitting_to
from ostinato.worker_assembly import IN_PROCESS_ADDRESS, build_worker

_Value = TypeVar("_Value")

#: What an old worker runs may go on for as long as it takes.
_OLD_CODE_US_MAX = 3650 * DAY
#: Imports that take longer are told.
_IMPORT_US = 5 * SECOND
#: Somebody else may apply the same documents at the same moment.
_APPLY_TRIES_MAX = 3


class DevTeller(Protocol):
    """Who tells people what becomes of their changes."""

    def reloaded(self, before: Definitions, after: Definitions, *, code: bool) -> None:
        """The tasks as they are now declared, and as they were; whether other code runs now."""
        ...

    def importing(self, app: str, *, limit_us: int) -> None:
        """The import of `app` takes longer than imports do; it is given up after `limit_us`."""
        ...

    def refused(self, error: OstinatoError, *, tracebacks: Sequence[str]) -> None:
        """A change cannot be used; what there was before goes on."""
        ...

    def unwatched(self, reason: str) -> None:
        """Changes are not noticed any more."""
        ...


async def run_dev(
    settings: Settings, sources: DevSources, *, on_ready: OnReady, log_hook: Hook, teller: DevTeller
) -> signal.Signals | None:
    """Node and worker in one process until a signal comes; None if the worker was drained from outside.

    Raises ``INVALID_APP``, what reading documents raises, ``INVALID_SETTING`` and ``PORT_IN_USE`` before
    there is a database.
    """
    raise_descriptor_limit()
    clock = SystemClock()
    signals = StopSignals(asyncio.get_running_loop())
    # Before anything is read: what changes from now on is noticed.
    changes = Changes(sources.watches)
    try:
        check_before_database(settings, clock=clock)
        loading = asyncio.create_task(_load(sources, changes, teller=teller, clock=clock))
        if not await _before(loading, signals.first):
            return signals.first.result()
        loaded = loading.result()
        network = InProcessNetwork()
        transport = network.node_transport(IN_PROCESS_ADDRESS)
        node_hook = _Without(log_hook, WorkerNameShared)
        # The worker's transport reaches this node alone.
        async with running_node(
            settings, transport=transport, clock=clock, log_hook=node_hook, tells_nodes=False
        ) as running:
            dev = _Dev(
                settings,
                sources,
                changes=changes,
                clock=clock,
                network=network,
                running=running,
                signals=signals,
                hook=log_hook,
                teller=teller,
            )
            # A task that submits reaches this very scheduler, whatever was told to us.
            with submitting_to(f"http://{running.api}"):
                return await dev.run(loaded, on_ready=on_ready)
    finally:
        await changes.close()
        signals.end()


async def _load(sources: DevSources, changes: Changes, *, teller: DevTeller, clock: Clock) -> Loaded:
    """What there is at the start, begun anew when files change meanwhile, as an import may never end."""
    while True:
        async with _slow_import_told(teller, sources.app, clock=clock):
            loaded = await _unless_changed(load(sources), changes)
        if loaded is not None:
            return loaded
        # Everything is read now, so all that has come is taken over by that.
        forget_bytecode((await changes.take()).code)


async def _unless_changed(work: Coroutine[Any, Any, _Value], changes: Changes) -> _Value | None:
    """What `work` gives; None if something has changed before that, and then the work has ended too."""
    working = asyncio.create_task(work)
    changing = asyncio.create_task(changes.wait())
    try:
        await asyncio.wait([working, changing], return_when=asyncio.FIRST_COMPLETED)
    finally:
        changing.cancel()
        was_done = working.done()
        if not was_done:
            working.cancel()
            await asyncio.wait([working])
    return working.result() if was_done else None


@asynccontextmanager
async def _slow_import_told(teller: DevTeller, app: str, *, clock: Clock) -> AsyncIterator[None]:
    """Whoever waits for an import is told so, as a module that blocks looks like nothing at all."""

    async def tell() -> None:
        await clock.sleep_until_us(clock.boot_us() + _IMPORT_US)
        teller.importing(app, limit_us=PROBE_US_MAX)

    telling = asyncio.create_task(tell()) if app else None
    try:
        yield
    finally:
        if telling is not None:
            telling.cancel()
            await asyncio.wait([telling])


class _Without:
    """Leaves records of some kinds out: what another part of this process has told, or means to do."""

    def __init__(self, hook: Hook, *kinds: type[Record]) -> None:
        self._hook = hook
        self._kinds = kinds

    def on(self, record: Record) -> None:
        if not isinstance(record, self._kinds):
            self._hook.on(record)


class _CheckedTransport:
    """Runs a check once, before the worker's first connection, so before the node knows its tasks."""

    def __init__(self, transport: WorkerTransport, check: Callable[[], None]) -> None:
        self._transport = transport
        self._check: Callable[[], None] | None = check

    async def connect(self, address: str) -> WorkerStream:
        """As the transport's own; raises what the check raises."""
        if self._check is not None:
            self._check()
            self._check = None
        return await self._transport.connect(address)

    async def close(self) -> None:
        await self._transport.close()


class _Dev:
    """One run of ``dev`` beside its node: the workers, newest last, and what they were started for."""

    def __init__(
        self,
        settings: Settings,
        sources: DevSources,
        *,
        changes: Changes,
        clock: Clock,
        network: InProcessNetwork,
        running: Running,
        signals: StopSignals,
        hook: Hook,
        teller: DevTeller,
    ) -> None:
        self._settings = msgspec.structs.replace(settings, app=sources.app)
        self._sources = sources
        self._changes = changes
        self._clock = clock
        self._network = network
        self._running = running
        self._signals = signals
        self._hooks = Hooks([_Without(hook, TaskModuleFailed, ResourceLimits)])
        self._teller = teller
        #: Before there is any process of a task, and once: it may move this process.
        self._resources: Resources = find_resources()
        hook.on(
            ResourceLimits(worker_name=settings.worker_name, how=self._resources.how, why=self._resources.why)
        )
        self._workers: dict[Supervisor, asyncio.Task[None]] = {}
        self._newest: Supervisor | None = None
        #: Set when the newest worker has ended by itself, or something has failed.
        self._over = asyncio.Event()
        self._failure: BaseException | None = None

    async def run(self, loaded: Loaded, *, on_ready: OnReady) -> signal.Signals | None:
        """Work until a signal comes or the newest worker ends; raises what ends that."""
        reloading: asyncio.Task[None] | None = None
        try:
            work = asyncio.create_task(self._start(loaded, on_ready=on_ready))
            if await _before(work, self._signals.first):
                work.result()
                reloading = asyncio.create_task(self._reload_loop(loaded))
                reloading.add_done_callback(self._reload_ended)
                over = asyncio.create_task(self._over.wait())
                await _before(over, self._signals.first)
        finally:
            if reloading is not None:
                reloading.cancel()
                await asyncio.wait([reloading])
            await self._end_workers()
        if self._failure is not None:
            raise self._failure
        return self._signals.first.result() if self._signals.first.done() else None

    async def _start(self, loaded: Loaded, *, on_ready: OnReady) -> None:
        await self._apply(loaded.documents)
        supervisor = await self._start_worker(loaded)
        known = supervisor.known_tasks
        refs = sorted(loaded.definitions)
        await on_ready(msgspec.structs.replace(self._running, tasks=refs, problems=known.problems))

    async def _end_workers(self) -> None:
        """Drain all after a signal, or end what is left after an error; then wait for all."""
        first = self._signals.first
        if first.done():
            self._signals.on_second = self._stop_workers
            for supervisor in self._workers:
                supervisor.drain(f"{first.result().name} came")
        else:
            self._stop_workers()
        if self._workers:
            # Failures of theirs are kept by `_ended`.
            await asyncio.gather(*self._workers.values(), return_exceptions=True)

    def _stop_workers(self) -> None:
        for supervisor in self._workers:
            supervisor.stop()

    # ── workers ───────────────────────────────────────────────────────────────────────────────────────

    async def _start_worker(self, loaded: Loaded) -> Supervisor:
        """A worker with the code as it is now, once it is connected; the one before it then drains.

        Raises what keeps it from connecting for good; the one before it has not noticed then.
        """

        def check() -> None:
            known = supervisor.known_tasks
            # What was looked at may have changed before this worker's processes have imported it.
            require_imported(known, failed_before=failed_apps(loaded.known))
            declared_tasks(known, others=loaded)
            known.tasks.extend(loaded.python_documents)

        supervisor = build_worker(
            self._settings,
            scheduler=IN_PROCESS_ADDRESS,
            transport=_CheckedTransport(self._network.worker_transport(), check),
            clock=self._clock,
            hooks=self._hooks,
            resources=self._resources,
            runs_python=bool(loaded.python_documents),
        )
        work = asyncio.create_task(supervisor.run())
        self._workers[supervisor] = work
        connected = asyncio.create_task(supervisor.is_connected.wait())
        try:
            await asyncio.wait([work, connected], return_when=asyncio.FIRST_COMPLETED)
        finally:
            connected.cancel()
        if work.done():
            del self._workers[supervisor]
            work.result()
            raise UserError("INVALID_APP", "the worker has ended before it was connected", field="app")
        old, self._newest = self._newest, supervisor
        if old is not None:
            old.drain("newer code is there", limit_us=_OLD_CODE_US_MAX)
        work.add_done_callback(lambda _: self._ended(supervisor))
        return supervisor

    def _ended(self, supervisor: Supervisor) -> None:
        error = self._workers.pop(supervisor).exception()
        if error is not None:
            self._failure = error
        if error is not None or supervisor is self._newest:
            self._over.set()

    def _reload_ended(self, reloading: asyncio.Task[None]) -> None:
        if not reloading.cancelled() and reloading.exception() is not None:
            self._failure = reloading.exception()
            self._over.set()

    # ── reload ────────────────────────────────────────────────────────────────────────────────────────

    async def _reload_loop(self, loaded: Loaded) -> None:
        while True:
            try:
                changed = await self._changes.take()
            except OSError as error:
                self._teller.unwatched(error.strerror or str(error))
                return
            loaded = await self._reload(loaded, changed)

    async def _reload(self, loaded: Loaded, changed: ChangedFiles) -> Loaded:
        """What holds after the change: the new state of affairs, or the old one where that cannot be used."""
        try:
            async with _slow_import_told(
                self._teller, self._sources.app if changed.code else "", clock=self._clock
            ):
                wanted = await _unless_changed(self._wanted(loaded, changed), self._changes)
            if wanted is None:
                # Whatever is there by now is looked at instead, by the next turn.
                self._changes.put_back(changed)
                return loaded
            if changed.documents:
                await self._apply(wanted.documents)
            if changed.code or wanted.python_documents != loaded.python_documents:
                await self._start_worker(wanted)
        except OstinatoError as error:
            # What is put right next may be the other half of it.
            self._changes.put_back(changed)
            tracebacks = error.tracebacks if isinstance(error, AppNotImported) else []
            self._teller.refused(error, tracebacks=tracebacks)
            return loaded
        self._teller.reloaded(loaded.definitions, wanted.definitions, code=bool(changed.code))
        return wanted

    async def _wanted(self, loaded: Loaded, changed: ChangedFiles) -> Loaded:
        forget_bytecode(changed.code)
        read = await read_all_documents(self._sources)
        if changed.code:
            return await with_app(read, self._sources.app, failed_before=failed_apps(loaded.known))
        return msgspec.structs.replace(
            read, known=loaded.known, from_app=declared_tasks(loaded.known, others=read)
        )

    async def _apply(self, documents: Sequence[Document]) -> None:
        store = self._running.store
        asker = Asker(clock=self._clock, rng=SystemRandom(), by="dev")
        for last in range(_APPLY_TRIES_MAX):
            try:
                # No app that runs here declares one of them, see `declared_tasks`.
                planned = await plan(store, documents, prune=False, takes_over=True)
                if not planned.is_empty:
                    await carry_out(store, planned, now_us=await store.now_us(), asker=asker)
            except OstinatoError as error:
                if error.code != "VERSION_CONFLICT" or last == _APPLY_TRIES_MAX - 1:
                    raise
            else:
                return


async def _before(work: asyncio.Task[Any], first: asyncio.Future[signal.Signals]) -> bool:
    """Whether `work` has ended before the signal came; otherwise it is cancelled and has ended too."""
    try:
        await asyncio.wait([work, first], return_when=asyncio.FIRST_COMPLETED)
    finally:
        if not work.done():
            work.cancel()
            await asyncio.wait([work])
    return not work.cancelled()
