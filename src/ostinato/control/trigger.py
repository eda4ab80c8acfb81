"""Trigger: run a task now because somebody wants it, with that person's name on the instance."""

from __future__ import annotations

from random import Random

from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import TaskRef
from ostinato.store.batches import SubmitReceipt
from ostinato.store.protocol import Store


async def trigger(
    store: Store,
    ref: TaskRef,
    *,
    now_us: int,
    rng: Random,
    by: str,
    payload: bytes = b"{}",
    key: str = "",
    priority: int | None = None,
) -> SubmitReceipt:
    """Submit one instance of `ref`, due now. Raises as `submit`."""
    request = SubmitRequest(
        namespace=ref.namespace,
        task=ref.name,
        payload=payload,
        key=key,
        priority=priority,
        reason=f"started by {by}" if by else "started by hand",
    )
    return (await submit(store, [request], now_us=now_us, rng=rng))[0]
