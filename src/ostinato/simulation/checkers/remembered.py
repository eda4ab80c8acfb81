"""What a checker knows for a while only, so that a run of hours needs no more memory than one of minutes."""

from __future__ import annotations

from typing import Generic, TypeVar

from ostinato.core.instants import HOUR

Key = TypeVar("Key")
Value = TypeVar("Value")

#: No fault and no chain of them keeps a message, a result or a request on its way for so long.
FORGOTTEN_US = HOUR


class Remembered(Generic[Key, Value]):
    """A mapping that forgets what was put longer ago than `for_us`, and no later than after twice that.

    Two generations, of which the older is dropped as a whole: an entry costs nothing beyond its own dict's.
    """

    def __init__(self, for_us: int = FORGOTTEN_US) -> None:
        self._for_us = for_us
        self._since_us = 0
        self._young: dict[Key, Value] = {}
        self._old: dict[Key, Value] = {}

    def __contains__(self, key: Key) -> bool:
        return key in self._young or key in self._old

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: Key) -> Value | None:
        """None for what was never put, or is forgotten."""
        return self._young[key] if key in self._young else self._old.get(key)

    def put(self, key: Key, value: Value, *, at_us: int) -> None:
        """Know `key` from now on; `at_us` (true time) never falls."""
        if at_us - self._since_us > self._for_us:
            self._old, self._young, self._since_us = self._young, {}, at_us
        self._young[key] = value

    def pop(self, key: Key) -> None:
        """Forget it now. Idempotent."""
        self._young.pop(key, None)
        self._old.pop(key, None)
