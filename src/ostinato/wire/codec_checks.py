"""What the codec refuses, and the cutting of long messages; shared by both directions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Generic, NamedTuple, TypeVar

from ostinato.errors import UserError

#: Frames are cut to this, unless a single item is longer.
FRAME_BYTES_TARGET = 4 * 1024 * 1024
#: Receivers refuse longer frames.
FRAME_BYTES_MAX = 16 * 1024 * 1024
#: Items (assignments, outcomes, …) in a frame: bounds how long one frame occupies an event loop.
FRAME_ITEM_COUNT_MAX = 1_000
#: More than the ids, numbers and names of any ordinary item take; the long fields are counted one by one.
ITEM_BYTES_OVERHEAD = 256

Item = TypeVar("Item")
Message = TypeVar("Message")


class Part(NamedTuple, Generic[Message]):
    """A message that fits into a frame, with estimates of what it takes there."""

    message: Message
    item_count: int
    bytes_estimate: int


def malformed(kind: str, what: str) -> UserError:
    """Error for a message that the other side should never have sent."""
    return UserError(
        "PROTOCOL_MISMATCH",
        f"a {kind} message cannot be understood: {what}",
        subject=kind,
        hint="worker and scheduler must be of compatible versions",
    )


def require(kind: str, **fields: str | int) -> None:
    """Raise ``PROTOCOL_MISMATCH`` naming the first field that is empty, zero or negative."""
    for name, value in fields.items():
        if not value or (isinstance(value, int) and value < 0):
            raise malformed(kind, f"{name} is missing or not positive")


def cut(items: Sequence[Item], size: Callable[[Item], int]) -> Iterator[tuple[list[Item], int]]:
    """`items` in runs that fit into a frame each, with their estimated bytes; one empty run for none."""
    run: list[Item] = []
    run_bytes = 0
    for item in items:
        item_bytes = size(item)
        if run and (len(run) >= FRAME_ITEM_COUNT_MAX or run_bytes + item_bytes > FRAME_BYTES_TARGET):
            yield run, run_bytes
            run, run_bytes = [], 0
        run.append(item)
        run_bytes += item_bytes
    yield run, run_bytes


def text_bytes(text: str) -> int:
    """Upper estimate of the UTF-8 length."""
    return len(text) if text.isascii() else 4 * len(text)
