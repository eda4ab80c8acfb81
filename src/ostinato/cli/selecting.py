"""Which instances are meant: the filters of ``instance list``, ``retry`` and ``cancel``."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from ostinato.cli import completing
from ostinato.errors import UserError, restated

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.store.batches import InstanceFilter

TaskOption = Annotated[
    str | None,
    typer.Option("--task", metavar="NAME", help="Only of this task.", autocompletion=completing.tasks),
]
StateOption = Annotated[
    list[str] | None,
    typer.Option(
        "--state",
        metavar="STATE",
        help="Only in this state; may be repeated.",
        autocompletion=completing.states,
    ),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="KEY", help="Only with this idempotency key.")
]
CodeOption = Annotated[
    str | None, typer.Option("--code", metavar="CODE", help="Only whose newest failure has this code.")
]
SinceOption = Annotated[
    str | None,
    typer.Option("--since", metavar="WHEN", help="Only created since: 2h ago, or an ISO 8601 instant."),
]
UntilOption = Annotated[
    str | None,
    typer.Option("--until", metavar="WHEN", help="Only created before: 2h ago, or an ISO 8601 instant."),
]

_LOOKS_LIKE_DURATION = re.compile(r"\s*[0-9][0-9.]*\s*[a-z]", re.ASCII)


class Selection(msgspec.Struct, kw_only=True, frozen=True):
    """Filters as they were given; None and empty: not given."""

    task: str | None = None
    states: Sequence[str] = ()
    key: str | None = None
    code: str | None = None
    since: str | None = None
    until: str | None = None

    @property
    def is_empty(self) -> bool:
        return self == Selection()


def selection(
    *,
    task: str | None,
    states: Sequence[str] | None,
    code: str | None,
    since: str | None,
    until: str | None,
    key: str | None = None,
) -> Selection:
    """The filters of a command. Raises ``INVALID_VALUE`` for a state that there is none of."""
    from ostinato.control.filters import states_of

    states_of(states or (), field="--state")
    return Selection(task=task, states=tuple(states or ()), key=key, code=code, since=since, until=until)


class One(msgspec.Struct, kw_only=True, frozen=True):
    """Which single instance is meant: by (the beginning of) its id, or the last one, perhaps of a task."""

    instance_id: str | None
    last: bool
    task: str | None

    def __post_init__(self) -> None:
        """Raises ``INVALID_VALUE`` unless exactly one of the ways is taken."""
        if self.last and self.instance_id is not None:
            raise UserError("INVALID_VALUE", "give an id or --last, not both", field="--last")
        if not self.last and self.task is not None:
            raise UserError("INVALID_VALUE", "goes with --last", field="--task")
        if not self.last and self.instance_id is None:
            hint = "give its id, or --last; ostinato instance list shows them"
            raise UserError("INVALID_VALUE", "an instance is needed", field="ID", hint=hint)

    async def find(self, session: Session) -> str:
        """Its id. Raises ``INVALID_VALUE`` for an ambiguous one, ``INSTANCE_NOT_FOUND`` if there is none."""
        from ostinato.control.queries import collect_instances, resolve_ids

        if self.instance_id is not None:
            return (await resolve_ids(session.store, [self.instance_id]))[0]
        where = await filter_of(session, Selection(task=self.task))
        found = (await collect_instances(session.store, where, limit=1)).instances
        if not found:
            of = f"of {session.ref(self.task)}" if self.task else f"in namespace {session.settings.namespace}"
            raise UserError("INSTANCE_NOT_FOUND", f"there is no instance {of}", field="--last")
        return found[0].id


async def filter_of(session: Session, chosen: Selection) -> InstanceFilter:
    """The filter in the session's namespace; "2h ago" counts from the database's time, once.

    Raises ``INVALID_NAME``, ``INVALID_VALUE`` and ``INVALID_INSTANT`` naming the option.
    """
    from ostinato.control.filters import instance_filter

    now_us = await session.store.now_us()
    from_us = moment(chosen.since, now_us=now_us, field="--since")
    before_us = moment(chosen.until, now_us=now_us, field="--until")
    return instance_filter(
        namespace=session.settings.namespace,
        task=chosen.task,
        states=chosen.states,
        key=chosen.key,
        code=chosen.code,
        created_from_us=from_us,
        created_before_us=before_us,
        prefix="--",
        before_field="until",
    )


def moment(text: str | None, *, now_us: int, field: str) -> int | None:
    """An instant, or a duration before `now_us`; None stays None. Raises ``INVALID_INSTANT``."""
    from ostinato.core.instants import INSTANT_MIN_US, parse_duration, parse_instant

    if text is None:
        return None
    if _LOOKS_LIKE_DURATION.match(text):
        return max(now_us - parse_duration(text, field=field), INSTANT_MIN_US)
    try:
        return parse_instant(text, field=field)
    except UserError as error:
        hint = error.hint if "offset" in error.message else "write 2h, or 2026-01-31T18:00:00+01:00"
        raise restated(error, hint=hint) from None
