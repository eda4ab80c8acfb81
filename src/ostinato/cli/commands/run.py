"""``ostinato dev``, ``scheduler`` and ``worker``: the processes that do the work."""

from __future__ import annotations

import typer

from ostinato.cli.commands.run_options import (
    AppArgument,
    AppOption,
    AsyncSlotsOption,
    AuthorityOption,
    BindOption,
    CertificateOption,
    DataDirOption,
    DrainOption,
    JoinTokenOption,
    KeyOption,
    LabelOption,
    LeaseOption,
    LogFormatOption,
    LogLevelOption,
    NameOption,
    RetentionOtherOption,
    RetentionSuccessOption,
    RoutingOption,
    SchedulerOption,
    ServerNameOption,
    SlotsOption,
    WorkerBindOption,
)
from ostinato.cli.options import DatabaseOption, JsonOption, settings_of, wants_json


def dev(
    app: AppArgument,
    context: typer.Context,
    *,
    bind: BindOption = None,
    data_dir: DataDirOption = None,
    slots: SlotsOption = None,
    async_slots: AsyncSlotsOption = None,
    worker_lease: LeaseOption = None,
    drain_timeout: DrainOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run scheduler, worker and metrics for APP in one command, until Ctrl-C."""
    import logging

    from ostinato.assembly import run_dev
    from ostinato.cli.running import announce_dev, require_app, run_until_signal
    from ostinato.observe.logs import LogHook

    settings = settings_of(
        context,
        app=app,
        bind=bind,
        data_dir=data_dir,
        slots=slots,
        async_slots=async_slots,
        worker_lease=worker_lease,
        drain_timeout=drain_timeout,
        log_level=log_level,
        log_format=log_format,
        database=database,
    )
    require_app(settings.app, field="APP")
    on_ready = announce_dev(settings, in_json=wants_json(context, as_json=as_json))
    # Whoever watches a terminal wants to see successes too.
    log_hook = LogHook(routine_level=logging.INFO)
    run_until_signal(
        settings, run_dev(settings, on_ready=on_ready, log_hook=log_hook), service_name="ostinato-dev"
    )


def scheduler(
    context: typer.Context,
    *,
    bind: BindOption = None,
    worker_bind: WorkerBindOption = None,
    join_token_file: JoinTokenOption = None,
    tls_certificate: CertificateOption = None,
    tls_key: KeyOption = None,
    worker_lease: LeaseOption = None,
    retention_success: RetentionSuccessOption = None,
    retention_other: RetentionOtherOption = None,
    routing: RoutingOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a scheduler node, which decides what runs when, and every retry."""
    from ostinato.assembly import run_scheduler
    from ostinato.cli.running import announce_scheduler, run_until_signal

    settings = settings_of(
        context,
        bind=bind,
        worker_bind=worker_bind,
        join_token_file=join_token_file,
        tls_certificate=tls_certificate,
        tls_key=tls_key,
        worker_lease=worker_lease,
        retention_success=retention_success,
        retention_other=retention_other,
        routing=routing,
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
    drain_timeout: DrainOption = None,
    log_level: LogLevelOption = None,
    log_format: LogFormatOption = None,
) -> None:
    """Run a worker, which connects to a scheduler and runs what it is given."""
    from ostinato.assembly import run_worker
    from ostinato.cli.running import require_app, run_until_signal

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
        drain_timeout=drain_timeout,
        log_level=log_level,
        log_format=log_format,
    )
    if len(settings.app.split(",")) == 1:  # of several apps, those that can be imported are run
        require_app(settings.app, field="--app")
    run_until_signal(settings, run_worker(settings), service_name="ostinato-worker")
