"""Carries the guardian's word to the nodes: the tree has ended, and here is what was spooled."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import NamedTuple

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import Outcome
from ostinato.errors import UnavailableError
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    GuardianHello,
    Outcomes,
    OutcomesAcknowledged,
    Rejected,
    TreeEnded,
    TreeEndedRecorded,
)
from ostinato.wire.protocol import WorkerStream, WorkerTransport
from ostinato.worker.guardian_messages import Report
from ostinato.worker.spool_file import Contents, read_spool, remove_spool
from ostinato.worker.waiting import within

_BACKOFF_US_MIN = 100 * MILLISECOND
_BACKOFF_US_MAX = SECOND
#: Once a node has recorded the report, one that cannot be reached is tried so many times more.
_ROUNDS_AFTER_THE_FIRST = 3
#: Outcomes in one message.
_BATCH_COUNT = 100


class SpoolAccess(NamedTuple):
    """How the spool of a report's worker is read and deleted: as ``read_spool`` and ``remove_spool``."""

    read: Callable[[Path], Contents] = read_spool
    remove: Callable[[Path], None] = remove_spool


_FILES = SpoolAccess()


class NotRecordedError(Exception):
    """A node has refused the report for good."""


async def deliver(
    report: Report,
    *,
    transport: WorkerTransport,
    clock: Clock,
    rng: Random,
    spools: SpoolAccess = _FILES,
) -> None:
    """Tell every node that can be reached, trying again until `report.limit_us` has passed.

    Each node frees what belongs to its partitions. Done once one has recorded the report and the others have
    too or cannot be reached, and all outcomes are on record.
    Raises ``NotRecordedError``, ``TimeoutError`` when nobody has taken it in time, and ``sqlite3.Error`` or
    ``OSError`` for a spool that cannot be read at all.
    """
    # Of a supervisor that may wake up the spool is its own business.
    spool = report.target.spool_path if report.heartbeat_sequence is None else ""
    spooled = spools.read(Path(spool)) if spool else Contents([], "")
    delivery = _Delivery(report, spooled.outcomes, transport=transport, clock=clock, rng=rng)
    await within(clock, delivery.run(), limit_us=report.limit_us)
    # What could not be read is left for the next worker here, which sets it aside and says so.
    if spool and not spooled.problem:
        spools.remove(Path(spool))


class _Delivery:
    """One report on its way to all nodes."""

    def __init__(
        self,
        report: Report,
        outcomes: list[Outcome],
        *,
        transport: WorkerTransport,
        clock: Clock,
        rng: Random,
    ) -> None:
        self._report = report
        #: Not on record yet, by attempt id.
        self._outcomes = {outcome.attempt_id: outcome for outcome in outcomes}
        self._transport = transport
        self._clock = clock
        self._rng = rng
        self._untold = list(report.target.addresses)
        self._is_recorded = False

    async def run(self) -> None:
        """Try every address in turn, until it is done."""
        pause_us = _BACKOFF_US_MIN
        rounds_left = _ROUNDS_AFTER_THE_FIRST
        while True:
            # One at a time: an outcome that one node has need not go to the next.
            for address in list(self._untold if not self._outcomes else self._report.target.addresses):
                await self._try(address)
            if self._is_recorded and not self._outcomes:
                if not self._untold or not rounds_left:
                    return
                rounds_left -= 1
            await self._clock.sleep_until_us(
                self._clock.boot_us() + round(pause_us * self._rng.uniform(0.5, 1.0))
            )
            pause_us = min(2 * pause_us, _BACKOFF_US_MAX)

    async def _try(self, address: str) -> None:
        try:
            # One that does not answer must not keep the others from hearing it.
            await within(self._clock, self._visit(address), limit_us=self._report.limit_us // 3)
        except (UnavailableError, TimeoutError):
            return  # the next one may be there
        self._is_recorded = True
        if address in self._untold:
            self._untold.remove(address)

    async def _visit(self, address: str) -> None:
        stream = await self._transport.connect(address)
        try:
            await self._tell(stream)
        finally:
            await stream.close()

    async def _tell(self, stream: WorkerStream) -> None:
        target = self._report.target
        await stream.send(
            [
                GuardianHello(
                    protocol=PROTOCOL_VERSION,
                    worker_id=target.worker_id,
                    worker_name=target.worker_name,
                    token=target.token,
                )
            ]
        )
        outcomes = list(self._outcomes.values())
        for start in range(0, len(outcomes), _BATCH_COUNT):
            await stream.send([Outcomes(outcomes[start : start + _BATCH_COUNT], {})])
        # First what has ended, then that the rest is lost: a finished attempt must not be run again.
        waiting = set(self._outcomes)
        while waiting:
            for message in await stream.receive():
                if isinstance(message, OutcomesAcknowledged):
                    waiting.difference_update(message.attempt_ids, message.unowned)
                    for attempt_id in message.attempt_ids:
                        self._outcomes.pop(attempt_id, None)
                elif isinstance(message, Rejected):
                    raise NotRecordedError(message.message)
        await stream.send([TreeEnded(self._report.heartbeat_sequence, self._report.reason)])
        while True:
            for message in await stream.receive():
                if isinstance(message, TreeEndedRecorded):
                    return
                if isinstance(message, Rejected):
                    raise NotRecordedError(message.message)
