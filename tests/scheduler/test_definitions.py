"""What the node has at hand of definitions, while they change under its reads."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import msgspec
import pytest
from support.cluster import python_task
from support.partition_facts import instance

from ostinato.core.changes import CommitBatch, DeleteTask, Proof, SetTaskFlags
from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.scheduler import definitions as module
from ostinato.scheduler.definitions import Definitions
from ostinato.store.batches import NodeRow
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual

TASK = python_task()
REF = TASK.ref


class SlowReads(MemoryStore):
    """Tasks are read at once and handed over when the test says so."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.count = 0
        self.versions_read: list[tuple[TaskRef, int]] = []

    async def get_tasks(self, refs: Sequence[TaskRef]) -> dict[TaskRef, TaskRow]:
        found = await super().get_tasks(refs)
        self.count += 1
        await self.may_answer.wait()
        return found

    async def load_definitions(
        self, versions: Sequence[tuple[TaskRef, int]]
    ) -> dict[tuple[TaskRef, int], TaskDefinition]:
        await asyncio.sleep(0)
        self.versions_read += versions
        return await super().load_definitions(versions)


async def owned_store() -> tuple[SlowReads, Definitions, Proof]:
    store = SlowReads()
    await store.open()
    await store.apply([TASK], now_us=1)
    await store.register_node(NodeRow("n", 0, "", 1))
    partition = (await store.get_tasks([REF]))[REF].partition
    (proof,) = await store.take_partitions("n", [partition])
    return store, Definitions(store), proof


@pytest.mark.parametrize("change", ["disable", "delete"])
def test_a_read_that_is_older_than_a_change_does_not_hide_it(change: str) -> None:
    async def story() -> None:
        store, definitions, proof = await owned_store()
        store.may_answer.clear()
        reading = asyncio.create_task(definitions.load_tasks([REF]))
        await asyncio.sleep(0)
        batch = CommitBatch(proofs=[proof])
        if change == "disable":
            batch.flags.append(SetTaskFlags("default", "t", proof.partition, disabled=True))
        else:
            batch.deletions.append(DeleteTask("default", "t", proof.partition))
        await store.commit(batch)
        definitions.forget(REF)
        store.may_answer.set()
        await reading
        assert (
            definitions.withdrawn(REF)
            == f"task default/t {'is disabled' if change == 'disable' else 'was deleted'}"
        )
        assert definitions.is_gone(REF) is (change == "delete")

    run_virtual(story())


@pytest.mark.parametrize("change", ["disable", "delete"])
def test_a_change_counts_while_its_own_writer_has_not_heard_of_it(change: str) -> None:
    async def story() -> None:
        store, definitions, proof = await owned_store()
        batch = CommitBatch(proofs=[proof])
        if change == "disable":
            batch.flags.append(SetTaskFlags("default", "t", proof.partition, disabled=True))
        else:
            batch.deletions.append(DeleteTask("default", "t", proof.partition))
        with definitions.changing([REF]):
            await definitions.load_tasks([REF])
            assert definitions.withdrawn(REF) == ""
            await store.commit(batch)
            await definitions.load_tasks([REF])
            assert definitions.withdrawn(REF) != ""
        assert definitions.task(REF) is None

    run_virtual(story())


def test_a_task_that_is_gone_is_looked_for_again_each_time() -> None:
    async def story() -> None:
        store, definitions, _ = await owned_store()
        other = TaskRef("default", "other")
        assert definitions.withdrawn(other) == ""
        await definitions.load_tasks([other])
        assert definitions.is_gone(other)
        await store.apply([msgspec.structs.replace(TASK, name="other")], now_us=2)
        await definitions.load_tasks([other])
        assert not definitions.is_gone(other)
        assert definitions.task(other) is not None

    run_virtual(story())


def test_what_was_loaded_is_there_whatever_made_room_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    async def story() -> None:
        monkeypatch.setattr(module, "CACHE_COUNT_MAX", 1)
        store, definitions, _ = await owned_store()
        names = [f"t{number}" for number in range(5)]
        await store.apply([python_task(name) for name in names], now_us=2)
        rows = [instance(f"i{name}", task=name) for name in names]

        async def load() -> None:
            await definitions.load(rows)
            assert all(definitions.pinned(row.ref, 1) is not None for row in rows)
            assert all(definitions.task(row.ref) is not None for row in rows)

        async def look_for_one_that_is_gone() -> None:
            await definitions.load([instance("gone", task="gone")])
            assert definitions.is_gone(TaskRef("default", "gone"))

        await asyncio.gather(*(load() for _ in range(5)), look_for_one_that_is_gone())

    run_virtual(story())


def test_a_version_is_read_by_itself_only_where_it_is_not_the_newest() -> None:
    async def story() -> None:
        store, definitions, _ = await owned_store()
        await definitions.load([instance("first", task=TASK.name)])
        assert definitions.pinned(REF, 1) == TASK
        edited = msgspec.structs.replace(TASK, description="edited")
        await store.apply([edited], now_us=2)
        definitions.forget(REF)
        await definitions.load_versions([(REF, 2)])
        assert (definitions.pinned(REF, 1), definitions.pinned(REF, 2)) == (TASK, edited)
        assert store.versions_read == []
        # A node that comes later has the newest only.
        later = Definitions(store)
        await later.load_versions([(REF, 1)])
        assert later.pinned(REF, 1) == TASK
        assert store.versions_read == [(REF, 1)]

    run_virtual(story())
