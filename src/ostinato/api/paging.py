"""Cursors and limits of lists, and long lists made into shapes without holding the loop."""

from __future__ import annotations

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TypeVar

import msgspec

from ostinato.clock import Clock
from ostinato.control.queries import PAGE_MAX
from ostinato.errors import UserError

LIMIT_DEFAULT = 50
LIMIT_MAX = PAGE_MAX
#: Longest cursor that is looked at; a task's holds a namespace and a name.
CURSOR_LENGTH_MAX = 1_000
#: Things that are made into shapes between two turns of the loop: about a millisecond.
_PIECE_COUNT = 50

_Thing = TypeVar("_Thing")
_Shape = TypeVar("_Shape")
_decoder = msgspec.json.Decoder(list[str])


def write_cursor(*parts: str) -> str:
    """An opaque text that `read_cursor` reads back."""
    return urlsafe_b64encode(msgspec.json.encode(parts)).decode("ascii").rstrip("=")


def read_cursor(cursor: str | None, *, count: int) -> list[str] | None:
    """The `count` parts of a cursor, None for none. Raises ``INVALID_VALUE`` for one that is not ours."""
    if cursor is None:
        return None
    try:
        if len(cursor) > CURSOR_LENGTH_MAX:
            raise ValueError("too long")
        encoded = cursor.encode("ascii")
        parts = _decoder.decode(urlsafe_b64decode(encoded + b"=" * (-len(encoded) % 4)))
        if len(parts) != count or any("\0" in part for part in parts) or write_cursor(*parts) != cursor:
            raise ValueError("another list's")
    except (ValueError, msgspec.DecodeError):
        raise UserError(
            "INVALID_VALUE",
            "the cursor is not one of this list",
            field="cursor",
            hint="leave it out for the first page, or give that of the page before",
        ) from None
    return parts


async def in_pieces(
    clock: Clock, things: Iterable[_Thing], *, make: Callable[[_Thing], _Shape]
) -> list[_Shape]:
    """Shapes of all `things`; the loop, which the scheduler shares, turns after each small number of them."""
    shapes: list[_Shape] = []
    rest: Iterator[_Thing] = iter(things)
    while piece := list(islice(rest, _PIECE_COUNT)):
        if shapes:
            await clock.sleep_until_us(clock.boot_us())
        shapes += map(make, piece)
    return shapes
