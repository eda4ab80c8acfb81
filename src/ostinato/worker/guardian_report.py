"""Carries the guardian's word to the nodes: the tree has ended, and here is what was spooled."""

from __future__ import annotations

from pathlib import Path
from random import Random

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
#: Outcomes in one message.
_BATCH_COUNT = 100


class NotRecordedError(Exception):
    """A node has refused the report for good."""


async def deliver(report: Report, *, transport: WorkerTransport, clock: Clock, rng: Random) -> None:
    """Tell one of the nodes, trying each in turn until `report.limit_us` has passed.

    Raises ``NotRecordedError``, ``TimeoutError`` when nobody has taken it in time, and ``sqlite3.Error`` or
    ``OSError`` for a spool that cannot be read at all.
    """
    await within(clock, _deliver(report, transport=transport, clock=clock, rng=rng), limit_us=report.limit_us)


async def _deliver(report: Report, *, transport: WorkerTransport, clock: Clock, rng: Random) -> None:
    # Of a supervisor that may wake up the spool is its own business.
    spool = report.target.spool_path if report.heartbeat_sequence is None else ""
    spooled = read_spool(Path(spool)) if spool else Contents([], "")
    pause_us = _BACKOFF_US_MIN
    while True:
        for address in report.target.addresses:
            try:
                stream = await transport.connect(address)
                try:
                    await _tell(stream, report, spooled.outcomes)
                finally:
                    await stream.close()
            except UnavailableError:
                continue  # the next one may be there
            # What could not be read is left for the next worker here, which sets it aside and says so.
            if spool and not spooled.problem:
                remove_spool(Path(spool))
            return
        await clock.sleep_until_us(clock.boot_us() + round(pause_us * rng.uniform(0.5, 1.0)))
        pause_us = min(2 * pause_us, _BACKOFF_US_MAX)


async def _tell(stream: WorkerStream, report: Report, outcomes: list[Outcome]) -> None:
    target = report.target
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
    for start in range(0, len(outcomes), _BATCH_COUNT):
        await stream.send([Outcomes(outcomes[start : start + _BATCH_COUNT], {})])
    # First what has ended, then that the rest is lost: a finished attempt must not be run again.
    waiting = {outcome.attempt_id for outcome in outcomes}
    while waiting:
        for message in await stream.receive():
            if isinstance(message, OutcomesAcknowledged):
                waiting.difference_update(message.attempt_ids)
            elif isinstance(message, Rejected):
                raise NotRecordedError(message.message)
    await stream.send([TreeEnded(report.heartbeat_sequence, report.reason)])
    while True:
        for message in await stream.receive():
            if isinstance(message, TreeEndedRecorded):
                return
            if isinstance(message, Rejected):
                raise NotRecordedError(message.message)
