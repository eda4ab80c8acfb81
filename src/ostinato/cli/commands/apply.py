"""``ostinato apply``, ``export`` and ``schema``: tasks as documents, for people who keep them in files."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.commands.apply_diff import Colour, is_coloured, show_diff
from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, settings_of, wants_json
from ostinato.cli.output import is_unicode, note, print_json, safe, say
from ostinato.errors import EXIT_FAILED, OstinatoError, UnavailableError, UserError

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.control.document.read import Document
    from ostinato.control.plan import ChangeShape, Plan
    from ostinato.core.definition import Origin, TaskRef, TaskRow
    from ostinato.settings import Settings
    from ostinato.store.batches import ApplyReceipt

PathsArgument = Annotated[list[str] | None, typer.Argument(metavar="PATH", help="As --file.")]
FilesOption = Annotated[
    list[str] | None,
    typer.Option(
        "--file",
        "-f",
        metavar="PATH",
        help="File, folder (its *.yaml and *.yml, also below), or - for standard input; repeatable.",
    ),
]
CreateOption = Annotated[
    bool, typer.Option("--create", help="Make the database where there is none; else that is an error.")
]

#: For more tasks nobody reads each one's next fire, and asking for all of them takes its time.
NEXT_FIRES_MAX = 100
_NEXT_FIRE_WAIT_US = 1_000_000
_NEXT_FIRE_POLL_US = 20_000

_COUNTED = {"create": "created", "change": "changed", "unchanged": "unchanged", "delete": "deleted"}
_PLANNED = {
    "create": "would create",
    "change": "would change",
    "unchanged": "unchanged",
    "delete": "would delete",
}


class ExportedOrigin(StrEnum):
    """Which tasks are exported."""

    DOCUMENT = "document"
    APP = "app"
    ALL = "all"


_ORIGINS: dict[ExportedOrigin, Origin | None] = {
    ExportedOrigin.DOCUMENT: "document",
    ExportedOrigin.APP: "app",
    ExportedOrigin.ALL: None,
}


def apply(
    context: typer.Context,
    paths: PathsArgument = None,
    *,
    files: FilesOption = None,
    create: CreateOption = False,
    diff: Annotated[
        bool,
        typer.Option(
            "--diff", help="Show what would change and write nothing; exit code 1 if anything would."
        ),
    ] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say what would be done and write nothing.")
    ] = False,
    prune: Annotated[
        bool,
        typer.Option(
            "--prune", help="Also delete tasks of an earlier apply, in these namespaces, that no file names."
        ),
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    color: Annotated[
        Colour, typer.Option("--color", help="When to colour a diff; auto: on a terminal without NO_COLOR.")
    ] = Colour.AUTO,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Create and change tasks so that they are as the files say, all or none."""
    from ostinato.cli.commands.apply_documents import read_documents

    settings = settings_of(context, database=database, namespace=namespace)
    named = [*(paths or ()), *(files or ())]
    if not named:
        raise UserError("INVALID_VALUE", "no file is given", field="--file", hint="such as: -f tasks.yaml")
    documents = read_documents(
        named,
        namespace=settings.namespace,
        namespace_was_given=settings.sources.get("namespace") == "--namespace",
    )
    in_json = wants_json(context, as_json=as_json)
    is_question = diff or dry_run
    made = _made_plan(settings, documents, prune=prune, makes_database=create and not is_question)
    if is_question:
        _show_plan(made, diff=diff, color=color, in_json=in_json)
        return
    if made.deletions and not yes:
        _ask_to_delete(made, reads_stdin="-" in named)
    _carry_out(settings, made, in_json=in_json)


def export(
    context: typer.Context,
    *,
    tasks: Annotated[
        list[str] | None, typer.Option("--task", metavar="NAME", help="Only this task; repeatable.")
    ] = None,
    origin: Annotated[
        ExportedOrigin,
        typer.Option("--origin", help="Tasks applied from documents, declared by an app, or all."),
    ] = ExportedOrigin.ALL,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Write the tasks of a namespace as a tasks.yaml, which apply reads back without a change."""
    from ostinato.cli.session import in_session
    from ostinato.control.document.write import document
    from ostinato.control.document.yaml_text import write_yaml
    from ostinato.control.export import exported_tasks

    settings = settings_of(context, database=database, namespace=namespace)
    wanted = _ORIGINS[origin]

    async def read(session: Session) -> list[TaskRow]:
        return await exported_tasks(session.store, settings.namespace, origin=wanted, names=tasks or ())

    rows = in_session(settings, read)
    if not rows:
        note(f"there are no such tasks in namespace {settings.namespace}")
    exported = document(settings.namespace, [row.definition for row in rows])
    if wants_json(context, as_json=as_json):
        print_json(exported)
        return
    for line in _comment(rows):
        say(line)
    say(write_yaml(exported, ascii_only=not is_unicode(sys.stdout)).rstrip("\n"))


def schema() -> None:
    """Write the JSON Schema of tasks.yaml, for editors."""
    from ostinato.control.document.json_schema import json_schema

    print_json(json_schema())


# ── apply ─────────────────────────────────────────────────────────────────────────────────────────────


def _made_plan(
    settings: Settings, documents: Sequence[Document], *, prune: bool, makes_database: bool
) -> Plan:
    from ostinato.cli.session import in_session
    from ostinato.control.plan import plan
    from ostinato.core.url_text import shown_url
    from ostinato.settings import sqlite_path

    path = sqlite_path(settings.database)
    is_new = path is not None and not Path(path).exists()
    if is_new and not makes_database:
        raise UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"there is no database {path}",
            subject=shown_url(settings.database),
            field=settings.source("database"),
            hint="start a scheduler, which makes it, name another with --database or OSTINATO_DATABASE, or "
            "give --create",
        )
    made = in_session(
        settings,
        lambda session: plan(session.store, documents, prune=prune),
        makes_database=makes_database,
    )
    if is_new:
        note(f"made the database {path}")
    return made


def _show_plan(made: Plan, *, diff: bool, color: Colour, in_json: bool) -> None:
    from ostinato.control.plan import change_shapes

    if in_json:
        _print_changes(change_shapes(made))
    elif diff:
        show_diff(made, coloured=is_coloured(color))
    else:
        for change in made.changes:
            version = f" (version {change.version})" if change.version else ""
            say(f"{_PLANNED[change.action]} {safe(change.ref)}{version}")
    if not diff:
        note(f"{_summary(made)}; nothing was written")
    elif not made.is_empty:
        raise typer.Exit(EXIT_FAILED)


def _ask_to_delete(made: Plan, *, reads_stdin: bool) -> None:
    """Return if the person at the terminal says yes. Raises ``INVALID_VALUE`` with nobody to ask."""
    if reads_stdin or not (sys.stdin.isatty() and sys.stderr.isatty()):
        named = ", ".join(str(change.ref) for change in made.deletions[:5])
        more = f" and {len(made.deletions) - 5} more" if len(made.deletions) > 5 else ""
        raise UserError(
            "INVALID_VALUE",
            f"{named}{more} would be deleted; repeat with --yes, there is no terminal to ask at",
            field="--yes",
            hint="nothing was written; --diff shows what would be",
        )
    for change in made.deletions:
        note(f"to delete: {change.ref}")
    if not typer.confirm(f"Delete {_tasks(len(made.deletions))}?", err=True):
        note("nothing was written")
        raise typer.Exit(EXIT_FAILED)


def _carry_out(settings: Settings, made: Plan, *, in_json: bool) -> None:
    """Write, then delete; what has been written is shown whatever becomes of the deletions."""
    from ostinato.cli.session import in_session
    from ostinato.control.plan import change_shapes, delete

    receipts, next_fires = in_session(
        settings, lambda session: _write(session, made, wants_fires=not in_json)
    )
    if not in_json:
        for receipt in receipts:
            upcoming = next_fires.get(receipt.ref)
            say(
                f"{receipt.outcome} {safe(receipt.ref)} (version {receipt.version})"
                + (f", next fire {upcoming}" if upcoming else "")
            )
    try:
        if made.deletions:
            in_session(settings, lambda session: delete(session.store, made, asker=session.asker))
    except OstinatoError:
        if in_json:
            _print_changes(change_shapes(made, receipts))
        raise
    if in_json:
        _print_changes(change_shapes(made, receipts))
        return
    for change in made.deletions:
        say(f"deleted {safe(change.ref)}")
    note(_summary(made))


async def _write(
    session: Session, made: Plan, *, wants_fires: bool
) -> tuple[list[ApplyReceipt], dict[TaskRef, str]]:
    from ostinato.control.plan import write

    receipts = await write(session.store, made, now_us=await session.store.now_us())
    new = {receipt.ref for receipt in receipts if receipt.outcome != "unchanged"}
    scheduled = [
        change.ref
        for change in made.writes
        if change.ref in new and change.definition is not None and change.definition.triggers
    ]
    if not wants_fires or not scheduled:
        return receipts, {}
    if not await session.store.nodes():
        note("no scheduler is running: triggers come into force when one does")
        return receipts, {}
    return receipts, await _next_fires(session, scheduled[:NEXT_FIRES_MAX])


async def _next_fires(session: Session, refs: list[TaskRef]) -> dict[TaskRef, str]:
    """Next fire of each task whose triggers are in force within a second."""
    from ostinato.cli.views import shown_instant
    from ostinato.control.queries import task_triggers

    deadline_us = session.clock.boot_us() + _NEXT_FIRE_WAIT_US
    fires: dict[TaskRef, str] = {}
    while True:
        rows = await session.store.get_tasks([ref for ref in refs if ref not in fires])
        for ref, row in rows.items():
            if row.scheduled_version == row.version:
                triggers = await task_triggers(session.store, ref)
                held = row.paused or row.disabled or not triggers
                fires[ref] = "" if held else shown_instant(triggers[0].next_us)
        now_us = session.clock.boot_us()
        if len(fires) == len(refs) or now_us >= deadline_us:
            return fires
        await session.clock.sleep_until_us(min(now_us + _NEXT_FIRE_POLL_US, deadline_us))


def _print_changes(shapes: Sequence[ChangeShape]) -> None:
    import msgspec

    print_json({"changes": msgspec.to_builtins(shapes)})


def _summary(made: Plan) -> str:
    counts = [f"{count} {_COUNTED[action]}" for action, count in made.counts().items() if count]
    return f"{_tasks(len(made.changes))}: {', '.join(counts)}" if counts else "no tasks"


def _tasks(count: int) -> str:
    return "1 task" if count == 1 else f"{count} tasks"


# ── export ────────────────────────────────────────────────────────────────────────────────────────────


def _comment(rows: Sequence[TaskRow]) -> list[str]:
    """Lines that say which tasks belong to an app, whose next start would put its own version back."""
    names = [safe(row.ref.name) for row in rows if row.origin == "app"]
    if not names:
        return []
    lines = ["# Declared by an app, which applies its own version again at its next start:"]
    return lines + [f"#   {name}" for name in names]
