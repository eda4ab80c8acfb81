"""What a command writes: sent on while it runs, its end kept for the result and for the failure's message."""

from __future__ import annotations

import asyncio
from collections import deque

import msgspec

from ostinato.clock import Clock
from ostinato.core.failure.failure import MESSAGE_BYTES_MAX, Failure
from ostinato.core.failure.text import cut_text, safe_text
from ostinato.core.instants import MILLISECOND
from ostinato.wire.messages import Assignment
from ostinato.worker.executors.protocol import EventSink
from ostinato.worker.output import OutputCapture

#: How much of the standard output becomes part of the result.
RESULT_TAIL_BYTES = 4096
_LAST_WORDS_LENGTH_MAX = 300
#: Longest time that output waits to be sent on.
_FLUSH_US = 100 * MILLISECOND


class CommandOutput:
    """The output of one attempt; used on the event loop."""

    def __init__(self, assignment: Assignment, *, clock: Clock, sink: EventSink) -> None:
        self._clock = clock
        self._sink = sink
        self._capture = OutputCapture(assignment)
        self._tails = {"stdout": _Tail(), "stderr": _Tail()}
        self._flush: asyncio.TimerHandle | None = None

    def write(self, stream: str, data: bytes) -> None:
        """Take what was written to ``stdout`` or ``stderr``, or a word of ours for ``log``."""
        if stream in self._tails:
            self._tails[stream].add(data)
        self._capture.write(stream, data)
        if self._flush is None and self._capture.has_pending:
            self._flush = asyncio.get_running_loop().call_later(_FLUSH_US / 1e6, self._send)

    def finish(self) -> None:
        """Send the rest; nothing more comes."""
        if self._flush is not None:
            self._flush.cancel()
        chunks = self._capture.finish(self._clock.wall_us())
        if chunks:
            self._sink.output(chunks)

    def _send(self) -> None:
        self._flush = None
        self._sink.output(self._capture.take(self._clock.wall_us()))

    @property
    def stdout_tail(self) -> str:
        """The end of the standard output, without the last line break."""
        return self._tails["stdout"].text().removesuffix("\n")

    def explain(self, failure: Failure) -> Failure:
        """The failure with what was said last on standard error, which as a rule is why."""
        return _with_last_words(failure, self._last_words)

    @property
    def _last_words(self) -> str:
        """The last line of the standard error that shows something; empty if there is none."""
        lines = (line.strip() for line in reversed(self._tails["stderr"].text().splitlines()))
        return next(filter(None, lines), "")


class _Tail:
    """The last `RESULT_TAIL_BYTES` of a stream."""

    def __init__(self) -> None:
        self._pieces: deque[bytes] = deque()
        self._size_bytes = 0

    def add(self, data: bytes) -> None:
        self._pieces.append(data[-RESULT_TAIL_BYTES:])
        self._size_bytes += len(self._pieces[-1])
        while self._size_bytes - len(self._pieces[0]) >= RESULT_TAIL_BYTES:
            self._size_bytes -= len(self._pieces.popleft())

    def text(self) -> str:
        tail = b"".join(self._pieces)[-RESULT_TAIL_BYTES:]
        return safe_text(tail.decode("utf-8", "backslashreplace"))


def _with_last_words(failure: Failure, words: str) -> Failure:
    """The failure with what the command said last, which as a rule is why; its code and category stay."""
    if not words:
        return failure
    shown = words if len(words) <= _LAST_WORDS_LENGTH_MAX else f"{words[:_LAST_WORDS_LENGTH_MAX]}…"
    message = cut_text(f"{failure.message}; stderr ends with: {shown}", MESSAGE_BYTES_MAX)
    return msgspec.structs.replace(failure, message=message)
