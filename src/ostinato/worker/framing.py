"""Cutting a stream of bytes into frames: four bytes of length, big-endian, and a body."""

from __future__ import annotations

LENGTH_BYTES = 4
#: Less than any four bytes of printable text mean as a length: a task that writes into the channel is noticed
#: at once, instead of being waited for.
FRAME_BYTES_MAX = 512 * 1024 * 1024


class FrameError(Exception):
    """What came through the channel is no message; nothing after it can be read either."""


def frame(body: bytes) -> bytes:
    """`body` with its length before it."""
    return len(body).to_bytes(LENGTH_BYTES, "big") + body


class FrameSplitter:
    """Cuts a stream of bytes into the bodies of its frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """Bodies of the frames that are complete now. Raises ``FrameError`` on what cannot be a length."""
        self._buffer += data
        bodies: list[bytes] = []
        position = 0
        while len(self._buffer) - position >= LENGTH_BYTES:
            start = position + LENGTH_BYTES
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
