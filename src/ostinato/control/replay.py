"""Replay: ask the owners for a new generation of instances that have ended (I7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.control.matching import MATCH_DEFAULT, Matched, ask_about, find_matching
from ostinato.control.names import instance_not_found, validate_key
from ostinato.control.parameters import check_parameters, check_types
from ostinato.control.queries import find_instances
from ostinato.control.requests import Asker, request_about, validate_reason
from ostinato.control.several import ask_each, refused_each
from ostinato.control.submit import refuse_disabled
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.ids import id_of
from ostinato.core.model import Instance
from ostinato.core.partition.request import another_generation
from ostinato.core.payload import check_json_object
from ostinato.core.states import State
from ostinato.errors import ConflictError, OstinatoError, UserError
from ostinato.store.batches import InstanceFilter, Request, RequestAnswer
from ostinato.store.protocol import Store

GENERATION_MAX = 1_000_000_000
FORCE_HINT = 'to run it again all the same: --force, or "force": true'


async def replay(
    store: Store,
    instance_ids: Sequence[str],
    *,
    asker: Asker,
    reason: str = "",
    latest: bool = False,
    payload: bytes | None = None,
    key: str = "",
    force: bool = False,
    generation: int | None = None,
) -> list[RequestAnswer]:
    """Ask for a new generation of each instance; answers in the same order, none for none.

    It pins the same version of the task again, or the newest with `latest`. `payload`, a JSON object,
    replaces the old one. With a `key` each instance is replayed once, and who asks again with it gets the
    same answer. `force` is needed after a success. `generation` is the one that is meant, else the one that
    is found: if somebody else replays it first, the answer is ``VERSION_CONFLICT``. An instance that has not
    ended is answered ``INSTANCE_NOT_TERMINAL``. ``INSTANCE_NOT_FOUND``, ``INSTANCE_SUCCEEDED``,
    ``VERSION_CONFLICT``, ``TASK_NOT_FOUND`` (it was deleted) and ``TASK_DISABLED`` are raised where only one
    id is given; of several each is answered by itself, and the others are carried out. Raises
    ``INVALID_NAME``, ``INVALID_PAYLOAD`` and ``PAYLOAD_TOO_LARGE`` before anything is asked, and as `ask`.
    Source: design section 11, Versions; C193.
    """
    validate_reason(reason)
    if key:
        validate_key(key)
    if generation is not None and not 1 <= generation <= GENERATION_MAX:
        raise UserError("INVALID_VALUE", f"is not within 1 to {GENERATION_MAX:,}", field="generation")
    instances = await find_instances(store, instance_ids)
    tasks = await _tasks(store, [*instances.values()])

    def why_not(instance_id: str, instance: Instance | None) -> OstinatoError | None:
        if instance is None:
            return instance_not_found(instance_id)
        # With a key it may be a repetition, which gets the answer of the first time.
        seen = None if key else _refused_as_seen(instance, force=force, generation=generation)
        return seen or _refused_for_task(instance, tasks.get(instance.ref))

    refused = refused_each(instances, instance_ids, why_not=why_not)
    meant = [instance for instance in instances.values() if instance.id not in refused]
    pinnable = {instance.ref: tasks[instance.ref] for instance in meant}
    body = await _body(store, meant, tasks=pinnable, reason=reason, latest=latest, payload=payload)
    body["force"] = force

    def make(instance: Instance, created_us: int) -> Request:
        return _request(
            instance, asker=asker, created_us=created_us, body=body, key=key, generation=generation
        )

    return await ask_each(
        store, instances, instance_ids=instance_ids, refused=refused, make=make, asker=asker
    )


async def replay_matching(
    store: Store,
    where: InstanceFilter,
    *,
    limit: int = MATCH_DEFAULT,
    asker: Asker,
    reason: str = "",
    latest: bool = False,
    payload: bytes | None = None,
    dry_run: bool = False,
    key: str = "",
    force: bool = False,
) -> list[Matched]:
    """As `replay` for up to `limit` instances that match, newest first; the failed ones by default.

    `dry_run` finds them and asks nothing. What cannot be replayed (it runs again, its task was deleted or is
    disabled) is answered, not raised. Raises ``INSTANCE_SUCCEEDED`` for a filter that names the state
    ``success`` without `force`, ``INVALID_VALUE`` for one that says nothing (field ``filter``) and for a bad
    `limit`, ``INVALID_PAYLOAD``, ``PAYLOAD_TOO_LARGE``, and as `ask`.
    """
    validate_reason(reason)
    if key:
        validate_key(key)
    if State.SUCCESS in where.states and not force:
        raise ConflictError(
            "INSTANCE_SUCCEEDED", "the filter takes instances that ended in success", hint=FORCE_HINT
        )
    found = await find_matching(store, where, states=(State.FAILED,), limit=limit)
    tasks = await _tasks(store, found)
    body = await _body(store, found, tasks=tasks, reason=reason, latest=latest, payload=payload)
    body["force"] = force
    if dry_run:
        return [Matched(instance, None) for instance in found]

    def make(instance: Instance, created_us: int) -> Request:
        return _request(instance, asker=asker, created_us=created_us, body=body, key=key)

    return await ask_about(store, found, make=make, asker=asker)


async def _tasks(store: Store, instances: Sequence[Instance]) -> dict[TaskRef, TaskRow]:
    refs: set[TaskRef] = {instance.ref for instance in instances}
    return await store.get_tasks(sorted(refs))


async def _body(
    store: Store,
    instances: Sequence[Instance],
    *,
    tasks: dict[TaskRef, TaskRow],
    reason: str,
    latest: bool,
    payload: bytes | None,
) -> dict[str, object]:
    """Arguments of the requests; a payload must fit every version that a new generation will pin."""
    body: dict[str, object] = {"latest": latest, "reason": reason}
    if payload is not None:
        given = check_json_object(payload)
        for definition in await _definitions(store, instances, tasks=tasks, latest=latest):
            check_parameters(definition.executor, given.keys(), subject=str(definition.ref))
            check_types(definition.executor, given, subject=str(definition.ref))
        body["payload"] = msgspec.Raw(payload)
    return body


async def _definitions(
    store: Store, instances: Sequence[Instance], *, tasks: dict[TaskRef, TaskRow], latest: bool
) -> Sequence[TaskDefinition]:
    """Definitions that the new generations will pin; one that is gone is left for the owner to refuse."""
    if latest:
        return [row.definition for row in tasks.values()]
    pinned = {(instance.ref, instance.task_version) for instance in instances if instance.ref in tasks}
    return [*(await store.load_definitions(sorted(pinned))).values()]


def _refused_for_task(instance: Instance, row: TaskRow | None) -> OstinatoError | None:
    if row is None:
        return UserError(
            "TASK_NOT_FOUND",
            f"task {instance.ref} was deleted",
            subject=instance.id,
            hint="apply it again, then replay its instances",
        )
    try:
        refuse_disabled(row)
    except ConflictError as error:
        return error
    return None


def _refused_as_seen(instance: Instance, *, force: bool, generation: int | None) -> OstinatoError | None:
    """What the owner would say of an instance that moves no more; it looks again."""
    if generation is not None and generation != instance.generation:
        return ConflictError(
            "VERSION_CONFLICT",
            another_generation(instance, generation),
            subject=instance.id,
            field="generation",
            hint="look at it again, then name the generation that you mean",
        )
    if instance.state is State.SUCCESS and not force:
        return ConflictError(
            "INSTANCE_SUCCEEDED",
            f"instance {instance.id} ended in success",
            subject=instance.id,
            hint=FORCE_HINT,
        )
    return None


def _request(
    instance: Instance,
    *,
    asker: Asker,
    created_us: int,
    body: dict[str, object],
    key: str,
    generation: int | None = None,
) -> Request:
    meant = instance.generation if generation is None else generation
    said = {**body, "generation": meant}
    request = request_about(instance, "replay", asker=asker, created_us=created_us, body=said)
    # A request is carried out once by its id, which a key so decides on (C193).
    return msgspec.structs.replace(request, id=id_of("replay", instance.id, key)) if key else request
