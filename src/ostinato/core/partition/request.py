"""Somebody asks for a cancel, a replay, a pause …: the owner moves the state and answers (I5)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import msgspec

from ostinato.core.changes import DeleteTask, Replay, Request, RequestAnswer, SetTaskFlags, TriggerRow
from ostinato.core.definition import TaskDefinition, TaskRow
from ostinato.core.failure.text import safe_text
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.expire import end_waiting
from ostinato.core.partition.fire import request_cancel
from ostinato.core.partition.switch import skip_to_now
from ostinato.core.states import TERMINAL_STATES, WAITING_STATES, State, require_move

Body = TypeVar("Body")


class CancelBody(msgspec.Struct):
    """Arguments of a cancel."""

    reason: str = ""


class ReplayBody(msgspec.Struct):
    """Arguments of a replay: `latest` takes the newest version, `payload` replaces the old one.

    `force` allows it after a success. `generation` is the one that shall be replayed, None whichever it is.
    """

    reason: str = ""
    latest: bool = False
    payload: msgspec.Raw = msgspec.Raw(b"")
    force: bool = False
    generation: int | None = None


class DrainBody(msgspec.Struct):
    """Arguments of a drain."""

    worker_id: str = ""
    reason: str = ""


def cancel(request: Request, instance: Instance | None, *, now_us: int, into: Effects) -> None:
    """Waiting ends at once; running is asked to end and becomes ``cancelled`` when its attempt has (C131)."""
    if instance is None:
        _answer_missing(request, now_us=now_us, into=into)
        return
    body = read_body(request, CancelBody, now_us=now_us, into=into)
    if body is None:
        return
    reason = body.reason or f"asked for by {request.by or 'a client'}"
    if instance.state is State.CANCELLED:
        _answer(request, "OK", "it was cancelled before", now_us=now_us, into=into)
    elif instance.state in TERMINAL_STATES:
        message = f"instance {instance.id} has ended as {instance.state}; it can no longer be cancelled"
        _answer(request, "INSTANCE_TERMINAL", message, now_us=now_us, into=into)
    elif instance.state is State.RUNNING:
        request_cancel(instance, reason, by=request.by, now_us=now_us, into=into)
        _answer(request, "OK", "cancel requested; it ends when the attempt has", now_us=now_us, into=into)
    else:
        sentence = f"cancelled: {reason}"
        end_waiting(instance, State.CANCELLED, sentence=sentence, now_us=now_us, into=into, by=request.by)
        _answer(request, "OK", "cancelled", now_us=now_us, into=into)


def replay(
    request: Request,
    instance: Instance | None,
    *,
    task: TaskRow | None,
    pinned: TaskDefinition | None,
    now_us: int,
    into: Effects,
) -> None:
    """terminal → pending as the next generation with fresh counters: the only way out of an end (I7).

    It pins the same version again unless the body asks for the latest. Of several who have seen the same
    generation end only the first replays it (C193).
    """
    if instance is None:
        _answer_missing(request, now_us=now_us, into=into)
        return
    body = read_body(request, ReplayBody, now_us=now_us, into=into)
    if body is None:
        return
    refusal = _replay_refusal(instance, body)
    if refusal is not None:
        _answer(request, refusal[0], refusal[1], now_us=now_us, into=into)
        return
    version = task.version if body.latest and task is not None else instance.task_version
    definition = task.definition if body.latest and task is not None else pinned
    if task is None or definition is None:
        message = f"task {instance.ref} was deleted; apply it again, then replay its instances"
        _answer(request, "TASK_NOT_FOUND", message, now_us=now_us, into=into)
        return
    if task.disabled:
        message = f"task {instance.ref} is disabled; enable it, then replay its instances"
        _answer(request, "TASK_DISABLED", message, now_us=now_us, into=into)
        return
    _begin_generation(
        request, instance, body=body, version=version, definition=definition, now_us=now_us, into=into
    )
    _answer(request, "OK", f"generation {instance.generation + 1} begins", now_us=now_us, into=into)


def another_generation(instance: Instance, generation: int) -> str:
    """What is said to somebody who means an older or newer generation than the one that there is."""
    meanwhile = "has been replayed meanwhile: it " if instance.generation > generation else ""
    return f"instance {instance.id} {meanwhile}is at generation {instance.generation}, not {generation}"


def _replay_refusal(instance: Instance, body: ReplayBody) -> tuple[str, str] | None:
    """Code and message if the instance, as it is now, is not one to replay."""
    if body.generation is not None and body.generation != instance.generation:
        return "VERSION_CONFLICT", another_generation(instance, body.generation)
    if instance.state not in TERMINAL_STATES:
        message = f"instance {instance.id} is {instance.state}; only one that has ended can be replayed"
        return "INSTANCE_NOT_TERMINAL", message
    if instance.state is State.SUCCESS and not body.force:
        return (
            "INSTANCE_SUCCEEDED",
            f"instance {instance.id} ended in success; only by force does it run again",
        )
    return None


def set_flags(
    request: Request,
    task: TaskRow | None,
    *,
    triggers: Sequence[TriggerRow],
    waiting: Sequence[Instance],
    more_waiting: bool,
    now_us: int,
    into: Effects,
) -> None:
    """pause, resume, disable, enable. Disable also cancels what waits, a batch at a time.

    The request is answered with the last batch; until then it is found and carried on again.
    """
    if task is None:
        name = f"{request.namespace}/{request.task}"
        _answer(request, "TASK_NOT_FOUND", f"task {name} does not exist", now_us=now_us, into=into)
        return
    flags = SetTaskFlags(namespace=request.namespace, task=request.task, partition=request.partition)
    if request.kind in ("pause", "resume"):
        flags.paused = request.kind == "pause"
    else:
        flags.disabled = request.kind == "disable"
    into.batch.flags.append(flags)
    if request.kind in ("resume", "enable"):
        skip_to_now(task.ref, list(triggers), now_us=now_us, into=into)
    if request.kind == "disable":
        _cancel_waiting(request, waiting, verb="disabled", now_us=now_us, into=into)
    if not more_waiting:
        _answer(request, "OK", f"task {task.ref}: {request.kind} is in force", now_us=now_us, into=into)


def delete(
    request: Request, task: TaskRow | None, *, waiting: Sequence[Instance], now_us: int, into: Effects
) -> None:
    """First nothing new may begin and what waits is cancelled, a batch at a time; then the task goes.

    The request is answered when it is gone; until then it is found and carried on again. What runs goes on.
    """
    if task is None:
        name = f"{request.namespace}/{request.task}"
        _answer(request, "TASK_NOT_FOUND", f"task {name} does not exist", now_us=now_us, into=into)
        return
    if waiting or not task.disabled:
        # Disabled for that long, so that what is decided meanwhile does not add to what waits.
        into.batch.flags.append(
            SetTaskFlags(
                namespace=request.namespace, task=request.task, partition=request.partition, disabled=True
            )
        )
        _cancel_waiting(request, waiting, verb="deleted", now_us=now_us, into=into)
        return
    into.batch.deletions.append(
        DeleteTask(namespace=request.namespace, task=request.task, partition=request.partition)
    )
    _answer(request, "OK", f"task {task.ref} is deleted", now_us=now_us, into=into)


def drain(request: Request, worker_id: str, *, worker_name: str | None, now_us: int, into: Effects) -> None:
    """Answer for a worker that has been told to drain; without a name no such worker is connected."""
    if worker_name is None:
        message = f"worker {worker_id} is not connected"
        _answer(request, "WORKER_NOT_FOUND", message, now_us=now_us, into=into)
        return
    message = f"worker {worker_name} drains: it takes no new work and ends once what it has has ended"
    _answer(request, "OK", message, now_us=now_us, into=into)


def refuse_unknown(request: Request, *, now_us: int, into: Effects) -> None:
    """Answer a request of a kind that this release does not know."""
    message = f"this scheduler does not know requests of kind {request.kind!a}"
    _answer(request, "INVALID_VALUE", message, now_us=now_us, into=into)


def read_body(request: Request, kind: type[Body], *, now_us: int, into: Effects) -> Body | None:
    """The arguments; None if they cannot be read, which is answered: one must not stop the others."""
    try:
        return msgspec.json.decode(request.body, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        message = f"the arguments of the {request.kind} cannot be read: {error}"
        _answer(request, "INVALID_VALUE", safe_text(message), now_us=now_us, into=into)
        return None


def _begin_generation(
    request: Request,
    instance: Instance,
    *,
    body: ReplayBody,
    version: int,
    definition: TaskDefinition,
    now_us: int,
    into: Effects,
) -> None:
    require_move("replay", instance.state, State.PENDING, subject=instance.id)
    queue_us = definition.queue_timeout_us
    sentence = f"replayed by {request.by or 'a client'}" + (f": {body.reason}" if body.reason else "")
    into.batch.replays.append(
        Replay(
            instance_id=instance.id,
            partition=instance.partition,
            expected_state=instance.state,
            expected_generation=instance.generation,
            task_version=version,
            payload=bytes(body.payload) or instance.payload,
            due_us=now_us,
            expires_us=None if queue_us is None else now_us + queue_us,
            reason=sentence,
        )
    )
    into.batch.history.append(
        HistoryRow(
            instance_id=instance.id,
            partition=instance.partition,
            at_us=now_us,
            kind=HistoryKind.REPLAYED,
            sentence=sentence,
            generation=instance.generation + 1,
            attempt=instance.attempt,
            by=request.by,
        )
    )


def _cancel_waiting(
    request: Request, waiting: Sequence[Instance], *, verb: str, now_us: int, into: Effects
) -> None:
    name = f"{request.namespace}/{request.task}"
    sentence = f"cancelled: task {name} was {verb} by {request.by or 'a client'}"
    for instance in waiting:
        if instance.state in WAITING_STATES or instance.state is State.BLOCKED:
            end_waiting(instance, State.CANCELLED, sentence=sentence, now_us=now_us, into=into, by=request.by)


def _answer_missing(request: Request, *, now_us: int, into: Effects) -> None:
    message = f"instance {request.instance_id} does not exist"
    _answer(request, "INSTANCE_NOT_FOUND", message, now_us=now_us, into=into)


def _answer(request: Request, code: str, message: str, *, now_us: int, into: Effects) -> None:
    into.batch.answers.append(
        RequestAnswer(
            request_id=request.id,
            partition=request.partition,
            code=code,
            message=message,
            instance_id=request.instance_id,
            answered_us=now_us,
        )
    )
