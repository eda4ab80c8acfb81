"""``ostinato task list`` and ``show``: what tasks there are, what they run and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import completing
from ostinato.cli.options import (
    DatabaseOption,
    IntervalOption,
    JsonOption,
    NamespaceOption,
    WatchOption,
    settings_of,
    wants_json,
)

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.cli.watching import Answer
    from ostinato.core.definition import TaskRow
    from ostinato.store.batches import TriggerRow

app = typer.Typer(
    help="Tasks: list, show, trigger, pause, resume, disable, enable, delete.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

NameArgument = Annotated[
    str, typer.Argument(metavar="NAME", help="Name of the task.", autocompletion=completing.tasks)
]


@app.command("list")
def list_tasks(
    context: typer.Context,
    *,
    search: Annotated[
        str, typer.Option("--search", metavar="TEXT", help="Only whose name holds this, in any case.")
    ] = "",
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", help="At most so many, 1 to 1000; all if left out.")
    ] = None,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of a namespace with their next fire."""
    from ostinato.cli import watching
    from ostinato.cli.session import known_namespaces
    from ostinato.control.queries import validate_limit

    if limit is not None:
        validate_limit(limit)

    async def look(session: Session) -> Answer:
        found = await _tasks(session, search=search, limit=limit)
        return _listed(found, remarks=[] if found or search else await known_namespaces(session))

    watching.show(
        settings_of(context, database=database, namespace=namespace),
        look,
        in_json=wants_json(context, as_json=as_json),
        watch=watch,
        interval=interval,
    )


@app.command()
def show(
    name: NameArgument,
    context: typer.Context,
    *,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one task: how it stands, when it fires, its whole retry policy, its definition."""
    from ostinato.cli import watching

    async def look(session: Session) -> Answer:
        return _shown(*await _one_task(session, name))

    watching.show(
        settings_of(context, database=database, namespace=namespace),
        look,
        in_json=wants_json(context, as_json=as_json),
        watch=watch,
        interval=interval,
    )


def _listed(found: list[tuple[TaskRow, list[TriggerRow]]], *, remarks: list[str]) -> Answer:
    from ostinato.cli.output import table_lines
    from ostinato.cli.views import TASK_COLUMNS, task_cells
    from ostinato.cli.watching import Answer

    def data() -> object:
        import msgspec

        from ostinato.control.shapes.task import task_shape

        return [msgspec.to_builtins(task_shape(row, triggers)) for row, triggers in found]

    return Answer(
        data=data,
        lines=lambda width: table_lines(
            TASK_COLUMNS,
            [task_cells(row, triggers) for row, triggers in found],
            empty="There are no such tasks in this namespace.",
            width=width,
            cuts_last=True,
        ),
        notes=remarks,
    )


def _shown(row: TaskRow, triggers: list[TriggerRow]) -> Answer:
    from ostinato.cli.views import task_lines
    from ostinato.cli.watching import Answer

    def data() -> object:
        import msgspec

        from ostinato.control.shapes.task import task_shape

        return msgspec.to_builtins(task_shape(row, triggers))

    return Answer(data=data, lines=lambda _: list(task_lines(row, triggers)))


async def _tasks(
    session: Session, *, search: str, limit: int | None
) -> list[tuple[TaskRow, list[TriggerRow]]]:
    from ostinato.control.queries import list_tasks, task_triggers

    rows = await list_tasks(session.store, session.settings.namespace, limit=limit, search=search)
    return [(row, await task_triggers(session.store, row.ref)) for row in rows]


async def _one_task(session: Session, name: str) -> tuple[TaskRow, list[TriggerRow]]:
    from ostinato.control.queries import get_task, task_triggers

    row = await get_task(session.store, session.ref(name))
    return row, await task_triggers(session.store, row.ref)
