"""Workers that run nothing: each is a stream that says of what it is assigned at once that it succeeded.

``python answering.py SCHEDULER WORKERS SLOTS``: so many streams with so many slots each, all in this process,
until SIGTERM. They say that they run shell commands, so any task with a command comes to them. What the
scheduler has acknowledged, and so committed, is counted as the completions of other workers are. At the end
the slots are taken back and what is on its way is answered, so that nothing stays running.
"""

from __future__ import annotations

import asyncio
import signal
import sys
from random import Random

import uvloop
from recording import count_completion

from ostinato.clock import SystemClock
from ostinato.core.ids import new_id
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.errors import UnavailableError
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Assignments,
    Draining,
    Heartbeat,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Rejected,
    Welcome,
)
from ostinato.wire.protocol import WorkerStream

_POOL = "process"
_EXECUTOR = "shell"
_CLOCK = SystemClock()
#: Streams that are opened at once.
_OPENING_MAX = 16
#: The first of them keep the scheduler busy while the others still connect.
_CONNECT_US = 60 * SECOND
#: An assignment that was under way when the slots were taken back has come after so long.
_SETTLE_S = 0.5
_END_S = 60.0


class AnsweringWorker:
    """One stream."""

    def __init__(self, number: int, *, slots: int) -> None:
        self._worker_id = new_id(_CLOCK.wall_us(), Random())
        self._name = f"answering-{number}"
        self._slots = slots
        self._granted = slots
        self._sequence = 0
        self._heartbeat_us = 0
        self._unacknowledged = 0
        self._is_ending = False

    @property
    def is_idle(self) -> bool:
        return self._unacknowledged == 0

    async def open(self, transport: GrpcWorkerTransport, address: str) -> None:
        """Greet the scheduler; raises ``SystemExit`` where it refuses."""
        self._stream: WorkerStream = await transport.connect(address)
        hello = Hello(
            protocol=PROTOCOL_VERSION,
            worker_id=self._worker_id,
            worker_name=self._name,
            capacity={_POOL: self._slots},
            executors=[_EXECUTOR],
            granted={_POOL: self._granted},
        )
        await self._stream.send([hello])
        while not self._heartbeat_us:
            await self._take(await self._stream.receive())

    async def serve(self) -> None:
        """Answer until the stream ends."""
        beating = asyncio.create_task(self._beat())
        try:
            while True:
                await self._take(await self._stream.receive())
        except UnavailableError:
            if not self._is_ending:
                raise
        finally:
            beating.cancel()

    async def withdraw(self) -> None:
        """Take no more; what has been assigned is still answered."""
        self._is_ending = True
        await self._stream.send([Draining("the benchmark is over")])

    async def _take(self, messages: list[NodeMessage]) -> None:
        for message in messages:
            if isinstance(message, Assignments):
                await self._answer(message)
            elif isinstance(message, OutcomesAcknowledged):
                self._unacknowledged -= len(message.attempt_ids) + len(message.unowned)
                count_completion(len(message.attempt_ids))
            elif isinstance(message, Welcome):
                self._heartbeat_us = message.heartbeat_us
            elif isinstance(message, Rejected):
                raise SystemExit(f"{self._name} was refused: {message.message}")

    async def _answer(self, assignments: Assignments) -> None:
        now_us = _CLOCK.wall_us()
        items = assignments.items
        self._unacknowledged += len(items)
        if not self._is_ending:
            self._granted += len(items)
        outcomes = [
            Outcome(
                instance_id=item.instance_id,
                attempt=item.attempt,
                attempt_id=item.attempt_id,
                started_us=now_us,
                finished_us=now_us,
                result=b"null",
            )
            for item in items
        ]
        accepted = Accepted([item.attempt_id for item in items])
        await self._stream.send([accepted, Outcomes(outcomes, {_POOL: self._granted})])

    async def _beat(self) -> None:
        while True:
            self._sequence += 1
            await self._stream.send([Heartbeat(self._sequence, _CLOCK.boot_us(), {_POOL: self._granted})])
            await asyncio.sleep(self._heartbeat_us / 1e6)


async def _until_ended(workers: list[AnsweringWorker]) -> None:
    async with asyncio.timeout(_END_S):
        while True:
            await asyncio.sleep(_SETTLE_S)
            if all(worker.is_idle for worker in workers):
                return


async def main() -> None:
    address, count, slots = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    ended = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, ended.set)
    transport = GrpcWorkerTransport(connect_timeout_us=_CONNECT_US)
    workers = [AnsweringWorker(number, slots=slots) for number in range(count)]
    serving: list[asyncio.Task[None]] = []
    for start in range(0, count, _OPENING_MAX):
        opened = workers[start : start + _OPENING_MAX]
        await asyncio.gather(*(worker.open(transport, address) for worker in opened))
        serving += [asyncio.create_task(worker.serve()) for worker in opened]
    ending = asyncio.create_task(ended.wait())
    await asyncio.wait([ending, *serving], return_when=asyncio.FIRST_COMPLETED)
    for task in serving:
        if task.done():
            task.result()
    await asyncio.gather(*(worker.withdraw() for worker in workers))
    await _until_ended(workers)
    await transport.close()


if __name__ == "__main__":
    uvloop.run(main())
