"""What tests of the spool need: outcomes, a spool with its outbox, and a worker process that owns one."""

from __future__ import annotations

import os
import select
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND
from ostinato.core.model import Outcome
from ostinato.wire.messages import Outcomes
from ostinato.worker.credits import Credits
from ostinato.worker.mail import Mail
from ostinato.worker.outbox import Outbox
from ostinato.worker.spool import Spool
from ostinato.worker.spool_file import SpoolFile

#: A process with a spool: writes `count` outcomes, says so, and then does what it is told by lines.
WORKER = """
import asyncio, pathlib, subprocess, sys
from tests.worker.spool_stories import Kept, ids_of, outcomes

async def main(folder, worker_id, count):
    kept = Kept(pathlib.Path(folder), worker_id)
    await kept.open()
    kept.outbox.add_outcomes(outcomes(int(count), worker_id))
    await kept.spool.is_safe.wait()
    print("ready", flush=True)
    loop = asyncio.get_running_loop()
    while line := (await loop.run_in_executor(None, sys.stdin.readline)).strip():
        if line == "take over":
            await kept.spool.take_over()
        elif line == "guardian":
            descriptor = kept.spool.lock_descriptor
            child = subprocess.Popen(["sleep", "600"], pass_fds=[descriptor], stdin=subprocess.DEVNULL,
                                     stdout=subprocess.DEVNULL)
            print(child.pid, flush=True)
            continue
        print(*ids_of(kept.outbox.unacknowledged), flush=True)

asyncio.run(main(*sys.argv[1:]))
"""


def outcome(attempt_id: str, *, result: bytes = b'"done"') -> Outcome:
    return Outcome(
        instance_id=f"instance-of-{attempt_id}",
        attempt=1,
        attempt_id=attempt_id,
        started_us=1,
        finished_us=2,
        result=result,
    )


def outcomes(count: int, name: str = "a") -> list[Outcome]:
    return [outcome(f"{name}-{number}") for number in range(count)]


def ids_of(items: Iterable[Outcome]) -> list[str]:
    return [item.attempt_id for item in items]


class Kept:
    """A spool and the outbox that it serves, as a supervisor has them."""

    def __init__(self, folder: Path, worker_id: str = "own") -> None:
        self.clock = SystemClock()
        self.credits = Credits({"async": 2})
        self.stream = 1
        self.spool = Spool(folder, worker_id=worker_id, clock=self.clock)
        self.outbox = Outbox(self.spool)
        self.mail = self._open()

    def _open(self) -> Mail:
        self.credits.open(self.stream, on_granted=lambda: self.mail.grants_changed(), on_wanted=lambda: None)
        return self.outbox.open(self.stream, lambda: self.credits.granted(self.stream))

    def new_stream(self) -> None:
        """The stream has ended, and another one is welcome."""
        self.outbox.close(self.stream)
        self.credits.close(self.stream)
        self.stream += 1
        self.mail = self._open()

    def acknowledge(self, attempt_ids: Sequence[str]) -> None:
        """The node has these outcomes."""
        self.outbox.acknowledge(self.stream, attempt_ids)

    async def open(self) -> None:
        await self.spool.open(self.outbox, self.credits)

    def sent(self) -> list[Outcome]:
        """All outcomes that may leave now."""
        found: list[Outcome] = []
        while self.mail.has_mail.is_set():
            for message in self.mail.take():
                if isinstance(message, Outcomes):
                    found += message.items
        return found

    async def until(self, look: Callable[[], bool], *, within_s: float = 30) -> None:
        """Poll until `look` is true."""
        end_us = self.clock.boot_us() + round(within_s * 1e6)
        while not look():
            assert self.clock.boot_us() < end_us, "the condition did not come true in time"
            await self.clock.sleep_until_us(self.clock.boot_us() + 5 * MILLISECOND)


@asynccontextmanager
async def kept(folder: Path, worker_id: str = "own") -> AsyncIterator[Kept]:
    made = Kept(folder, worker_id)
    await made.open()
    try:
        yield made
    finally:
        await made.spool.close()


class WorkerProcess:
    """A process that has a spool in `folder`, with `count` outcomes that nobody has been sent."""

    def __init__(self, folder: Path, worker_id: str, *, count: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", WORKER, str(folder), worker_id, str(count)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
        )

    def wait_until_ready(self) -> None:
        assert self.line() == ["ready"]

    def tell(self, word: str) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word}\n".encode())
        self._process.stdin.flush()

    def line(self) -> Sequence[str]:
        """Words of the next line that it prints."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], 30)
        assert ready, "the process says nothing"
        return self._process.stdout.readline().decode().split()

    def kill(self) -> None:
        """As the machine's worst hour does it; idempotent."""
        self._process.kill()
        self._process.wait(30)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def leave(folder: Path, worker_id: str, *, count: int) -> None:
    """A worker process that is killed before it has sent its outcomes."""
    process = WorkerProcess(folder, worker_id, count=count)
    try:
        process.wait_until_ready()
    finally:
        process.kill()


def write(folder: Path, worker_id: str, *groups: list[Outcome]) -> Path:
    """A spool as a worker leaves it that is killed before anybody looks."""
    file = SpoolFile(folder / "spool" / f"{worker_id}.db")
    file.path.parent.mkdir(exist_ok=True)
    for group in groups:
        file.add(group)
    file.close()
    return file.path


def names_in(folder: Path) -> list[str]:
    """Names of the files in a data directory's spool."""
    return sorted(os.listdir(folder / "spool"))
