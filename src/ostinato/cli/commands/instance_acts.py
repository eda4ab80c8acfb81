"""``ostinato instance retry`` and ``cancel``: run what has ended again, or end what has not."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import completing
from ostinato.cli.commands.instance import app
from ostinato.cli.options import (
    DatabaseOption,
    JsonOption,
    NamespaceOption,
    ReasonOption,
    YesOption,
    settings_of,
    wants_json,
)
from ostinato.cli.selecting import (
    CodeOption,
    Selection,
    SinceOption,
    StateOption,
    TaskOption,
    UntilOption,
    selection,
)
from ostinato.errors import UserError

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.control.matching import Matched
    from ostinato.settings import Settings
    from ostinato.store.batches import InstanceFilter, RequestAnswer

IdsArgument = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="ID",
        help="Ids of the instances, or 8 characters of each from its start.",
        autocompletion=completing.instances,
    ),
]
MatchLimitOption = Annotated[
    int | None,
    typer.Option("--limit", metavar="N", help="With a filter: at most so many, newest first; else 1000."),
]
DryRunOption = Annotated[
    bool, typer.Option("--dry-run", help="With a filter: show which instances are meant, and do nothing.")
]
LatestOption = Annotated[
    bool, typer.Option("--latest", help="With the newest version of the task, not the pinned one.")
]
PayloadOption = Annotated[
    str | None,
    typer.Option("--payload", metavar="JSON", help="Another payload; @FILE reads a file, - stdin."),
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Also what ended in success; by filter only with --state success.")
]

_PAST = {"retry": "retried", "cancel": "cancelled"}


class _Act:
    """An act on instances: on those named, or on all that a filter matches."""

    def __init__(
        self,
        *,
        verb: str,
        done: Callable[[RequestAnswer], str],
        by_ids: Callable[[Session, Sequence[str]], Awaitable[list[RequestAnswer]]],
        by_filter: Callable[[Session, InstanceFilter, int, bool], Awaitable[list[Matched]]],
    ) -> None:
        self.verb = verb
        self.done = done
        self.by_ids = by_ids
        #: Takes the filter, how many at most, and whether nothing shall be asked.
        self.by_filter = by_filter


@app.command()
def retry(
    context: typer.Context,
    instance_ids: IdsArgument = None,
    *,
    task: TaskOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: MatchLimitOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    latest: LatestOption = False,
    payload: PayloadOption = None,
    force: ForceOption = False,
    reason: ReasonOption = "",
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Run ended instances again, as a new generation: those named, or failed ones by filter."""
    from ostinato.cli.payloads import payload_of
    from ostinato.control import replay

    another = None if payload is None else payload_of(payload, [])
    act = _Act(
        verb="retry",
        done=lambda _: "runs again",
        by_ids=lambda session, ids: replay.replay(
            session.store,
            ids,
            asker=session.asker,
            reason=reason,
            latest=latest,
            payload=another,
            force=force,
        ),
        by_filter=lambda session, where, count, dry: replay.replay_matching(
            session.store,
            where,
            limit=count,
            asker=session.asker,
            reason=reason,
            latest=latest,
            payload=another,
            dry_run=dry,
            force=force,
        ),
    )
    chosen = selection(task=task, states=state, code=code, since=since, until=until)
    settings = settings_of(context, database=database, namespace=namespace)
    in_json = wants_json(context, as_json=as_json)
    if _names_ids(instance_ids, chosen, limit=limit, dry_run=dry_run):
        _on_ids(act, settings, instance_ids or [], in_json=in_json)
    else:
        _on_matching(act, settings, chosen, limit=limit, dry_run=dry_run, yes=yes, in_json=in_json)


@app.command()
def cancel(
    context: typer.Context,
    instance_ids: IdsArgument = None,
    *,
    task: TaskOption = None,
    state: StateOption = None,
    code: CodeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: MatchLimitOption = None,
    dry_run: DryRunOption = False,
    yes: YesOption = False,
    reason: ReasonOption = "",
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """End instances that have not ended: what waits at once, what runs by asking it first."""
    from ostinato.control import cancel as verbs

    act = _Act(
        verb="cancel",
        # The owner says whether it has ended at once or was asked to.
        done=lambda answer: answer.message,
        by_ids=lambda session, ids: verbs.cancel(session.store, ids, asker=session.asker, reason=reason),
        by_filter=lambda session, where, count, dry: verbs.cancel_matching(
            session.store, where, limit=count, asker=session.asker, reason=reason, dry_run=dry
        ),
    )
    chosen = selection(task=task, states=state, code=code, since=since, until=until)
    settings = settings_of(context, database=database, namespace=namespace)
    in_json = wants_json(context, as_json=as_json)
    if _names_ids(instance_ids, chosen, limit=limit, dry_run=dry_run):
        _on_ids(act, settings, instance_ids or [], in_json=in_json)
    else:
        _on_matching(act, settings, chosen, limit=limit, dry_run=dry_run, yes=yes, in_json=in_json)


def _names_ids(
    instance_ids: Sequence[str] | None, chosen: Selection, *, limit: int | None, dry_run: bool
) -> bool:
    """Whether ids are given rather than a filter. Raises ``INVALID_VALUE`` for both and for neither."""
    if not instance_ids:
        if chosen.is_empty:
            raise UserError(
                "INVALID_VALUE",
                "instances are needed",
                field="ID",
                hint="give ids, or a filter: --task, --state, --code, --since, --until",
            )
        return False
    filtering = [option for option, given in _filters(chosen, limit=limit, dry_run=dry_run) if given]
    if filtering:
        raise UserError("INVALID_VALUE", "give ids or a filter, not both", field=filtering[0])
    return True


def _filters(chosen: Selection, *, limit: int | None, dry_run: bool) -> list[tuple[str, bool]]:
    return [
        ("--task", chosen.task is not None),
        ("--state", bool(chosen.states)),
        ("--code", chosen.code is not None),
        ("--since", chosen.since is not None),
        ("--until", chosen.until is not None),
        ("--limit", limit is not None),
        ("--dry-run", dry_run),
    ]


def _on_ids(act: _Act, settings: Settings, instance_ids: Sequence[str], *, in_json: bool) -> None:
    from ostinato.cli.answers import show_answers
    from ostinato.cli.session import in_session
    from ostinato.control.queries import resolve_ids

    async def work(session: Session) -> tuple[list[str], list[RequestAnswer]]:
        unique = list(dict.fromkeys(await resolve_ids(session.store, instance_ids)))
        return unique, await act.by_ids(session, unique)

    unique, answers = in_session(settings, work)
    show_answers(unique, answers, done=act.done, in_json=in_json)


def _on_matching(
    act: _Act,
    settings: Settings,
    chosen: Selection,
    *,
    limit: int | None,
    dry_run: bool,
    yes: bool,
    in_json: bool,
) -> None:
    """Find the instances, ask whether they are meant, then act; `dry_run` shows them and ends there."""
    from ostinato.cli.answers import show_answers
    from ostinato.cli.confirming import confirm
    from ostinato.cli.output import note
    from ostinato.cli.selecting import filter_of
    from ostinato.cli.session import in_session
    from ostinato.control.matching import MATCH_DEFAULT

    count_max = MATCH_DEFAULT if limit is None else limit

    async def matching(session: Session, *, dry: bool) -> list[Matched]:
        return await act.by_filter(session, await filter_of(session, chosen), count_max, dry)

    if dry_run or not yes:
        found = in_session(settings, lambda session: matching(session, dry=True))
        if dry_run:
            _show_meant(found, in_json=in_json)
            return
        meant = _meant(found, settings)
        would = f"{meant} would be {_PAST[act.verb]}"
        if found and not confirm(f"{act.verb} {meant}", consequence=would, yes=False):
            raise typer.Exit(1)
    matched = in_session(settings, lambda session: matching(session, dry=False))
    pairs = [(one.instance.id, one.answer) for one in matched if one.answer is not None]
    if len(matched) == count_max:
        note(f"there may be more: --limit is {count_max}")
    if not matched:
        note("no instance matches")
    show_answers(
        [instance_id for instance_id, _ in pairs],
        [answer for _, answer in pairs],
        done=act.done,
        in_json=in_json,
    )


def _meant(found: Sequence[Matched], settings: Settings) -> str:
    tasks = sorted({str(one.instance.ref) for one in found})
    what = "1 instance" if len(found) == 1 else f"{len(found)} instances"
    of = tasks[0] if len(tasks) == 1 else f"{len(tasks)} tasks in namespace {settings.namespace}"
    return f"{what} of {of}"


def _show_meant(found: Sequence[Matched], *, in_json: bool) -> None:
    from ostinato.cli.output import note, print_json, print_table
    from ostinato.cli.views import INSTANCE_COLUMNS, instance_cells

    if in_json:
        import msgspec

        from ostinato.control.shapes.instance import instance_shape

        print_json([msgspec.to_builtins(instance_shape(one.instance)) for one in found])
    else:
        print_table(
            INSTANCE_COLUMNS,
            [instance_cells(one.instance) for one in found],
            empty="No instance matches.",
        )
    note(f"{len(found)} instances are meant; nothing was done")
