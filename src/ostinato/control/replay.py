"""Replay: ask the owners for a new generation of instances that have ended (I7)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.control.parameters import check_parameters
from ostinato.control.queries import get_instances
from ostinato.control.requests import Asker, ask, make_request, validate_reason
from ostinato.control.submit import refuse_disabled
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import Instance
from ostinato.core.payload import check_json_object
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store


async def replay(
    store: Store,
    instance_ids: Sequence[str],
    *,
    asker: Asker,
    reason: str = "",
    latest: bool = False,
    payload: bytes | None = None,
) -> list[RequestAnswer]:
    """Ask for a new generation of each instance; answers in the same order, none for none.

    It pins the same version of the task again, or the newest with `latest`. `payload`, a JSON object,
    replaces the old one. An instance that has not ended is answered ``INSTANCE_NOT_TERMINAL``. Raises
    ``INSTANCE_NOT_FOUND``, ``TASK_DISABLED``, ``INVALID_PAYLOAD`` and ``PAYLOAD_TOO_LARGE`` before anything
    is asked, and as `ask`. Source: design section 11, Versions.
    """
    validate_reason(reason)
    instances = await get_instances(store, instance_ids)
    refs: set[TaskRef] = {instance.ref for instance in instances}
    tasks = await store.get_tasks(sorted(refs))
    for row in tasks.values():
        refuse_disabled(row)
    body: dict[str, object] = {"latest": latest, "reason": reason}
    if payload is not None:
        given = check_json_object(payload)
        for definition in await _definitions(store, instances, tasks=tasks, latest=latest):
            check_parameters(definition.executor, given.keys(), subject=str(definition.ref))
        body["payload"] = msgspec.Raw(payload)
    created_us = await store.now_us()
    requests = [
        make_request(
            asker,
            "replay",
            partition=instance.partition,
            namespace=instance.namespace,
            task=instance.task,
            instance_id=instance.id,
            created_us=created_us,
            body=body,
        )
        for instance in instances
    ]
    return await ask(store, requests, asker=asker)


async def _definitions(
    store: Store, instances: Sequence[Instance], *, tasks: dict[TaskRef, TaskRow], latest: bool
) -> Sequence[TaskDefinition]:
    """Definitions that the new generations will pin; one that is gone is left for the owner to refuse."""
    if latest:
        return [row.definition for row in tasks.values()]
    pinned = {(instance.ref, instance.task_version) for instance in instances}
    return [*(await store.load_definitions(sorted(pinned))).values()]
