"""Cancel: ask the owners to end instances, waiting or running."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.control.queries import get_instances
from ostinato.control.requests import Asker, ask, make_request, validate_reason
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store


async def cancel(
    store: Store, instance_ids: Sequence[str], *, asker: Asker, reason: str = ""
) -> list[RequestAnswer]:
    """Ask for the end of `instance_ids`; answers in the same order, none for none.

    What waits is ``cancelled`` at once; what runs is asked to end and becomes ``cancelled`` when its attempt
    has. One that was cancelled before is answered ``OK``; one that ended otherwise ``INSTANCE_TERMINAL``.
    Raises ``INSTANCE_NOT_FOUND`` before anything is asked, and as `ask`. Source: design section 11, Cancel.
    """
    validate_reason(reason)
    instances = await get_instances(store, instance_ids)
    created_us = await store.now_us()
    requests = [
        make_request(
            asker,
            "cancel",
            partition=instance.partition,
            namespace=instance.namespace,
            task=instance.task,
            instance_id=instance.id,
            created_us=created_us,
            body={"reason": reason},
        )
        for instance in instances
    ]
    return await ask(store, requests, asker=asker)
