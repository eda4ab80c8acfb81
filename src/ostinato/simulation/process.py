"""A process of the simulated world: what it runs belongs to it, and stops when it is paused or has died.

Which process a callback belongs to stands in a context variable, which asyncio carries along by itself: a
coroutine that a process awaits, a task that it starts, a timer that it sets are all its own. What wakes them
may be another process; they run as their own.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import TYPE_CHECKING, Any, TypeVar

from ostinato.clock import Clock

if TYPE_CHECKING:
    from ostinato.simulation.event_loop import Handle, SimulatedLoop

Value = TypeVar("Value")

#: The process whose callback runs.
PROCESS: ContextVar[Process] = ContextVar("simulated_process")
#: Tasks that have ended are let go when so many more than before were started.
_TASKS_KEPT = 64


def current_process() -> Process:
    """The process whose code is running. Raises ``LookupError`` outside a simulated loop."""
    return PROCESS.get()


class Process:
    """One process on one machine. Made by ``SimulatedLoop.process``.

    `turn_us` is what each of its turns costs in virtual time: 0 for a process on an idle machine; while it is
    busy so, what comes waits.
    """

    def __init__(self, loop: SimulatedLoop, name: str, *, machine: str) -> None:
        self.loop = loop
        self.name = name
        #: Where it runs: what the network, the clock and the disk know it by.
        self.machine = machine
        #: Of a process of a task: the worker that it belongs to.
        self.mark = ""
        #: That of its machine; the true time where it has none.
        self.clock: Clock = loop.true_clock
        self.turn_us = 0
        self.is_paused = False
        #: Which pause the present or last one is.
        self.pause_count = 0
        self.is_alive = True
        self.context: Context = copy_context()
        self.context.run(PROCESS.set, self)
        #: Its callbacks that are due, in order. One that is dead takes none.
        self.ready: deque[Handle] = deque()
        #: It is to be put among those that can run as soon as something is due.
        self.is_waiting = True
        #: A turn of its own has not paid its time yet.
        self.is_busy = False
        self._on_crash: dict[Callable[[], None], None] = {}
        self._tasks: list[asyncio.Task[Any]] = []
        self._purge_at = _TASKS_KEPT

    def __repr__(self) -> str:
        state = "" if self.is_alive else ", dead"
        return f"<Process {self.name}{state}{', paused' if self.is_paused else ''}>"

    def spawn(self, work: Coroutine[Any, Any, Value], *, name: str = "") -> asyncio.Task[Value]:
        """Start a task of this process. One of a dead process never runs."""
        return self.loop.create_task(work, name=name or self.name, context=self.context.copy())

    def call_soon(self, callback: Callable[..., object], *args: Any) -> None:
        """Have `callback` called by this process, in its next turn; never if it is dead by then."""
        self.loop.call_soon(callback, *args, context=self.context)

    def pause(self) -> None:
        """Run nothing until `resume`: what becomes due waits, in order. Idempotent."""
        if self.is_alive and not self.is_paused:
            self.is_paused = True
            self.pause_count += 1
            self.loop.withdraw(self)
            for listener in self.loop.pause_listeners:
                self.loop.run_in_world(listener, self)

    def resume(self) -> None:
        """Go on with what has become due meanwhile. Idempotent."""
        if self.is_alive and self.is_paused:
            self.is_paused = False
            self.loop.offer(self)

    def crash(self) -> None:
        """End at once, as by SIGKILL: nothing of it ever runs again, no ``finally`` either. Idempotent.

        Called by the process itself it takes effect when the present callback returns.
        """
        if not self.is_alive:
            return
        self.is_alive = False
        self.is_paused = False
        self.loop.withdraw(self)
        self.ready.clear()
        self.ready = deque(maxlen=0)
        for task in self._tasks:
            task._log_traceback = False  # nobody is left who could hear it
        self.loop.bury(self, self._tasks)
        self._tasks = []
        callbacks, self._on_crash = list(self._on_crash), {}
        for callback in callbacks:
            self.loop.run_in_world(callback)

    def end_silently(self) -> None:
        """As `crash`, and nobody is told: the run is over."""
        self._on_crash = {}
        self.crash()

    def on_crash(self, callback: Callable[[], None]) -> None:
        """Have the world told when this process dies, in the order of these calls; at once if it has."""
        if self.is_alive:
            self._on_crash[callback] = None
        else:
            self.loop.run_in_world(callback)

    def forget(self, callback: Callable[[], None]) -> None:
        """Undo `on_crash`. Idempotent."""
        self._on_crash.pop(callback, None)

    def failures(self) -> list[asyncio.Task[Any]]:
        """Its tasks that have failed, which nobody has heard of so far."""
        return [task for task in self._tasks if task.done() and is_unheard(task)]

    def keep(self, task: asyncio.Task[Any]) -> None:
        """A task of this process was made: it lives as long as the process does, whoever else holds it."""
        if not self.is_alive:
            self.loop.bury(self, [task])
            return
        tasks = self._tasks
        tasks.append(task)
        if len(tasks) > self._purge_at:
            self._tasks = [known for known in tasks if not known.done() or is_unheard(known)]
            self._purge_at = 2 * len(self._tasks) + _TASKS_KEPT


def is_unheard(task: asyncio.Task[Any]) -> bool:
    """Whether a task that is done has failed and nobody has asked for its exception."""
    return bool(task._log_traceback)
