"""Batches of messages ↔ protobuf frames, total in both directions.

Writing: long batches, and lists inside messages, are cut into frames by bytes and by count. Text that UTF-8
cannot carry (lone surrogates) is sent with a mark in its place, since an outcome that could never be sent
would be repeated for ever. Reading: kinds of messages and fields that this version does not know are skipped;
whatever else does not fit is a ``PROTOCOL_MISMATCH``.

An outcome's failure and a task version's executor travel as JSON inside the frame: in the forms that they
have in the store and in definitions, so that there is one schema of each, and a field added there needs no
second edit here.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

import msgspec
from google.protobuf.message import DecodeError

from ostinato.errors import UserError
from ostinato.wire import codec_node, codec_worker
from ostinato.wire.codec_checks import (
    FRAME_BYTES_MAX,
    FRAME_BYTES_TARGET,
    FRAME_ITEM_COUNT_MAX,
    Part,
    malformed,
)
from ostinato.wire.generated import worker_pb2 as pb
from ostinato.wire.messages import NodeMessage, WorkerMessage

Message = TypeVar("Message", bound=msgspec.Struct)

_SURROGATE = re.compile("[\ud800-\udfff]")

#: Most messages of a worker's frame; ours have a few, and joined ones some hundreds.
FRAME_MESSAGES_MAX = 10_000


def encode_worker(messages: Sequence[WorkerMessage]) -> Iterator[bytes]:
    """Frames with `messages`, in order.

    Raises ``PAYLOAD_TOO_LARGE`` on reaching an item that no frame can hold, ``INVALID_VALUE`` on a number
    that does not fit in 64 bits; frames made before it are good.
    """
    return _encode(messages, parts_of=codec_worker.parts_of, write_frame=_write_worker_frame)


def encode_node(messages: Sequence[NodeMessage]) -> Iterator[bytes]:
    """As `encode_worker`, for the other direction."""
    return _encode(messages, parts_of=codec_node.parts_of, write_frame=_write_node_frame)


def decode_worker(frame: bytes) -> list[WorkerMessage]:
    """Messages of one frame, or of several joined; empty if all are of a newer version.

    Raises ``PROTOCOL_MISMATCH``.
    """
    try:
        source = pb.WorkerFrame.FromString(frame)
    except DecodeError as error:
        raise malformed("worker frame", str(error)) from None
    if len(source.messages) > FRAME_MESSAGES_MAX:
        # Millions of empty ones fit into a frame, and reading them would hold up everybody else.
        said = f"{len(source.messages)} messages, at most {FRAME_MESSAGES_MAX} are taken"
        raise malformed("worker frame", said)
    messages = [codec_worker.read(message) for message in source.messages]
    return [message for message in messages if message is not None]


def decode_node(frame: bytes) -> list[NodeMessage]:
    """As `decode_worker`, for the other direction."""
    try:
        source = pb.NodeFrame.FromString(frame)
    except DecodeError as error:
        raise malformed("node frame", str(error)) from None
    messages = [codec_node.read(message) for message in source.messages]
    return [message for message in messages if message is not None]


# ── cutting ───────────────────────────────────────────────────────────────────────────────────────────


def _encode(
    messages: Iterable[Message],
    *,
    parts_of: Callable[[Message], Iterator[Part[Message]]],
    write_frame: Callable[[list[Message]], bytes],
) -> Iterator[bytes]:
    waiting: list[Message] = []
    item_count = 0
    bytes_estimate = 0
    for message in messages:
        for part in parts_of(message):
            if waiting and (
                item_count + part.item_count > FRAME_ITEM_COUNT_MAX
                or bytes_estimate + part.bytes_estimate > FRAME_BYTES_TARGET
            ):
                yield _frame(waiting, write_frame)
                waiting, item_count, bytes_estimate = [], 0, 0
            waiting.append(part.message)
            item_count += part.item_count
            bytes_estimate += part.bytes_estimate
    if waiting:
        yield _frame(waiting, write_frame)


def _frame(messages: list[Message], write_frame: Callable[[list[Message]], bytes]) -> bytes:
    try:
        frame = write_frame(messages)
    except UnicodeEncodeError:
        frame = _frame([_sendable(message) for message in messages], write_frame)
    except ValueError as error:
        kinds = sorted({type(message).__name__ for message in messages})
        raise UserError(
            "INVALID_VALUE", f"a message of {', '.join(kinds)} cannot be sent: {error}", subject=kinds[0]
        ) from None
    if len(frame) > FRAME_BYTES_MAX:
        kinds = sorted({type(message).__name__ for message in messages})
        raise UserError(
            "PAYLOAD_TOO_LARGE",
            f"a message of {', '.join(kinds)} has {len(frame)} bytes; a frame holds {FRAME_BYTES_MAX}",
            subject=kinds[0],
            hint="make the payload, result or text shorter",
        )
    return frame


def _write_worker_frame(messages: list[WorkerMessage]) -> bytes:
    frame = pb.WorkerFrame()
    for message in messages:
        codec_worker.write(message, frame.messages.add())
    return frame.SerializeToString()


def _write_node_frame(messages: list[NodeMessage]) -> bytes:
    frame = pb.NodeFrame()
    for message in messages:
        codec_node.write(message, frame.messages.add())
    return frame.SerializeToString()


def _sendable(message: Message) -> Message:
    """`message` with every lone surrogate replaced."""
    fields = {name: _sendable_value(getattr(message, name)) for name in message.__struct_fields__}
    return type(message)(**fields)


def _sendable_value(value: object) -> object:
    if isinstance(value, str):
        return _SURROGATE.sub("\ufffd", value)
    if isinstance(value, msgspec.Struct):
        return _sendable(value)
    if isinstance(value, list):
        return [_sendable_value(item) for item in value]
    if isinstance(value, tuple):
        return tuple(_sendable_value(item) for item in value)
    if isinstance(value, dict):
        return {_sendable_value(key): _sendable_value(item) for key, item in value.items()}
    return value
