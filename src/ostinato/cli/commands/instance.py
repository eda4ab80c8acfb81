"""``ostinato instance list`` and ``show``: what ran, and why it was (not) retried."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import completing
from ostinato.cli.options import (
    DatabaseOption,
    IntervalOption,
    JsonOption,
    LimitOption,
    NamespaceOption,
    WatchOption,
    settings_of,
    wants_json,
)
from ostinato.cli.selecting import (
    CodeOption,
    KeyOption,
    One,
    SinceOption,
    StateOption,
    TaskOption,
    UntilOption,
    selection,
)
from ostinato.errors import UserError

if TYPE_CHECKING:
    from ostinato.cli.selecting import Selection
    from ostinato.cli.session import Session
    from ostinato.cli.watching import Answer
    from ostinato.core.model import Instance
    from ostinato.store.batches import InstanceCounts, InstancePage

app = typer.Typer(
    help="Instances, each one run of a task with all its attempts: list, show, logs, retry, cancel.",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
)

IdArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="ID",
        help="Id of the instance, or its first 8 characters or more.",
        autocompletion=completing.instances,
    ),
]
LastOption = Annotated[bool, typer.Option("--last", help="Instead of an id: the newest, of --task if given.")]
LastTaskOption = Annotated[
    str | None,
    typer.Option(
        "--task", metavar="NAME", help="With --last: of this task.", autocompletion=completing.tasks
    ),
]

#: Instances that `--count` looks at where no index tells their number.
_COUNT_MAX = 1_000_000


@app.command("list")
def list_instances(
    context: typer.Context,
    *,
    task: TaskOption = None,
    state: StateOption = None,
    key: KeyOption = None,
    code: CodeOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    limit: LimitOption = 50,
    cursor: Annotated[
        str | None, typer.Option("--cursor", metavar="CURSOR", help="Go on where an earlier list ended.")
    ] = None,
    every: Annotated[bool, typer.Option("--all", help="List every one, however many; no --limit.")] = False,
    count: Annotated[bool, typer.Option("--count", help="Only how many there are, by state.")] = False,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """List instances, newest first."""
    from ostinato.cli import watching

    chosen = selection(task=task, states=state, key=key, code=code, since=since, until=until)
    if count and cursor is not None:
        raise UserError("INVALID_VALUE", "is of no use with --count", field="--cursor")

    async def look(session: Session) -> Answer:
        if count:
            return await _counted(session, chosen)
        return await _listed(session, chosen, cursor=cursor, limit=None if every else limit)

    watching.show(
        settings_of(context, database=database, namespace=namespace),
        look,
        in_json=wants_json(context, as_json=as_json),
        watch=watch,
        interval=interval,
    )


@app.command()
def show(
    context: typer.Context,
    instance_id: IdArgument = None,
    *,
    last: LastOption = False,
    task: LastTaskOption = None,
    traceback: Annotated[bool, typer.Option("--traceback", help="Show the tracebacks too.")] = False,
    every: Annotated[
        bool, typer.Option("--all", help="Tell every attempt and event, not only the newest 200.")
    ] = False,
    watch: WatchOption = False,
    interval: IntervalOption = None,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell the story of one instance: attempts, failures, decisions, and what comes next."""
    from ostinato.cli import watching

    one = One(instance_id=instance_id, last=last, task=task)

    async def look(session: Session) -> Answer:
        return await _story(session, await one.find(session), traceback=traceback, every=every)

    watching.show(
        settings_of(context, database=database, namespace=namespace),
        look,
        in_json=wants_json(context, as_json=as_json),
        watch=watch,
        interval=interval,
    )


async def _listed(session: Session, chosen: Selection, *, cursor: str | None, limit: int | None) -> Answer:
    from ostinato.cli.selecting import filter_of
    from ostinato.cli.session import known_namespaces
    from ostinato.control.queries import collect_instances, validate_limit

    where = await filter_of(session, chosen)
    if limit is not None:
        validate_limit(limit)
    page = await collect_instances(session.store, where, cursor=cursor, limit=limit)
    nothing = not page.instances and cursor is None
    remarks = await known_namespaces(session) if nothing and chosen.is_empty else []
    if nothing and chosen.task is not None:
        remarks += await _unknown_task(session, chosen.task)
    return _list_answer(page, remarks=remarks)


async def _unknown_task(session: Session, name: str) -> list[str]:
    """A remark that there is no such task; instances of a deleted one are listed all the same."""
    from ostinato.control.submit import task_not_found

    ref = session.ref(name)
    if ref in await session.store.get_tasks([ref]):
        return []
    return [str(await task_not_found(session.store, ref))]


def _list_answer(page: InstancePage, *, remarks: list[str]) -> Answer:
    from ostinato.cli.output import table_lines
    from ostinato.cli.views import INSTANCE_COLUMNS, instance_cells
    from ostinato.cli.watching import Answer

    def data() -> object:
        import msgspec

        from ostinato.control.shapes.instance import instance_shape

        return [msgspec.to_builtins(instance_shape(instance)) for instance in page.instances]

    return Answer(
        data=data,
        lines=lambda width: table_lines(
            INSTANCE_COLUMNS,
            [instance_cells(instance) for instance in page.instances],
            empty="There are no such instances.",
            width=width,
        ),
        notes=remarks if page.cursor is None else [*remarks, f"there are more: --cursor {page.cursor}"],
        facts=None if page.cursor is None else {"cursor": page.cursor},
    )


async def _counted(session: Session, chosen: Selection) -> Answer:
    from ostinato.cli.selecting import filter_of
    from ostinato.control.queries import count_instances

    where = await filter_of(session, chosen)
    return _count_answer(await count_instances(session.store, where, limit=_COUNT_MAX))


def _count_answer(counts: InstanceCounts) -> Answer:
    from ostinato.cli.output import table_lines
    from ostinato.cli.watching import Answer

    def data() -> object:
        import msgspec

        from ostinato.control.shapes.answers import counts_shape

        return msgspec.to_builtins(counts_shape(counts))

    total = sum(counts.by_state.values())
    rows: list[tuple[str, int]] = [*sorted(counts.by_state.items()), ("all", total)]
    return Answer(
        data=data,
        lines=lambda width: table_lines(("STATE", "COUNT"), rows, empty="", width=width),
        notes=[] if counts.exact else [f"there are more: counting ended at {total}"],
    )


async def _story(session: Session, instance_id: str, *, traceback: bool, every: bool) -> Answer:
    from ostinato.cli.output import safe
    from ostinato.cli.watching import Answer
    from ostinato.control.explain import HISTORY_ROWS_MAX, whole_story
    from ostinato.control.story_text import story_lines
    from ostinato.core.states import TERMINAL_STATES

    instance, runs = await _instance_and_scheduler(session, instance_id)
    rows_max = None if every else HISTORY_ROWS_MAX
    told = await whole_story(session.store, instance_id, scheduler_runs=runs, rows_max=rows_max)

    def data() -> object:
        import msgspec

        from ostinato.control.shapes.instance import story_shape

        return msgspec.to_builtins(story_shape(told.instance, told.story, history=told.history))

    return Answer(
        data=data,
        lines=lambda _: [
            safe(line) for line in story_lines(told.story, traceback=traceback, now_us=told.now_us)
        ],
        is_final=instance.state in TERMINAL_STATES,
    )


async def _instance_and_scheduler(session: Session, instance_id: str) -> tuple[Instance, bool]:
    """The instance, and whether a scheduler runs that would do what comes next."""
    from ostinato.control.queries import get_instance, scheduler_is_running
    from ostinato.core.states import TERMINAL_STATES

    store = session.store
    instance = await get_instance(store, instance_id)
    if instance.state in TERMINAL_STATES:
        return instance, True
    if instance.due_us > await store.now_us():  # nothing is overdue: no reason to watch for a renewal
        return instance, bool(await store.nodes())
    runs = await scheduler_is_running(store, clock=session.clock)
    return await get_instance(store, instance_id), runs
