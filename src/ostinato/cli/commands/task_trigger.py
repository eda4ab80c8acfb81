"""``ostinato task trigger``: run a task now or later, and wait for its end."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.commands.task import NameArgument, app
from ostinato.cli.options import (
    DatabaseOption,
    JsonOption,
    NamespaceOption,
    ReasonOption,
    settings_of,
    wants_json,
)
from ostinato.cli.output import note, print_json, say
from ostinato.errors import UserError

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.control.submit import SubmitRequest
    from ostinato.store.batches import SubmitReceipt


PayloadOption = Annotated[
    str | None,
    typer.Option(
        "--payload", metavar="JSON", help="Arguments as a JSON object; @FILE reads a file, - stdin."
    ),
]
ArgumentsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--arg", metavar="NAME=VALUE", help="One argument, as JSON or else a text; may be repeated."
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", help="Idempotency key: an equal request makes no second instance.")
]
PriorityOption = Annotated[
    str | None, typer.Option("--priority", metavar="N", help="0 to 9, higher first; the task's if left out.")
]
DelayOption = Annotated[
    str | None, typer.Option("--delay", metavar="DURATION", help="Not before so long from now: 5m.")
]
AtOption = Annotated[
    str | None, typer.Option("--at", metavar="INSTANT", help="Not before this ISO 8601 instant.")
]
WaitOption = Annotated[bool, typer.Option("--wait", help="Wait for the end; exit code 1 unless success.")]


@app.command("trigger")
def trigger_task(
    name: NameArgument,
    context: typer.Context,
    *,
    payload: PayloadOption = None,
    arguments: ArgumentsOption = None,
    key: KeyOption = None,
    priority: PriorityOption = None,
    delay: DelayOption = None,
    at: AtOption = None,
    reason: ReasonOption = "",
    wait: WaitOption = False,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run a task now, or later with --delay or --at."""
    import msgspec

    from ostinato.cli.payloads import payload_of
    from ostinato.cli.session import in_session, user_name
    from ostinato.cli.waiting import follow_to_end
    from ostinato.control.names import validate_key
    from ostinato.control.requests import validate_reason
    from ostinato.control.shapes.answers import submitted_shape
    from ostinato.control.submit import SubmitRequest
    from ostinato.core.instants import parse_duration, parse_instant

    settings = settings_of(context, database=database, namespace=namespace)
    validate_reason(reason)
    if key is not None:
        # In ``control`` an empty key means none; who gives one has lost it on the way.
        validate_key(key)
    by = user_name()
    started = f"started by {by}" if by else "started by hand"
    request = SubmitRequest(
        namespace=settings.namespace,
        task=name,
        payload=payload_of(payload, arguments or []),
        key=key or "",
        delay_us=None if delay is None else parse_duration(delay, field="delay"),
        due_us=None if at is None else parse_instant(at, field="at"),
        priority=None if priority is None else _priority(priority),
        reason=f"{started}: {reason}" if reason else started,
    )
    try:
        receipt = in_session(settings, lambda session: _submit(session, request))
    except KeyboardInterrupt:
        note(f"whether it was started is not known: ostinato instance list --task {name} shows it")
        raise
    in_json = wants_json(context, as_json=as_json)
    if not receipt.created and (wait or not in_json):
        note(f"the key {key!r} is live: this instance existed before")
    if wait:
        follow_to_end(settings, receipt.instance_id, in_json=in_json)
    elif in_json:
        print_json(msgspec.to_builtins(submitted_shape(receipt)))
    else:
        say(receipt.instance_id)


async def _submit(session: Session, request: SubmitRequest) -> SubmitReceipt:
    from ostinato.control.submit import submit

    return (await submit(session.store, [request], now_us=await session.store.now_us(), rng=session.rng))[0]


def _priority(text: str) -> int:
    from ostinato.control.apply import PRIORITY_MAX

    try:
        return int(text)
    except ValueError:
        message = f"{text} is not a whole number from 0 to {PRIORITY_MAX}"
        raise UserError("INVALID_VALUE", message, field="priority") from None
