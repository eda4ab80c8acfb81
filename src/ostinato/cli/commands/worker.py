"""``ostinato worker``, which runs one, and ``worker list``, ``show``, ``drain``, about those that run."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ostinato.cli import completing
from ostinato.cli.commands import run
from ostinato.cli.commands.cluster import show_answer, table_answer
from ostinato.cli.options import (
    DatabaseOption,
    IntervalOption,
    JsonOption,
    ReasonOption,
    WatchOption,
    settings_of,
    wants_json,
)

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.cli.watching import Answer

app = typer.Typer(invoke_without_command=True, rich_markup_mode=None, add_completion=False)

WorkerArgument = Annotated[
    str,
    typer.Argument(metavar="WORKER", help="Name or id of the worker.", autocompletion=completing.workers),
]


@app.callback(
    help="Run a worker, which connects to a scheduler and runs what it is given; or, with a command, ask "
    "about the workers that run: list, show, drain."
)
@functools.wraps(run.worker)
def _worker(context: typer.Context, **options: Any) -> None:
    if context.invoked_subcommand is None:
        run.worker(context, **options)
        return
    for name, value in options.items():
        if value is not None:
            flag = "--" + {"labels": "label"}.get(name, name).replace("_", "-")
            raise typer.BadParameter("is for running a worker, not for a command after it", param_hint=flag)


@app.command("list")
def list_workers(
    context: typer.Context,
    *,
    every: Annotated[
        bool, typer.Option("--all", help="Also those that left within the last day, every one.")
    ] = False,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List workers that are connected, and those that left within the last hour and have no successor."""

    async def look(session: Session) -> Answer:
        from ostinato.cli.views import WORKER_COLUMNS, worker_cells
        from ostinato.control.cluster import list_workers, silent_nodes, without_past

        store = session.store
        known = await list_workers(store, silent=await silent_nodes(store, clock=session.clock))
        found = known if every else without_past(known, now_us=await store.now_us())
        answer = table_answer(
            found,
            columns=WORKER_COLUMNS,
            cells=[worker_cells(worker) for worker in found],
            empty="No worker is connected, or was within the last hour."
            if not every
            else "No worker is connected, or was within the last day.",
        )
        hidden = len(known) - len(found)
        if hidden:
            workers = "1 worker that is gone is" if hidden == 1 else f"{hidden} workers that are gone are"
            answer.notes = [f"{workers} not shown: --all shows every one"]
        return answer

    show_answer(context, look, watch=watch, interval=interval, database=database, as_json=as_json)


@app.command("show")
def show_worker(
    worker: WorkerArgument,
    context: typer.Context,
    *,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one worker: its slots and labels, what it can run, what it could not import."""

    async def look(session: Session) -> Answer:
        import msgspec

        from ostinato.cli.views import worker_lines
        from ostinato.cli.watching import Answer
        from ostinato.control.cluster import get_worker, silent_nodes

        silent = await silent_nodes(session.store, clock=session.clock)
        found = await get_worker(session.store, worker, silent=silent)
        return Answer(data=lambda: msgspec.to_builtins(found), lines=lambda _: worker_lines(found))

    show_answer(context, look, watch=watch, interval=interval, database=database, as_json=as_json)


@app.command("drain")
def drain(
    worker: WorkerArgument,
    context: typer.Context,
    *,
    reason: ReasonOption = "",
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Ask a worker to take nothing new, to end what it runs, and to stop."""
    from ostinato.cli.output import print_json, safe, say
    from ostinato.cli.session import in_session
    from ostinato.control.cluster import drain_worker

    answer = in_session(
        settings_of(context, database=database),
        lambda session: drain_worker(session.store, worker, reason=reason, asker=session.asker),
    )
    if wants_json(context, as_json=as_json):
        print_json({"worker": worker, "code": answer.code, "message": answer.message})
    else:
        say(f"{safe(worker)}: {safe(answer.message)}")
