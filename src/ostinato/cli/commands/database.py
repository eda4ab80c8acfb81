"""``ostinato db``: the schema of the database that ``--database`` names, and copies of one into another."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import DatabaseOption, JsonOption, YesOption, settings_of, wants_json

if TYPE_CHECKING:
    from ostinato.settings import Settings
    from ostinato.store.copying import Copied
    from ostinato.store.schema_facts import Administrator, SchemaFacts

app = typer.Typer(
    help="The database's schema: status, upgrade, downgrade; copy into another database.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

_COPY_FIELDS = {"source": "FROM", "target": "TO"}
_PARTITIONS = 64
_PARTITIONS_MAX = 4096


@app.command("status")
def status(
    context: typer.Context,
    *,
    check: Annotated[
        bool, typer.Option("--check", help="End with 1 unless the schema is the one of this version.")
    ] = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show which schema the database has, which one this version needs, and what to do."""
    from ostinato.errors import EXIT_FAILED

    settings = settings_of(context, database=database)
    facts = _on(settings, lambda administrator: administrator.facts())
    _show(facts, as_json=wants_json(context, as_json=as_json))
    if check and not facts.is_current:
        raise typer.Exit(EXIT_FAILED)


@app.command("upgrade")
def upgrade(
    context: typer.Context,
    *,
    to: Annotated[
        str | None, typer.Option("--to", metavar="REVISION", help="Only up to here; the newest if left out.")
    ] = None,
    partitions: Annotated[
        int | None,
        typer.Option(
            "--partitions",
            metavar="N",
            min=1,
            max=_PARTITIONS_MAX,
            help=f"Partitions of a database that has none yet, for its life; {_PARTITIONS} if left out.",
        ),
    ] = None,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Bring the database to the schema of this version, and make it where it has none.

    Running schedulers go on meanwhile. An upgrade that broke off is repeated in the same way, and goes on.
    """
    from ostinato.cli.output import note
    from ostinato.store.migrations import HEAD_REVISION

    settings = settings_of(context, database=database)
    facts = _on(
        settings,
        lambda administrator: administrator.upgrade(
            to or HEAD_REVISION, partition_count=partitions or _PARTITIONS
        ),
    )
    if partitions and partitions != facts.partitions:
        note(f"the database keeps its {facts.partitions} partitions, whose number was fixed when it was made")
    _show(facts, as_json=wants_json(context, as_json=as_json))


@app.command("downgrade")
def downgrade(
    context: typer.Context,
    *,
    to: Annotated[
        str, typer.Option("--to", metavar="REVISION", help="Where to stop; base: leave no table of Ostinato.")
    ],
    yes: YesOption = False,
    database: DatabaseOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo newer revisions, for an older version of Ostinato, and lose what only they can keep.

    No scheduler may run. A downgrade that broke off is repeated in the same way, and goes on.
    """
    from ostinato.cli.confirming import confirm
    from ostinato.core.url_text import shown_url
    from ostinato.errors import EXIT_FAILED

    settings = settings_of(context, database=database)
    shown = shown_url(settings.database)
    lost = "every table of Ostinato and all that it knows" if to == "base" else "what newer revisions keep"
    if not confirm(
        f"downgrade {shown} to {to} and lose {lost}",
        consequence=f"the downgrade of {shown} to {to} would lose {lost}",
        yes=yes,
    ):
        raise typer.Exit(EXIT_FAILED)
    facts = _on(settings, lambda administrator: administrator.downgrade(to))
    _show(facts, as_json=wants_json(context, as_json=as_json))


@app.command("copy")
def copy(
    context: typer.Context,
    *,
    source: Annotated[str, typer.Argument(metavar="FROM", help="URL of the database that is copied.")],
    target: Annotated[str, typer.Argument(metavar="TO", help="URL of an empty one.")],
    leave_running: Annotated[
        bool, typer.Option("--leave-running", help="Copy the rest where instances run in FROM.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Copy tasks, triggers, waiting instances and live keys into an empty database, all or nothing.

    What has ended stays behind. No scheduler may run on either; afterwards only on TO, or what waits runs
    twice.
    """
    import asyncio

    from ostinato.cli.output import note
    from ostinato.clock import SystemClock
    from ostinato.errors import OstinatoError
    from ostinato.store.administration import copy_database

    try:
        copied = asyncio.run(copy_database(source, target, leave_running=leave_running, clock=SystemClock()))
    except OstinatoError as error:
        error.field = _COPY_FIELDS.get(error.field, error.field)
        raise
    _show_copied(copied, as_json=wants_json(context, as_json=as_json))
    note("start schedulers on the new database alone: what waits is in both")


def _show_copied(copied: Copied, *, as_json: bool) -> None:
    import msgspec

    from ostinato.cli.output import fact_lines, print_json, say_lines

    if as_json:
        print_json(msgspec.to_builtins(copied))
        return
    left = {
        "running": copied.left_running,
        "ended": copied.left_finished,
        "unanswered requests": copied.left_requests,
    }
    say_lines(
        fact_lines(
            [
                ("from", copied.source),
                ("to", copied.target),
                ("tasks", copied.tasks),
                ("versions of definitions", copied.definitions),
                ("triggers", copied.triggers),
                ("waiting instances", copied.instances),
                ("rows of their history", copied.history),
                ("live idempotency keys", copied.keys),
                ("left behind", ", ".join(f"{count} {what}" for what, count in left.items() if count)),
            ]
        )
    )


def _on(settings: Settings, act: Callable[[Administrator], Awaitable[SchemaFacts]]) -> SchemaFacts:
    import asyncio

    from ostinato.clock import SystemClock
    from ostinato.settings import naming_sources
    from ostinato.store.administration import administrator_of

    async def run() -> SchemaFacts:
        return await act(administrator_of(settings.database, clock=SystemClock()))

    with naming_sources(settings, only="database"):
        return asyncio.run(run())


def _show(facts: SchemaFacts, *, as_json: bool) -> None:
    from ostinato.cli.output import fact_lines, print_json, say, say_lines
    from ostinato.store.migrations import HEAD_REVISION

    state, to_do = _verdict(facts)
    if as_json:
        print_json(
            {
                "database": facts.database,
                "revision": facts.revision or None,
                "newest": HEAD_REVISION,
                "pending": facts.pending,
                "partitions": facts.partitions,
                "state": state,
                "to_do": to_do or None,
            }
        )
        return
    say_lines(
        fact_lines(
            [
                ("database", facts.database),
                ("schema", facts.revision or "none"),
                ("newest", HEAD_REVISION),
                ("pending", ", ".join(facts.pending) or "none"),
                ("not ended", str(facts.change or "")),
                ("partitions", facts.partitions or "none"),
            ]
        )
    )
    say(f"{state}: {to_do}" if to_do else state)


def _verdict(facts: SchemaFacts) -> tuple[str, str]:
    """How the schema stands, and what to do about it; nothing where it is the newest."""
    if facts.is_newer:
        return "newer", "use the newer version of Ostinato that made it"
    if facts.change is not None:
        return "unfinished", f"wait for its end, or where it has broken off, run {facts.change.command}"
    if not facts.pending:
        return "current", ""
    if facts.revision is None:
        return "missing", "run ostinato db upgrade"
    return "older" if facts.revision else "unfinished", "run ostinato db upgrade"
