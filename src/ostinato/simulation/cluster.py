"""The cluster of a run: machines, database, network, nodes, workers and clients, as the options say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import msgspec

from ostinato.clock import Clock
from ostinato.core.changes import Proof
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.instants import HOUR, MILLISECOND, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.scheduler.config import NodeConfig
from ostinato.simulation.behaviour import profiles_of
from ostinato.simulation.clocks import ProcessClock
from ostinato.simulation.database import DatabaseServer
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.history import Event, History
from ostinato.simulation.machine import Machine
from ostinato.simulation.network import Network
from ostinato.simulation.node_host import NodeHost
from ostinato.simulation.process import Process
from ostinato.simulation.swarm import SwarmOptions
from ostinato.simulation.worker_host import WorkerHost
from ostinato.simulation.workload import Client
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import START_US

#: Unfinished work that a healed cluster has to do at most; the rest is cancelled.
LEFT_COUNT_MAX = 12
#: A healed cluster fires on for so long; then it is left with what there is, and a part of that is cancelled,
#: later than `acts.SETTLED_US`, before which no cancel need reach its worker.
FIRING_US = 20 * SECOND
#: In a run of hours what has ended goes while it runs.
SUCCESS_RETENTION_US, OTHER_RETENTION_US = 10 * MINUTE, 20 * MINUTE
#: And nodes look at each other more seldom there, as idle looks would cost more than all the rest.
LONG_LOOK_US = 500 * MILLISECOND
#: What a node's idea of the shared time may be off: half of a sample's way, and what clocks drift in between.
TIME_TOLERANCE_US = 100 * MILLISECOND


class Cluster:
    """Everything of one run; it is what a checker may know (``Known``) too."""

    def __init__(self, loop: SimulatedLoop, options: SwarmOptions) -> None:
        self.loop = loop
        self.options = options
        self.history = History(lambda: loop.true_us)
        self._labels = {f"w{number}": _labels_of(number) for number in range(1, options.worker_count + 1)}
        self.profiles = profiles_of(
            options.seed,
            count=options.task_count,
            start_us=START_US,
            labels=list(self._labels.values()),
            is_long=options.is_long,
            budget_share=options.budget_share,
        )
        self.server = DatabaseServer(
            loop,
            self.history,
            rng=loop.random_for("database"),
            partition_count=options.partition_count,
            has_session_locks=options.has_session_locks,
            key_lifetime_us=options.key_lifetime_us,
        )
        self.network = Network(loop, self.history, rng=loop.random_for("network"))
        config = NodeConfig(worker_lease_us=options.worker_lease_us)
        if options.is_long:
            config = msgspec.structs.replace(
                config,
                look_us=LONG_LOOK_US,
                success_retention_us=SUCCESS_RETENTION_US,
                other_retention_us=OTHER_RETENTION_US,
            )
        self.ownership_lease_us = config.ownership_lease_us
        self.worker_lease_us = config.worker_lease_us
        self.time_tolerance_us = TIME_TOLERANCE_US
        self._chance = loop.random_for("cluster")
        self.nodes = [self._node(f"n{number}", config) for number in range(1, options.node_count + 1)]
        self.workers = [self._worker(name) for name in self._labels]
        self.clients = [self._client(f"c{number}") for number in range(1, options.client_count + 1)]

    @property
    def machines(self) -> list[Machine]:
        """Those of nodes, workers and clients."""
        return [
            *(host.machine for host in self.hosts),
            *(client.machine for client in self.clients),
        ]

    @property
    def hosts(self) -> list[NodeHost | WorkerHost]:
        """Those that a service manager keeps running."""
        return [*self.nodes, *self.workers]

    # ── Known ─────────────────────────────────────────────────────────────────────────────────────────

    def shared_us(self, at_us: int) -> int:
        return self.server.clock.wall_us() - (self.loop.true_us - at_us)

    def believed_us(self, at_us: int) -> tuple[int, int]:
        passed_us = self.loop.true_us - at_us
        earliest_us, latest_us = self.server.clock.believed_us()
        return earliest_us - passed_us, latest_us - passed_us

    @property
    def has_session_locks(self) -> bool:
        return self.options.has_session_locks

    def believed(self) -> Iterator[Proof]:
        for host in self.nodes:
            ownership = host.node.parts.ownership if host.is_running and host.node is not None else None
            if ownership is not None and ownership.is_believed:
                for partition, epoch in ownership.memory.epochs.items():
                    yield Proof(partition, ownership.node_id, epoch)

    @property
    def slot_count(self) -> int:
        return self.options.slot_count

    def labels_of(self, worker_name: str) -> Mapping[str, str]:
        return self._labels.get(worker_name, {})

    @property
    def key_lifetime_us(self) -> int:
        return self.options.key_lifetime_us

    def definition(self, ref: TaskRef, version: int) -> TaskDefinition | None:
        return self.server.tables.definitions.get((ref, version))

    # ── the course of a run ───────────────────────────────────────────────────────────────────────────

    async def start(self) -> None:
        """Start everything, and wait until every task is in force."""
        await self.clients[0].process.spawn(self.clients[0].apply_all())
        for client in self.clients[1:]:
            client.do(client.open())
        for host in self.hosts:
            host.start()

    def begin_work(self) -> None:
        """Let clients act."""
        for client in self.clients:
            client.begin(act_us=self.options.act_us)

    def end_work(self) -> None:
        """Let clients begin nothing more."""
        for client in self.clients:
            client.end()

    async def settle(self, unfinished: Callable[[], list[Instance]]) -> None:
        """Let go on what was paused or disabled, cancel a part of what there is, end the fires, cancel."""
        client = self.clients[0]
        for other in self.clients:
            await other.process.spawn(other.acts_have_ended())
        await client.process.spawn(client.settle())
        self._cancel_some(unfinished())
        await self.sleep(FIRING_US)
        await client.process.spawn(client.end_triggers())
        self._cancel_some(unfinished())

    def _cancel_some(self, unfinished: list[Instance]) -> None:
        client = self.clients[0]
        running = [instance for instance in unfinished if instance.state is State.RUNNING]
        chosen = {instance.id for instance in (*unfinished[LEFT_COUNT_MAX:], *running[::2])}
        for instance_id in sorted(chosen):
            client.do(client.cancel(instance_id, reason="the run is over soon"))

    def tell(self, event: Event) -> None:
        self.history.add(event)

    async def sleep(self, duration_us: int) -> None:
        """Let true time pass."""
        woken = self.loop.create_future()
        self.loop.call_at_us(self.loop.true_us + duration_us, woken.set_result, None)
        await woken

    # ── parts ─────────────────────────────────────────────────────────────────────────────────────────

    def _node(self, name: str, config: NodeConfig) -> NodeHost:
        return NodeHost(
            self._machine(name),
            network=self.network,
            history=self.history,
            store_for=self._node_store_for,
            config=config,
        )

    def _worker(self, name: str) -> WorkerHost:
        functions = {profile.definition.ref: profile.function(self.options.seed) for profile in self.profiles}
        return WorkerHost(
            self._machine(name),
            network=self.network,
            history=self.history,
            functions=functions,
            scheduler=",".join(node.address for node in self.nodes),
            capacity={"process": self.options.slot_count, "async": self.options.slot_count},
            labels=self._labels[name],
        )

    def _client(self, name: str) -> Client:
        return Client(
            self._machine(name),
            history=self.history,
            store_for=self._store_for,
            profiles=self.profiles,
            restores_triggers=self.options.is_long,
        )

    def _store_for(self, process: Process, clock: Clock) -> Store:
        return self.server.store_for(process, clock)

    def _node_store_for(self, process: Process, clock: Clock) -> Store:
        store = self.server.store_for(process, clock)
        store.keeps_time = True
        return store

    def _machine(self, name: str) -> Machine:
        skew_us, drift_ppm = self.options.skew_us_max, self.options.drift_ppm_max
        clock = ProcessClock(
            self.loop,
            wall_offset_us=self._chance.randint(-skew_us, skew_us),
            boot_offset_us=self._chance.randrange(HOUR),
            drift_ppm=self._chance.randint(-drift_ppm, drift_ppm),
        )
        return Machine(self.loop, name, clock=clock)


def _labels_of(number: int) -> dict[str, str]:
    """Of a worker by its number: two kinds of them, of which the first is always there."""
    return {"zone": "a" if number % 2 else "b"}
