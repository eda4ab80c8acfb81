"""What the supervisor and its Python processes say to each other, and how it is framed.

A frame is four bytes of length, big-endian, and a MessagePack list of messages; each side puts everything
that it has at that moment into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.known_tasks import KnownTasks

_LENGTH_BYTES = 4
#: Less than any four bytes of printable text mean as a length: a task that writes into the channel is noticed
#: at once, instead of being waited for.
FRAME_BYTES_MAX = 512 * 1024 * 1024


class FrameError(Exception):
    """What came through the channel is no message; nothing after it can be read either."""


# ── supervisor → process ──────────────────────────────────────────────────────────────────────────────


class Configure(msgspec.Struct, tag=0, array_like=True):
    """First message: what to import, and the offset that makes ``boot_us`` the same in both processes."""

    app: str
    clock_offset_us: int


class RunItem(msgspec.Struct, array_like=True):
    """One attempt. `call` is the function as the definition names it, for tasks that no app declares."""

    assignment: Assignment
    call: str
    timeout_us: int | None


class Run(msgspec.Struct, tag=1, array_like=True):
    """Begin these; a slot is given one at a time."""

    items: list[RunItem]


class Stop(msgspec.Struct, tag=2, array_like=True):
    """End an attempt cooperatively; being killed comes from outside."""

    attempt_id: str
    reason: str


# ── process → supervisor ──────────────────────────────────────────────────────────────────────────────


class Ready(msgspec.Struct, tag=10, array_like=True):
    """The app is imported, as far as it can be."""

    known: KnownTasks


class Finished(msgspec.Struct, tag=11, array_like=True):
    """Attempts that have ended. `is_last`: the process is not fit for another and is to be replaced."""

    items: list[AttemptFinished]
    is_last: bool = False


class Beats(msgspec.Struct, tag=12, array_like=True):
    """Signs of life and progress."""

    items: list[AttemptBeat]


class Chunks(msgspec.Struct, tag=13, array_like=True):
    """Output of attempts that share the process, already capped."""

    items: list[OutputChunk]


class LogText(msgspec.Struct, tag=14, array_like=True):
    """Log lines of the attempt in a slot, whose other output comes through pipes."""

    attempt_id: str
    data: bytes


ToProcess: TypeAlias = Configure | Run | Stop
ToSupervisor: TypeAlias = Ready | Finished | Beats | Chunks | LogText

_encoder = msgspec.msgpack.Encoder()
_to_process = msgspec.msgpack.Decoder(list[ToProcess])
_to_supervisor = msgspec.msgpack.Decoder(list[ToSupervisor])


def encode_frame(messages: Sequence[ToProcess] | Sequence[ToSupervisor]) -> bytes:
    """One frame with all of `messages`, or several where one would be too long."""
    body = _encoder.encode(messages)
    if len(body) > FRAME_BYTES_MAX and len(messages) > 1:
        middle = len(messages) // 2
        return encode_frame(messages[:middle]) + encode_frame(messages[middle:])
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


def decode_for_process(body: bytes) -> list[ToProcess]:
    """Messages of a frame's body, on the side of the process."""
    return _to_process.decode(body)


def decode_for_supervisor(body: bytes) -> list[ToSupervisor]:
    """Messages of a frame's body, on the side of the supervisor. Raises ``FrameError``."""
    try:
        return _to_supervisor.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from error


class FrameSplitter:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies of the frames that are complete now. Raises ``FrameError`` on what cannot be a length."""
        self._buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= _LENGTH_BYTES:
            start = position + _LENGTH_BYTES
            length = int.from_bytes(self._buffer[position:start], "big")
            if length > FRAME_BYTES_MAX and bodies:
                # What came before it is still good; the next call raises.
                break
            if length > FRAME_BYTES_MAX:
                raise FrameError(f"a frame of {length} bytes; at most {FRAME_BYTES_MAX} are sent")
            end = start + length
            if len(self._buffer) < end:
                break
            bodies.append(bytes(self._buffer[start:end]))
            position = end
        if position:
            del self._buffer[:position]
        return bodies
