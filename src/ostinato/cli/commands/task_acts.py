"""``ostinato task pause``, ``resume``, ``disable``, ``enable`` and ``delete``: what people do to a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import completing
from ostinato.cli.commands.task import NameArgument, app
from ostinato.cli.options import (
    DatabaseOption,
    JsonOption,
    NamespaceOption,
    YesOption,
    settings_of,
    wants_json,
)
from ostinato.cli.output import print_json, safe, say

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ostinato.cli.session import Session
    from ostinato.control.pause import FlagVerb
    from ostinato.settings import Settings

_DONE = {"pause": "paused", "resume": "resumed", "disable": "disabled", "enable": "enabled"}
#: Instances that are counted for the question before a delete.
_COUNT_MAX = 100_000


@app.command()
def pause(
    name: NameArgument,
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop fires and new attempts; what waits is held."""
    _set_flag(context, "pause", name=name, database=database, namespace=namespace, as_json=as_json)


@app.command()
def resume(
    name: NameArgument,
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a pause; fires that were missed meanwhile are not made up."""
    _set_flag(context, "resume", name=name, database=database, namespace=namespace, as_json=as_json)


@app.command()
def disable(
    name: NameArgument,
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop fires and submissions, and cancel what waits."""
    _set_flag(context, "disable", name=name, database=database, namespace=namespace, as_json=as_json)


@app.command()
def enable(
    name: NameArgument,
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Undo a disable."""
    _set_flag(context, "enable", name=name, database=database, namespace=namespace, as_json=as_json)


def _set_flag(
    context: typer.Context,
    verb: FlagVerb,
    *,
    name: str,
    database: str | None,
    namespace: str | None,
    as_json: bool,
) -> None:
    from ostinato.cli.session import in_session
    from ostinato.control.pause import set_task_flag

    settings = settings_of(context, database=database, namespace=namespace)
    in_session(
        settings,
        lambda session: set_task_flag(session.store, session.ref(name), verb=verb, asker=session.asker),
    )
    if wants_json(context, as_json=as_json):
        print_json({"namespace": settings.namespace, "task": name, "done": _DONE[verb]})
    else:
        say(f"{settings.namespace}/{safe(name)} is {_DONE[verb]}")


@app.command()
def delete(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME...", help="Names of the tasks.", autocompletion=completing.tasks),
    ],
    context: typer.Context,
    *,
    yes: YesOption = False,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Delete tasks: what waits is cancelled, what runs goes on to its end and is not retried."""
    from ostinato.cli.confirming import confirm
    from ostinato.cli.session import in_session

    settings = settings_of(context, database=database, namespace=namespace)
    unique = list(dict.fromkeys(names))
    tasks, instances = in_session(settings, lambda session: _consequence(session, unique))
    consequence = f"{tasks} would be deleted, {instances}"
    if not confirm(f"delete {tasks}, {instances}", consequence=consequence, yes=yes):
        raise typer.Exit(1)
    _delete(settings, unique, in_json=wants_json(context, as_json=as_json))


async def _consequence(session: Session, names: Sequence[str]) -> tuple[str, str]:
    """The tasks, and what deleting them does to their instances, counted now. Raises ``TASK_NOT_FOUND``."""
    from ostinato.control.queries import count_instances, get_task
    from ostinato.core.states import LIVE_STATES, State
    from ostinato.store.batches import InstanceFilter

    waiting = running = 0
    is_exact = True
    live = tuple(sorted(LIVE_STATES))
    for name in names:
        row = await get_task(session.store, session.ref(name))
        where = InstanceFilter(namespace=row.ref.namespace, task=row.ref.name, states=live)
        counts = await count_instances(session.store, where, limit=_COUNT_MAX)
        found_running = counts.by_state.get(State.RUNNING, 0)
        running += found_running
        waiting += sum(counts.by_state.values()) - found_running
        is_exact = is_exact and counts.exact
    what = f"task {session.ref(names[0])}" if len(names) == 1 else f"{len(names)} tasks ({', '.join(names)})"
    least = "" if is_exact else "at least "
    return what, (
        f"with {least}{waiting} waiting instance{_plural(waiting)} to be cancelled "
        f"and {running} running to go on to {'its' if running == 1 else 'their'} end"
    )


def _plural(count: int) -> str:
    return "" if count == 1 else "s"


def _delete(settings: Settings, names: Sequence[str], *, in_json: bool) -> None:
    """Delete one after the other; what was deleted before one that fails is shown all the same."""
    from ostinato.cli.session import in_session
    from ostinato.control.delete import delete_task

    deleted: list[str] = []

    async def delete_all(session: Session) -> None:
        for name in names:
            await delete_task(session.store, session.ref(name), asker=session.asker)
            deleted.append(name)

    try:
        in_session(settings, delete_all)
    finally:
        if in_json:
            print_json(
                [{"namespace": settings.namespace, "task": name, "done": "deleted"} for name in deleted]
            )
        else:
            for name in deleted:
                say(f"{settings.namespace}/{safe(name)} is deleted")
