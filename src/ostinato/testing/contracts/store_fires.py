"""Contract of stores: fires, triggers, versions and flags."""

from __future__ import annotations

from ostinato.core.definition import TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.states import State
from ostinato.store.batches import (
    CommitReport,
    SetTaskFlags,
    SwitchVersion,
    TriggerAdvance,
    TriggerRow,
)
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    ALL,
    MINUTE,
    REF,
    SECOND,
    T0,
    Owner,
    history_row,
    make_definition,
    make_instance,
    make_trigger,
)


async def put_in_force(owner: Owner, *triggers: TriggerRow, name: str = REF.name) -> int:
    """Apply a task and switch to `triggers`; returns its partition."""
    ref = TaskRef(REF.namespace, name)
    await owner.store.apply([make_definition(name)], now_us=T0)
    task = (await owner.store.get_tasks([ref]))[ref]
    batch = owner.batch()
    batch.switches = [
        SwitchVersion(
            REF.namespace,
            name,
            task.partition,
            task.version,
            [
                make_trigger(row.id, partition=task.partition, next_us=row.next_us, name=name)
                for row in triggers
            ],
        )
    ]
    assert await owner.store.commit(batch) == CommitReport()
    return task.partition


def _trigger(identifier: str, next_us: int | None) -> TriggerRow:
    return make_trigger(identifier, partition=0, next_us=next_us)


class FireContract:
    async def test_a_fire_and_its_advance_are_one(self, store: Store) -> None:
        owner = await Owner.of(store)
        partition = await put_in_force(owner, _trigger("t1", T0))
        fire = make_instance(1, partition=partition, fire_trigger="t1", fire_us=T0)
        batch = owner.batch()
        batch.inserts = [fire]
        batch.advances = [TriggerAdvance("t1", partition, T0, T0 + MINUTE, T0)]
        batch.history = [history_row(fire)]
        assert await store.commit(batch) == CommitReport()
        (trigger,) = await store.triggers_of(REF)
        assert (trigger.next_us, trigger.last_us) == (T0 + MINUTE, T0)
        assert await owner.get(fire.id) == fire

    async def test_an_advance_that_comes_second_leaves_no_trace(self, store: Store) -> None:
        """The trigger has moved on: instance and history of the fire are left out, the rest is written."""
        owner = await Owner.of(store)
        partition = await put_in_force(owner, _trigger("t1", T0 + MINUTE), _trigger("t2", T0))
        stale = make_instance(1, partition=partition, fire_trigger="t1", fire_us=T0)
        fresh = make_instance(2, partition=partition, fire_trigger="t2", fire_us=T0)
        batch = owner.batch()
        batch.inserts = [stale, fresh]
        batch.advances = [
            TriggerAdvance("t1", partition, T0, T0 + 2 * MINUTE, T0),
            TriggerAdvance("t2", partition, T0, None, T0),
            TriggerAdvance("gone", partition, T0, None, T0),
        ]
        batch.history = [history_row(stale, unconditional=True), history_row(fresh)]
        assert (await store.commit(batch)).unmatched == {stale.id}
        assert [row.next_us for row in await store.triggers_of(REF)] == [T0 + MINUTE, None]
        assert set(await store.get_instances([stale.id, fresh.id])) == {fresh.id}
        assert await store.history(stale.id) == []
        assert len(await store.history(fresh.id)) == 1

    async def test_one_instance_per_fire_and_shard(self, store: Store) -> None:
        """I8: (trigger, instant, shard) is unique, whatever ids the instances have."""
        owner = await Owner.of(store)
        first = make_instance(1, fire_trigger="t1", fire_us=T0, shard=0, shard_total=2)
        batch = owner.batch()
        batch.inserts = [first]
        await store.commit(batch)
        again = make_instance(2, fire_trigger="t1", fire_us=T0, shard=0, shard_total=2)
        batch = owner.batch()
        batch.inserts = [
            again,
            make_instance(3, fire_trigger="t1", fire_us=T0, shard=1, shard_total=2),
            make_instance(4, fire_trigger="t1", fire_us=T0 + 1),
            make_instance(5, fire_trigger="t2", fire_us=T0),
            make_instance(6, fire_trigger="t1"),
            make_instance(7, fire_trigger="t1"),
        ]
        batch.history = [history_row(row) for row in batch.inserts]
        assert (await store.commit(batch)).unmatched == {again.id}
        found = await store.get_instances([f"i{number:06}" for number in range(1, 8)])
        assert sorted(found) == ["i000001", "i000003", "i000004", "i000005", "i000006", "i000007"]
        assert await store.history(again.id) == []
        assert len(await store.history("i000003")) == 1

    async def test_a_refused_fire_is_born_skipped(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(
            1, state=State.SKIPPED, finished_us=T0, reason="still running", fire_trigger="t", fire_us=T0
        )
        batch = owner.batch()
        batch.inserts = [row]
        assert await store.commit(batch) == CommitReport()
        assert await owner.get(row.id) == row

    async def test_due_triggers_come_earliest_first(self, store: Store) -> None:
        owner = await Owner.of(store)
        triggers = [_trigger("a", T0), _trigger("b", T0 - SECOND), _trigger("c", T0 + 1), _trigger("d", None)]
        partition = await put_in_force(owner, *triggers)
        found = await store.find_due_triggers(ALL, now_us=T0, limit=10)
        assert [row.id for row in found.triggers] == ["b", "a"]
        assert (found.more, found.next_us) == (False, T0 + 1)
        assert found.triggers[0] == make_trigger("b", partition=partition, next_us=T0 - SECOND)
        found = await store.find_due_triggers(ALL, now_us=T0, limit=1)
        assert ([row.id for row in found.triggers], found.more) == (["b"], True)
        others = [number for number in ALL if number != partition]
        assert (await store.find_due_triggers(others, now_us=T0, limit=9)).triggers == []
        assert len((await store.find_due_triggers([partition], now_us=T0, limit=9)).triggers) == 2

    async def test_paused_and_disabled_tasks_do_not_fire(self, store: Store) -> None:
        owner = await Owner.of(store)
        for name in ("one", "two", "three"):
            trigger = make_trigger(name, partition=0, next_us=T0)
            partition = await put_in_force(owner, trigger, name=name)
            batch = owner.batch()
            batch.flags = [
                SetTaskFlags(
                    REF.namespace, name, partition, paused=name == "one", disabled=name == "two" or None
                )
            ]
            await store.commit(batch)
        found = await store.find_due_triggers(ALL, now_us=T0, limit=10)
        assert [row.id for row in found.triggers] == ["three"]
        task = (await store.get_tasks([TaskRef(REF.namespace, "one")]))[TaskRef(REF.namespace, "one")]
        assert (task.paused, task.disabled) == (True, False)
        batch = owner.batch()
        batch.flags = [SetTaskFlags(REF.namespace, "one", task.partition, paused=False)]
        await store.commit(batch)
        found = await store.find_due_triggers(ALL, now_us=T0, limit=10)
        assert [row.id for row in found.triggers] == ["one", "three"]

    async def test_a_version_is_in_force_once_the_owner_has_switched(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.apply([make_definition()], now_us=T0)
        (changed,) = await store.find_changed_tasks(ALL, limit=10)
        assert (changed.task.definition, changed.task.version) == (make_definition(), 1)
        assert (changed.task.updated_us, changed.triggers) == (T0, [])
        partition = changed.task.partition
        assert await store.find_changed_tasks([n for n in ALL if n != partition], limit=10) == []
        await put_in_force(owner, _trigger("a", T0), _trigger("b", T0))
        assert await store.find_changed_tasks(ALL, limit=10) == []
        await store.apply([make_definition(command="false")], now_us=T0 + SECOND)
        (changed,) = await store.find_changed_tasks(ALL, limit=10)
        assert (changed.task.version, changed.task.updated_us) == (2, T0 + SECOND)
        assert [row.id for row in changed.triggers] == ["a", "b"]

    async def test_triggers_of_an_edited_task_are_due_once_the_edit_is_in_force(self, store: Store) -> None:
        """What was due before fires with the switch, under the old version."""
        owner = await Owner.of(store)
        await put_in_force(owner, _trigger("a", T0), _trigger("later", T0 + MINUTE))
        await put_in_force(owner, make_trigger("other", partition=0, next_us=T0), name="other")
        await store.apply([make_definition(command="false")], now_us=T0)
        found = await store.find_due_triggers(ALL, now_us=T0, limit=1)
        assert ([row.id for row in found.triggers], found.more) == (["other"], False)
        assert found.next_us == T0 + MINUTE
        await put_in_force(owner, _trigger("a", T0))
        found = await store.find_due_triggers(ALL, now_us=T0, limit=9)
        assert [row.id for row in found.triggers] == ["a", "other"]

    async def test_many_tasks_switch_in_one_transaction(self, store: Store) -> None:
        owner = await Owner.of(store)
        names = [f"task-{number:03}" for number in range(200)]
        await store.apply([make_definition(name) for name in names], now_us=T0)
        changed = await store.find_changed_tasks(ALL, limit=150)
        assert [change.task.definition.name for change in changed] == names[:150]
        for version, identifiers in ((1, ("a", "b")), (2, ("b", "c"))):
            batch = owner.batch()
            batch.switches = [
                SwitchVersion(
                    REF.namespace,
                    name,
                    partition_of(REF.namespace, name, partition_count=store.partition_count),
                    version,
                    [
                        make_trigger(f"{name}-{identifier}", partition=3, next_us=T0 + version, name=name)
                        for identifier in identifiers
                    ],
                )
                for name in [*names, "gone"]
            ]
            assert await store.commit(batch) == CommitReport()
            assert await store.find_changed_tasks(ALL, limit=9) == []
            await store.apply([make_definition(name, command=f"v{version}") for name in names], now_us=T0)
            changed = await store.find_changed_tasks(ALL, limit=999)
            assert [[row.id for row in change.triggers] for change in changed] == [
                [f"{name}-{identifier}" for identifier in identifiers] for name in names
            ]
            assert {row.next_us for change in changed for row in change.triggers} == {T0 + version}
        assert await store.triggers_of(TaskRef(REF.namespace, "gone")) == []

    async def test_a_switch_replaces_the_triggers_of_its_task_only(self, store: Store) -> None:
        owner = await Owner.of(store)
        await put_in_force(owner, make_trigger("other", partition=0, next_us=T0), name="other")
        await put_in_force(owner, _trigger("a", T0), _trigger("b", T0))
        partition = await put_in_force(owner, _trigger("b", T0 + 1), _trigger("c", None))
        assert await store.triggers_of(REF) == [
            make_trigger("b", partition=partition, next_us=T0 + 1),
            make_trigger("c", partition=partition, next_us=None),
        ]
        assert [row.id for row in await store.triggers_of(TaskRef(REF.namespace, "other"))] == ["other"]

    async def test_a_switch_and_the_last_fires_of_the_old_version_are_one(self, store: Store) -> None:
        owner = await Owner.of(store)
        partition = await put_in_force(owner, _trigger("a", T0))
        await store.apply([make_definition(command="false")], now_us=T0)
        batch = owner.batch()
        batch.inserts = [make_instance(1, partition=partition, fire_trigger="a", fire_us=T0)]
        batch.advances = [TriggerAdvance("a", partition, T0, T0 + MINUTE, T0)]
        batch.switches = [
            SwitchVersion(
                REF.namespace,
                REF.name,
                partition,
                2,
                [make_trigger("a", partition=partition, next_us=T0 + SECOND)],
            )
        ]
        assert await store.commit(batch) == CommitReport()
        assert [row.next_us for row in await store.triggers_of(REF)] == [T0 + SECOND]
        assert (await store.get_tasks([REF]))[REF].scheduled_version == 2

    async def test_a_deleted_task_takes_its_triggers_with_it(self, store: Store) -> None:
        owner = await Owner.of(store)
        partition = await put_in_force(owner, _trigger("a", T0))
        await owner.submit(make_instance(1))
        for _ in range(2):
            assert await owner.delete(REF) == CommitReport()
        assert await store.get_tasks([REF]) == {}
        assert await store.triggers_of(REF) == []
        assert set(await store.get_instances(["i000001"])) == {"i000001"}
        # A switch that was on its way puts nothing in force.
        batch = owner.batch()
        batch.switches = [
            SwitchVersion(
                REF.namespace, REF.name, partition, 1, [make_trigger("a", partition=partition, next_us=T0)]
            )
        ]
        await store.commit(batch)
        assert await store.triggers_of(REF) == []
