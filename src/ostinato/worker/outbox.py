"""What waits to be sent to the node, and what the node has not acknowledged.

Whatever is put in during one turn of the event loop leaves in one batch, bounded in bytes. Output yields to
everything else: while the stream is down or slow it is bounded, and what does not fit is replaced by a
notice. Outcomes are sent once the spool has them on the disk, kept until they are acknowledged, and go first
on a new stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ostinato.core.model import Outcome, OutputChunk
from ostinato.wire.ledgers import UnacknowledgedOutcomes
from ostinato.wire.messages import Accepted, Draining, Outcomes, Output, Progress, WorkerMessage
from ostinato.worker.spool import Spool

#: Of output and of outcomes each, in one batch.
BATCH_BYTES_MAX = 1024 * 1024
#: Output that waits to be sent, over all attempts.
OUTPUT_BYTES_MAX = 16 * 1024 * 1024
#: Outcomes in one batch.
BATCH_COUNT_MAX = 2_000
#: What a chunk costs besides its text.
_OVERHEAD_BYTES = 256
#: The node acknowledges after its commit, so a few heartbeats without any mean that something was dropped.
_SILENT_HEARTBEATS_MAX = 4


class Outbox:
    """Messages of one worker to its node. `granted` is asked when outcomes leave.

    Without a spool outcomes are sent at once, and are lost with the process.
    """

    def __init__(self, granted: Callable[[], dict[str, int]], spool: Spool | None = None) -> None:
        self._granted = granted
        self._spool = spool
        #: Outcomes that are not on the disk yet, in the order in which attempts ended.
        self._unsafe: dict[str, Outcome] = {}
        #: Slots have become free: the node may use them while their outcomes are written.
        self._has_grants = False
        self._accepted: list[str] = []
        self._outcomes = UnacknowledgedOutcomes()
        self._held_ids: set[str] = set()
        #: Heartbeats since the node last acknowledged an outcome, while it owes that.
        self._silent_heartbeats = 0
        self._output: list[OutputChunk] = []
        self._output_bytes = 0
        self._progress: dict[str, Progress] = {}
        self._draining: Draining | None = None
        self._is_draining_sent = False
        self.has_mail = asyncio.Event()
        #: Set while every outcome has been acknowledged.
        self.all_acknowledged = asyncio.Event()
        self.all_acknowledged.set()

    def accept(self, attempt_ids: Iterable[str]) -> None:
        """Say that assignments have arrived."""
        self._accepted.extend(attempt_ids)
        self.has_mail.set()

    def add_outcomes(self, outcomes: Iterable[Outcome]) -> None:
        """Report ended attempts, until they are acknowledged; an attempt that has an outcome keeps it."""
        new = [outcome for outcome in outcomes if outcome.attempt_id not in self._held_ids]
        if not new:
            return
        self._held_ids.update(outcome.attempt_id for outcome in new)
        self._unsafe.update((outcome.attempt_id, outcome) for outcome in new)
        self.all_acknowledged.clear()
        if self._spool is not None:
            self._spool.append(new)
            self._has_grants = True
            self.has_mail.set()
        if self._spool is None or not self._spool.is_writable:
            self.unwritable()

    def durable(self, attempt_ids: Iterable[str]) -> None:
        """The spool has these on the disk: they may be sent."""
        for attempt_id in attempt_ids:
            outcome = self._unsafe.pop(attempt_id, None)
            if outcome is not None:
                self._outcomes.add(outcome)
                self.has_mail.set()

    def unwritable(self) -> None:
        """There is no disk to wait for: the node is the only other place where outcomes can be safe."""
        self.durable(list(self._unsafe))

    def add_output(self, chunks: Iterable[OutputChunk]) -> None:
        """Send what attempts wrote, as long as there is room to keep it."""
        for chunk in chunks:
            if self._output_bytes + len(chunk.text) > OUTPUT_BYTES_MAX:
                lost = len(chunk.text)
                chunk.text = f"… [{lost} characters of output lost: the scheduler did not take them]\n"
            self._output.append(chunk)
            self._output_bytes += len(chunk.text)
        self.has_mail.set()

    def add_progress(self, progress: Progress) -> None:
        """Send how far an attempt is; only its newest word waits."""
        self._progress[progress.attempt_id] = progress
        self.has_mail.set()

    def announce_drain(self, reason: str) -> None:
        """Say on this and on every later stream that the worker takes no more work."""
        self._draining = Draining(reason)
        self._is_draining_sent = False
        self.has_mail.set()

    def acknowledge(self, attempt_ids: Iterable[str]) -> None:
        """The node has these outcomes for good."""
        forgotten = [outcome.attempt_id for outcome in self._outcomes.acknowledge(attempt_ids)]
        self._held_ids.difference_update(forgotten)
        self._silent_heartbeats = 0
        if self._spool is not None:
            self._spool.forget(forgotten)
        if not self._held_ids:
            self.all_acknowledged.set()

    def holds(self, attempt_id: str) -> bool:
        """Whether the outcome of an attempt is not acknowledged yet."""
        return attempt_id in self._held_ids

    @property
    def unacknowledged(self) -> Sequence[Outcome]:
        """All outcomes that the node may not have, oldest first."""
        return [*self._outcomes.pending, *self._unsafe.values()]

    def begin_stream(self) -> None:
        """Nothing that was sent on an earlier stream is known to have arrived."""
        self._outcomes.resume()
        # Acceptance is shown by the report of running attempts, which was the first word on this stream.
        self._accepted.clear()
        self._is_draining_sent = False
        self._silent_heartbeats = 0
        self.has_mail.set()

    def count_heartbeat(self) -> None:
        """A heartbeat leaves: outcomes that stay unacknowledged over several are sent once more."""
        self._silent_heartbeats += 1
        if not len(self._outcomes):
            self._silent_heartbeats = 0
        elif self._silent_heartbeats >= _SILENT_HEARTBEATS_MAX:
            self._silent_heartbeats = 0
            self._outcomes.resume()
            self.has_mail.set()

    def take(self) -> list[WorkerMessage]:
        """The next batch, empty when there is nothing. Output stands before outcomes, as far as it fits."""
        messages: list[WorkerMessage] = []
        if self._accepted:
            messages.append(Accepted(self._accepted))
            self._accepted = []
        if self._draining is not None and not self._is_draining_sent:
            messages.append(self._draining)
            self._is_draining_sent = True
        if self._progress:
            messages.extend(self._progress.values())
            self._progress = {}
        if self._output:
            messages.append(Output(self._take_output()))
        outcomes = self._outcomes.take(count_max=BATCH_COUNT_MAX, bytes_max=BATCH_BYTES_MAX)
        if outcomes or self._has_grants:
            messages.append(Outcomes(outcomes, self._granted()))
            self._has_grants = False
        if not self._output and not self._outcomes.unsent_count:
            self.has_mail.clear()
        return messages

    def _take_output(self) -> list[OutputChunk]:
        count = size_bytes = 0
        for chunk in self._output:
            size_bytes += len(chunk.text) + _OVERHEAD_BYTES
            if count and size_bytes > BATCH_BYTES_MAX:
                break
            count += 1
        taken, self._output = self._output[:count], self._output[count:]
        self._output_bytes -= sum(len(chunk.text) for chunk in taken)
        return taken
