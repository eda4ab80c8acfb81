"""The supervisor's end of a simulated guardian process: stands for ``worker/guardian_process.py``."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Sequence

from ostinato.simulation.guardian import KILL_US_MAX, GuardianProgram, TransportOf
from ostinato.simulation.machine import Machine
from ostinato.simulation.process import Process
from ostinato.worker.child import ChildProcess
from ostinato.worker.guardian_messages import (
    Configure,
    Exited,
    FromGuardian,
    LeaseEnded,
    NotSpawned,
    Ping,
    Pong,
    Release,
    Spawn,
    Spawned,
    ToGuardian,
)
from ostinato.worker.guardian_process import GUARDIAN_ENDED, LEASE_ENDED, NotStartedError
from ostinato.worker.process_tree import Family, Tree, TreeProcess


class SimulatedChild(ChildProcess):
    """A process of a task, as its supervisor knows it."""

    def __init__(self, machine: Machine, process: Process, *, tree: Tree, keeper: GuardianLink) -> None:
        super().__init__(tree, keeper=keeper)
        self._machine = machine
        self.process = process

    def signal_group(self, number: signal.Signals) -> None:
        """Any signal ends it."""
        self.kill()

    def kill(self) -> None:
        """SIGKILL, which takes a moment; a process that is paused ends too."""
        loop = self._machine.loop
        at_us = loop.true_us + int(self._machine.rng.random() * KILL_US_MAX)
        loop.call_at_us(at_us, self.process.crash, context=loop.world.context)

    async def kill_tree(self) -> None:
        if not self.exited.done():
            self.kill()
        await asyncio.shield(self.exited)
        self.release()

    def release(self) -> None:
        """It is gone with all that came from it. Idempotent."""
        if not self._is_released:
            self._is_released = True
            self._keeper.release(self.pid)

    async def members(self) -> list[TreeProcess]:
        """Nothing but itself."""
        return [] if self.exited.done() else [self.tree.root]


class GuardianLink:
    """One guardian process, from its start to its end."""

    def __init__(
        self,
        machine: Machine,
        supervisor: Process,
        *,
        configure: Configure,
        lock: str,
        transport_of: TransportOf,
    ) -> None:
        self._machine = machine
        self.process = machine.process("guardian")
        self.pid = machine.next_number()
        self._program = GuardianProgram(
            machine, self.process, send=self._send_back, transport_of=transport_of, lock=lock
        )
        if lock:
            machine.disk.share_lock(lock, self.process)
        self._to_guardian = machine.pipe(self.process)
        self._to_supervisor = machine.pipe(supervisor)
        self.process.on_crash(self._guardian_died)
        supervisor.on_crash(self._supervisor_died)
        self._supervisor = supervisor
        self._number = 0
        self._spawns: dict[int, tuple[Spawn, asyncio.Future[ChildProcess]]] = {}
        self._children: dict[int, SimulatedChild] = {}
        self.silent_count = 0
        self.has_answered = False
        self.is_gone = asyncio.Event()
        #: Empty: no container is simulated.
        self.ended_containers: set[str] = set()
        self.send(configure)

    # ── the world ─────────────────────────────────────────────────────────────────────────────────────

    def _send_back(self, message: FromGuardian, process: Process | None = None) -> None:
        self._to_supervisor.post(self._on_message, message, process)

    def _guardian_died(self) -> None:
        self._supervisor.forget(self._supervisor_died)
        self._to_supervisor.post(self.is_gone.set)

    def _supervisor_died(self) -> None:
        self._to_guardian.post(self._program.supervisor_gone)

    # ── Launched ──────────────────────────────────────────────────────────────────────────────────────

    def send(self, message: ToGuardian) -> None:
        self._to_guardian.post(self._program.handle, message)

    def ask(self) -> None:
        self.silent_count += 1
        self.send(Ping(self.silent_count))

    def kill(self) -> None:
        loop = self._machine.loop
        loop.call_at_us(loop.true_us, self.process.crash, context=loop.world.context)

    async def spawn(self, spawn: Spawn, descriptors: Sequence[int]) -> ChildProcess:
        if self.is_gone.is_set():
            raise NotStartedError("the worker's guardian has ended")
        self._number += 1
        spawn.number = self._number
        child: asyncio.Future[ChildProcess] = self._machine.loop.create_future()
        self._spawns[spawn.number] = spawn, child
        self.send(spawn)
        return await child

    async def bury(self, *, is_expected: bool) -> None:
        for _, future in self._spawns.values():
            if not future.done():
                future.set_exception(NotStartedError("the worker's guardian has ended"))
        self._spawns.clear()
        left = [child for child in self._children.values() if not child.exited.done()]
        if left:
            # Killed by the kernel with their parent, or now by whoever has adopted them.
            await self._machine.disk.looking()
        for child in left:
            child.process.crash()
            child.is_alone = True
            if not is_expected:
                child.fate = child.fate or GUARDIAN_ENDED
            if not child.exited.done():
                child.exited.set_result(-9)

    # ── Keeper ────────────────────────────────────────────────────────────────────────────────────────

    def family(self) -> Family:
        return Family(self.pid, [child.tree for child in self._children.values()])

    def release(self, pid: int) -> None:
        self._children.pop(pid, None)
        self.send(Release(pid))

    # ── what the guardian says ────────────────────────────────────────────────────────────────────────

    def _on_message(self, message: FromGuardian, process: Process | None) -> None:
        if isinstance(message, Pong):
            self.silent_count = 0
            self.has_answered = True
        elif isinstance(message, Spawned):
            assert process is not None, "it comes with the process"
            self._on_spawned(message, process)
        elif isinstance(message, Exited):
            child = self._children.get(message.pid)
            if child is not None and not child.exited.done():
                child.is_alone = message.is_alone
                child.exited.set_result(message.return_code)
        elif isinstance(message, NotSpawned):
            _, future = self._spawns.pop(message.number)
            if not future.done():
                future.set_exception(NotStartedError(message.message))
        elif isinstance(message, LeaseEnded):
            for pid in message.pids:
                if pid in self._children:
                    self._children[pid].fate = LEASE_ENDED

    def _on_spawned(self, message: Spawned, process: Process) -> None:
        spawn, future = self._spawns.pop(message.number)
        tree = Tree(TreeProcess(message.pid, message.start_ticks), spawn.marker)
        child = SimulatedChild(self._machine, process, tree=tree, keeper=self)
        self._children[child.pid] = child
        if future.done():
            child.kill()
        else:
            future.set_result(child)


#: Told of each guardian that a supervisor starts.
OnLaunch = Callable[[GuardianLink], None]
