"""Acts on several instances by id: each is answered by itself, whatever becomes of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ostinato.control.requests import Asker, ask
from ostinato.core.model import Instance
from ostinato.errors import OstinatoError
from ostinato.store.batches import Request, RequestAnswer
from ostinato.store.protocol import Store


def refused_each(
    instances: dict[str, Instance],
    instance_ids: Sequence[str],
    *,
    why_not: Callable[[str, Instance | None], OstinatoError | None],
) -> dict[str, OstinatoError]:
    """Which of `instance_ids` cannot be acted on, and why; where only one is named, that is raised.

    `why_not` takes the id and the instance, None for one that is not found.
    """
    refused: dict[str, OstinatoError] = {}
    for instance_id in instance_ids:
        error = why_not(instance_id, instances.get(instance_id))
        if error is not None:
            if len(instance_ids) == 1:
                raise error
            refused[instance_id] = error
    return refused


async def ask_each(
    store: Store,
    instances: dict[str, Instance],
    *,
    instance_ids: Sequence[str],
    refused: dict[str, OstinatoError],
    make: Callable[[Instance, int], Request],
    asker: Asker,
) -> list[RequestAnswer]:
    """Ask about those that are not `refused`; answers of all, in the order of `instance_ids`.

    `make` takes the time of the request too. Raises as `ask`.
    """
    meant = [instance_id for instance_id in instance_ids if instance_id not in refused]
    created_us = await store.now_us()
    requests = [make(instances[instance_id], created_us) for instance_id in meant]
    answered = iter(await ask(store, requests, asker=asker))
    return [
        next(answered)
        if instance_id not in refused
        else _refusal(instance_id, refused[instance_id], instance=instances.get(instance_id))
        for instance_id in instance_ids
    ]


def _refusal(instance_id: str, error: OstinatoError, *, instance: Instance | None) -> RequestAnswer:
    return RequestAnswer(
        request_id="",
        partition=0 if instance is None else instance.partition,
        code=error.code,
        message=error.message,
        instance_id=instance_id,
    )
