"""``ostinato node list``, ``partition list`` and ``namespace list``."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import typer

from ostinato.cli.options import (
    DatabaseOption,
    IntervalOption,
    JsonOption,
    WatchOption,
    settings_of,
    wants_json,
)

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.cli.watching import Answer

node_app = typer.Typer(
    help="Scheduler nodes.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)
partition_app = typer.Typer(
    help="Partitions, and who owns which.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)
namespace_app = typer.Typer(
    help="Namespaces that have tasks.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@node_app.callback()
@partition_app.callback()
@namespace_app.callback()
def _noun() -> None:
    pass  # makes `list` a subcommand although it is the only one


@node_app.command("list")
def list_nodes(
    context: typer.Context,
    *,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List scheduler nodes, watched for a second or two: a silent one was killed or is frozen."""

    async def look(session: Session) -> Answer:
        from msgspec import to_builtins

        from ostinato.cli.views import NODE_COLUMNS, node_cells, pressure_note
        from ostinato.control.cluster import list_nodes

        found = await list_nodes(session.store, clock=session.clock)
        answer = table_answer(
            found,
            columns=NODE_COLUMNS,
            cells=[node_cells(node) for node in found],
            empty="No scheduler node has registered.",
        )
        if (pressure := session.pressure) is not None:
            shape = await pressure.look()
            answer.notes, answer.facts = [pressure_note(shape)], {"pressure": to_builtins(shape)}
        return answer

    show_answer(context, look, watch=watch, interval=interval, database=database, as_json=as_json)


@partition_app.command("list")
def list_partitions(
    context: typer.Context,
    *,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List partitions with their owners."""

    async def look(session: Session) -> Answer:
        from ostinato.cli.views import PARTITION_COLUMNS, partition_cells
        from ostinato.control.cluster import list_partitions

        found = await list_partitions(session.store)
        return table_answer(
            found,
            columns=PARTITION_COLUMNS,
            cells=[partition_cells(partition) for partition in found],
            empty="There are no partitions.",
        )

    show_answer(context, look, watch=watch, interval=interval, database=database, as_json=as_json)


@namespace_app.command("list")
def list_namespaces(
    context: typer.Context,
    *,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the namespaces that have tasks."""

    async def look(session: Session) -> Answer:
        from ostinato.control.queries import list_namespaces

        found = await list_namespaces(session.store)
        return table_answer(
            found, columns=("NAMESPACE",), cells=[(name,) for name in found], empty="No task exists yet."
        )

    show_answer(context, look, watch=watch, interval=interval, database=database, as_json=as_json)


def table_answer(
    found: Sequence[object], *, columns: Sequence[str], cells: Sequence[Sequence[object]], empty: str
) -> Answer:
    """A list as JSON of its structs and as a table of `cells`."""
    from ostinato.cli.output import table_lines
    from ostinato.cli.watching import Answer

    def data() -> object:
        import msgspec

        return msgspec.to_builtins(found)

    return Answer(data=data, lines=lambda width: table_lines(columns, cells, empty=empty, width=width))


def show_answer(
    context: typer.Context,
    look: Callable[[Session], Awaitable[Answer]],
    *,
    watch: bool,
    interval: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show what `look` finds, once or with `watch` again and again."""
    from ostinato.cli import watching

    watching.show(
        settings_of(context, database=database),
        look,
        in_json=wants_json(context, as_json=as_json),
        watch=watch,
        interval=interval,
    )
