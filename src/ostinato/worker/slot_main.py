"""Main program of a slot process: runs one ``def`` task at a time in its main thread.

A second thread listens to the supervisor, so that a stop reaches a task that is busy. When the supervisor is
gone it ends the whole process group: nobody could report what happens here any more, and somebody else will
run it (I1).
"""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import copy_context
from io import TextIOWrapper
from queue import SimpleQueue
from types import FrameType

from ostinato.clock import SystemClock
from ostinato.core.failure.failure import safe_failure
from ostinato.sdk.context import Context, running_in
from ostinato.sdk.signature import Call
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.frames import (
    Beats,
    Configure,
    Finished,
    LogText,
    Ready,
    Run,
    Stop,
    ToSupervisor,
    decode_for_process,
    encode_frame,
)
from ostinato.worker.framing import FrameSplitter
from ostinato.worker.output import CHUNK_BYTES_MAX
from ostinato.worker.own_loop import OwnLoop
from ostinato.worker.process_control import become_subreaper
from ostinato.worker.process_limits import apply_limits_to_attempt, lift_memory_limit
from ostinato.worker.slot_state import SlotState, flush_streams
from ostinato.worker.task_modules import Callee, TaskModules
from ostinato.worker.task_run import AttemptRun


class Slot:
    """The process's side of its channel to the supervisor."""

    def __init__(self, channel: socket.socket) -> None:
        self._channel = channel
        self._send_lock = threading.Lock()
        self._configured: SimpleQueue[Configure] = SimpleQueue()
        self._runs: SimpleQueue[AttemptRun] = SimpleQueue()
        self._clock = SystemClock(0)
        self._data_dir = ""
        self._current: AttemptRun | None = None
        #: An attempt that needs it is the only one of its process.
        self._own_loop = OwnLoop()
        self._pid = os.getpid()

    def serve(self) -> None:
        """Import the app, then run what comes, until a task has left the process unfit for the next."""
        threading.Thread(target=self._listen, name="ostinato-listen", daemon=True).start()
        settings = self._configured.get()
        modules = TaskModules(settings.app)
        if os.getpid() != self._pid:
            # An app that forked while it was imported: only the parent may say that it is ready.
            os._exit(0)
        flush_streams(sys.stdout, sys.stderr)
        # What is imported stays: to look for garbage in it again and again takes time from tasks.
        gc.freeze()
        handler = _SlotLogHandler(self)
        state = SlotState()
        self.send(Ready(modules.known))
        is_fit = True
        while is_fit:
            run = self._runs.get()
            # Each time, as a task that sets up logging may have removed it.
            if handler not in logging.root.handlers:
                logging.root.addHandler(handler)
            threads = set(threading.enumerate())
            finished = copy_context().run(self._run, run, modules, state)
            if os.getpid() != self._pid:
                # A task that forked and returned in the child: only the parent may report.
                os._exit(0)
            last_beat = run.last_beat()
            # A retry must not run beside them (I1); those of a success may be meant to stay.
            has_threads = finished.failure is not None and not _threads_of_tasks() <= threads
            is_fit = state.restore() and not has_threads
            run.remove_scratch()
            messages: list[ToSupervisor] = [] if last_beat is None else [Beats([last_beat])]
            self._current = None
            self.send(*messages, Finished([finished], is_last=not is_fit))

    def send(self, *messages: ToSupervisor) -> None:
        """Hand messages to the supervisor."""
        with self._send_lock:
            self._channel.sendall(encode_frame(messages))

    @property
    def current(self) -> AttemptRun | None:
        """The attempt that is being run."""
        return self._current

    def _run(self, run: AttemptRun, modules: TaskModules, state: SlotState) -> AttemptFinished:
        context = run.context()
        prepared = run.prepare(modules.callee, context)
        if isinstance(prepared, AttemptFinished):
            return prepared
        callee, call = prepared
        state.remember()
        if run.item.limits is not None:
            try:
                apply_limits_to_attempt(run.item.limits)
            except (OSError, ValueError) as error:
                return run.failed(safe_failure("SPAWN_FAILED", f"its limits could not be set: {error}"))
        return self._call(run, callee=callee, call=call, context=context)

    def _call(self, run: AttemptRun, *, callee: Callee, call: Call, context: Context) -> AttemptFinished:
        if (refused := run.begin()) is not None:
            return refused
        try:
            with running_in(context):
                value = self._value_of(run, callee.function, call=call)
        except asyncio.CancelledError as error:
            return run.stopped() if run.stop_reason else run.raised(error)
        except BaseException as error:  # noqa: BLE001 - becomes the attempt's failure, whatever it is
            return run.raised(error)
        return run.returned(callee, value)

    def _value_of(self, run: AttemptRun, function: Callable[..., object], *, call: Call) -> object:
        async def work() -> object:
            value = function(*call.args, **call.kwargs)
            return await value if asyncio.iscoroutine(value) else value

        try:
            if run.item.is_async:
                return self._own_loop.run(work)
            return function(*call.args, **call.kwargs)
        finally:
            if run.item.limits is not None:
                lift_memory_limit()

    # ── the listening thread ──────────────────────────────────────────────────────────────────────────

    def _listen(self) -> None:
        splitter = FrameSplitter()
        while data := self._receive():
            for body in splitter.feed(data):
                for message in decode_for_process(body):
                    if isinstance(message, Run):
                        self._accept(message)
                    elif isinstance(message, Stop):
                        run = self._current
                        if run is not None and run.attempt_id == message.attempt_id:
                            run.stop_reason = message.reason
                            if run.item.is_async:
                                self._own_loop.cancel()
                    else:
                        self._clock = SystemClock(message.clock_offset_us)
                        self._data_dir = message.data_dir
                        self._configured.put(message)
        os.killpg(os.getpgid(0), signal.SIGKILL)

    def _receive(self) -> bytes:
        try:
            return self._channel.recv(CHUNK_BYTES_MAX)
        except ConnectionResetError:
            return b""

    def _accept(self, message: Run) -> None:
        # The current attempt is known before the main thread has woken, so that no stop comes too early.
        (item,) = message.items
        run = AttemptRun(
            item,
            clock=self._clock,
            send_beat=self._send_beat,
            write_log=lambda data: self.send(LogText(item.assignment.attempt_id, data)),
            data_dir=self._data_dir,
        )
        self._current = run
        self._runs.put(run)

    def _send_beat(self, beat: AttemptBeat) -> None:
        self.send(Beats([beat]))


class _SlotLogHandler(logging.Handler):
    """Keeps what the task logs through any logger with the output of its attempt."""

    def __init__(self, slot: Slot) -> None:
        super().__init__()
        self._slot = slot

    def emit(self, record: logging.LogRecord) -> None:
        run = self._slot.current
        if run is not None:
            run.write_record(record)


def _threads_of_tasks() -> set[threading.Thread]:
    """Threads that run, except for ours: the listener and the SDK's connection."""
    return {thread for thread in threading.enumerate() if not thread.name.startswith("ostinato-")}


def prepare_process() -> socket.socket:
    """The channel named on the command line, which nothing that tasks start inherits.

    What tasks start and leave stays below this process, see ``leftovers.py``.
    """
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    # Whatever a task leaves behind stays in the tree of this process, and so is known to be its.
    become_subreaper()
    os.register_at_fork(after_in_child=channel.close)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    # A service manager may signal every process of the worker; when attempts end is not its decision.
    # A handler, unlike ignoring it, is not inherited by the programs that tasks start.
    signal.signal(signal.SIGTERM, _stay)
    _ForksMayBeTerminated()
    # Tasks expect to see what they log; the default would drop everything below a warning.
    logging.getLogger().setLevel(logging.INFO)
    return channel


def _stay(_number: int, _frame: FrameType | None) -> None:
    """Handles a SIGTERM that is meant for the worker."""


class _ForksMayBeTerminated:
    """A fork keeps handlers: without this a task could not terminate the processes that it has forked.

    ``multiprocessing`` would then wait for ever for the end of a pool. The signal waits while a thread forks,
    lest the child take one with the parent's handler, and so lose it.
    """

    def __init__(self) -> None:
        self._before = threading.local()
        os.register_at_fork(
            before=self._hold, after_in_parent=self._let_go, after_in_child=self._be_terminated
        )

    def _hold(self) -> None:
        self._before.mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})

    def _let_go(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self._before.mask)

    def _be_terminated(self) -> None:
        if signal.getsignal(signal.SIGTERM) is _stay:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._let_go()


if __name__ == "__main__":
    Slot(prepare_process()).serve()
