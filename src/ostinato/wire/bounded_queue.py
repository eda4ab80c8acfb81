"""A queue bounded by weight that hands over all it holds at once; what both transports buffer with."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Generic, TypeVar

Item = TypeVar("Item")


class QueueClosedError(Exception):
    """The queue takes no more, or holds no more and never will."""


class BoundedQueue(Generic[Item]):
    """First in, first out. Weights are what the user counts: bytes, or messages.

    An item is let in while the weight inside is below the bound, so a single one may exceed it: a bound that
    an item can never fit below would hang its sender.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._items: deque[tuple[Item, int]] = deque()
        self._weight = 0
        self._closed = False
        self._filled = asyncio.Event()
        self._drained = asyncio.Event()

    @property
    def closed(self) -> bool:
        return self._closed

    async def put(self, item: Item, *, weight: int) -> None:
        """Add `item` once there is room. Raises ``QueueClosedError``."""
        while not self._closed and self._weight >= self._weight_max:
            self._drained.clear()
            await self._drained.wait()
        if self._closed:
            raise QueueClosedError
        self._items.append((item, weight))
        self._weight += weight
        self._filled.set()

    async def take(self, *, weight_max: int | None = None) -> list[Item]:
        """What is inside, at least one item; stops before the item with which they would pass `weight_max`.

        Raises ``QueueClosedError`` once the queue is closed and empty.
        """
        while not self._items:
            if self._closed:
                raise QueueClosedError
            self._filled.clear()
            await self._filled.wait()
        taken: list[Item] = []
        weight = 0
        while self._items:
            item, item_weight = self._items[0]
            if taken and weight_max is not None and weight + item_weight > weight_max:
                break
            self._items.popleft()
            taken.append(item)
            weight += item_weight
        self._weight -= weight
        self._drained.set()
        return taken

    def close(self) -> None:
        """Take nothing more; what is inside can still be taken. Waiting calls wake. Idempotent."""
        self._closed = True
        self._filled.set()
        self._drained.set()

    def discard(self) -> None:
        """Close, and drop what is inside."""
        self._items.clear()
        self._weight = 0
        self.close()
