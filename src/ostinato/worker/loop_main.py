"""Main program of the loop process: runs all ``async def`` tasks of a worker in one event loop.

Each attempt is one asyncio task. Everything that happens in one turn of the loop, however many attempts end
in it, leaves in one frame. Which attempt a print or a log line belongs to is known by the context that
coroutines and ``asyncio.to_thread`` carry along; what belongs to none goes to the worker's own standard
error.
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
import traceback
from collections.abc import Coroutine
from contextlib import suppress
from contextvars import Context, ContextVar
from io import TextIOBase
from typing import TextIO, cast

from ostinato.clock import SystemClock
from ostinato.core.model import OutputChunk
from ostinato.sdk.context import running_in
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.fork_guard import ForkGuard
from ostinato.worker.frames import (
    Beats,
    Chunks,
    Configure,
    Finished,
    Ready,
    Run,
    RunItem,
    Stop,
    ToSupervisor,
    decode_for_process,
    encode_frame,
)
from ostinato.worker.framing import FrameSplitter
from ostinato.worker.leftovers import OrphanEntries
from ostinato.worker.output import OutputCapture
from ostinato.worker.slot_main import prepare_process
from ostinato.worker.started_work import StartedWork, current_work, new_following_loop
from ostinato.worker.task_modules import TaskModules
from ostinato.worker.task_run import AttemptRun

_OUTPUT_SECONDS = 0.1
#: Between two looks for children that have ended and that nobody waits for.
_ORPHANS_SECONDS = 30.0
#: Attempts in one message, so that no frame grows beyond what the other side takes.
_FINISHED_COUNT_MAX = 100


class LoopAttempt:
    """An attempt in the loop: its run, its asyncio task, and its output once it has written any."""

    __slots__ = ("capture", "run", "task", "work")

    def __init__(self, run: AttemptRun) -> None:
        self.run = run
        self.task: _AttemptTask | None = None
        self.capture: OutputCapture | None = None
        #: What it has started beside its coroutine; most start nothing.
        self.work: StartedWork | None = None

    def started_work(self) -> StartedWork:
        """What it has started, made for the first thing that it starts."""
        if self.work is None:
            self.work = StartedWork()
        return self.work


_current: ContextVar[LoopAttempt | None] = ContextVar("ostinato_loop_attempt", default=None)


class _AttemptTask(asyncio.Task[None]):
    """Task of one attempt, which knows whether another attempt has cancelled it."""

    def __init__(
        self, attempt: LoopAttempt, work: Coroutine[object, object, None], *, loop: asyncio.AbstractEventLoop
    ) -> None:
        super().__init__(work, loop=loop)
        self._attempt = attempt
        self.is_cancelled_by_neighbour = False

    def cancel(self, msg: object = None) -> bool:
        canceller = _current.get()
        if canceller is not None and canceller is not self._attempt:
            self.is_cancelled_by_neighbour = True
            if not self._attempt.run.is_entered:
                # Cancelled before its first step it would never run, and so never report its end.
                return not self.done()
        return super().cancel(msg)


class LoopProgram(asyncio.Protocol):
    """The process's side of its channel to the supervisor."""

    def __init__(self, fork_guard: ForkGuard) -> None:
        self._loop = asyncio.get_running_loop()
        self._fork_guard = fork_guard
        self._clock = SystemClock(0)
        self._splitter = FrameSplitter()
        self._transport: asyncio.Transport | None = None
        self._modules: TaskModules | None = None
        self._data_dir = ""
        self._orphans: OrphanEntries | None = None
        self._attempts: dict[str, LoopAttempt] = {}
        self._messages: list[ToSupervisor] = []
        self._finished: list[AttemptFinished] = []
        self._is_flush_due = False
        self._written: set[LoopAttempt] = set()

    # ── asyncio.Protocol ──────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # A cast, as uvloop's transport is no subclass of asyncio's.
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        # The supervisor is gone: nobody could report what happens here, and somebody else will run it (I1).
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def data_received(self, data: bytes) -> None:
        for body in self._splitter.feed(data):
            for message in decode_for_process(body):
                if isinstance(message, Run):
                    for item in message.items:
                        self._start(item)
                elif isinstance(message, Stop):
                    self._stop(message)
                else:
                    self._configure(message)

    def _configure(self, message: Configure) -> None:
        self._clock = SystemClock(message.clock_offset_us)
        self._data_dir = message.data_dir
        self._modules = TaskModules(message.app)
        # What is imported stays: to look for garbage in it again and again takes time from tasks.
        gc.freeze()
        self._orphans = OrphanEntries()
        self._loop.call_later(_ORPHANS_SECONDS, self._clear_orphans)
        self._send(Ready(self._modules.known))

    def _clear_orphans(self) -> None:
        """This process adopts what tasks leave behind, so nobody else can clear what of it has ended."""
        assert self._orphans is not None
        self._orphans.clear(self._attempts)
        self._loop.call_later(_ORPHANS_SECONDS, self._clear_orphans)

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────

    def _start(self, item: RunItem) -> None:
        attempt = LoopAttempt(
            AttemptRun(
                item,
                clock=self._clock,
                send_beat=self._on_beat,
                write_log=lambda data: self.write(attempt, data, stream="log"),
                data_dir=self._data_dir,
            )
        )
        self._attempts[attempt.run.attempt_id] = attempt
        attempt.task = _AttemptTask(attempt, self._run_guarded(attempt), loop=self._loop)

    def _stop(self, message: Stop) -> None:
        attempt = self._attempts.get(message.attempt_id)
        if attempt is not None and attempt.task is not None:
            attempt.run.stop_reason = message.reason
            if attempt.run.is_entered:
                attempt.task.cancel()

    async def _run_guarded(self, attempt: LoopAttempt) -> None:
        await self._fork_guard.drive(self._run(attempt))

    async def _run(self, attempt: LoopAttempt) -> None:
        run = attempt.run
        try:
            finished = run.enter() or await self._outcome(attempt)
        except asyncio.CancelledError:
            finished = run.stopped() if run.stop_reason else run.ended_by_neighbour()
        if attempt.work is not None:
            await self._end_work(attempt, attempt.work, is_success=finished.failure is None)
            finished.finished_us = self._clock.wall_us()
        if run.has_scratch:
            # A stop that comes now only means that the end does not wait for the rest of it.
            with suppress(asyncio.CancelledError):
                await asyncio.shield(self._loop.run_in_executor(None, run.remove_scratch))
        self._end(attempt, finished)

    async def _end_work(self, attempt: LoopAttempt, work: StartedWork, *, is_success: bool) -> None:
        """Return when nothing runs any more of what the attempt has started beside its coroutine."""
        if not is_success:
            work.drop_queued()
        # In a context of its own: it is not itself something that the attempt has started.
        ending = self._loop.create_task(work.end(with_tasks=not is_success), context=Context())
        while not ending.done():
            try:
                await asyncio.wait([ending])
            except asyncio.CancelledError:
                # Neither a stop nor a neighbour can shorten it; what has not begun need not begin any more.
                if attempt.run.stop_reason:
                    work.drop_queued()
        ending.result()

    async def _outcome(self, attempt: LoopAttempt) -> AttemptFinished:
        run = attempt.run
        assert self._modules is not None, "the supervisor sends Configure first"
        if _is_cancelled_by_neighbour(attempt):
            return run.ended_by_neighbour()
        _current.set(attempt)
        current_work.set(attempt.started_work)
        context = run.context()
        prepared = run.prepare(self._modules.callee, context)
        if isinstance(prepared, AttemptFinished):
            return prepared
        callee, call = prepared
        if (refused := run.begin()) is not None:
            return refused
        try:
            with running_in(context):
                value = callee.function(*call.args, **call.kwargs)
                if asyncio.iscoroutine(value):
                    value = await value
        except asyncio.CancelledError as error:
            if run.stop_reason or _is_cancelled_by_neighbour(attempt):
                raise
            return run.raised(error)
        except BaseException as error:  # noqa: BLE001 - becomes the attempt's failure, whatever it is
            return run.raised(error)
        return run.returned(callee, value)

    def _end(self, attempt: LoopAttempt, finished: AttemptFinished) -> None:
        run = attempt.run
        del self._attempts[run.attempt_id]
        last_beat = run.last_beat()
        if last_beat is not None:
            self._messages.append(Beats([last_beat]))
        if attempt.capture is not None:
            self._written.discard(attempt)
            chunks = attempt.capture.finish(self._clock.wall_us())
            if chunks:
                self._messages.append(Chunks(chunks))
        self._finished.append(finished)
        self._flush_soon()

    # ── what leaves ───────────────────────────────────────────────────────────────────────────────────

    def _on_beat(self, beat: AttemptBeat) -> None:
        self._loop.call_soon_threadsafe(self._send, Beats([beat]))

    def write(self, attempt: LoopAttempt, data: bytes, *, stream: str) -> None:
        """Keep what an attempt wrote; from any thread. What comes after its end is dropped."""
        if attempt.run.attempt_id not in self._attempts:
            return
        if attempt.capture is None:
            attempt.capture = OutputCapture(attempt.run.item.assignment)
        attempt.capture.write(stream, data)
        if attempt not in self._written:
            if not self._written:
                self._loop.call_soon_threadsafe(self._loop.call_later, _OUTPUT_SECONDS, self._send_output)
            self._written.add(attempt)

    def _send_output(self) -> None:
        now_us = self._clock.wall_us()
        written, self._written = self._written, set()
        chunks: list[OutputChunk] = []
        for attempt in written:
            if attempt.capture is not None:
                chunks.extend(attempt.capture.take(now_us))
        if chunks:
            self._send(Chunks(chunks))

    def _send(self, message: ToSupervisor) -> None:
        self._messages.append(message)
        self._flush_soon()

    def _flush_soon(self) -> None:
        if not self._is_flush_due:
            self._is_flush_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._is_flush_due = False
        messages, self._messages = self._messages, []
        finished, self._finished = self._finished, []
        messages.extend(
            Finished(finished[start : start + _FINISHED_COUNT_MAX])
            for start in range(0, len(finished), _FINISHED_COUNT_MAX)
        )
        if self._transport is not None:
            self._transport.write(encode_frame(messages))


def _is_cancelled_by_neighbour(attempt: LoopAttempt) -> bool:
    return attempt.task is not None and attempt.task.is_cancelled_by_neighbour


class _RoutedStream(TextIOBase):
    """Standard output or error of whichever attempt the writing code belongs to."""

    def __init__(self, program: LoopProgram, *, name: str, original: TextIO) -> None:
        super().__init__()
        self._program = program
        self._name = name
        self._original = original

    @property
    def encoding(self) -> str:  # type: ignore[override]  # declared as a plain attribute there
        return "utf-8"

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    def write(self, text: str) -> int:
        attempt = _current.get()
        if attempt is None:
            return self._original.write(text)
        self._program.write(attempt, text.encode("utf-8", "backslashreplace"), stream=self._name)
        return len(text)

    def flush(self) -> None:
        self._original.flush()

    def close(self) -> None:
        """It is shared by all attempts, so none of them can close it."""
        self.flush()


class _LoopLogHandler(logging.Handler):
    """Keeps what a task logs through any logger with the output of its attempt."""

    def emit(self, record: logging.LogRecord) -> None:
        attempt = _current.get()
        if attempt is not None:
            attempt.run.write_record(record)


async def connect() -> None:
    """Begin to run what the supervisor sends."""
    channel = prepare_process()
    channel.setblocking(False)
    loop = asyncio.get_running_loop()
    program = LoopProgram(ForkGuard(loop, channel_descriptor=channel.fileno()))
    sys.stdout = _RoutedStream(program, name="stdout", original=sys.stdout)
    sys.stderr = _RoutedStream(program, name="stderr", original=sys.stderr)
    logging.getLogger().addHandler(_LoopLogHandler())
    await loop.create_connection(lambda: program, sock=channel)


def run_for_ever(loop: asyncio.AbstractEventLoop) -> None:
    """Run `loop`, and run it again when a task has stopped it: its neighbours have not asked for that.

    ``SystemExit`` and ``KeyboardInterrupt`` of a callback or a task's own subtask come out of the loop as
    well. They have been handed to whoever awaits the subtask; to the other attempts they mean nothing.
    """
    while not loop.is_closed():
        try:
            loop.run_forever()
        except (SystemExit, KeyboardInterrupt):
            traceback.print_exc(file=sys.__stderr__)


def main() -> None:
    """Run what the supervisor sends until the process is killed."""
    loop = new_following_loop()
    asyncio.set_event_loop(loop)
    loop.run_until_complete(connect())
    run_for_ever(loop)


if __name__ == "__main__":
    main()
