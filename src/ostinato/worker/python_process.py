"""The supervisor's end of one Python process: started as a fresh interpreter, spoken to in frames."""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol, cast

from ostinato.clock import SystemClock
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.worker.child import ChildProcess, PipeReader, exit_failure
from ostinato.worker.frames import (
    Configure,
    ToProcess,
    ToSupervisor,
    decode_for_supervisor,
    encode_frame,
)
from ostinato.worker.framing import FrameError, FrameSplitter
from ostinato.worker.guardian import CHANNEL, Guardian
from ostinato.worker.output import CHUNK_BYTES_MAX
from ostinato.worker.process_tree import MARKER_VARIABLE
from ostinato.worker.task_environment import task_environment

_log = logging.getLogger("ostinato.worker")

_LAST_WORDS_SECONDS = 2.0


class TaskProcess(Protocol):
    """A process of tasks, as slots and the loop's host use it; see ``PythonProcess``."""

    @property
    def pid(self) -> int: ...

    @property
    def takes_work(self) -> bool: ...

    def failure_of_exit(self, return_code: int, *, what: str) -> Failure: ...

    async def start(self, module: str, settings: PythonSettings) -> None: ...

    def send(self, messages: Sequence[ToProcess]) -> None: ...

    def mark(self, lease_ends_us: int | None) -> None: ...

    def drain_output(self) -> None: ...

    def kill(self) -> None: ...

    async def wait_until_gone(self) -> None: ...


class NewProcess(Protocol):
    """Makes a process of tasks, which is not started yet; arguments as ``PythonProcess`` has them."""

    def __call__(
        self,
        on_message: Callable[[ToSupervisor], None],
        on_exit: Callable[[int], None],
        *,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> TaskProcess: ...


class PythonProcess(asyncio.Protocol):
    """One process. `on_message` gets what it says, `on_exit` its return code, once, after everything it said.

    With `on_output` its standard output and error are captured; without, they go to the supervisor's standard
    error, because nobody could say which attempt wrote them.
    """

    def __init__(
        self,
        on_message: Callable[[ToSupervisor], None],
        on_exit: Callable[[int], None],
        *,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> None:
        self._on_message = on_message
        self._on_exit = on_exit
        self._on_output = on_output
        self._splitter = FrameSplitter()
        self._child: ChildProcess | None = None
        self._guardian: Guardian | None = None
        self._lease_ends_us: int | None = None
        self._transport: asyncio.Transport | None = None
        self._pipes: list[PipeReader] = []
        self._killing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        self._lost = asyncio.Event()
        #: Why what it said could not be read; empty as long as everything could.
        self._unreadable = ""

    @property
    def pid(self) -> int:
        """Process id; 0 before `start`."""
        return 0 if self._child is None else self._child.pid

    @property
    def takes_work(self) -> bool:
        """Whether it was started, lives, and is not being killed."""
        return (
            self._child is not None
            and not self._child.exited.done()
            and self._killing is None
            and not self._lost.is_set()
        )

    def failure_of_exit(self, return_code: int, *, what: str) -> Failure:
        """What the end of the process means to an attempt in it, unless the attempt was to be ended."""
        if self._unreadable:
            return safe_failure(
                "EXECUTOR_ERROR",
                f"{what} sent something that the worker cannot read, and was killed: {self._unreadable}",
            )
        if self._child is None:
            return exit_failure(return_code, what=what)
        return self._child.failure_of_exit(return_code, what=what)

    async def start(self, module: str, settings: PythonSettings) -> None:
        """Start ``python -m module``. Raises ``OSError`` when no process can be had."""
        marker = secrets.token_hex(8)
        self._guardian = settings.guardian
        ours, theirs = socket.socketpair()
        try:
            self._child = await self._spawn(module, self._guardian, channel=theirs.fileno(), marker=marker)
        except BaseException:
            ours.close()
            for pipe in self._pipes:
                pipe.close()
            raise
        finally:
            theirs.close()
        for pipe in self._pipes:
            pipe.child_started()
        ours.setblocking(False)
        await asyncio.get_running_loop().create_connection(lambda: self, sock=ours)
        self._watching = asyncio.create_task(self._watch(self._child))
        self.send([Configure(settings.app, settings.clock_offset_us, settings.data_dir)])

    async def _spawn(self, module: str, guardian: Guardian, *, channel: int, marker: str) -> ChildProcess:
        stdout = stderr = sys.__stderr__.fileno() if sys.__stderr__ is not None else 2
        if self._on_output is not None:
            on_output = self._on_output
            self._pipes = [
                PipeReader(lambda data: on_output("stdout", data), size_bytes=CHUNK_BYTES_MAX),
                PipeReader(lambda data: on_output("stderr", data), size_bytes=CHUNK_BYTES_MAX),
            ]
            stdout, stderr = (pipe.write_end for pipe in self._pipes)
        return await guardian.spawn(
            [sys.executable, "-X", "utf8", "-m", module, CHANNEL],
            env={**task_environment(os.environ), MARKER_VARIABLE: marker},
            marker=marker,
            stdout=stdout,
            stderr=stderr,
            pass_fds=[channel],
        )

    def send(self, messages: Sequence[ToProcess]) -> None:
        """Hand over messages; lost without notice if the process is ending, which `on_exit` then tells."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(encode_frame(messages))

    def mark(self, lease_ends_us: int | None) -> None:
        """Say when the lease of what runs in the process ends (boot time); None: it depends on none."""
        if lease_ends_us != self._lease_ends_us and self._child is not None and self._guardian is not None:
            self._lease_ends_us = lease_ends_us
            self._guardian.mark(self._child.pid, lease_ends_us)

    def drain_output(self) -> None:
        """Read what the process has written until now, so that it stands before the end of its attempt."""
        for pipe in self._pipes:
            pipe.drain()

    def kill(self) -> None:
        """Kill the process and all that came from it; `on_exit` follows. Idempotent."""
        if self._killing is None and self._child is not None:
            self._killing = asyncio.create_task(self._child.kill_tree())

    async def wait_until_gone(self) -> None:
        """Return when the process has been reaped, its tree is gone and `on_exit` was called."""
        if self._watching is not None:
            await asyncio.shield(self._watching)

    async def _watch(self, child: ChildProcess) -> None:
        return_code = await asyncio.shield(child.exited)
        # Whatever it has started dies with it, and only then is its place free.
        self.kill()
        assert self._killing is not None
        await self._killing
        if self._transport is not None:
            await self._wait_for_last_words(self._transport)
        self.drain_output()
        for pipe in self._pipes:
            pipe.close()
        self._on_exit(return_code)

    async def _wait_for_last_words(self, transport: asyncio.Transport) -> None:
        """Read what stands in the channel; not longer, should somebody still hold its other end."""
        try:
            await asyncio.wait_for(self._lost.wait(), _LAST_WORDS_SECONDS)
        except TimeoutError:
            transport.abort()

    # ── asyncio.Protocol ──────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, as uvloop's transport is no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._unreadable:
            return
        try:
            while bodies := self._splitter.feed(data):
                data = b""
                for body in bodies:
                    for message in decode_for_supervisor(body):
                        self._on_message(message)
        except FrameError as error:
            # Where the next message begins is unknown from here on.
            self._unreadable = str(error)
            _log.error("process_unreadable", extra={"process_id": self.pid, "reason": self._unreadable})
            self.kill()

    def connection_lost(self, error: Exception | None) -> None:
        self._lost.set()
        # One that has lost its channel and lives on (a task has replaced its program, say) would never report
        # the end of what runs in it. One that is ending already keeps its exit status.
        self.kill()


class PythonSettings(NamedTuple):
    """What every Python process of a worker is started with, and by whom."""

    app: str
    clock_offset_us: int
    guardian: Guardian
    #: Absolute directory in which attempts have their scratch directories.
    data_dir: str
    new_process: NewProcess = PythonProcess

    @staticmethod
    def of(*, app: str, clock: object, guardian: Guardian, data_dir: Path) -> PythonSettings:
        """Settings that give the processes the supervisor's own boot time, where it has a real one."""
        offset_us = clock.offset_us if isinstance(clock, SystemClock) else 0
        return PythonSettings(app, offset_us, guardian, data_dir=str(data_dir.resolve()))
