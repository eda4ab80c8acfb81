"""Delete: ask the owner to remove a task with its triggers."""

from __future__ import annotations

from ostinato.control.queries import get_task
from ostinato.control.requests import Asker, ask, make_request, require_ok
from ostinato.core.definition import TaskRef
from ostinato.store.batches import RequestAnswer
from ostinato.store.protocol import Store


async def delete_task(store: Store, ref: TaskRef, *, asker: Asker) -> RequestAnswer:
    """Ask for the end of a task and return once its owner has removed it.

    What waits is ``cancelled``. What runs goes on to its end: a success counts, anything else is
    ``cancelled`` and never retried. Instances and their history stay until their retention. A task that is
    applied again under the name goes on with the next version. Raises ``TASK_NOT_FOUND``, and as `ask`.
    """
    row = await get_task(store, ref)
    request = make_request(
        asker,
        "delete",
        partition=row.partition,
        namespace=ref.namespace,
        task=ref.name,
        created_us=await store.now_us(),
    )
    return require_ok((await ask(store, [request], asker=asker))[0])
