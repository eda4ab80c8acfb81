"""Contract of stores: who made a task, expected versions, search, namespaces and deletion."""

from __future__ import annotations

import msgspec
import pytest

from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.errors import UserError
from ostinato.store.batches import (
    ApplyReceipt,
    CommitReport,
    DeleteTask,
    RequestAnswer,
    SetTaskFlags,
    Submission,
    SubmitReceipt,
    SwitchVersion,
)
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    REF,
    T0,
    Owner,
    make_definition,
    make_instance,
    make_submission,
    make_trigger,
)

OTHER = TaskRef("default", "other")


def _task(namespace: str, name: str) -> TaskDefinition:
    return TaskDefinition(namespace, name, ShellSpec(command="true"))


def _partition(store: Store, ref: TaskRef = REF) -> int:
    return partition_of(ref.namespace, ref.name, partition_count=store.partition_count)


class TaskContract:
    async def test_the_origin_is_that_of_the_newest_version(self, store: Store) -> None:
        async def origin() -> str:
            return (await store.get_tasks([REF]))[REF].origin

        await store.apply([make_definition()], now_us=T0)
        assert await origin() == "app"
        await store.apply([make_definition()], now_us=T0, origin="document")
        assert await origin() == "app"
        await store.apply([make_definition(command="false")], now_us=T0, origin="document")
        assert await origin() == "document"
        assert (await store.list_tasks(None, after=None, limit=1))[0].origin == "document"
        # What an app declares is the app's; a document that repeats an app takes nothing.
        before = (await store.get_tasks([REF]))[REF]
        (receipt,) = await store.apply([make_definition(command="false")], now_us=T0 + 1)
        assert receipt == ApplyReceipt(REF, 2, "unchanged")
        assert (await store.get_tasks([REF]))[REF] == msgspec.structs.replace(before, origin="app")
        await store.apply([make_definition(command="false")], now_us=T0 + 2, origin="document")
        assert await origin() == "app"

    async def test_an_unexpected_version_keeps_everything_from_being_written(self, store: Store) -> None:
        await store.apply([make_definition(), make_definition("other")], now_us=T0)
        changed = [
            make_definition(command="false"),
            make_definition("other", command="false"),
            make_definition("new"),
        ]
        new = TaskRef("default", "new")
        for expected in ({REF: 2}, {REF: 2, OTHER: 1}, {REF: 0}):
            assert await store.apply(changed, now_us=T0 + 1, expected=expected) == [
                ApplyReceipt(REF, 1, "conflict"),
                ApplyReceipt(OTHER, 1, "unchanged"),
                ApplyReceipt(new, 0, "unchanged"),
            ]
        assert (await store.apply(changed, now_us=T0, expected={new: 1}))[2] == ApplyReceipt(
            new, 0, "conflict"
        )
        assert [task.version for task in await store.list_tasks(None, after=None, limit=9)] == [1, 1]
        expected = {REF: 1, new: 0}
        assert [receipt.outcome for receipt in await store.apply(changed, now_us=T0, expected=expected)] == [
            "changed",
            "changed",
            "created",
        ]

    async def test_a_conflict_of_a_task_that_is_not_applied_is_told_too(self, store: Store) -> None:
        gone = TaskRef("default", "gone")
        receipts = await store.apply([make_definition()], now_us=T0, expected={gone: 3})
        assert receipts == [ApplyReceipt(REF, 0, "unchanged"), ApplyReceipt(gone, 0, "conflict")]
        assert await store.get_tasks([REF]) == {}

    async def test_a_deleted_task_is_expected_not_to_exist(self, store: Store) -> None:
        await store.apply([make_definition()], now_us=T0)
        await (await Owner.of(store)).delete(REF)
        (receipt,) = await store.apply([make_definition()], now_us=T0, expected={REF: 1})
        assert receipt == ApplyReceipt(REF, 0, "conflict")
        (receipt,) = await store.apply([make_definition()], now_us=T0, expected={REF: 0})
        assert receipt == ApplyReceipt(REF, 2, "created")

    async def test_a_search_finds_parts_of_names_in_either_case(self, store: Store) -> None:
        await store.apply(
            [
                _task("a", "Send_Mail"),
                _task("a", "report"),
                _task("b", "mail.daily"),
                _task("mail", "x"),
                _task("b", "EMAIL"),
            ],
            now_us=T0,
        )

        async def names(
            search: str, namespace: str | None = None, *, after: TaskRef | None = None
        ) -> list[str]:
            found = await store.list_tasks(namespace, after=after, limit=9, search=search)
            return [str(task.ref) for task in found]

        assert await names("mAil") == ["a/Send_Mail", "b/EMAIL", "b/mail.daily"]
        assert await names("mail", "b") == ["b/EMAIL", "b/mail.daily"]
        assert await names("mail", after=TaskRef("b", "EMAIL")) == ["b/mail.daily"]
        assert await names("mail", "b", after=TaskRef("b", "EMAIL")) == ["b/mail.daily"]
        assert await names("", "b", after=TaskRef("a", "z")) == ["b/EMAIL", "b/mail.daily"]
        assert await names("", "a", after=TaskRef("b", "EMAIL")) == []
        assert len(await names("")) == 5
        # Nothing in a search is a pattern.
        assert await names("_") == ["a/Send_Mail"]
        for nothing in ("%", "m*l", "'", "ma\u0131l", "MAIL\0"):
            assert await names(nothing) == []
        assert len(await store.list_tasks(None, after=None, limit=1, search="mail")) == 1
        with pytest.raises(UserError) as caught:
            await names("\ud800")
        assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "search")

    async def test_namespaces_are_those_with_tasks(self, store: Store) -> None:
        assert await store.namespaces(limit=9) == []
        refs = [("b", "x"), ("a", "z"), ("a", "y"), ("c", "a")]
        await store.apply([_task(*ref) for ref in refs], now_us=T0)
        assert await store.namespaces(limit=9) == ["a", "b", "c"]
        assert await store.namespaces(limit=2) == ["a", "b"]
        await (await Owner.of(store)).delete(TaskRef("b", "x"))
        assert await store.namespaces(limit=9) == ["a", "c"]


class DeletionContract:
    async def test_a_task_is_deleted_in_one_transaction_with_what_else_is_decided(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.apply([make_definition(), make_definition("other")], now_us=T0)
        partition = _partition(store)
        trigger = make_trigger("a", partition=partition, next_us=T0)
        batch = owner.batch()
        batch.flags = [SetTaskFlags(*_named(REF), partition, paused=True)]
        batch.switches = [SwitchVersion(*_named(REF), partition, 1, [trigger])]
        batch.deletions = [DeleteTask(*_named(REF), partition)]
        batch.inserts = [make_instance(1)]
        batch.answers = [RequestAnswer("nobody", partition, "OK", "")]
        assert await store.commit(batch) == CommitReport()
        assert set(await store.get_tasks([REF, OTHER])) == {OTHER}
        assert await store.triggers_of(REF) == []
        assert set(await store.get_instances(["i000001"])) == {"i000001"}
        assert (REF, 1) in await store.load_definitions([(REF, 1)])
        # A task that comes back has none of the old flags.
        await store.apply([make_definition()], now_us=T0)
        task = (await store.get_tasks([REF]))[REF]
        assert (task.version, task.scheduled_version, task.paused) == (2, 0, False)

    async def test_the_idempotency_keys_of_a_task_go_with_it(self, store: Store) -> None:
        def submission(number: int, task: str = REF.name) -> Submission:
            return make_submission(number, key="order", task=task)

        owner = await Owner.of(store)
        await store.apply([make_definition(), make_definition("other")], now_us=T0)
        await store.submit([submission(1), submission(2, "other")])
        assert await store.submit([submission(3)]) == [SubmitReceipt("i000001", created=False)]
        await owner.delete(REF)
        await store.apply([make_definition()], now_us=T0)
        assert await store.submit([submission(4), submission(5, "other")]) == [
            SubmitReceipt("i000004", created=True),
            SubmitReceipt("i000002", created=False),
        ]

    async def test_only_the_owner_deletes(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.apply([make_definition()], now_us=T0)
        partition = _partition(store)
        batch = owner.batch()
        batch.proofs = [proof for proof in batch.proofs if proof.partition != partition]
        batch.deletions = [DeleteTask(*_named(REF), partition)]
        assert (await store.commit(batch)).lost_partitions == {partition}
        # A row that names a partition of its writer, but not that of the task, deletes nothing.
        batch = owner.batch()
        batch.deletions = [DeleteTask(*_named(REF), (partition + 1) % store.partition_count)]
        assert await store.commit(batch) == CommitReport()
        assert set(await store.get_tasks([REF])) == {REF}

    async def test_a_deletion_that_names_nothing_storable_is_rejected_alone(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.apply([make_definition()], now_us=T0)
        batch = owner.batch()
        batch.deletions = [
            DeleteTask("default", "\ud800", 3),
            DeleteTask(*_named(REF), _partition(store)),
        ]
        assert set((await store.commit(batch)).rejected) == {"default/\ud800"}
        assert await store.get_tasks([REF]) == {}


def _named(ref: TaskRef) -> tuple[str, str]:
    return ref.namespace, ref.name
