"""Processes of tasks on a simulated machine, under the real executor of Python tasks.

::

    PythonExecutor ── SlotPool, LoopHost (real) ── TaskLink ══ pipe ══ TaskProgram ── user code
                                                      └── child of the guardian

``TaskLink`` stands for ``worker/python_process.py``, ``TaskProgram`` for ``slot_main.py`` and
``loop_main.py``: an attempt there is run by the same ``AttemptRun`` (arguments, the last look at the lease
just before user code, result or failure). User code are coroutine functions on the machine's clock; that of
a ``def`` task is not cancelled when it is asked to end, only told, and so has to be killed.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Literal

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.sdk.context import running_in
from ostinato.sdk.task import read_function
from ostinato.simulation.guardian_link import SimulatedChild
from ostinato.simulation.history import ExecutionBegan, ExecutionEnded, History
from ostinato.simulation.machine import Machine, Pipe
from ostinato.simulation.process import Process, current_process
from ostinato.worker.child import exit_failure
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.frames import (
    Beats,
    Chunks,
    Configure,
    Finished,
    LogText,
    Ready,
    Run,
    RunItem,
    Stop,
    ToProcess,
    ToSupervisor,
)
from ostinato.worker.guardian import Guardian
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.output import OutputCapture
from ostinato.worker.python_process import PythonSettings, TaskProcess
from ostinato.worker.slots import SLOT_MODULE
from ostinato.worker.task_modules import Callee
from ostinato.worker.task_run import AttemptRun

#: User code: by task, coroutine functions as an app declares them.
Functions = Mapping[TaskRef, Callable[..., object]]
#: From the start of a process until it takes work: at least, at most.
READY_US_MIN, READY_US_MAX = 1_000, 60_000


async def work_for(duration_us: int) -> None:
    """User code that takes so long on the clock of its machine."""
    clock = current_process().clock
    await clock.sleep_until_us(clock.boot_us() + duration_us)


class TaskPrograms:
    """Makes the processes of tasks of one supervisor; what ``PythonSettings.new_process`` is."""

    def __init__(
        self, machine: Machine, supervisor: Process, *, functions: Functions, history: History
    ) -> None:
        self.machine = machine
        self.supervisor = supervisor
        self.history = history
        self.callees = {ref: _callee(ref, function) for ref, function in functions.items()}

    def __call__(
        self,
        on_message: Callable[[ToSupervisor], None],
        on_exit: Callable[[int], None],
        *,
        on_output: Callable[[str, bytes], None] | None = None,
    ) -> TaskProcess:
        return TaskLink(self, on_message, on_exit=on_exit)


class TaskLink:
    """The supervisor's end of one process of tasks."""

    def __init__(
        self,
        programs: TaskPrograms,
        on_message: Callable[[ToSupervisor], None],
        *,
        on_exit: Callable[[int], None],
    ) -> None:
        self._programs = programs
        self._on_message = on_message
        self._on_exit = on_exit
        self._child: SimulatedChild | None = None
        self._guardian: Guardian | None = None
        self._program: TaskProgram | None = None
        self._to_process: Pipe | None = None
        self._lease_ends_us: int | None = None
        self._killing: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None
        #: The other end of the channel is closed, and everything said before was heard.
        self._lost = asyncio.Event()

    @property
    def pid(self) -> int:
        return 0 if self._child is None else self._child.pid

    @property
    def takes_work(self) -> bool:
        return (
            self._child is not None
            and not self._child.exited.done()
            and self._killing is None
            and not self._lost.is_set()
        )

    def failure_of_exit(self, return_code: int, *, what: str) -> Failure:
        if self._child is None:
            return exit_failure(return_code, what=what)
        return self._child.failure_of_exit(return_code, what=what)

    async def start(self, module: str, settings: PythonSettings) -> None:
        self._guardian = settings.guardian
        machine = self._programs.machine
        marker = f"{machine.next_number()}"
        child = await settings.guardian.spawn([module], env={}, marker=marker, stdout=-1, stderr=-1)
        assert isinstance(child, SimulatedChild), "its guardian is a simulated one"
        self._child = child
        self._program = TaskProgram(self._programs, child.process, link=self, is_slot=module == SLOT_MODULE)
        self._to_process = machine.pipe(child.process)
        self._watching = asyncio.get_running_loop().create_task(self._watch(child))
        self.send([Configure(settings.app, settings.clock_offset_us, settings.data_dir)])

    def send(self, messages: Sequence[ToProcess]) -> None:
        if self._to_process is not None and self._program is not None and not self._lost.is_set():
            self._to_process.post(self._program.receive, list(messages))

    def mark(self, lease_ends_us: int | None) -> None:
        if lease_ends_us != self._lease_ends_us and self._child is not None and self._guardian is not None:
            self._lease_ends_us = lease_ends_us
            self._guardian.mark(self._child.pid, lease_ends_us)

    def drain_output(self) -> None:
        """All that user code says comes by the channel."""

    def kill(self) -> None:
        if self._killing is None and self._child is not None:
            self._killing = asyncio.get_running_loop().create_task(self._child.kill_tree())

    async def wait_until_gone(self) -> None:
        if self._watching is not None:
            await asyncio.shield(self._watching)

    async def _watch(self, child: SimulatedChild) -> None:
        return_code = await asyncio.shield(child.exited)
        self.kill()
        assert self._killing is not None, "kill() has made it"
        await self._killing
        await self._lost.wait()
        self._on_exit(return_code)

    def heard(self, messages: Sequence[ToSupervisor]) -> None:
        """What the process has said."""
        for message in messages:
            self._on_message(message)

    def lost(self) -> None:
        """The process has closed the channel: it is gone."""
        self._lost.set()
        self.kill()


class _Attempt:
    """One attempt in a process of tasks."""

    def __init__(self, run: AttemptRun, item: RunItem) -> None:
        self.run = run
        self.item = item
        self.capture = OutputCapture(item.assignment)
        self.task: asyncio.Task[None] | None = None
        #: User code has begun, and has not ended.
        self.is_executing = False


class TaskProgram:
    """What runs in a process of tasks. `is_slot`: one attempt at a time, of a task that may be a ``def``."""

    def __init__(self, programs: TaskPrograms, process: Process, *, link: TaskLink, is_slot: bool) -> None:
        self._programs = programs
        self._machine = programs.machine
        self._process = process
        self._link = link
        self._is_slot = is_slot
        self._to_supervisor = self._machine.pipe(programs.supervisor)
        self._to_process = self._machine.pipe(process)
        self._attempts: dict[str, _Attempt] = {}
        process.on_crash(self._died)
        programs.supervisor.on_crash(self._supervisor_gone)

    # ── what the supervisor says ──────────────────────────────────────────────────────────────────────

    def receive(self, messages: Sequence[ToProcess]) -> None:
        """Called by the process itself."""
        for message in messages:
            if isinstance(message, Run):
                for item in message.items:
                    self._begin(item)
            elif isinstance(message, Stop):
                self._stop(message)
            else:
                self._boot()

    def _boot(self) -> None:
        loop, rng = self._machine.loop, self._machine.rng
        took_us = READY_US_MIN + int(rng.random() * (READY_US_MAX - READY_US_MIN))
        known = KnownTasks(tasks=list(self._programs.callees))
        loop.call_at_us(loop.true_us + took_us, self._say, Ready(known))

    def _begin(self, item: RunItem) -> None:
        attempt_id = item.assignment.attempt_id
        run = AttemptRun(
            item,
            clock=self._machine.clock,
            send_beat=self._beat,
            write_log=lambda data: self._log(attempt_id, data),
        )
        attempt = self._attempts[attempt_id] = _Attempt(run, item)
        attempt.task = asyncio.get_running_loop().create_task(self._work(attempt), name="attempt")

    def _stop(self, message: Stop) -> None:
        attempt = self._attempts.get(message.attempt_id)
        if attempt is None or attempt.task is None:
            return
        attempt.run.stop_reason = message.reason
        # A function that blocks can only be told.
        if (attempt.item.is_async or not self._is_slot) and attempt.run.is_entered:
            attempt.task.cancel()

    # ── what it says ──────────────────────────────────────────────────────────────────────────────────

    def _say(self, *messages: ToSupervisor) -> None:
        self._to_supervisor.post(self._link.heard, messages)

    def _beat(self, beat: AttemptBeat) -> None:
        self._say(Beats([beat]))

    def _log(self, attempt_id: str, data: bytes) -> None:
        if self._is_slot:
            self._say(LogText(attempt_id, data))
        elif attempt_id in self._attempts:
            self._attempts[attempt_id].capture.write("log", data)

    # ── attempts ──────────────────────────────────────────────────────────────────────────────────────

    async def _work(self, attempt: _Attempt) -> None:
        run = attempt.run
        try:
            finished = run.enter() or await self._outcome(attempt)
        except asyncio.CancelledError:
            self._over(attempt, "raised")
            finished = run.stopped()
        del self._attempts[run.attempt_id]
        messages: list[ToSupervisor] = []
        last_beat = run.last_beat()
        if last_beat is not None:
            messages.append(Beats([last_beat]))
        chunks = attempt.capture.finish(self._machine.clock.wall_us())
        if chunks:
            messages.append(Chunks(chunks))
        self._say(*messages, Finished([finished]))

    async def _outcome(self, attempt: _Attempt) -> AttemptFinished:
        run = attempt.run
        context = run.context()
        prepared = run.prepare(self._find, context)
        if isinstance(prepared, AttemptFinished):
            return prepared
        callee, call = prepared
        if (refused := run.begin()) is not None:
            return refused
        self._began(attempt)
        try:
            with running_in(context):
                value = callee.function(*call.args, **call.kwargs)
                if asyncio.iscoroutine(value):
                    value = await value
        except asyncio.CancelledError as error:
            if run.stop_reason:
                raise
            self._over(attempt, "raised")
            return run.raised(error)
        except Exception as error:  # noqa: BLE001 - becomes the attempt's failure, whatever it is
            self._over(attempt, "raised")
            return run.raised(error)
        self._over(attempt, "returned")
        return run.returned(callee, value)

    def _find(self, ref: TaskRef, _call: str) -> Callee:
        return self._programs.callees[ref]

    # ── what the world sees ───────────────────────────────────────────────────────────────────────────

    def _began(self, attempt: _Attempt) -> None:
        assignment = attempt.item.assignment
        attempt.is_executing = True
        self._programs.history.add(
            ExecutionBegan(
                at_us=self._machine.loop.true_us,
                machine=self._machine.name,
                worker=self._programs.supervisor.name,
                namespace=assignment.ref.namespace,
                task=assignment.ref.name,
                instance_id=assignment.instance_id,
                attempt=assignment.attempt,
                attempt_id=assignment.attempt_id,
                partition=assignment.partition,
                # Those of other tasks depend on no lease.
                is_strict=attempt.item.lease_ends_us is not None,
            )
        )

    def _over(self, attempt: _Attempt, how: Literal["returned", "raised", "killed"]) -> None:
        if attempt.is_executing:
            attempt.is_executing = False
            at_us, attempt_id = self._machine.loop.true_us, attempt.run.attempt_id
            self._programs.history.add(ExecutionEnded(at_us=at_us, attempt_id=attempt_id, how=how))

    def _died(self) -> None:
        """The process is gone, and with it all that it ran."""
        for attempt in self._attempts.values():
            self._over(attempt, "killed")
        self._programs.supervisor.forget(self._supervisor_gone)
        self._to_supervisor.post(self._link.lost)

    def _supervisor_gone(self) -> None:
        # What runs on could not be reported, and somebody else will run it (I1).
        self._to_process.post(self._process.crash)


def _callee(ref: TaskRef, function: Callable[..., object]) -> Callee:
    signature = read_function(function, subject=str(ref))
    return Callee(function, signature.decode_call, signature.encode_result)
