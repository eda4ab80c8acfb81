"""Puts together what a container writes from streams that may break off: each begins with its first byte."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from ostinato.worker.engine.frames import LogFrames


class OutputReader:
    """Passes every byte on once, by how many of each stream have been seen before."""

    def __init__(self, write: Callable[[str, bytes], None]) -> None:
        self._write = write
        self._seen_bytes: Counter[str] = Counter()
        self._again_bytes: Counter[str] = Counter()
        self._frames = LogFrames()

    def begin(self) -> None:
        """A stream begins, from the container's start."""
        self._again_bytes = Counter(self._seen_bytes)
        self._frames = LogFrames()

    def feed(self, data: bytes) -> None:
        """Take what came. Raises ``BadFrame``."""
        for stream, piece in self._frames.feed(data):
            known_bytes = min(self._again_bytes[stream], len(piece))
            self._again_bytes[stream] -= known_bytes
            self._seen_bytes[stream] += len(piece) - known_bytes
            if known_bytes < len(piece):
                self._write(stream, piece[known_bytes:])
