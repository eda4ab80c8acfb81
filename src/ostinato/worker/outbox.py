"""What waits for the nodes, and what none of them has acknowledged.

::

    outcome ──spool──► durable ──► the stream whose node owns its partition ──► acknowledged by any: forgotten
                                   all streams, while nobody is known to own it

Who owns a partition is known from acknowledgements of heartbeats, the newest one counts. An outcome goes out
again when its partition has another owner, on a new stream, and when several heartbeats pass without an
answer; a node that does not own it says so or nothing, and records nothing. Output and progress go to the
owner too, but to one node only. Outcomes are sent once the spool has them on the disk, and go first on a new
stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence

from ostinato.core.model import Outcome, OutputChunk
from ostinato.wire.ledgers import UnacknowledgedOutcomes
from ostinato.wire.messages import Draining, Progress
from ostinato.worker.mail import Mail, OutputWaiting
from ostinato.worker.spool import Spool


class Outbox:
    """Messages of one worker to its nodes.

    Without a spool outcomes are sent at once, and are lost with the process.
    """

    def __init__(self, spool: Spool | None = None) -> None:
        self._spool = spool
        #: Outcomes that are not on the disk yet, in the order in which attempts ended.
        self._unsafe: dict[str, Outcome] = {}
        self._outcomes = UnacknowledgedOutcomes()
        self._held_ids: set[str] = set()
        self._mails: dict[int, Mail] = {}
        #: Stream of the owner of each partition, and what the newest acknowledgement on each stream listed.
        self._owners: dict[int, int] = {}
        self._owned: dict[int, frozenset[int]] = {}
        #: Said while there was no stream.
        self._homeless = OutputWaiting()
        self._draining: Draining | None = None
        #: Set while every outcome has been acknowledged.
        self.all_acknowledged = asyncio.Event()
        self.all_acknowledged.set()

    # ── what attempts say ─────────────────────────────────────────────────────────────────────────────

    def accept(self, stream: int, attempt_ids: Iterable[str]) -> None:
        """Say where they came from that assignments have arrived."""
        mail = self._mails.get(stream)
        if mail is not None:
            mail.accept(attempt_ids)

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
        if self._spool is None or not self._spool.is_writable:
            self.unwritable()

    def durable(self, attempt_ids: Iterable[str]) -> None:
        """The spool has these on the disk: they may be sent."""
        by_stream: dict[int, list[str]] = {}
        for attempt_id in attempt_ids:
            outcome = self._unsafe.pop(attempt_id, None)
            if outcome is not None and self._outcomes.add(outcome):
                for stream in self._streams_of(outcome):
                    by_stream.setdefault(stream, []).append(attempt_id)
        for stream, ids in by_stream.items():
            self._mails[stream].add_outcomes(ids)

    def unwritable(self) -> None:
        """There is no disk to wait for: a node is the only other place where outcomes can be safe."""
        self.durable(list(self._unsafe))

    def add_output(self, chunks: Sequence[OutputChunk], *, partition_of: Callable[[str], int | None]) -> None:
        """Send what attempts wrote; `partition_of` tells the partition of an attempt id."""
        by_stream: dict[int | None, list[OutputChunk]] = {}
        for chunk in chunks:
            stream = self._one_stream(partition_of(chunk.attempt_id))
            by_stream.setdefault(stream, []).append(chunk)
        for stream, items in by_stream.items():
            if stream is None:
                self._homeless.add(items)
            else:
                self._mails[stream].add_output(items)

    def add_progress(self, progress: Progress, *, partition: int | None) -> None:
        """Send how far an attempt is, if anybody is there to hear it."""
        stream = self._one_stream(partition)
        if stream is not None:
            self._mails[stream].add_progress(progress)

    def announce_drain(self, reason: str) -> None:
        """Say on all streams and on every later one that the worker takes no more work."""
        self._draining = Draining(reason)
        for mail in self._mails.values():
            mail.announce_drain(self._draining)

    # ── streams ───────────────────────────────────────────────────────────────────────────────────────

    def open(
        self,
        stream: int,
        granted: Callable[[], dict[str, int]],
        *,
        ahead: Callable[[], dict[str, int]] = dict,
    ) -> Mail:
        """A stream has been welcomed: what it is to carry, first all that may be for its node."""
        mail = Mail(granted, self._outcomes, draining=self._draining, ahead=ahead)
        self._mails[stream] = mail
        self._owned[stream] = frozenset()
        mail.add_outcomes(
            outcome.attempt_id for outcome in self._outcomes.pending if outcome.partition not in self._owners
        )
        output = self._homeless.take_all()
        if output:
            mail.add_output(output)
        return mail

    def close(self, stream: int) -> None:
        """A stream is over; nothing that it carried is known to have arrived. Idempotent.

        Acceptance is shown by the report of running attempts, which is the first word on the next one.
        """
        mail = self._mails.pop(stream, None)
        if mail is None:
            return
        for partition in self._owned.pop(stream):
            if self._owners.get(partition) == stream:
                self._disown(partition)
        unsent = mail.take_unsent()
        self.add_output(unsent.output, partition_of=lambda _: None)
        for progress in unsent.progress:
            self.add_progress(progress, partition=None)

    def owned(self, stream: int, partitions: Iterable[int]) -> None:
        """The node of a stream owns these partitions, and no others."""
        before, now = self._owned.get(stream), frozenset(partitions)
        if before is None or before == now:
            return
        self._owned[stream] = now
        gained = now - before
        self._owners.update(dict.fromkeys(gained, stream))
        if gained:
            self._mails[stream].add_outcomes(
                outcome.attempt_id
                for outcome in self._outcomes.pending
                if outcome.partition is None or outcome.partition in gained
            )
        for partition in before - now:
            if self._owners.get(partition) == stream:
                self._disown(partition)

    def _disown(self, partition: int) -> None:
        """Nobody is known to own it any more, unless another node has said so all the while."""
        heir = next((stream for stream, owned in self._owned.items() if partition in owned), None)
        if heir is None:
            del self._owners[partition]
        else:
            self._owners[partition] = heir
        ids = [outcome.attempt_id for outcome in self._outcomes.pending if outcome.partition == partition]
        for stream in self._mails if heir is None else [heir]:
            self._mails[stream].add_outcomes(ids)

    def _streams_of(self, outcome: Outcome) -> Iterable[int]:
        owner = None if outcome.partition is None else self._owners.get(outcome.partition)
        return self._mails if owner is None else (owner,)

    def _one_stream(self, partition: int | None) -> int | None:
        owner = None if partition is None else self._owners.get(partition)
        return next(iter(self._mails), None) if owner is None else owner

    # ── what nodes say ────────────────────────────────────────────────────────────────────────────────

    def acknowledge(self, stream: int, attempt_ids: Sequence[str], *, unowned: Sequence[str] = ()) -> None:
        """A node has these outcomes for good, and has not recorded those that belong to another node."""
        elsewhere = [attempt_id for attempt_id in unowned if not self._may_own(stream, attempt_id)]
        forgotten = [outcome.attempt_id for outcome in self._outcomes.acknowledge(attempt_ids)]
        self._held_ids.difference_update(forgotten)
        for number, mail in self._mails.items():
            if number == stream:
                mail.answered([*attempt_ids, *elsewhere])
            else:
                mail.outcomes.answered(forgotten)
        if self._spool is not None:
            self._spool.forget(forgotten)
        if not self._held_ids:
            self.all_acknowledged.set()

    def _may_own(self, stream: int, attempt_id: str) -> bool:
        """Whether a node that refuses an outcome as another's should be asked again some heartbeats later."""
        outcome = self._outcomes.get(attempt_id)
        if outcome is None:
            return False
        return outcome.partition is None or self._owners.get(outcome.partition) == stream

    def holds(self, attempt_id: str) -> bool:
        """Whether the outcome of an attempt is not acknowledged yet."""
        return attempt_id in self._held_ids

    @property
    def unacknowledged(self) -> Sequence[Outcome]:
        """All outcomes that no node may have, oldest first."""
        return [*self._outcomes.pending, *self._unsafe.values()]
