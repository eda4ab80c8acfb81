"""A simulated machine: one clock, one disk, the processes on it and what they say to each other.

Messages between processes of a machine take a moment, keep their order and are lost only with the receiver:
that is what a local socket does.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from ostinato.simulation.clocks import ProcessClock
from ostinato.simulation.disk import MachineDisk
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.process import Process

#: What a message to another process of the machine takes, at least and at most.
_LOCAL_US_MIN, _LOCAL_US_MAX = 10, 300
#: A program that waits in ``poll`` looks at its clock again within this long after the machine has woken:
#: the timers of the kernel do not count the time that a machine has slept.
WAKE_US_MAX = 250_000


class Machine:
    """One machine. `clock` is shared by all its processes, as one boot is."""

    def __init__(self, loop: SimulatedLoop, name: str, *, clock: ProcessClock | None = None) -> None:
        self.loop = loop
        self.name = name
        self.rng = loop.random_for("machine", name)
        self.clock = clock if clock is not None else ProcessClock(loop)
        self.disk = MachineDisk(loop, loop.random_for("disk", name))
        self.is_suspended = False
        self._processes: dict[Process, None] = {}
        self._process_count = 0

    @property
    def processes(self) -> list[Process]:
        """Those that live, in the order of their start."""
        return list(self._processes)

    def process(self, role: str, *, mark: str = "") -> Process:
        """Start a process; its name says which one of its role it is. `mark`: whose tree it belongs to."""
        self._process_count += 1
        process = self.loop.process(f"{self.name}/{role}.{self._process_count}", machine=self.name)
        process.mark = mark
        process.clock = self.clock
        self._processes[process] = None

        def gone() -> None:
            del self._processes[process]

        process.on_crash(gone)
        if self.is_suspended:
            process.pause()
        return process

    def next_number(self) -> int:
        """A number of the machine's own that is not used again, as a process id."""
        self._process_count += 1
        return self._process_count

    def kill_marked(self, mark: str) -> None:
        """Kill every process of a tree, whoever is its parent."""
        for process in [known for known in self._processes if known.mark == mark]:
            process.crash()

    def suspend(self) -> None:
        """Everything stands still, as when a lid is closed; boot time goes on. Idempotent."""
        self.is_suspended = True
        for process in self._processes:
            process.pause()

    def wake(self) -> None:
        """Everything goes on, each process within a moment of its own. Idempotent."""
        if not self.is_suspended:
            return
        self.is_suspended = False
        loop = self.loop
        for process in self._processes:
            at_us = loop.true_us + int(self.rng.random() * WAKE_US_MAX)
            loop.call_at_us(at_us, self._wake, process, context=loop.world.context)

    def _wake(self, process: Process) -> None:
        if not self.is_suspended:
            process.resume()

    def crash(self, *, keeps_disk: bool = True) -> None:
        """Power is lost: every process ends, and with it what was not synced; or the whole disk."""
        self.is_suspended = False
        for process in list(self._processes):
            process.crash()
        self.disk.lose_power() if keeps_disk else self.disk.wipe()

    def pipe(self, receiver: Process) -> Pipe:
        """A way of messages to a process of this machine."""
        return Pipe(self.loop, receiver, rng=self.rng)


class Pipe:
    """One direction of a local socket: what is posted arrives in order, as long as the receiver lives."""

    def __init__(self, loop: SimulatedLoop, receiver: Process, *, rng: Random) -> None:
        self._loop = loop
        self._receiver = receiver
        self._rng = rng
        self._last_us = 0

    def post(self, callback: Callable[..., object], *args: object) -> None:
        """Have the receiver call `callback` when the message has arrived, and it runs."""
        took_us = _LOCAL_US_MIN + int(self._rng.random() * (_LOCAL_US_MAX - _LOCAL_US_MIN))
        self._last_us = at_us = max(self._last_us, self._loop.true_us + took_us)
        self._loop.call_at_us(at_us, callback, *args, context=self._receiver.context)
