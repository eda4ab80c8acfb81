"""``ostinato task trigger``: run a task now or later, and wait for its end."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.commands.task import NameArgument, app
from ostinato.cli.liveness import HOW_TO_START, no_scheduler_runs
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
        "--arg",
        metavar="NAME=TEXT",
        help="One argument: NAME=TEXT is always text, NAME:=JSON any value (count:=3); may be repeated.",
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


@app.command("trigger", context_settings={"allow_extra_args": True})
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
    _refuse_stray(context.args)
    from ostinato.cli.payloads import payload_of
    from ostinato.cli.session import in_session, user_name
    from ostinato.cli.waiting import follow_to_end
    from ostinato.control.names import validate_key
    from ostinato.control.requests import validate_reason
    from ostinato.control.submit import SubmitRequest
    from ostinato.core.instants import parse_duration, parse_instant

    settings = settings_of(context, database=database, namespace=namespace)
    in_json = wants_json(context, as_json=as_json)
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
        receipt, waits_for_scheduler = in_session(
            settings, lambda session: _submitted(session, request, looks=not (wait or in_json))
        )
    except KeyboardInterrupt:
        note(f"whether it was started is not known: ostinato instance list --task {name} shows it")
        raise
    if not receipt.created and (wait or not in_json):
        note(f"the key {key!r} is live: this instance existed before")
    if wait:
        follow_to_end(settings, receipt.instance_id, in_json=in_json)
    else:
        _show_receipt(receipt, waits_for_scheduler=waits_for_scheduler, in_json=in_json)


def _refuse_stray(stray: list[str]) -> None:
    """Arguments of the task without the option that takes them."""
    if not stray:
        return
    meant = " ".join(f"--arg {shlex.quote(text)}" for text in stray)
    is_named = all("=" in text for text in stray)
    raise UserError(
        "INVALID_VALUE",
        f"{stray[0]!a} is one argument too many",
        field="--arg",
        hint=f"write {meant}" if is_named else "the task takes its arguments as --arg NAME=TEXT",
    )


def _show_receipt(receipt: SubmitReceipt, *, waits_for_scheduler: bool, in_json: bool) -> None:
    if in_json:
        import msgspec

        from ostinato.control.shapes.answers import submitted_shape

        print_json(msgspec.to_builtins(submitted_shape(receipt)))
        return
    say(receipt.instance_id)
    if waits_for_scheduler:
        note(f"no scheduler is running: it is recorded, and starts when one does; {HOW_TO_START}")


async def _submitted(session: Session, request: SubmitRequest, *, looks: bool) -> tuple[SubmitReceipt, bool]:
    """The receipt and, if it `looks`, whether no scheduler is there to start the instance."""
    receipt = await _submit(session, request)
    return receipt, looks and await no_scheduler_runs(session)


async def _submit(session: Session, request: SubmitRequest) -> SubmitReceipt:
    from ostinato.control.pressure import passing
    from ostinato.control.submit import submit

    store = session.store
    async with passing(session.pressure, [request]):
        return (await submit(store, [request], now_us=await store.now_us(), rng=session.rng))[0]


def _priority(text: str) -> int:
    from ostinato.control.apply import PRIORITY_MAX

    try:
        return int(text)
    except ValueError:
        message = f"{text} is not a whole number from 0 to {PRIORITY_MAX}"
        raise UserError("INVALID_VALUE", message, field="priority") from None
