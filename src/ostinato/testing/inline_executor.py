"""An executor that runs Python functions on the caller's own event loop, for tests on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TypeAlias

from ostinato.clock import Clock
from ostinato.core.definition import PythonSpec, TaskRef
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.errors import UserError
from ostinato.sdk.context import running_in
from ostinato.sdk.task import read_function
from ostinato.wire.messages import Assignment
from ostinato.worker.executors.protocol import (
    AttemptBeat,
    AttemptFinished,
    AttemptStart,
    EventSink,
    StopReason,
)
from ostinato.worker.executors.task_based import unstarted
from ostinato.worker.frames import RunItem
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.output import OutputCapture
from ostinato.worker.task_modules import Callee
from ostinato.worker.task_run import AttemptRun

#: How often a closing executor asks coroutines that did not end when asked.
_CANCEL_ROUNDS = 5


class EndsWith(Exception):
    """Raised instead of an exception of a task's own: the attempt ends with this failure."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


#: Does what an attempt is to do, with its function and arguments, and returns what it results in.
Conduct: TypeAlias = Callable[[Assignment, partial[object]], Awaitable[object]]


async def call_here(_: Assignment, function: partial[object]) -> object:
    """Call the function on the running loop, and await it if it is a coroutine function."""
    value = function()
    return await value if asyncio.iscoroutine(value) else value


class InlineExecutor:
    """Executor of one kind: `functions` by task, ``def`` or ``async def``, called as a worker would.

    `conduct` stands between an attempt and its function. `functions` may grow, which is told to no node. A
    stop cancels the coroutine. One that goes on beyond its grace is reported as killed and abandoned, since a
    coroutine cannot be killed. Log lines of the context become output; prints are left alone.
    """

    def __init__(
        self,
        functions: Mapping[TaskRef, Callable[..., object]],
        *,
        clock: Clock,
        kind: str = "python",
        conduct: Conduct = call_here,
    ) -> None:
        self.kind = kind
        self._clock = clock
        self._conduct = conduct
        self._functions = functions
        self._callees = {ref: _callee(ref, function) for ref, function in functions.items()}
        self._sink: EventSink | None = None
        self._running: dict[str, _InlineAttempt] = {}
        self._abandoned: set[asyncio.Task[None]] = set()
        self._is_closed = False

    @property
    def known_tasks(self) -> KnownTasks:
        return KnownTasks(tasks=list(self._functions))

    async def open(self, sink: EventSink) -> None:
        self._sink = sink

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        assert self._sink is not None, "open() comes first"
        for start in attempts:
            if self._is_closed:
                self._sink.finished([unstarted(start, "the worker is closing", now_us=self._clock.wall_us())])
                continue
            attempt = _InlineAttempt(start, clock=self._clock, sink=self._sink)
            self._running[attempt.run.attempt_id] = attempt
            attempt.task = asyncio.create_task(self._run(attempt))
        if not self._is_closed:
            self._sink.started([start.assignment.attempt_id for start in attempts])

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        attempt = self._running.get(attempt_id)
        if attempt is None or attempt.task is None:
            return
        if not attempt.run.stop_reason:
            attempt.run.stop_reason = reason
            if attempt.run.is_entered:
                attempt.task.cancel()
        attempt.kill_at(self._clock.boot_us() + grace_us, self._abandon)

    async def close(self) -> None:
        self._is_closed = True
        for attempt in list(self._running.values()):
            if attempt.task is not None:
                attempt.task.cancel()
            self._abandon(attempt)
        for _ in range(_CANCEL_ROUNDS):
            if not self._abandoned:
                return
            for task in self._abandoned:
                task.cancel()
            await asyncio.wait(list(self._abandoned), timeout=0)

    async def _run(self, attempt: _InlineAttempt) -> None:
        try:
            finished = attempt.run.enter() or await attempt.outcome(self._find, self._conduct)
        except asyncio.CancelledError:
            finished = attempt.run.stopped()
        self._end(attempt, finished)

    def _abandon(self, attempt: _InlineAttempt) -> None:
        task = attempt.task
        if task is None:
            return
        self._abandoned.add(task)
        task.add_done_callback(self._abandoned.discard)
        message = "the attempt did not end within its grace"
        self._end(attempt, attempt.run.failed(safe_failure("SIGNAL_9", message)))

    def _end(self, attempt: _InlineAttempt, finished: AttemptFinished) -> None:
        assert self._sink is not None, "open() comes first"
        if self._running.pop(finished.attempt_id, None) is None:
            return
        attempt.cancel_kill()
        attempt.run.remove_scratch()
        last_beat = attempt.run.last_beat()
        if last_beat is not None:
            self._sink.beat([last_beat])
        chunks = attempt.capture.finish(self._clock.wall_us())
        if chunks:
            self._sink.output(chunks)
        self._sink.finished([finished])

    def _find(self, ref: TaskRef, call: str) -> Callee:
        callee = self._callees.get(ref)
        if callee is None:
            function = self._functions.get(ref)
            if function is None:
                raise UserError("TASK_NOT_FOUND", f"no function was given for {call}", subject=str(ref))
            callee = self._callees[ref] = _callee(ref, function)
        return callee


class _InlineAttempt:
    """One attempt, its coroutine, and the time at which it counts as killed."""

    def __init__(self, start: AttemptStart, *, clock: Clock, sink: EventSink) -> None:
        executor = start.spec.executor
        self._clock = clock
        self._sink = sink
        self.capture = OutputCapture(start.assignment)
        self.run = AttemptRun(
            RunItem(
                start.assignment,
                executor.call if isinstance(executor, PythonSpec) else "",
                start.spec.timeout_us,
                lease_ends_us=start.lease_ends_us,
            ),
            clock=clock,
            send_beat=self._on_beat,
            write_log=lambda data: self.capture.write("log", data),
        )
        self.task: asyncio.Task[None] | None = None
        self._kill_us: int | None = None
        self._killing: asyncio.Task[None] | None = None

    async def outcome(self, find: Callable[[TaskRef, str], Callee], conduct: Conduct) -> AttemptFinished:
        """Do what the attempt is to do and return how that ended."""
        context = self.run.context()
        prepared = self.run.prepare(find, context)
        if isinstance(prepared, AttemptFinished):
            return prepared
        callee, call = prepared
        if (refused := self.run.begin()) is not None:
            return refused
        try:
            with running_in(context):
                function = partial(callee.function, *call.args, **call.kwargs)
                value = await conduct(self.run.item.assignment, function)
        except asyncio.CancelledError as error:
            if self.run.stop_reason:
                raise
            return self.run.raised(error)
        except EndsWith as end:
            return self.run.failed(end.failure)
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - becomes the attempt's failure, whatever it is
            return self.run.raised(error)
        return self.run.returned(callee, value)

    def kill_at(self, kill_us: int, kill: Callable[[_InlineAttempt], None]) -> None:
        """Call `kill` at that boot time; a second call may only bring it forward."""
        if self._kill_us is not None and self._kill_us <= kill_us:
            return
        self.cancel_kill()
        self._kill_us = kill_us
        self._killing = asyncio.create_task(self._kill_later(kill_us, kill))

    async def _kill_later(self, kill_us: int, kill: Callable[[_InlineAttempt], None]) -> None:
        await self._clock.sleep_until_us(kill_us)
        self._killing = None
        kill(self)

    def cancel_kill(self) -> None:
        """The attempt has ended."""
        if self._killing is not None:
            self._killing.cancel()
            self._killing = None

    def _on_beat(self, beat: AttemptBeat) -> None:
        self._sink.beat([beat])


def _callee(ref: TaskRef, function: Callable[..., object]) -> Callee:
    signature = read_function(function, subject=str(ref))
    return Callee(function, signature.decode_call, signature.encode_result)
