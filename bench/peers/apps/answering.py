"""Workers that run nothing: whatever one of them is to start has succeeded at once.

``python answering.py SCHEDULER WORKERS SLOTS``: so many workers with so many slots each, all in this process,
until SIGTERM. Each is the supervisor of ``ostinato worker`` with a stream of its own: what it promises, how
its messages gather and how it drains is what a real one does. Only processes of tasks and the spool are left
out. They say that they run shell commands, so any task with a command comes to them. What the scheduler has
acknowledged, and so committed, is counted as the completions of other workers are.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from random import Random

import uvloop
from recording import count_completion

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.messages import NodeMessage, OutcomesAcknowledged, WorkerMessage
from ostinato.wire.protocol import WorkerStream
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.supervisor import Supervisor

_POOL = "process"
_CLOCK = SystemClock()
#: Workers that connect at once.
_OPENING_MAX = 16
#: The first of them keep the scheduler busy while the others still connect.
_CONNECT_US = 60 * SECOND


class AnsweringExecutor:
    """Says of what is started that it has succeeded."""

    kind = "shell"

    async def open(self, sink: EventSink) -> None:
        self._sink = sink

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        now_us = _CLOCK.wall_us()
        ids = [attempt.assignment.attempt_id for attempt in attempts]
        self._sink.started(ids)
        ended = [
            AttemptFinished(attempt_id, started_us=now_us, finished_us=now_us, result=b"null")
            for attempt_id in ids
        ]
        # As from a process: not while they are being started.
        asyncio.get_running_loop().call_soon(self._sink.finished, ended)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        """It ends by itself."""

    async def close(self) -> None:
        """Nothing runs."""


class CountingTransport(GrpcWorkerTransport):
    """Its streams count what has been acknowledged."""

    async def connect(self, address: str) -> WorkerStream:
        return _CountingStream(await super().connect(address))


class _CountingStream:
    def __init__(self, stream: WorkerStream) -> None:
        self._stream = stream

    async def send(self, messages: Sequence[WorkerMessage]) -> None:
        await self._stream.send(messages)

    async def receive(self) -> list[NodeMessage]:
        messages = await self._stream.receive()
        for message in messages:
            if isinstance(message, OutcomesAcknowledged):
                count_completion(len(message.attempt_ids))
        return messages

    async def close(self) -> None:
        await self._stream.close()


def _worker(number: int, *, scheduler: str, slots: int) -> Supervisor:
    config = WorkerConfig(
        worker_name=f"answering-{number}",
        scheduler=scheduler,
        capacity={_POOL: slots},
        # Nothing is written there.
        data_dir=Path(),
        connect_timeout_us=_CONNECT_US,
    )
    return Supervisor(
        config,
        clock=_CLOCK,
        transport=CountingTransport(connect_timeout_us=_CONNECT_US),
        executors=[AnsweringExecutor()],
        rng=Random(),
    )


async def main() -> None:
    scheduler, count, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    workers = [_worker(number, scheduler=scheduler, slots=slots) for number in range(count)]
    running: list[asyncio.Task[None]] = []
    for start in range(0, count, _OPENING_MAX):
        opened = workers[start : start + _OPENING_MAX]
        running += [asyncio.create_task(worker.run()) for worker in opened]
        await asyncio.gather(*(worker.is_connected.wait() for worker in opened))
    ending = asyncio.create_task(ended.wait())
    # None of them ends by itself, but with an error.
    await asyncio.wait([ending, *running], return_when=asyncio.FIRST_COMPLETED)
    for worker in workers:
        worker.drain("the benchmark is over")
    await asyncio.gather(*running)


if __name__ == "__main__":
    uvloop.run(main())
