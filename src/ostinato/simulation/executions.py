"""The executor of a simulated worker: each attempt runs in a process of its own, which the guardian starts.

What a slot process does is done here by the same code (``AttemptRun``: arguments, the last look at the lease
just before user code, result or failure), and how attempts are ended follows ``worker/slots.py``. User code
are coroutine functions on the machine's clock; one whose task says that it is a ``def`` cannot be cancelled,
only killed, as in a slot. Not modelled: a loop process that several attempts share.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence

from ostinato.core.definition import PythonSpec, TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.model import OutputChunk
from ostinato.sdk.context import running_in
from ostinato.sdk.task import read_function
from ostinato.simulation.event_loop import Handle
from ostinato.simulation.guardian_link import SimulatedChild
from ostinato.simulation.history import ExecutionBegan, ExecutionEnded, History
from ostinato.simulation.machine import Machine
from ostinato.simulation.process import Process, current_process
from ostinato.worker.executors.protocol import (
    AttemptBeat,
    AttemptFinished,
    AttemptStart,
    EventSink,
    StopReason,
)
from ostinato.worker.executors.task_based import unstarted
from ostinato.worker.frames import RunItem
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_process import NotStartedError
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.output import OutputCapture
from ostinato.worker.slots import run_item
from ostinato.worker.task_modules import Callee
from ostinato.worker.task_run import AttemptRun

#: User code: by task, coroutine functions as an app declares them.
Functions = Mapping[TaskRef, Callable[..., object]]
#: From the start of a process until it takes work: at least, at most.
READY_US_MIN, READY_US_MAX = 1_000, 60_000
RESTART_US = SECOND // 2
_COOPERATIVE = frozenset({StopReason.CANCELLED, StopReason.DRAIN})


async def work_for(duration_us: int) -> None:
    """User code that takes so long on the clock of its machine."""
    clock = current_process().clock
    await clock.sleep_until_us(clock.boot_us() + duration_us)


class SimulatedExecutor:
    """Executor of kind ``python`` of one supervisor."""

    kind = "python"

    def __init__(
        self,
        machine: Machine,
        supervisor: Process,
        *,
        functions: Functions,
        guardian: Guardian,
        history: History,
    ) -> None:
        self.machine = machine
        self.supervisor = supervisor
        self.guardian = guardian
        self.history = history
        self._callees = {ref: _callee(ref, function) for ref, function in functions.items()}
        self._attempts: dict[str, _Attempt] = {}
        self._sink: EventSink | None = None
        self._is_closed = False

    @property
    def known_tasks(self) -> KnownTasks:
        return KnownTasks(tasks=list(self._callees))

    @property
    def sink(self) -> EventSink:
        assert self._sink is not None, "open() comes first"
        return self._sink

    def callee(self, ref: TaskRef, _call: str) -> Callee:
        """The function of a task; ``KeyError`` for one that the worker does not have."""
        return self._callees[ref]

    async def open(self, sink: EventSink) -> None:
        self._sink = sink

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        for start in attempts:
            if self._is_closed:
                now_us = self.machine.clock.wall_us()
                self.sink.finished([unstarted(start, "the worker is closing", now_us=now_us)])
                continue
            attempt = _Attempt(self, start)
            self._attempts[attempt.attempt_id] = attempt
            attempt.open()

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        attempt = self._attempts.get(attempt_id)
        if attempt is not None:
            attempt.stop(reason=reason, grace_us=grace_us)

    def leases_moved(self) -> None:
        for attempt in self._attempts.values():
            attempt.mark()

    async def close(self) -> None:
        self._is_closed = True
        running = list(self._attempts.values())
        for attempt in running:
            attempt.stop(reason=StopReason.DRAIN, grace_us=0)
        for attempt in running:
            await attempt.gone.wait()

    def ended(self, finished: AttemptFinished) -> None:
        """An attempt has ended, for whatever reason."""
        del self._attempts[finished.attempt_id]
        self.sink.finished([finished])


class _Attempt:
    """One attempt as its supervisor sees it: from the wish for a process to the end of that."""

    def __init__(self, executor: SimulatedExecutor, start: AttemptStart) -> None:
        self._executor = executor
        self._machine = executor.machine
        self._start = start
        self.attempt_id = start.assignment.attempt_id
        self.is_strict = start.spec.exclusive == "strict"
        self.capture = OutputCapture(start.assignment)
        self._child: SimulatedChild | None = None
        self._execution: Execution | None = None
        #: It was handed to its process, or ended before.
        self._is_running = False
        self._has_ended = False
        self._started_us = 0
        self._marked_us: int | None = None
        self._kill: Handle | None = None
        self._last_words = asyncio.Event()
        self._opening: asyncio.Task[None] | None = None
        #: Its process has ended, and it has too.
        self.gone = asyncio.Event()

    def open(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._open(), name="attempt")

    async def _open(self) -> None:
        clock, guardian = self._machine.clock, self._executor.guardian
        child: SimulatedChild | None = None
        while child is None:
            try:
                started = await guardian.spawn(
                    [self.attempt_id], env={}, marker=self.attempt_id, stdout=-1, stderr=-1
                )
            except NotStartedError:
                await clock.sleep_until_us(clock.boot_us() + RESTART_US)
                if self._has_ended:
                    self.gone.set()
                    return
                continue
            assert isinstance(started, SimulatedChild), "its guardian is a simulated one"
            self._child = child = started
        self._execution = Execution(self._executor, child.process, attempt=self)
        child.process.on_crash(self._execution.died)
        if self._has_ended:
            child.kill()
        else:
            self._execution.boot()
        return_code = await child.exited
        child.release()
        await self._last_words.wait()
        self._on_exit(child, return_code)
        self.gone.set()

    def ready(self) -> None:
        """Its process takes work."""
        if self._has_ended or self._execution is None:
            return
        self._is_running = True
        self._started_us = self._machine.clock.wall_us()
        # Before it runs: the guardian must know, should this process freeze at once.
        self.mark()
        self._executor.sink.started([self.attempt_id])
        self._execution.run(run_item(self._start))

    def mark(self) -> None:
        """Tell the guardian how long it may go on now."""
        if self._is_running and not self._has_ended:
            self._mark(self._start.lease_ends_us)

    def _mark(self, lease_ends_us: int | None) -> None:
        if self._child is not None and lease_ends_us != self._marked_us:
            self._marked_us = lease_ends_us
            self._executor.guardian.mark(self._child.pid, lease_ends_us)

    def stop(self, *, reason: StopReason, grace_us: int) -> None:
        """Ask it to end and kill it after the grace; at once where asking is no use."""
        if self._has_ended:
            return
        if not self._is_running:
            now_us = self._machine.clock.wall_us()
            self.end(unstarted(self._start, "it was stopped", now_us=now_us))
            if self._child is not None:
                self._child.kill()
            return
        assert self._child is not None, "it runs"
        assert self._execution is not None, "it runs"
        executor = self._start.spec.executor
        is_async = isinstance(executor, PythonSpec) and executor.is_async
        if grace_us <= 0 or not (reason in _COOPERATIVE or is_async):
            self._child.kill()
            return
        self._execution.stop(reason)
        loop, clock = self._machine.loop, self._machine.clock
        kill_us = loop.true_us + clock.true_us_for(grace_us)
        if self._kill is None or self._kill.when() > kill_us / 1e6:
            self._cancel_kill()
            self._kill = loop.call_at_us(kill_us, self._child.kill)

    def _cancel_kill(self) -> None:
        if self._kill is not None:
            self._kill.cancel()
            self._kill = None

    def finished(self, finished: AttemptFinished) -> None:
        """Its process has told how it ended; that is of no more use."""
        self.end(finished)

    def said_all(self) -> None:
        """Nothing more comes from its process."""
        self._last_words.set()

    def _on_exit(self, child: SimulatedChild, return_code: int) -> None:
        self.end(
            AttemptFinished(
                attempt_id=self.attempt_id,
                started_us=self._started_us if self._is_running else None,
                finished_us=self._machine.clock.wall_us(),
                failure=child.failure_of_exit(return_code, what="the task's process"),
            )
        )

    def end(self, finished: AttemptFinished) -> None:
        """Report the end, once."""
        if self._has_ended:
            return
        self._has_ended = True
        self._cancel_kill()
        chunks = self.capture.finish(self._machine.clock.wall_us())
        if chunks:
            self.output(chunks)
        self._mark(None)
        self._executor.ended(finished)

    def beat(self, beat: AttemptBeat) -> None:
        if not self._has_ended:
            self._executor.sink.beat([beat])

    def log(self, data: bytes) -> None:
        if not self._has_ended:
            self.capture.write("log", data)

    def output(self, chunks: Sequence[OutputChunk]) -> None:
        self._executor.sink.output(chunks)


class Execution:
    """The process of an attempt: what it does, and what the world sees of it."""

    def __init__(self, executor: SimulatedExecutor, process: Process, *, attempt: _Attempt) -> None:
        machine = executor.machine
        self._executor = executor
        self._machine = machine
        self._process = process
        self._attempt = attempt
        self._to_process = machine.pipe(process)
        self._to_supervisor = machine.pipe(executor.supervisor)
        self._run: AttemptRun | None = None
        self._task: asyncio.Task[None] | None = None
        self._has_begun = False
        self._is_async = True
        executor.supervisor.on_crash(self._supervisor_gone)

    # ── what its supervisor does ──────────────────────────────────────────────────────────────────────

    def boot(self) -> None:
        """It imports what it needs, and says that it is ready."""
        loop = self._machine.loop
        took_us = READY_US_MIN + int(self._machine.rng.random() * (READY_US_MAX - READY_US_MIN))
        loop.call_at_us(loop.true_us + took_us, self._ready, context=self._process.context)

    def run(self, item: RunItem) -> None:
        self._to_process.post(self._begin, item)

    def stop(self, reason: StopReason) -> None:
        self._to_process.post(self._stop, reason)

    # ── what the process does ─────────────────────────────────────────────────────────────────────────

    def _ready(self) -> None:
        self._to_supervisor.post(self._attempt.ready)

    def _begin(self, item: RunItem) -> None:
        self._is_async = item.is_async
        self._run = AttemptRun(
            item,
            clock=self._machine.clock,
            send_beat=lambda beat: self._to_supervisor.post(self._attempt.beat, beat),
            write_log=lambda data: self._to_supervisor.post(self._attempt.log, data),
        )
        self._task = self._process.spawn(self._work(self._run, item), name="attempt")

    def _stop(self, reason: StopReason) -> None:
        if self._run is None or self._run.stop_reason:
            return
        self._run.stop_reason = reason
        if self._is_async and self._task is not None and self._run.is_entered:
            self._task.cancel()

    async def _work(self, run: AttemptRun, item: RunItem) -> None:
        try:
            finished = run.enter() or await self._outcome(run, item)
        except asyncio.CancelledError:
            self._over("raised")
            finished = run.stopped()
        last_beat = run.last_beat()
        if last_beat is not None:
            self._to_supervisor.post(self._attempt.beat, last_beat)
        self._to_supervisor.post(self._attempt.finished, finished)
        self._process.crash()

    async def _outcome(self, run: AttemptRun, item: RunItem) -> AttemptFinished:
        context = run.context()
        prepared = run.prepare(self._executor.callee, context)
        if isinstance(prepared, AttemptFinished):
            return prepared
        callee, call = prepared
        if (refused := run.begin()) is not None:
            return refused
        self._began(item)
        try:
            with running_in(context):
                value = callee.function(*call.args, **call.kwargs)
                if asyncio.iscoroutine(value):
                    value = await value
        except asyncio.CancelledError as error:
            if run.stop_reason:
                raise
            self._over("raised")
            return run.raised(error)
        except Exception as error:  # noqa: BLE001 - becomes the attempt's failure, whatever it is
            self._over("raised")
            return run.raised(error)
        self._over("returned")
        return run.returned(callee, value)

    # ── what the world sees ───────────────────────────────────────────────────────────────────────────

    def _began(self, item: RunItem) -> None:
        assignment = item.assignment
        self._has_begun = True
        self._executor.history.add(
            ExecutionBegan(
                at_us=self._machine.loop.true_us,
                machine=self._machine.name,
                worker=self._executor.supervisor.name,
                namespace=assignment.ref.namespace,
                task=assignment.ref.name,
                instance_id=assignment.instance_id,
                attempt=assignment.attempt,
                attempt_id=assignment.attempt_id,
                partition=assignment.partition,
                is_strict=self._attempt.is_strict,
            )
        )

    def _over(self, how: str) -> None:
        if self._has_begun:
            self._has_begun = False
            self._executor.history.add(
                ExecutionEnded(
                    at_us=self._machine.loop.true_us,
                    attempt_id=self._attempt.attempt_id,
                    how=how,  # type: ignore[arg-type]  # one of its words
                )
            )

    def died(self) -> None:
        """The process is gone: by itself, or killed by whomever."""
        self._over("killed")
        self._executor.supervisor.forget(self._supervisor_gone)
        self._to_supervisor.post(self._attempt.said_all)

    def _supervisor_gone(self) -> None:
        # It listens to nobody but its supervisor: what runs on could not be reported (I1).
        self._to_process.post(self._process.crash)


def _callee(ref: TaskRef, function: Callable[..., object]) -> Callee:
    signature = read_function(function, subject=str(ref))
    return Callee(function, signature.decode_call, signature.encode_result)
