"""``ostinato instance list``, ``show`` and ``logs``: what ran, why it was (not) retried, what it wrote."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, settings_of, wants_json
from ostinato.cli.output import note, note_json, print_json, print_table, safe, safe_lines, say

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.control.explain import Story
    from ostinato.core.model import HistoryRow, Instance, OutputChunk

app = typer.Typer(
    help="Instances: list, show, logs, retry, cancel.", no_args_is_help=True, rich_markup_mode=None
)

IdArgument = Annotated[str, typer.Argument(metavar="ID", help="Id of the instance.")]


@app.command("list")
def list_instances(
    context: typer.Context,
    *,
    task: Annotated[str | None, typer.Option("--task", help="Only of this task.")] = None,
    state: Annotated[
        list[str] | None, typer.Option("--state", help="Only in this state; may be repeated.")
    ] = None,
    key: Annotated[str | None, typer.Option("--key", help="Only with this idempotency key.")] = None,
    limit: Annotated[int, typer.Option("--limit", help="Most instances to list, 1 to 1000.")] = 50,
    cursor: Annotated[str | None, typer.Option("--cursor", help="Go on where an earlier list ended.")] = None,
    every: Annotated[bool, typer.Option("--all", help="List every one, however many; no --limit.")] = False,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List instances, newest first."""
    from ostinato.cli.session import in_session
    from ostinato.cli.views import INSTANCE_COLUMNS, instance_cells, instance_json, states_of
    from ostinato.control import queries
    from ostinato.store.batches import InstanceFilter

    settings = settings_of(context, database=database, namespace=namespace)
    where = InstanceFilter(namespace=settings.namespace, task=task, states=states_of(state or []), key=key)
    read = queries.list_all_instances if every else partial(queries.list_instances, limit=limit)
    page = in_session(settings, lambda session: read(session.store, where, cursor=cursor))
    in_json = wants_json(context, as_json=as_json)
    if in_json:
        print_json([instance_json(instance, whole=False) for instance in page.instances])
    else:
        cells = [instance_cells(instance) for instance in page.instances]
        print_table(INSTANCE_COLUMNS, cells, empty="There are no such instances.")
    if page.cursor is None:
        return
    if in_json:
        note_json({"cursor": page.cursor})
    else:
        note(f"there are more: --cursor {page.cursor}")


@app.command()
def show(
    instance_id: IdArgument,
    context: typer.Context,
    *,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the tracebacks too.")] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of one instance: attempts, failures, decisions, and what comes next."""
    from ostinato.cli.session import in_session
    from ostinato.cli.views import story_json
    from ostinato.control.story_text import story_lines

    settings = settings_of(context, database=database)
    instance, told, history = in_session(settings, lambda session: _story(session, instance_id))
    if wants_json(context, as_json=as_json):
        print_json(story_json(instance, told, history=history))
        return
    for line in story_lines(told, traceback=traceback):
        say(safe(line))


@app.command()
def logs(
    instance_id: IdArgument,
    context: typer.Context,
    *,
    attempt: Annotated[int | None, typer.Option("--attempt", help="Only of this attempt.")] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Print what an instance wrote."""
    from ostinato.cli.session import in_session
    from ostinato.cli.views import output_json

    chunks = [
        chunk
        for chunk in in_session(
            settings_of(context, database=database), lambda session: _output(session, instance_id)
        )
        if attempt is None or chunk.attempt == attempt
    ]
    if wants_json(context, as_json=as_json):
        print_json([output_json(chunk) for chunk in chunks])
        return
    shown = 0
    for chunk in chunks:
        if chunk.attempt != shown and attempt is None:
            shown = chunk.attempt
            say(f"--- attempt {shown} ---")
        typer.echo(safe_lines(chunk.text), nl=not chunk.text.endswith("\n"))
    if not chunks:
        note("it has written nothing")


async def _story(session: Session, instance_id: str) -> tuple[Instance, Story, list[HistoryRow]]:
    from ostinato.control.explain import story

    instance, runs = await _instance_and_scheduler(session, instance_id)
    told = await story(session.store, instance_id, scheduler_runs=runs)
    return instance, told, await session.store.history(instance_id)


async def _instance_and_scheduler(session: Session, instance_id: str) -> tuple[Instance, bool]:
    """The instance, and whether a scheduler runs that would do what comes next."""
    from ostinato.control.queries import get_instance, scheduler_is_running
    from ostinato.core.states import TERMINAL_STATES

    store = session.store
    instance = await get_instance(store, instance_id)
    if instance.state in TERMINAL_STATES:
        return instance, True
    if instance.due_us > await store.now_us():  # nothing is overdue: no reason to watch for a renewal
        return instance, bool(await store.nodes())
    runs = await scheduler_is_running(store, clock=session.clock)
    return await get_instance(store, instance_id), runs


async def _output(session: Session, instance_id: str) -> list[OutputChunk]:
    from ostinato.control.queries import get_instance, read_output

    await get_instance(session.store, instance_id)
    return [chunk async for chunk in read_output(session.store, instance_id)]
