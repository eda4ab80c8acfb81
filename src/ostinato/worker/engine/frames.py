"""The frames in which an engine sends what a container wrote: eight bytes of header, then a piece."""

from __future__ import annotations

_HEADER_BYTES = 8
#: First byte of a header; 0 is standard input, which is echoed nowhere here, 3 is a word of the engine's own.
_STREAMS = {0: "stdout", 1: "stdout", 2: "stderr", 3: "log"}


class BadFrame(ValueError):
    """What came is not made of frames."""


class LogFrames:
    """Takes a stream of frames apart, wherever it was cut; holds no more than a header."""

    def __init__(self) -> None:
        self._header = bytearray()
        self._stream = ""
        self._left_bytes = 0

    def feed(self, data: bytes) -> list[tuple[str, bytes]]:
        """What `data` holds, in order: pieces of ``stdout``, ``stderr`` and ``log``. Raises ``BadFrame``."""
        pieces: list[tuple[str, bytes]] = []
        position = 0
        while position < len(data):
            if self._left_bytes:
                piece = data[position : position + self._left_bytes]
                position += len(piece)
                self._left_bytes -= len(piece)
                pieces.append((self._stream, piece))
                continue
            missing = _HEADER_BYTES - len(self._header)
            self._header += data[position : position + missing]
            position += missing
            if len(self._header) == _HEADER_BYTES:
                self._begin()
        return pieces

    def _begin(self) -> None:
        stream = _STREAMS.get(self._header[0])
        if stream is None or any(self._header[1:4]):
            raise BadFrame(f"no frame begins with {bytes(self._header)!r}")
        self._stream = stream
        self._left_bytes = int.from_bytes(self._header[4:], "big")
        self._header.clear()
