"""Deliberate bugs of what stores promise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.core.changes import Proof
from ostinato.simulation import database_writes
from ostinato.simulation.database_calls import run_at_once
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.store.memory import anyone
from ostinato.store.memory.tables import Tables

Function = Callable[..., Any]


def _proven_anyhow(original: Function) -> Function:
    return lambda tables, batch: frozenset(proof.partition for proof in batch.proofs)


def _owner_alone(original: Function) -> Function:
    def proven(tables: Tables, batch: Any) -> frozenset[int]:
        return frozenset(
            proof.partition for proof in batch.proofs if tables.owners[proof.partition].owner == proof.owner
        )

    return proven


def _unlocked(original: Function) -> Function:
    """Nobody waits for anybody's partitions."""

    def shared(resources: Any) -> Any:
        return original(resource for resource in resources if resource[0] != "partition")

    return shared


def _epoch_kept(original: Function) -> Function:
    def set_owner(self: Tables, proof: Proof) -> None:
        before = self.owners[proof.partition]
        original(self, Proof(proof.partition, proof.owner, before.epoch))

    return set_owner


def _keys_forgotten(original: Function) -> Function:
    def submit_one(tables: Tables, submission: Any, *, now_us: int) -> Any:
        tables.keys.clear()
        return original(tables, submission, now_us=now_us)

    return submit_one


def _looked_up_before(original: Function) -> Function:
    """What a key has is read by the first statement; the COMMIT inserts what was not there then."""

    async def submit(calls: Any, submissions: Any) -> Any:
        tables, memory = calls.server.tables, calls.server.memory
        seen: dict[Any, Any] = {}

        def look(_: Any) -> None:
            for name in {_key_of(each) for each in submissions if each.key}:
                seen[name] = tables.keys.get(name)

        def insert() -> Any:
            for name, row in seen.items():
                if row is None:
                    tables.keys.pop(name, None)
            return run_at_once(memory.submit(submissions))

        async def run(transaction: Any) -> Any:
            await transaction.lock((), look)
            return await transaction.commit(insert)

        return await calls.run("submitting", run, role="people")

    return submit


def _key_of(submission: Any) -> tuple[str, str, str]:
    return submission.instance.namespace, submission.instance.task, submission.key


_I5, _I8 = "I5", "I8"

DATABASE: tuple[Mutation, ...] = (
    Mutation(
        name="proof_unchecked",
        meaning="writes a batch whoever owns its partitions by then",
        patches=((database_writes, "proven_partitions", _proven_anyhow),),
        seed_count=20,
        first_seed=8,
        found_by=(_I5,),
        kinds=("node_frozen", "commits_slow"),
    ),
    Mutation(
        name="epoch_unchecked",
        meaning="checks the owner of a partition and not its epoch",
        patches=((database_writes, "proven_partitions", _owner_alone),),
        seed_count=20,
        found_by=(_I5,),
        kinds=("node_frozen", "commits_slow", "node_stopped"),
    ),
    Mutation(
        name="take_over_without_waiting",
        meaning="takes partitions over while a transaction of the former owner is open",
        patches=((database_writes, "shared", _unlocked),),
        seed_count=20,
        first_seed=28,
        found_by=(_I5,),
        kinds=("node_frozen", "commits_slow", "wire_slow"),
    ),
    Mutation(
        name="epoch_kept",
        meaning="takes partitions over without raising their epoch",
        patches=((Tables, "set_owner", _epoch_kept),),
        seed_count=3,
        found_by=(_I5,),
    ),
    Mutation(
        name="keys_forgotten",
        meaning="forgets idempotency keys that are live",
        patches=((anyone, "submit_one", _keys_forgotten),),
        seed_count=5,
        found_by=(_I8,),
    ),
    Mutation(
        name="key_race",
        meaning="looks a key up and inserts it later, where nothing else keeps it unique",
        patches=((database_writes, "submit", _looked_up_before),),
        seed_count=20,
        found_by=(_I8,),
        kinds=("wire_slow", "commits_slow"),
        shape={"client_count": 2},
    ),
)
