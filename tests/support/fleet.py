"""Several real nodes over one in-memory store on virtual time, which start, stop, freeze and die."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from itertools import pairwise
from random import Random
from typing import TypeVar

import msgspec
from support.cluster import Cluster, Recorder
from support.fleet_worker import Body, Execution, FleetWorker
from support.gates import Gate, GatedClock, GatedTransport, gated_store

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import GroupCommitted, LoopTurned, Record
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.store.batches import CommitBatch, CommitReport, Proof
from ostinato.store.memory import MemoryStore

Kind = TypeVar("Kind", bound=Record)
WORKER_LEASE_US = 6 * SECOND
OWNERSHIP_LEASE_US = 3 * SECOND


class WitnessStore(MemoryStore):
    """Remembers under which proofs something was written, for `Fleet.check`."""

    def __init__(self, clock: object) -> None:
        super().__init__(clock)  # type: ignore[arg-type]  # any clock
        self.owner_of_epoch: dict[tuple[int, int], set[str]] = defaultdict(set)
        self.newest_epoch: dict[int, int] = {}
        self.went_back: list[Proof] = []

    async def commit(self, batch: CommitBatch) -> CommitReport:
        report = await super().commit(batch)
        for proof in batch.proofs:
            if proof.partition in report.lost_partitions:
                continue
            self.owner_of_epoch[proof.partition, proof.epoch].add(proof.owner)
            if proof.epoch < self.newest_epoch.get(proof.partition, 0):
                self.went_back.append(proof)
            self.newest_epoch[proof.partition] = proof.epoch
        return report


class QuietRecorder(Recorder):
    """A hook that keeps what is rare."""

    def on(self, record: Record) -> None:
        if not isinstance(record, LoopTurned | GroupCommitted):
            self.records.append(record)


class FleetNode:
    """One node and the gate that everything of it passes."""

    def __init__(self, fleet: Fleet, address: str) -> None:
        self.address = address
        self.gate = Gate(fleet.travel)
        self.recorder = QuietRecorder()
        self._transport = GatedTransport(fleet.network.node_transport(address), self.gate)
        self.node = SchedulerNode(
            fleet.config_of(address),
            store=gated_store(fleet.store, self.gate),
            transport=self._transport,
            clock=GatedClock(fleet.clock, self.gate),
            rng=fleet.rng,
            hooks=Hooks([self.recorder, fleet.recorder]),
        )

    @property
    def node_id(self) -> str:
        return self.node.node_id

    @property
    def owned(self) -> set[int]:
        """Partitions that it decides about at this moment."""
        return set(self.node.parts.ownership.owned())

    def freeze(self) -> None:
        self.gate.close()

    def thaw(self) -> None:
        self.gate.open()

    async def kill(self) -> None:
        """As by SIGKILL: nothing more is written, nothing handed over; streams break."""
        self.gate.break_down()
        for loop in self.node._loops:
            await loop.stop()
        await self._transport.stop()

    def seen(self, kind: type[Kind]) -> list[Kind]:
        return [record for record in self.recorder.records if isinstance(record, kind)]


class Fleet(Cluster):
    """Nodes by address; the calls of `Cluster` that need no node of its own work here too."""

    def __init__(self, *, seed: int = 1, config: NodeConfig | None = None, travel_us_max: int = 0) -> None:
        """`travel_us_max` is the longest way between a node and the database or a worker."""
        super().__init__(seed=seed, config=config or NodeConfig(worker_lease_us=WORKER_LEASE_US))
        self.witness = WitnessStore(self.clock)
        self.store = self.witness
        self.recorder = QuietRecorder()
        self.rng = Random(seed)
        self.nodes: dict[str, FleetNode] = {}
        self.workers: list[FleetWorker] = []
        self._travel_us_max = travel_us_max
        self.executions: list[Execution] = []

    async def travel(self) -> None:
        """What a message to the database or a worker takes."""
        if self._travel_us_max:
            await self.sleep(self.rng.randrange(self._travel_us_max))

    def config_of(self, address: str) -> NodeConfig:
        return msgspec.structs.replace(self.config, address=address)

    async def open(self, addresses: str, *definitions: TaskDefinition) -> list[FleetNode]:
        """Start nodes at these addresses, one a word, with the tasks in force."""
        if definitions:
            await self.store.apply(list(definitions), now_us=self.clock.wall_us())
        nodes = [await self.add(address) for address in addresses.split()]
        await self.settled()
        for definition in definitions:
            await self.until(lambda ref=definition.ref: self._is_scheduled(ref))
        return nodes

    async def add(self, address: str) -> FleetNode:
        """Start one more node, or another one in the place of one that is gone."""
        member = FleetNode(self, address)
        self.nodes[address] = member
        await member.node.start()
        return member

    async def end(self, address: str, *, how: str = "stop") -> None:
        member = self.nodes.pop(address)
        await (member.kill() if how == "kill" else member.node.stop())

    def add_worker(self, name: str, body: Body, *, tasks: str = "t", slots: int = 20) -> FleetWorker:
        """A worker that keeps a stream to every node there is, and to those at the same addresses later."""
        worker = FleetWorker(name, self.network, self.clock, body=body, tasks=tasks.split(), slots=slots)
        worker.executions = self.executions
        self.workers.append(worker)
        for address in self.nodes:
            worker.dial(address)
        return worker

    async def settled(self, *, within_us: int = 60 * SECOND) -> None:
        """Wait until the nodes share the partitions fairly and decide about all of them."""

        async def look() -> bool:
            sizes = sorted(len(member.owned) for member in self.nodes.values())
            return sum(sizes) == self.store.partition_count and sizes[-1] - sizes[0] <= 1

        await self.until(look, within_us=within_us)

    def owner(self, partition: int) -> FleetNode:
        """Who decides about a partition."""
        (found,) = [member for member in self.nodes.values() if partition in member.owned]
        return found

    async def close(self) -> None:
        """End everything and check what must hold."""
        for worker in self.workers:
            await worker.kill()
        for address in list(self.nodes):
            await self.end(address)
        await self.check()

    # ── what must hold ───────────────────────────────────────────────────────────────────────────────

    async def check(self) -> None:
        """I1, I3, I5 and I8, by what was written and what was executed."""
        self._check_single_execution()
        assert all(len(owners) == 1 for owners in self.witness.owner_of_epoch.values()), (
            "I5: two at one epoch"
        )
        assert self.witness.went_back == [], "I5: a former owner has written"
        rows = await self.instances()
        fires = Counter((row.fire_trigger, row.fire_us) for row in rows if row.fire_us is not None)
        assert [fire for fire, count in fires.items() if count > 1] == [], "I8: a fire has two instances"
        whole = [await self.instance(row.id) for row in rows] if len(rows) < 5_000 else []
        for row in whole:
            assert row.counters.failures <= 1 + 100, row.id
            attempts = {item.attempt for item in self.executions if item.instance_id == row.id}
            assert not attempts or max(attempts) <= row.attempt, "I6: an attempt ran that nobody assigned"

    def _check_single_execution(self) -> None:
        """I1: of one instance, an attempt begins after the one before has ended; each attempt begins once."""
        by_instance: dict[str, list[Execution]] = defaultdict(list)
        for item in self.executions:
            by_instance[item.instance_id].append(item)
        for instance_id, items in by_instance.items():
            items.sort(key=lambda item: item.began_us)
            ids = [item.attempt_id for item in items]
            assert len(ids) == len(set(ids)), f"I1: an attempt of {instance_id} began twice"
            for earlier, later in pairwise(items):
                assert earlier.ended_us is not None, f"I1: {instance_id} runs twice"
                assert earlier.ended_us <= later.began_us, f"I1: {instance_id} ran twice at a time"

    async def all_ended(self, *, within_us: int = 600 * SECOND) -> None:
        """I2, I9: wait until every instance is terminal."""
        live = (State.BLOCKED, State.PENDING, State.RUNNING, State.RETRY_WAITING)

        async def look() -> bool:
            return not await self.instances(states=live)

        await self.until(look, within_us=within_us)


def lasting(fleet: Fleet, duration_us: int) -> Callable[[object], Awaitable[bytes]]:
    """A task that takes this long."""

    async def body(_: object) -> bytes:
        await fleet.sleep(duration_us)
        return b"1"

    return body
