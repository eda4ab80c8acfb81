"""Starts, stops, kills, freezes and restarts a real scheduler node on a simulated machine."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import msgspec

from ostinato.clock import Clock
from ostinato.core.instants import SECOND
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.simulation.history import History
from ostinato.simulation.machine import Machine
from ostinato.simulation.network import Network
from ostinato.simulation.observing import Observer
from ostinato.simulation.process import Process
from ostinato.store.protocol import Store

#: The store of a process, not open yet.
StoreFor = Callable[[Process, Clock], Store]
#: A node that could not start is started again after this long, as a service manager does it.
RESTART_US = SECOND
#: Of the reasons for which starts have failed the newest are kept.
FAILURES_KEPT = 16


class NodeHost:
    """One node on a machine of its own; its address is the machine's name. Each start is a new node."""

    def __init__(
        self,
        machine: Machine,
        *,
        network: Network,
        history: History,
        store_for: StoreFor,
        config: NodeConfig,
    ) -> None:
        self.machine = machine
        self.name = machine.name
        self.address = machine.name
        self._network = network
        self._history = history
        self._store_for = store_for
        self._config = msgspec.structs.replace(config, address=machine.name)
        #: The process that was started last, and its node once that has started.
        self.process: Process | None = None
        self.node: SchedulerNode | None = None
        self._store: Store | None = None
        #: Why a start has failed, newest last.
        self.failures: deque[OstinatoError] = deque(maxlen=FAILURES_KEPT)

    @property
    def is_running(self) -> bool:
        """Whether there is a process, be it frozen or about to start."""
        return self.process is not None and self.process.is_alive

    def start(self) -> None:
        """Start a new node, where none runs; on a machine that was lost, switch that on first."""
        if self.is_running:
            return
        self._network.return_machine(self.name)
        process = self.process = self.machine.process("node")
        self.node = None
        process.spawn(self._run(process), name="node")

    async def _run(self, process: Process) -> None:
        clock = self.machine.clock
        rng = self.machine.loop.random_for(process.name)
        while True:
            store = self._store_for(process, clock)
            try:
                await store.open()
                node = SchedulerNode(
                    self._config,
                    store=store,
                    transport=self._network.node_transport(process, self.address),
                    clock=clock,
                    rng=rng,
                    hooks=Hooks([Observer(self._history, process)]),
                )
                await node.start()
            except OstinatoError as error:
                self.failures.append(error)
                await store.close()
                await clock.sleep_until_us(clock.boot_us() + RESTART_US)
                continue
            self.node, self._store = node, store
            return

    def slow(self, turn_us: int) -> None:
        """The machine is busy: each turn of the node takes so long. 0 mends it, as does a start."""
        if self.process is not None:
            self.process.turn_us = turn_us

    # ── what can befall it ────────────────────────────────────────────────────────────────────────────

    def stop(self) -> None:
        """SIGTERM: it hands over what it owns, and ends; one that has not started yet ends at once."""
        if self.process is None:
            return
        if self.node is None or self._store is None:
            self.process.crash()
        else:
            self.process.spawn(self._stop(self.process, self.node, self._store), name="stop")

    async def _stop(self, process: Process, node: SchedulerNode, store: Store) -> None:
        await node.stop()
        await store.close()
        process.crash()

    def kill(self) -> None:
        """SIGKILL: nothing more is written, nothing handed over; the kernel closes its streams."""
        if self.process is not None:
            self.process.crash()

    def freeze(self) -> None:
        """SIGSTOP: it stands still; what it has sent to the database arrives."""
        if self.process is not None:
            self.process.pause()

    def thaw(self) -> None:
        """SIGCONT."""
        if self.process is not None and not self.machine.is_suspended:
            self.process.resume()

    def crash_machine(self) -> None:
        """The machine loses power; nobody is told. `start` brings it back."""
        self._network.lose_machine(self.name)
        self.machine.crash()
