"""A sorted list of keys for many appends and few removals far from the front."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from typing import Any, Generic, TypeVar

#: Any: keys of one list are tuples or texts of one shape, which the type system cannot call comparable.
Key = TypeVar("Key", bound=Any)


class OrderedKeys(Generic[Key]):
    """Keys in order. A removed key stays in the list until it reaches the front, or until half are such.

    Removing from the middle of a long list would move everything behind it; a queue removes near its front.
    """

    def __init__(self) -> None:
        self._items: list[Key] = []
        self._members: set[Key] = set()
        self._head = 0

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, key: Key) -> bool:
        return key in self._members

    def add(self, key: Key) -> None:
        if key in self._members:
            return
        self._members.add(key)
        if not self._items or self._items[-1] < key:
            self._items.append(key)
            return
        at = bisect_left(self._items, key, lo=self._head)
        if at == len(self._items) or self._items[at] != key:
            self._items.insert(at, key)

    def discard(self, key: Key) -> None:
        self._members.discard(key)
        if len(self._items) > 64 and len(self._members) * 2 < len(self._items) - self._head:
            self._items = [item for item in self._items[self._head :] if item in self._members]
            self._head = 0

    def first(self) -> Key | None:
        return next(iter(self), None)

    def __iter__(self) -> Iterator[Key]:
        self._skip_dead()
        for at in range(self._head, len(self._items)):
            if self._items[at] in self._members:
                yield self._items[at]

    def after(self, key: Key) -> Iterator[Key]:
        """Keys greater than `key`, rising."""
        for at in range(bisect_right(self._items, key, lo=self._head), len(self._items)):
            if self._items[at] in self._members:
                yield self._items[at]

    def before(self, key: Key | None) -> Iterator[Key]:
        """Keys less than `key` (all for None), falling."""
        end = len(self._items) if key is None else bisect_left(self._items, key, lo=self._head)
        for at in range(end - 1, self._head - 1, -1):
            if self._items[at] in self._members:
                yield self._items[at]

    def _skip_dead(self) -> None:
        while self._head < len(self._items) and self._items[self._head] not in self._members:
            self._head += 1
        if self._head > 1024 and self._head * 2 > len(self._items):
            del self._items[: self._head]
            self._head = 0
