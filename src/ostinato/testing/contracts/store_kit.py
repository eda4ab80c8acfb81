"""Rows and helpers for the contract suite of stores."""

from __future__ import annotations

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import HistoryKind, HistoryRow, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.schedule.trigger import IntervalTrigger
from ostinato.core.states import State
from ostinato.store.batches import (
    Assign,
    CommitBatch,
    CommitReport,
    DeleteTask,
    EndAttempt,
    InstanceFilter,
    NodeRow,
    Proof,
    SetTaskFlags,
    Submission,
    Success,
    TriggerRow,
)
from ostinato.store.protocol import Store

#: 2026-01-01T00:00:00Z.
T0 = 1_767_225_600 * SECOND
REF = TaskRef("default", "report")
PARTITION_COUNT = 64
ALL = range(PARTITION_COUNT)
NODE = "node-1"
EVERYTHING = InstanceFilter()

__all__ = [
    "ALL",
    "HOUR",
    "MINUTE",
    "NODE",
    "PARTITION_COUNT",
    "REF",
    "SECOND",
    "T0",
    "ContractClock",
    "Owner",
    "counts",
    "end_attempt",
    "history_row",
    "make_assign",
    "make_definition",
    "make_instance",
    "make_submission",
    "make_success",
    "make_trigger",
]


class ContractClock(SystemClock):
    """The machine's clock, but its wall stands still until a test moves it: expiry needs no waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now_us = T0

    def wall_us(self) -> int:
        return self.now_us


def make_instance(number: int | str = 1, **fields: object) -> Instance:
    """A pending instance, due at T0; `number` makes its id."""
    row = Instance(
        id=f"i{number:06}" if isinstance(number, int) else number,
        namespace=REF.namespace,
        task=REF.name,
        task_version=1,
        partition=3,
        state=State.PENDING,
        priority=5,
        due_us=T0,
        created_us=T0 - SECOND,
        payload=b'{"a":1}',
    )
    for name, value in fields.items():
        setattr(row, name, value)
    return row


def make_submission(number: int | str = 1, *, key: str = "", **fields: object) -> Submission:
    """`key` lives for a minute from T0; its request hash is that of ``key`` unless a test says otherwise.

    It was made a second before T0, and so takes no key that was alive then.
    """
    instance = make_instance(number, key=key, **fields)
    return Submission(
        instance=instance, key=key, request_hash="same" if key else "", key_expires_us=T0 + MINUTE
    )


def make_assign(row: Instance, **fields: object) -> Assign:
    move = Assign(
        instance_id=row.id,
        partition=row.partition,
        expected_state=row.state,
        expected_attempt=row.attempt,
        attempt_id=f"a{row.attempt + 1}-{row.id}",
        worker_id="worker-1",
        worker_name="w1",
        assigned_us=T0 + SECOND,
    )
    for name, value in fields.items():
        setattr(move, name, value)
    return move


def make_success(row: Instance, **fields: object) -> Success:
    """Of a row that was read while it was running."""
    move = Success(
        instance_id=row.id,
        partition=row.partition,
        expected_attempt=row.attempt,
        attempt_id=row.attempt_id,
        started_us=T0 + SECOND,
        finished_us=T0 + 2 * SECOND,
        result=b'{"ok":true}',
    )
    for name, value in fields.items():
        setattr(move, name, value)
    return move


def end_attempt(row: Instance, state: State = State.RETRY_WAITING, **fields: object) -> EndAttempt:
    """Of a row that was read while it was running."""
    move = EndAttempt(
        instance_id=row.id,
        partition=row.partition,
        expected_attempt=row.attempt,
        attempt_id=row.attempt_id,
        state=state,
        reason="retry 1 of 3",
        counters=Counters(failures=1, window_opened_us=T0),
        due_us=T0 + MINUTE,
        expires_us=T0 + HOUR,
        started_us=T0 + SECOND,
        finished_us=None if state is State.RETRY_WAITING else T0 + 2 * SECOND,
        failure=None,
    )
    for name, value in fields.items():
        setattr(move, name, value)
    return move


def history_row(row: Instance, kind: HistoryKind = HistoryKind.RETRY, **fields: object) -> HistoryRow:
    entry = HistoryRow(
        instance_id=row.id, partition=row.partition, at_us=T0, kind=kind, sentence=f"{kind} of {row.id}"
    )
    for name, value in fields.items():
        setattr(entry, name, value)
    return entry


def make_definition(name: str = REF.name, *, command: str = "true") -> TaskDefinition:
    return TaskDefinition(namespace=REF.namespace, name=name, executor=ShellSpec(command=command))


def make_trigger(identifier: str, *, partition: int, next_us: int | None, name: str = REF.name) -> TriggerRow:
    return TriggerRow(
        id=identifier,
        namespace=REF.namespace,
        task=name,
        partition=partition,
        task_version=1,
        spec=IntervalTrigger(every_us=MINUTE),
        created_us=T0,
        next_us=next_us,
    )


async def counts(store: Store, where: InstanceFilter = EVERYTHING) -> dict[str, int]:
    """Exact numbers of the instances of `where` by state."""
    counted = await store.count_instances(where, limit=1_000_000)
    assert counted.exact
    return counted.by_state


class Owner:
    """A node that owns every partition, and shorthands for the walk of an instance."""

    def __init__(self, store: Store, proofs: list[Proof]) -> None:
        self.store = store
        self.proofs = proofs

    @classmethod
    async def of(cls, store: Store) -> Owner:
        await store.register_node(NodeRow(NODE, 0, "127.0.0.1:8640", T0))
        return cls(store, await store.take_partitions(NODE, ALL))

    def batch(self) -> CommitBatch:
        return CommitBatch(proofs=list(self.proofs))

    async def get(self, instance_id: str) -> Instance:
        return (await self.store.get_instances([instance_id]))[instance_id]

    async def submit(self, *rows: Instance) -> None:
        await self.store.submit([Submission(instance=row) for row in rows])

    async def run(self, *rows: Instance) -> list[Instance]:
        """Submit and assign `rows`; returns them as they run."""
        await self.submit(*rows)
        batch = self.batch()
        batch.assigns = [make_assign(row) for row in rows]
        report = await self.store.commit(batch)
        assert not report.unmatched
        assert not report.rejected
        found = await self.store.get_instances([row.id for row in rows])
        return [found[row.id] for row in rows]

    async def delete(self, ref: TaskRef) -> CommitReport:
        partition = partition_of(ref.namespace, ref.name, partition_count=self.store.partition_count)
        batch = self.batch()
        batch.deletions = [DeleteTask(ref.namespace, ref.name, partition)]
        return await self.store.commit(batch)

    async def disable(self, ref: TaskRef) -> CommitReport:
        partition = partition_of(ref.namespace, ref.name, partition_count=self.store.partition_count)
        batch = self.batch()
        batch.flags = [SetTaskFlags(ref.namespace, ref.name, partition, disabled=True)]
        return await self.store.commit(batch)

    async def finish(self, *rows: Instance, finished_us: int = T0 + 2 * SECOND) -> list[Instance]:
        """Bring `rows` to success."""
        running = await self.run(*rows)
        batch = self.batch()
        batch.successes = [make_success(row, finished_us=finished_us) for row in running]
        assert not (await self.store.commit(batch)).unmatched
        return [await self.get(row.id) for row in rows]
