"""Whatever goes wrong: what was reported as written is there, what was not is not, and nothing is in part."""

from __future__ import annotations

import asyncio
import os
from collections import defaultdict
from collections.abc import Awaitable, Callable
from random import Random
from typing import TypeVar

import pytest
from support.simulated_database import DatabaseStage

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UnavailableError
from ostinato.simulation import database_writes
from ostinato.simulation.database_store import SimulatedStore
from ostinato.simulation.history import OwnerCommitted, RowCommitted
from ostinato.store.batches import CommitBatch, CommitReport, NodeRow, Proof, Submission
from ostinato.testing.contracts.store_kit import T0, make_instance
from ostinato.testing.virtual_clock import run_virtual

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
SEEDS = 300 if FULL else 6
#: In one run.
FAULTS = 12
PARTITIONS = range(6)
NODES = ("node-0", "node-1", "node-2")
#: Longer than the deadline of any call.
QUIET_US = 40 * SECOND

Value = TypeVar("Value")


class Promises:
    """Batches that nodes and clients have written, and what they were told of them."""

    def __init__(self, stage: DatabaseStage) -> None:
        self.stage = stage
        self.rng = Random(stage.rng.random())
        self.next_id = 0
        #: Ids of one batch and partition, with what its writer was told: ``yes``, ``no``, ``unknown``.
        self.told: list[tuple[tuple[str, ...], str]] = []
        self.is_over = False

    async def within(self, call: Awaitable[Value], limit_us: int = 10 * SECOND) -> Value:
        """Result of a call, which ends in time whatever is wrong."""
        began_us = self.stage.loop.elapsed_us
        try:
            return await call
        finally:
            assert self.stage.loop.elapsed_us - began_us <= limit_us

    def new_ids(self) -> list[str]:
        self.next_id += 4
        return [f"i{number:06}" for number in range(self.next_id - 4, self.next_id)]

    async def client(self, store: SimulatedStore) -> None:
        while not self.is_over:
            ids = self.new_ids()
            rows = [
                Submission(instance=make_instance(name, partition=self.rng.choice(PARTITIONS)))
                for name in ids
            ]
            try:
                await self.within(store.submit(rows), 11 * SECOND)
                verdict = "yes"
            except UnavailableError as error:
                verdict = "no" if error.code == "DATABASE_FULL" else "unknown"
            self.told.append((tuple(ids), verdict))
            await self.pause()

    async def node(self, store: SimulatedStore, name: str) -> None:
        """Takes from the others as if they were dead, and writes with the proofs that it remembers."""
        proofs: dict[int, Proof] = {}
        while not self.is_over:
            try:
                if self.rng.random() < 0.3 or not proofs:
                    await self.within(store.register_node(NodeRow(name, 0, "", T0)), 2 * SECOND)
                    dead = {
                        row.id: row.renewals
                        for row in await self.within(store.nodes())
                        if self.rng.random() < 0.5
                    }
                    chosen = self.rng.sample(PARTITIONS, 3)
                    taken = await self.within(store.take_partitions(name, chosen, dead_nodes=dead))
                    proofs.update({proof.partition: proof for proof in taken})
                else:
                    await self.insert(store, list(proofs.values()))
            except UnavailableError:
                pass
            await self.pause()

    async def insert(self, store: SimulatedStore, proofs: list[Proof]) -> None:
        by_partition: dict[int, list[str]] = defaultdict(list)
        for name in self.new_ids():
            by_partition[self.rng.choice(proofs).partition].append(name)
        batch = CommitBatch(proofs=proofs)
        batch.inserts = [
            make_instance(name, partition=partition)
            for partition, ids in by_partition.items()
            for name in ids
        ]
        report: CommitReport | None = None
        verdict = "unknown"
        try:
            report = await self.within(store.commit(batch))
        except UnavailableError as error:
            verdict = "no" if error.code == "DATABASE_FULL" else "unknown"
        for partition, ids in by_partition.items():
            if report is not None:
                verdict = "no" if partition in report.lost_partitions else "yes"
            self.told.append((tuple(ids), verdict))

    async def pause(self) -> None:
        await self.stage.pass_us(self.rng.randrange(200 * MILLISECOND))


def faults_of(stage: DatabaseStage, rng: Random) -> list[tuple[Callable[[], None], Callable[[], None]]]:
    """What breaks, and what mends it."""
    server, name = stage.server, rng.choice([*NODES, "client"])

    def break_connections() -> None:
        server.break_connections(name, there_share=rng.random() / 3, back_share=rng.random() / 3)

    def slow_wire() -> None:
        server.slow_wire(name, there_us=(0, 3 * SECOND), back_us=(0, 3 * SECOND))

    return [
        (
            lambda: server.break_connections(name, there_share=0.3, back_share=0.3, commits_only=True),
            lambda: server.keep_connections(name),
        ),
        (break_connections, lambda: server.keep_connections(name)),
        (slow_wire, lambda: server.fast_wire(name)),
        (lambda: server.silence(name), lambda: server.reconnect(name)),
        (lambda: server.silence(name, there=False), lambda: server.reconnect(name)),
        (lambda: server.refuse(name), lambda: server.reconnect(name)),
        (server.stall, server.resume),
        (server.stop, server.start),
        (lambda: server.fail_over(SECOND), server.start),
        (lambda: server.fill_disk(small_writes_fit=rng.random() < 0.5), server.free_disk),
        (server.set_read_only, server.set_writable),
        (lambda: server.slow_statements(0.3, (0, 5 * SECOND)), server.full_speed),
        (lambda: server.slow_commits(0.3, (0, 20 * SECOND)), server.full_speed),
        (lambda: server.end_sessions(name), lambda: None),
        (lambda: server.lose_node_locks(name), lambda: None),
    ]


async def tell(seed: int) -> tuple[DatabaseStage, Promises, SimulatedStore]:
    """A while in which things break and are mended, and the quiet after it."""
    stage = DatabaseStage(seed)
    promises = Promises(stage)
    rng = Random(seed)
    work = [promises.node(stage.store(name), name) for name in NODES]
    work += [promises.client(stage.store("client")), promises.client(stage.store("client"))]
    tasks = [asyncio.create_task(job) for job in work]
    mends: list[Callable[[], None]] = []
    await stage.pass_us(3 * SECOND)
    for _ in range(FAULTS):
        breaks, mended = rng.choice(faults_of(stage, rng))
        breaks()
        mends.append(mended)
        await stage.pass_us(rng.randrange(6 * SECOND))
        if rng.random() < 0.7:
            mends.pop(rng.randrange(len(mends)))()
    for mended in mends:
        mended()
    promises.is_over = True
    await asyncio.gather(*tasks)
    await stage.pass_us(QUIET_US)
    return stage, promises, stage.store("witness")


@pytest.mark.parametrize("seed", range(SEEDS))
def test_every_report_is_true_every_batch_whole_and_every_row_written_under_a_proof_that_holds(
    seed: int,
) -> None:
    """I5 and the promises of ``store.protocol``, by what the history tells."""

    async def main() -> None:
        stage, promises, witness = await tell(seed)
        for ids, verdict in promises.told:
            found = len(await witness.get_instances(ids))
            assert found in {"yes": (len(ids),), "no": (0,), "unknown": (0, len(ids))}[verdict], (
                ids,
                verdict,
            )
        assert "yes" in {verdict for _, verdict in promises.told}
        assert proofs_checked(stage) > 0
        assert not stage.server.transactions.locks.is_any_held

    run_virtual(main())


def test_the_check_finds_an_adapter_that_does_not_lock_what_it_has_proven(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise the test above could not fail."""
    monkeypatch.setattr(database_writes, "proof_locks", lambda _: [])

    async def main(seed: int) -> None:
        stage, _, _ = await tell(seed)
        proofs_checked(stage)

    found = 0
    for seed in range(12):
        try:
            run_virtual(main(seed))
        except AssertionError:
            found += 1
    assert found


def proofs_checked(stage: DatabaseStage) -> int:
    """Follow the owners through the history: rows written for them were written under what held then."""
    owners = {number: Proof(number, "", 0) for number in PARTITIONS}
    checked = 0
    for event in stage.events:
        if isinstance(event, OwnerCommitted):
            assert event.before == owners[event.before.partition]
            owners[event.after.partition] = event.after
        elif isinstance(event, RowCommitted) and event.proof is not None:
            assert event.proof == owners[event.proof.partition]
            checked += 1
    return checked
