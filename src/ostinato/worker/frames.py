"""What the supervisor and its Python processes say to each other.

A frame holds a MessagePack list of messages; each side puts everything that it has at that moment into one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import msgspec

from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.framing import FRAME_BYTES_MAX, FrameError, frame
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.process_limits import ProcessLimits

# ── supervisor → process ──────────────────────────────────────────────────────────────────────────────


class Configure(msgspec.Struct, tag=0, array_like=True):
    """First message: what to import, and the offset that makes ``boot_us`` the same in both processes."""

    app: str
    clock_offset_us: int
    #: Absolute directory in which attempts have their scratch directories.
    data_dir: str


class RunItem(msgspec.Struct, array_like=True):
    """One attempt. `call` is the function as the definition names it, for tasks that no app declares.

    `lease_ends_us` (boot time) is when its lease ends; None: it depends on none.
    """

    assignment: Assignment
    call: str
    timeout_us: int | None
    lease_ends_us: int | None = None
    #: A coroutine function, which here has a loop of its own.
    is_async: bool = False
    #: To be set just before user code runs.
    limits: ProcessLimits | None = None


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
    return frame(body)


def decode_for_process(body: bytes) -> list[ToProcess]:
    """Messages of a frame's body, on the side of the process."""
    return _to_process.decode(body)


def decode_for_supervisor(body: bytes) -> list[ToSupervisor]:
    """Messages of a frame's body, on the side of the supervisor. Raises ``FrameError``."""
    try:
        return _to_supervisor.decode(body)
    except msgspec.DecodeError as error:
        raise FrameError(str(error)) from error
