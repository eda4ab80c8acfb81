"""Starts, drains, kills, freezes and restarts the real supervisor of one simulated worker.

::

    Machine ── supervisor (real code)  ── slots and loop process: user code, run by real code
            └─ guardian (simulated)    ── report (real code), when the supervisor is gone or frozen

Each start has a new worker id and a new spool; the disk is the machine's, so a later worker takes over what
an earlier one has left there.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from pathlib import Path

from ostinato.core.ids import new_id
from ostinato.core.instants import SECOND
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.simulation.executions import Functions, TaskPrograms
from ostinato.simulation.guardian_link import GuardianLink
from ostinato.simulation.history import History
from ostinato.simulation.machine import Machine
from ostinato.simulation.network import Network
from ostinato.simulation.node_host import FAILURES_KEPT
from ostinato.simulation.observing import Observer
from ostinato.simulation.process import Process
from ostinato.simulation.spool_disk import SimulatedSpoolDisk
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.python import PythonExecutor
from ostinato.worker.guardian import Guardian, Launched
from ostinato.worker.guardian_messages import Configure, ReportTarget
from ostinato.worker.python_process import PythonSettings
from ostinato.worker.resources import RlimitResources
from ostinato.worker.spool import Spool
from ostinato.worker.supervisor import Supervisor

#: No such directory is ever opened.
_DATA_DIR = Path("/simulated")


class WorkerHost:
    """One worker on a machine of its own; a fault is a method, and another mends it."""

    def __init__(
        self,
        machine: Machine,
        *,
        network: Network,
        history: History,
        functions: Functions,
        scheduler: str,
        capacity: Mapping[str, int],
        labels: Mapping[str, str] | None = None,
        drain_timeout_us: int = 25 * SECOND,
    ) -> None:
        """`scheduler` as of ``--scheduler``. `functions` are the tasks that it can run."""
        self.machine = machine
        self.name = machine.name
        self._network = network
        self._history = history
        self._functions = functions
        self._config = WorkerConfig(
            worker_name=machine.name,
            scheduler=scheduler,
            capacity=dict(capacity),
            data_dir=_DATA_DIR,
            labels=dict(labels or {}),
            drain_timeout_us=drain_timeout_us,
        )
        #: The process of the supervisor that was started last; None before the first start.
        self.process: Process | None = None
        self.supervisor: Supervisor | None = None
        #: The guardian that was started last.
        self.guardian: GuardianLink | None = None
        #: Guardians that were frozen: of a supervisor that was killed meanwhile it is no longer the last.
        self._frozen_guardians: list[GuardianLink] = []
        #: Why supervisors have ended by themselves that were not asked to.
        self.failures: deque[OstinatoError] = deque(maxlen=FAILURES_KEPT)

    @property
    def is_running(self) -> bool:
        """Whether there is a supervisor, be it frozen."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start a new supervisor, where none runs; on a machine that was lost, switch that on first."""
        if self.is_running:
            return
        self._network.return_machine(self.name)
        process = self.process = self.machine.process("supervisor")
        self.supervisor = None
        process.spawn(self._run(process), name="supervisor")

    async def _run(self, process: Process) -> None:
        """What the worker's main program does."""
        machine, clock = self.machine, self.machine.clock
        rng = machine.loop.random_for(process.name)
        worker_id = new_id(clock.wall_us(), rng)
        spool = Spool(
            _DATA_DIR,
            worker_id=worker_id,
            clock=clock,
            disk=SimulatedSpoolDisk(machine, process, worker_id=worker_id),
        )
        target = ReportTarget(
            worker_id=worker_id,
            worker_name=self.name,
            addresses=self._config.addresses,
            spool_path=str(spool.path),
        )

        def launch(configure: Configure, _lock: int) -> Launched:
            self.guardian = GuardianLink(
                machine,
                process,
                configure=configure,
                lock=worker_id,
                transport_of=self._network.worker_transport,
            )
            return self.guardian

        guardian = Guardian(clock=clock, report=target, launch=launch)
        executor = PythonExecutor(
            settings=PythonSettings(
                app="simulated",
                clock_offset_us=0,
                guardian=guardian,
                data_dir=str(_DATA_DIR),
                new_process=TaskPrograms(machine, process, functions=self._functions, history=self._history),
            ),
            resources=RlimitResources("there are none to limit"),
            clock=clock,
            process_slots=self._config.capacity.get("process", 0),
            owns_guardian=False,
        )
        self.supervisor = Supervisor(
            self._config,
            clock=clock,
            transport=self._network.worker_transport(process),
            executors=[executor],
            rng=rng,
            hooks=Hooks([Observer(self._history, process)]),
            spool=spool,
            guardian=guardian,
        )
        try:
            await self.supervisor.run()
        except OstinatoError as error:
            self.failures.append(error)
        process.crash()

    @property
    def tasks(self) -> list[Process]:
        """The processes of attempts, oldest first; each may be killed or frozen by itself."""
        return [process for process in self.machine.processes if process.mark]

    def slow(self, turn_us: int) -> None:
        """The machine is busy: each turn of the supervisor takes so long. 0 mends it, as does a start."""
        if self.process is not None:
            self.process.turn_us = turn_us

    # ── what can befall it ────────────────────────────────────────────────────────────────────────────

    def drain(self) -> None:
        """SIGTERM: it takes no more work, and ends."""
        if self.process is not None and self.supervisor is not None:
            self.process.call_soon(self.supervisor.drain)

    def kill(self) -> None:
        """SIGKILL to the supervisor; its guardian notices."""
        if self.process is not None:
            self.process.crash()

    def freeze(self) -> None:
        """SIGSTOP to the supervisor; what it has started goes on."""
        if self.process is not None:
            self.process.pause()

    def thaw(self) -> None:
        """SIGCONT to the supervisor."""
        if self.process is not None and not self.machine.is_suspended:
            self.process.resume()

    def kill_guardian(self) -> None:
        """SIGKILL to the guardian, and by the kernel to what it has started."""
        if self.guardian is not None:
            self.guardian.process.crash()

    def freeze_guardian(self) -> None:
        """SIGSTOP to the guardian."""
        if self.guardian is not None:
            self._frozen_guardians.append(self.guardian)
            self.guardian.process.pause()

    def thaw_guardian(self) -> None:
        """SIGCONT to each guardian that was frozen."""
        if self.machine.is_suspended:
            return
        while self._frozen_guardians:
            self._frozen_guardians.pop().process.resume()

    def crash_machine(self, *, keeps_disk: bool = True) -> None:
        """The machine loses power, and perhaps its disk; nobody is told. `start` brings it back."""
        self._network.lose_machine(self.name)
        self.machine.crash(keeps_disk=keeps_disk)
