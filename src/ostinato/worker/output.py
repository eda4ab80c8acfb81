"""What an attempt writes: line by line, capped in size, made safe to store, in constant memory.

Of each attempt the head and the tail are kept (design section 11, Sizes). The head leaves at once; beyond it
whole blocks are held back in a ring, and what falls out of the ring is only counted. A line is cut at its own
limit while it is being read, so that a line without an end costs no memory either (C159).
"""

from __future__ import annotations

from collections import deque
from threading import Lock

from ostinato.core.failure.text import safe_text
from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment

#: Together 10 MiB an attempt.
HEAD_BYTES_MAX = 8 * 1024 * 1024
TAIL_BYTES_MAX = 2 * 1024 * 1024
LINE_BYTES_MAX = 64 * 1024
#: Largest text of one chunk; also how much is read from a pipe at once.
CHUNK_BYTES_MAX = 64 * 1024


class OutputCapture:
    """Collects the output of one attempt. May be written to from several threads."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment
        self._sequence = 0
        self._lock = Lock()
        self._lines = {name: _LineBuffer() for name in ("stdout", "stderr", "log")}
        #: Whole lines of the head that nobody has taken yet.
        self._pending: list[tuple[str, bytes]] = []
        self._head_left_bytes = HEAD_BYTES_MAX
        self._tail: deque[tuple[str, bytes]] = deque()
        self._tail_bytes = 0
        self._cut_bytes = 0

    def write(self, stream: str, data: bytes) -> None:
        """Add what was written to ``stdout``, ``stderr`` or ``log``; only whole lines go on."""
        with self._lock:
            lines = self._lines[stream].feed(data)
            if lines:
                self._keep(stream, lines)

    @property
    def has_pending(self) -> bool:
        """Whether `take` would return anything."""
        return bool(self._pending)

    def take(self, now_us: int) -> list[OutputChunk]:
        """Whole lines of the head that have not been taken, as few chunks as their order allows."""
        with self._lock:
            pending, self._pending = self._pending, []
            return self._chunks(pending, now_us)

    def finish(self, now_us: int) -> list[OutputChunk]:
        """Everything that is left: unended lines, then how much was cut, then the tail."""
        with self._lock:
            for stream, buffer in self._lines.items():
                rest = buffer.finish()
                if rest:
                    self._keep(stream, rest)
            pending, self._pending = self._pending, []
            chunks = self._chunks(pending, now_us)
            if self._cut_bytes:
                notice = f"… [{self._cut_bytes} bytes of output cut here: over the limit of an attempt]\n"
                chunks += self._chunks([("log", notice.encode())], now_us)
            chunks += self._chunks(list(self._tail), now_us)
            self._tail.clear()
            self._tail_bytes = self._cut_bytes = 0
            return chunks

    def _keep(self, stream: str, lines: bytes) -> None:
        if self._head_left_bytes >= len(lines) and not self._tail_bytes:
            self._head_left_bytes -= len(lines)
            self._pending.append((stream, lines))
            return
        self._head_left_bytes = 0
        self._append_to_tail(stream, lines)
        while self._tail_bytes > TAIL_BYTES_MAX:
            _, oldest = self._tail.popleft()
            self._tail_bytes -= len(oldest)
            self._cut_bytes += len(oldest)

    def _append_to_tail(self, stream: str, lines: bytes) -> None:
        # Small writes are joined, or a million lines of one byte would be a million objects.
        if self._tail and self._tail[-1][0] == stream and len(self._tail[-1][1]) + len(lines) <= 4096:
            lines_before = self._tail.pop()[1]
            self._tail_bytes -= len(lines_before)
            lines = lines_before + lines
        self._tail.append((stream, lines))
        self._tail_bytes += len(lines)

    def _chunks(self, pieces: list[tuple[str, bytes]], now_us: int) -> list[OutputChunk]:
        chunks: list[OutputChunk] = []
        joined: list[bytes] = []
        joined_bytes = 0
        for position, (stream, piece) in enumerate(pieces):
            joined.append(piece)
            joined_bytes += len(piece)
            following = pieces[position + 1] if position + 1 < len(pieces) else None
            if (
                following is None
                or following[0] != stream
                or joined_bytes + len(following[1]) > CHUNK_BYTES_MAX
            ):
                chunks.append(self._chunk(stream, b"".join(joined), now_us=now_us))
                joined, joined_bytes = [], 0
        return chunks

    def _chunk(self, stream: str, data: bytes, *, now_us: int) -> OutputChunk:
        assignment = self._assignment
        self._sequence += 1
        return OutputChunk(
            instance_id=assignment.instance_id,
            attempt=assignment.attempt,
            attempt_id=assignment.attempt_id,
            sequence=self._sequence,
            at_us=now_us,
            stream=stream,
            text=safe_text(data.decode("utf-8", "backslashreplace")),
        )


class _LineBuffer:
    """Cuts a stream of bytes into whole lines of bounded length."""

    def __init__(self) -> None:
        self._start = bytearray()
        self._cut_bytes = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes, as one block that ends with a newline, or nothing."""
        end = data.rfind(b"\n") + 1
        if end == 0:
            self._hold(data)
            return b""
        first_end = data.find(b"\n") + 1
        self._hold(data[: first_end - 1])
        block = self._line() + _cut_lines(data[first_end:end])
        self._hold(data[end:])
        return block

    def finish(self) -> bytes:
        """The line that was never ended."""
        return self._line() if self._start or self._cut_bytes else b""

    def _hold(self, data: bytes) -> None:
        room = LINE_BYTES_MAX - len(self._start)
        self._start += data[:room]
        self._cut_bytes += max(0, len(data) - room)

    def _line(self) -> bytes:
        line = bytes(self._start) + _cut_notice(self._cut_bytes) + b"\n"
        self._start.clear()
        self._cut_bytes = 0
        return line


def _cut_lines(block: bytes) -> bytes:
    if len(block) <= LINE_BYTES_MAX:
        return block
    lines = block.split(b"\n")
    if all(len(line) <= LINE_BYTES_MAX for line in lines):
        return block
    return b"\n".join(line[:LINE_BYTES_MAX] + _cut_notice(len(line) - LINE_BYTES_MAX) for line in lines)


def _cut_notice(cut_bytes: int) -> bytes:
    return f" … [{cut_bytes} bytes of this line cut]".encode() if cut_bytes > 0 else b""
