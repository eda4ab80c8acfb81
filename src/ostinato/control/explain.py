"""Explain: the story of one instance, from its row and its history.

What ran where, how each attempt ended, which rule decided in words, what comes next and when, why it waits.
``story_text`` renders it for people; as JSON the structs themselves are stable.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.control.budget_wait import budget_wait
from ostinato.control.queries import get_instance, read_output
from ostinato.control.waiting_reason import waiting_reason
from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRow
from ostinato.core.failure.failure import Cause
from ostinato.core.instants import format_instant
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.states import TERMINAL_STATES, Hold, State
from ostinato.store.protocol import Store

#: Last lines of what a failed command wrote to stderr that its story holds.
_ERROR_LINES_MAX = 5

#: Newest rows of its history that a story tells, unless it is asked for all.
HISTORY_ROWS_MAX = 200

#: How an attempt ended, by the kind of its row.
_ENDINGS = {
    HistoryKind.RETRY: "failed",
    HistoryKind.GAVE_UP: "failed",
    HistoryKind.REFUSED: "refused before it started",
    HistoryKind.HANDED_BACK: "handed back",
    HistoryKind.CANCELLED: "cancelled",
}
_HOLDS = {
    Hold.NO_WORKER: "no connected worker can run it",
    Hold.BUSY: "all workers that can run it are busy",
    Hold.PAUSED: "its task is paused",
    Hold.OVERLAP: "an earlier instance of its task has not ended",
    Hold.BUDGET: "the retry budget of its task is used up",
}


class AttemptStory(msgspec.Struct, kw_only=True, frozen=True):
    """One attempt. Instants are None where that has not happened, or nobody knows when."""

    number: int
    generation: int
    attempt_id: str
    worker: str
    assigned_us: int | None = None
    started_us: int | None
    ended_us: int | None
    #: ``running``, ``success``, ``failed``, ``lost``, ``cancelled``, ``handed back`` or ``refused …``.
    ended: str
    code: str = ""
    category: str = ""
    message: str = ""
    #: The rule that decided what follows, in words.
    decision: str = ""
    #: Due time of the next attempt that was decided on.
    next_due_us: int | None = None
    chain: tuple[Cause, ...] = ()
    traceback: str = ""
    #: Last lines that a command wrote to stderr; of the newest attempt only, and only if it failed.
    error_output: tuple[str, ...] = ()


class EventStory(msgspec.Struct, kw_only=True, frozen=True):
    """Something else that happened to the instance: a cancel, a replay, a late result."""

    at_us: int
    kind: str
    sentence: str
    generation: int
    attempt: int
    by: str = ""


class Story(msgspec.Struct, kw_only=True, frozen=True):
    """Everything that a person wants to know of one instance."""

    id: str
    namespace: str
    task: str
    task_version: int
    state: State
    generation: int
    priority: int
    key: str
    created_us: int
    due_us: int
    #: Scheduled instant of the fire that made it; None: it was submitted.
    fire_us: int | None
    #: Its number among the shards of its fire, from 0 on, and how many these are.
    shard: int = 0
    shard_total: int = 1
    expires_us: int | None
    finished_us: int | None
    #: As JSON; the result is None unless it is a success.
    payload: str
    result: str | None
    #: Why it is in this state; empty on the uneventful path.
    reason: str
    #: Why it does not start although it is due; empty if it is not held.
    waits: str
    #: What comes next and when, in one sentence.
    next: str
    cancel_requested_us: int | None
    cancel_reason: str
    #: Failures of the task itself and lost attempts in this generation, with what the policy allows.
    failures: int
    max_retry: int | None
    lost: int
    max_lost: int | None
    attempts: list[AttemptStory]
    events: list[EventStory]
    #: Rows of the history before those that are told here.
    left_out: int = 0


class WholeStory(msgspec.Struct, kw_only=True, frozen=True):
    """A story with what it was made of."""

    instance: Instance
    history: list[HistoryRow]
    story: Story
    #: When it was told, on the store's clock.
    now_us: int


async def story(store: Store, instance_id: str, *, scheduler_runs: bool = True) -> Story:
    """The story of an instance; what comes next depends on whether a scheduler runs.

    Raises ``INSTANCE_NOT_FOUND``.
    """
    return (await whole_story(store, instance_id, scheduler_runs=scheduler_runs)).story


async def whole_story(
    store: Store,
    instance_id: str,
    *,
    scheduler_runs: bool = True,
    rows_max: int | None = HISTORY_ROWS_MAX,
) -> WholeStory:
    """As `story`, with instance and history; it tells the newest `rows_max` rows, None: however many.

    Raises ``INSTANCE_NOT_FOUND``.
    """
    instance = await get_instance(store, instance_id)
    left_out = 0 if rows_max is None else max(0, await store.count_history(instance_id) - rows_max)
    history = await store.history(instance_id, after=left_out)
    pinned = (instance.ref, instance.task_version)
    definition = (await store.load_definitions([pinned])).get(pinned)
    task = (await store.get_tasks([instance.ref])).get(instance.ref)
    now_us = await store.now_us()
    waits = ""
    if scheduler_runs and task is not None and definition is not None and _is_overdue(instance, task, now_us):
        waits = await waiting_reason(store, task.definition)
    elif scheduler_runs and task is not None and instance.hold is Hold.BUDGET:
        waits = await budget_wait(store, instance, newest=task.definition, now_us=now_us)
    told = tell(
        instance, history, definition=definition, task=task, scheduler_runs=scheduler_runs, waits=waits
    )
    if definition is not None and isinstance(definition.executor, ShellSpec):
        told = await _with_error_output(store, told)
    return WholeStory(
        instance=instance,
        history=history,
        story=msgspec.structs.replace(told, left_out=left_out),
        now_us=now_us,
    )


def _is_overdue(instance: Instance, task: TaskRow, now_us: int) -> bool:
    """Whether it could run as far as is on record, and does not."""
    waits = instance.state in (State.PENDING, State.RETRY_WAITING) and instance.hold is None
    return waits and instance.due_us <= now_us and not (task.paused or task.disabled)


async def _with_error_output(store: Store, told: Story) -> Story:
    """`told` with the last words of the command that failed last: often all that says why."""
    if not told.attempts or told.attempts[-1].ended != "failed":
        return told
    newest = told.attempts[-1]
    written = [
        chunk.text
        async for chunk in read_output(store, told.id, after=(newest.number, -1))
        if chunk.stream == "stderr" and chunk.attempt == newest.number
    ]
    # At line feeds alone: what else ends a line for Python is part of what was written.
    lines = "".join(written).removesuffix("\n").split("\n")
    last = tuple(line.removesuffix("\r") for line in lines[-_ERROR_LINES_MAX:] if written)
    newest = msgspec.structs.replace(newest, error_output=last)
    return msgspec.structs.replace(told, attempts=[*told.attempts[:-1], newest])


def tell(
    instance: Instance,
    history: Sequence[HistoryRow],
    *,
    definition: TaskDefinition | None,
    task: TaskRow | None,
    scheduler_runs: bool = True,
    waits: str = "",
) -> Story:
    """The story made of what the store knows; `definition` is the pinned one, None if it is gone.

    `waits` says why it does not start, where its row does not say all of that.
    """
    waits = waits or _waits(instance)
    policy = None if definition is None else definition.retry
    return Story(
        id=instance.id,
        namespace=instance.namespace,
        task=instance.task,
        task_version=instance.task_version,
        state=instance.state,
        generation=instance.generation,
        priority=instance.priority,
        key=instance.key,
        created_us=instance.created_us,
        due_us=instance.due_us,
        fire_us=instance.fire_us,
        shard=instance.shard,
        shard_total=instance.shard_total,
        expires_us=instance.expires_us,
        finished_us=instance.finished_us,
        payload=instance.payload.decode("utf-8", "replace"),
        result=None if instance.result is None else instance.result.decode("utf-8", "replace"),
        reason=instance.reason,
        waits=waits,
        next=_next(instance, task, waits) if scheduler_runs else _next_without_scheduler(instance),
        cancel_requested_us=instance.cancel_requested_us,
        cancel_reason=instance.cancel_reason,
        failures=instance.counters.failures,
        max_retry=None if policy is None else policy.max_retry,
        lost=instance.counters.lost,
        max_lost=None if policy is None else policy.max_lost,
        attempts=_attempts(instance, history),
        events=[_event(row) for row in history if not _ends_attempt(row)],
    )


def _ends_attempt(row: HistoryRow) -> bool:
    return bool(row.attempt_id) and row.kind in _ENDINGS


def _event(row: HistoryRow) -> EventStory:
    return EventStory(
        at_us=row.at_us,
        kind=str(row.kind),
        sentence=row.sentence,
        generation=row.generation,
        attempt=row.attempt,
        by=row.by,
    )


def _attempts(instance: Instance, history: Sequence[HistoryRow]) -> list[AttemptStory]:
    attempts = {row.attempt: _ended_attempt(row, instance) for row in history if _ends_attempt(row)}
    # The uneventful path leaves no row: the newest attempt is told by the instance's own columns.
    if instance.attempt not in attempts and instance.state in (State.RUNNING, State.SUCCESS):
        attempts[instance.attempt] = _newest_attempt(instance)
    return [attempts[number] for number in sorted(attempts)]


def _newest_attempt(instance: Instance) -> AttemptStory:
    return AttemptStory(
        number=instance.attempt,
        generation=instance.generation,
        attempt_id=instance.attempt_id,
        worker=instance.worker_name,
        assigned_us=instance.assigned_us,
        started_us=instance.started_us,
        ended_us=instance.finished_us,
        ended="success" if instance.state is State.SUCCESS else "running",
    )


def _ended_attempt(row: HistoryRow, instance: Instance) -> AttemptStory:
    ending = _ENDINGS[row.kind]
    if ending == "failed" and row.category == "lost":
        ending = "lost"
    failure = row.failure
    return AttemptStory(
        number=row.attempt,
        generation=row.generation,
        attempt_id=row.attempt_id,
        worker=row.worker_name,
        assigned_us=instance.assigned_us if row.attempt_id == instance.attempt_id else None,
        started_us=row.started_us,
        ended_us=row.at_us,
        ended=ending,
        code=row.code,
        category=row.category,
        message="" if failure is None else failure.message,
        decision=row.sentence,
        next_due_us=row.due_us,
        chain=() if failure is None else failure.chain,
        traceback="" if failure is None else failure.traceback,
    )


def _waits(instance: Instance) -> str:
    if instance.hold is None:
        return ""
    return instance.reason or _HOLDS[instance.hold]


def _next(instance: Instance, task: TaskRow | None, waits: str = "") -> str:
    state = instance.state
    if state in TERMINAL_STATES:
        return "nothing: it has ended; only a replay would run it again"
    if state is State.BLOCKED:
        return "it starts once everything upstream has ended"
    if state is State.RUNNING:
        if instance.cancel_requested_us is not None:
            return f"attempt {instance.attempt} has been asked to end; then it is cancelled"
        sentence = f"attempt {instance.attempt} is running on {instance.worker_name or 'a worker'}"
        withdrawn = _withdrawn(task)
        return f"{sentence}; it is the last, as its task {withdrawn}" if withdrawn else sentence
    if withdrawn := _withdrawn(task):
        return f"its task {withdrawn}: it is cancelled when it is due, at {format_instant(instance.due_us)}"
    attempt = instance.attempt + 1
    if waits:
        sentence = f"attempt {attempt} starts as soon as it can; it waits: {waits}"
    elif task is not None and task.paused:
        sentence = f"attempt {attempt} is due at {format_instant(instance.due_us)}, but its task is paused"
    else:
        due = format_instant(instance.due_us)
        sentence = f"attempt {attempt} is due at {due}, and starts as soon as a worker is free from then on"
    if instance.expires_us is not None:
        sentence += f"; it fails if it has not started by {format_instant(instance.expires_us)}"
    return sentence


def _withdrawn(task: TaskRow | None) -> str:
    """Why nothing more begins of a task; empty if it does."""
    if task is None:
        return "was deleted"
    return "is disabled" if task.disabled else ""


def _next_without_scheduler(instance: Instance) -> str:
    if instance.state in TERMINAL_STATES:
        return _next(instance, None)
    if instance.state is State.RUNNING:
        where = instance.worker_name or "a worker"
        return (
            f"attempt {instance.attempt} was started on {where}; no scheduler is running to take its result"
        )
    if instance.state is State.BLOCKED:
        return "no scheduler is running; it starts once everything upstream has ended and one runs"
    attempt, due = instance.attempt + 1, format_instant(instance.due_us)
    return f"no scheduler is running; attempt {attempt}, due at {due}, starts when one does"
