"""``Store.submit_if_newest`` by two calls, for adapters that gain nothing by one statement."""

from __future__ import annotations

from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.protocol import Store


async def submit_if_newest(store: Store, submission: Submission) -> SubmitReceipt | None:
    """The receipt of `submission`; None where its task takes no work, or has another version by now."""
    instance = submission.instance
    task = (await store.get_tasks([instance.ref])).get(instance.ref)
    if task is None or task.disabled or task.version != instance.task_version:
        return None
    return (await store.submit([submission]))[0]
