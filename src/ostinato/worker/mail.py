"""What waits to be sent on one stream.

Whatever is put in during one turn of the event loop leaves in one batch, bounded in bytes. Output yields to
everything else: while the stream is slow it is bounded, and what does not fit is replaced by a notice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from ostinato.core.model import OutputChunk
from ostinato.wire.ledgers import OutcomeQueue, UnacknowledgedOutcomes
from ostinato.wire.messages import (
    Accepted,
    Draining,
    Outcomes,
    Output,
    Progress,
    Report,
    WorkerMessage,
)

#: Of output and of outcomes each, in one batch.
BATCH_BYTES_MAX = 1024 * 1024
#: Output that waits to be sent to one node, over all attempts.
OUTPUT_BYTES_MAX = 16 * 1024 * 1024
#: Outcomes in one batch.
BATCH_COUNT_MAX = 2_000
#: What a chunk costs besides its text.
_OVERHEAD_BYTES = 256
#: The node acknowledges after its commit, so a few heartbeats without any mean that something was dropped.
_SILENT_HEARTBEATS_MAX = 4


class Unsent(NamedTuple):
    """What attempts said and a stream has not carried."""

    output: list[OutputChunk]
    progress: list[Progress]


class OutputWaiting:
    """Output that waits, bounded in bytes."""

    def __init__(self) -> None:
        self._chunks: list[OutputChunk] = []
        self._bytes = 0

    def __bool__(self) -> bool:
        return bool(self._chunks)

    def add(self, chunks: Iterable[OutputChunk]) -> None:
        """Keep what attempts wrote, as long as there is room."""
        for chunk in chunks:
            if self._bytes + len(chunk.text) > OUTPUT_BYTES_MAX:
                lost = len(chunk.text)
                chunk.text = f"… [{lost} characters of output lost: the scheduler did not take them]\n"
            self._chunks.append(chunk)
            self._bytes += len(chunk.text)

    def take(self) -> list[OutputChunk]:
        """The next batch."""
        count = size_bytes = 0
        for chunk in self._chunks:
            size_bytes += len(chunk.text) + _OVERHEAD_BYTES
            if count and size_bytes > BATCH_BYTES_MAX:
                break
            count += 1
        taken, self._chunks = self._chunks[:count], self._chunks[count:]
        self._bytes -= sum(len(chunk.text) for chunk in taken)
        return taken

    def take_all(self) -> list[OutputChunk]:
        """Everything."""
        taken, self._chunks, self._bytes = self._chunks, [], 0
        return taken


class Mail:
    """Messages of one stream to its node. `granted` and `ahead` are asked when outcomes leave."""

    def __init__(
        self,
        granted: Callable[[], dict[str, int]],
        kept: UnacknowledgedOutcomes,
        *,
        draining: Draining | None,
        ahead: Callable[[], dict[str, int]] = dict,
    ) -> None:
        self._granted = granted
        self._ahead = ahead
        #: Slots have become free: the node may use them before it hears what became of them.
        self._has_grants = False
        self._accepted: list[str] = []
        self.outcomes = OutcomeQueue(kept)
        #: Heartbeats since the node last answered an outcome, while it owes that.
        self._silent_heartbeats = 0
        self._output = OutputWaiting()
        self._progress: dict[str, Progress] = {}
        self._draining = draining
        self._report: Report | None = None
        self.has_mail = asyncio.Event()
        self.has_mail.set()

    def accept(self, attempt_ids: Iterable[str]) -> None:
        """Say that assignments have arrived."""
        self._accepted.extend(attempt_ids)
        self.has_mail.set()

    def add_outcomes(self, attempt_ids: Iterable[str]) -> None:
        """Send these outcomes, which are kept."""
        self.outcomes.add(attempt_ids)
        self.has_mail.set()

    def add_output(self, chunks: Iterable[OutputChunk]) -> None:
        """Send what attempts wrote."""
        self._output.add(chunks)
        self.has_mail.set()

    def add_progress(self, progress: Progress) -> None:
        """Send how far an attempt is; only its newest word waits."""
        self._progress[progress.attempt_id] = progress
        self.has_mail.set()

    def announce_drain(self, draining: Draining) -> None:
        """Say that the worker takes no more work."""
        self._draining = draining
        self.has_mail.set()

    def report(self, report: Report) -> None:
        """Say what the worker has."""
        self._report = report
        self.has_mail.set()

    def grants_changed(self) -> None:
        """Slots were promised to the node."""
        self._has_grants = True
        self.has_mail.set()

    def answered(self, attempt_ids: Sequence[str]) -> None:
        """The node of this stream has answered these outcomes."""
        self.outcomes.answered(attempt_ids)
        self._silent_heartbeats = 0

    def count_heartbeat(self) -> None:
        """A heartbeat leaves: outcomes that stay unanswered over several are sent once more."""
        self._silent_heartbeats += 1
        if not self.outcomes.sent_count:
            self._silent_heartbeats = 0
        elif self._silent_heartbeats >= _SILENT_HEARTBEATS_MAX:
            self._silent_heartbeats = 0
            self.outcomes.repeat()
            self.has_mail.set()

    @property
    def has_acceptances_alone(self) -> bool:
        """Whether nothing waits to be sent but that several assignments have arrived."""
        others = (self._has_grants, self._draining, self._report, self._progress, self._output)
        return len(self._accepted) > 1 and not any(others) and not self.outcomes.unsent_count

    def take(self) -> list[WorkerMessage]:
        """The next batch, empty when there is nothing. Output stands before outcomes, as far as it fits."""
        messages: list[WorkerMessage] = []
        if self._accepted:
            messages.append(Accepted(self._accepted))
            self._accepted = []
        if self._draining is not None:
            messages.append(self._draining)
            self._draining = None
        if self._report is not None:
            messages.append(self._report)
            self._report = None
        if self._progress:
            messages.extend(self._progress.values())
            self._progress = {}
        if self._output:
            messages.append(Output(self._output.take()))
        outcomes = self.outcomes.take(count_max=BATCH_COUNT_MAX, bytes_max=BATCH_BYTES_MAX)
        if outcomes or self._has_grants:
            messages.append(Outcomes(outcomes, self._granted(), self._ahead()))
            self._has_grants = False
        if not self._output and not self.outcomes.unsent_count:
            self.has_mail.clear()
        return messages

    def take_unsent(self) -> Unsent:
        """What attempts said and has not left, for another stream."""
        return Unsent(self._output.take_all(), list(self._progress.values()))
