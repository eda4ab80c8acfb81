"""``ostinato dev``, ``scheduler`` and ``worker``: the processes that do the work."""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

import typer

from ostinato.cli.commands.run_options import (
    AdvertiseOption,
    AppOption,
    AppsArgument,
    AsyncSlotsOption,
    AuthorityOption,
    BindOption,
    CertificateOption,
    DataDirOption,
    DrainOption,
    EngineSocketOption,
    JoinTokenOption,
    KeyOption,
    LabelOption,
    LeaseOption,
    LogFormatOption,
    LogLevelOption,
    NameOption,
    NoReloadOption,
    PressureRedOption,
    PressureYellowOption,
    ReloadDirOption,
    RetentionOtherOption,
    RetentionSuccessOption,
    RoutingOption,
    SchedulerOption,
    ServerNameOption,
    SlotsOption,
    WorkerBindOption,
)
from ostinato.cli.options import DatabaseOption, JsonOption, settings_of, wants_json

if TYPE_CHECKING:
    from ostinato.settings import Settings


def dev(
    context: typer.Context,
    apps: AppsArgument = None,
    *,
    no_reload: NoReloadOption = False,
    reload_dir: ReloadDirOption = None,
    bind: BindOption = None,
    data_dir: DataDirOption = None,
    slots: SlotsOption = None,
    async_slots: AsyncSlotsOption = None,
    engine_socket: EngineSocketOption = None,
    worker_lease: LeaseOption = None,
    drain_timeout: DrainOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run scheduler, worker and API for APP in one command, until Ctrl-C, with files as they change."""
    settings = settings_of(
        context,
        app=",".join(apps) if apps else None,
        bind=bind,
        data_dir=data_dir,
        slots=slots,
        async_slots=async_slots,
        engine_socket=engine_socket,
        worker_lease=worker_lease,
        drain_timeout=drain_timeout,
        log_level=log_level,
        log_format=log_format,
        database=database,
    )
    if apps:
        settings.sources["app"] = "APP"
    _run_dev(
        settings,
        reload_dirs=None if no_reload else (reload_dir or []),
        in_json=wants_json(context, as_json=as_json),
    )


def _run_dev(settings: Settings, *, reload_dirs: list[str] | None, in_json: bool) -> None:
    """`reload_dirs` None: nothing is watched."""
    import logging

    from ostinato.cli import reload
    from ostinato.cli.announcing import announce_dev
    from ostinato.cli.running import require_app, require_folder, run_until_signal
    from ostinato.dev_assembly import run_dev
    from ostinato.dev_sources import DevSources
    from ostinato.errors import UserError
    from ostinato.observe.logs import LogHook

    field = settings.source("app")
    names = [name for name in settings.app.split(",") if name]
    if not names:
        raise UserError("INVALID_APP", "no app is given", field=field, hint="such as: ostinato dev tasks.py")
    documents = [name for name in names if reload.is_document(name)]
    app = ",".join(name for name in names if name not in documents)
    require_app(app, field=field)
    for folder in reload_dirs or []:
        require_folder(folder, field="--reload-dir")
    watches = []
    if reload_dirs is not None:
        watches = reload.watches(
            app=app, documents=documents, folders=reload_dirs, data_dir=settings.data_dir
        )
    work = run_dev(
        settings,
        DevSources(app=app, read_documents=reload.document_reader(documents), watches=watches),
        on_ready=announce_dev(settings, shown=", ".join(names), reloads=bool(watches), in_json=in_json),
        # Whoever watches a terminal wants to see successes too.
        log_hook=LogHook(routine_level=logging.INFO),
        teller=reload.Teller(in_json=in_json, namespace=settings.namespace),
    )
    run_until_signal(settings, work, service_name="ostinato-dev")


def scheduler(
    context: typer.Context,
    *,
    bind: BindOption = None,
    worker_bind: WorkerBindOption = None,
    advertise: AdvertiseOption = None,
    join_token_file: JoinTokenOption = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    worker_lease: LeaseOption = None,
    retention_success: RetentionSuccessOption = None,
    retention_other: RetentionOtherOption = None,
    routing: RoutingOption = None,
    pressure_yellow: PressureYellowOption = None,
    pressure_red: PressureRedOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scheduler node, which decides what runs when, and every retry."""
    _end_by_sigterm_at_once()
    from ostinato.assembly import run_scheduler
    from ostinato.cli.announcing import announce_scheduler
    from ostinato.cli.running import run_until_signal

    settings = settings_of(
        context,
        bind=bind,
        worker_bind=worker_bind,
        advertise=advertise,
        join_token_file=join_token_file,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        worker_lease=worker_lease,
        retention_success=retention_success,
        retention_other=retention_other,
        routing=routing,
        pressure_yellow=pressure_yellow,
        pressure_red=pressure_red,
        log_level=log_level,
        log_format=log_format,
        database=database,
    )
    on_ready = announce_scheduler(settings, in_json=wants_json(context, as_json=as_json))
    run_until_signal(settings, run_scheduler(settings, on_ready=on_ready), service_name="ostinato-scheduler")


def worker(
    context: typer.Context,
    *,
    app: AppOption = None,
    scheduler: SchedulerOption = None,
    join_token_file: JoinTokenOption = None,
    tls_ca: AuthorityOption = None,
    tls_server_name: ServerNameOption = None,
    data_dir: DataDirOption = None,
    slots: SlotsOption = None,
    async_slots: AsyncSlotsOption = None,
    worker_name: NameOption = None,
    labels: LabelOption = None,
    engine_socket: EngineSocketOption = None,
    drain_timeout: DrainOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a worker, which connects to a scheduler and runs what it is given."""
    _end_by_sigterm_at_once()
    from ostinato.cli.running import require_app, run_until_signal
    from ostinato.worker_assembly import run_worker

    settings = settings_of(
        context,
        app=app,
        scheduler=scheduler,
        join_token_file=join_token_file,
        tls_ca=tls_ca,
        tls_server_name=tls_server_name,
        data_dir=data_dir,
        slots=slots,
        async_slots=async_slots,
        worker_name=worker_name,
        labels=labels,
        engine_socket=engine_socket,
        drain_timeout=drain_timeout,
        log_level=log_level,
        log_format=log_format,
    )
    if len(settings.app.split(",")) == 1:  # of several apps, those that can be imported are run
        require_app(settings.app, field=settings.source("app"))
    run_until_signal(settings, run_worker(settings), service_name="ostinato-worker")


def _end_by_sigterm_at_once() -> None:
    """A stop is clean also before anything has begun: imports alone take a second.

    What runs then takes the signal over.
    """
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
