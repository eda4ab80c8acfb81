"""``ostinato task trigger``, ``pause``, ``resume``, ``disable``, ``enable``: what people do to a task."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.commands.task import NameArgument
from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, settings_of, wants_json
from ostinato.cli.output import note, print_json, safe, say

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.control.pause import FlagVerb
    from ostinato.store.batches import SubmitReceipt

app = typer.Typer()

_DONE = {"pause": "paused", "resume": "resumed", "disable": "disabled", "enable": "enabled"}


@app.command("trigger")
def trigger_task(
    name: NameArgument,
    context: typer.Context,
    *,
    payload: Annotated[
        str, typer.Option("--payload", metavar="JSON", help="Arguments, as a JSON object.")
    ] = "{}",
    key: Annotated[
        str, typer.Option("--key", help="Idempotency key: an equal request makes no second instance.")
    ] = "",
    priority: Annotated[
        int | None, typer.Option("--priority", help="0 to 9, higher first; the task's if left out.")
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait", help="Wait for the end; exit code 1 unless success.")
    ] = False,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a task now."""
    from ostinato.cli.session import in_session, user_name
    from ostinato.cli.waiting import follow_to_end
    from ostinato.control.trigger import trigger

    settings = settings_of(context, database=database, namespace=namespace)

    async def start(session: Session) -> SubmitReceipt:
        return await trigger(
            session.store,
            session.ref(name),
            now_us=await session.store.now_us(),
            rng=session.rng,
            by=user_name(),
            payload=payload.encode("utf-8", "surrogatepass"),
            key=key,
            priority=priority,
        )

    receipt = in_session(settings, start)
    in_json = wants_json(context, as_json=as_json)
    if wait:
        follow_to_end(settings, receipt.instance_id, in_json=in_json)
    elif in_json:
        print_json({"instance_id": receipt.instance_id, "created": receipt.created})
    else:
        say(receipt.instance_id)
        if not receipt.created:
            note(f"the key {key!r} is live: this instance existed before")


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
