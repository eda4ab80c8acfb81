"""``ostinato task list`` and ``show``: what tasks there are, what they run and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, settings_of, wants_json
from ostinato.cli.output import print_facts, print_json, print_table, safe, say

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.core.definition import TaskRow
    from ostinato.store.batches import TriggerRow

app = typer.Typer(
    help="Tasks: list, show, trigger, pause, resume, disable, enable.",
    no_args_is_help=True,
    rich_markup_mode=None,
)

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="Name of the task.")]


@app.command("list")
def list_tasks(
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List the tasks of a namespace with their next fire."""
    from ostinato.cli.session import in_session
    from ostinato.cli.views import duration, runs, task_json, task_status

    found = in_session(settings_of(context, database=database, namespace=namespace), _all_tasks)
    if wants_json(context, as_json=as_json):
        print_json([task_json(row, triggers) for row, triggers in found])
        return
    print_table(
        ("NAME", "VERSION", "STATUS", "NEXT FIRE", "TIMEOUT", "RUNS"),
        [
            (
                row.ref.name,
                row.version,
                task_status(row),
                _next_fire(row, triggers),
                duration(row.definition.timeout_us),
                runs(row),
            )
            for row, triggers in found
        ],
        empty="There are no tasks in this namespace.",
    )


@app.command()
def show(
    name: NameArgument,
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one task: what it runs, when, and its retry policy with every default filled in."""
    from ostinato.cli.session import in_session
    from ostinato.cli.views import task_json

    settings = settings_of(context, database=database, namespace=namespace)
    row, triggers = in_session(settings, lambda session: _one_task(session, name))
    if wants_json(context, as_json=as_json):
        print_json(task_json(row, triggers))
    else:
        _show_task(row, triggers)


def _next_fire(row: TaskRow, triggers: list[TriggerRow]) -> str:
    from ostinato.cli.views import shown_instant

    if row.paused or row.disabled or not triggers:
        return "-"  # what is planned is not made up later
    return shown_instant(triggers[0].next_us) or "-"


async def _all_tasks(session: Session) -> list[tuple[TaskRow, list[TriggerRow]]]:
    from ostinato.control.queries import list_tasks, task_triggers

    rows = await list_tasks(session.store, session.settings.namespace)
    return [(row, await task_triggers(session.store, row.ref)) for row in rows]


async def _one_task(session: Session, name: str) -> tuple[TaskRow, list[TriggerRow]]:
    from ostinato.control.queries import get_task, task_triggers

    row = await get_task(session.store, session.ref(name))
    return row, await task_triggers(session.store, row.ref)


def _show_task(row: TaskRow, triggers: list[TriggerRow]) -> None:
    from ostinato.cli.views import duration, instant, runs, task_status
    from ostinato.core.retry.policy import policy_to_dict
    from ostinato.core.schedule.trigger import describe_trigger

    definition = row.definition
    switching = "" if row.scheduled_version == row.version else f" (triggers still {row.scheduled_version})"
    print_facts(
        [
            ("task", row.ref),
            ("description", definition.description),
            ("status", task_status(row)),
            ("version", f"{row.version}{switching}"),
            ("runs", runs(row)),
            ("timeout", duration(definition.timeout_us)),
            ("overlap", definition.overlap or "forbid for fires, allow for submissions"),
            ("priority", definition.priority),
            ("labels", ", ".join(f"{name}={value}" for name, value in definition.labels.items())),
            *(("retry " + name, _plain(value)) for name, value in policy_to_dict(definition.retry).items()),
        ]
    )
    for trigger in triggers:
        upcoming = instant(trigger.next_us)
        say(
            f"trigger: {safe(describe_trigger(trigger.spec))}, "
            + (f"next {upcoming}" if upcoming else "no further fire")
        )


def _plain(value: object) -> object:
    return ", ".join(map(str, value)) if isinstance(value, list) else value
