"""Tasks and nodes on the servers: many rows at once, several callers at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import insert, select, update
from support.server_statements import Server
from support.servers import SERVER_KINDS, TestDatabase, fresh_database

from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.store.batches import (
    ApplyReceipt,
    DeleteTask,
    NodeRow,
    Proof,
    SetTaskFlags,
    SwitchVersion,
)
from ostinato.store.schema import partition_owner, task
from ostinato.store.server import nodes, tasks, triggers
from ostinato.testing.contracts.store_kit import (
    ALL,
    PARTITION_COUNT,
    REF,
    T0,
    make_definition,
    make_trigger,
)


@pytest.fixture(scope="module", params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    with fresh_database(request.param) as database:
        yield database


@pytest.fixture
async def server(database: TestDatabase) -> AsyncIterator[Server]:
    database.clean()
    server = Server(database)
    yield server
    await server.engine.dispose()


def _task(namespace: str, name: str, *, command: str = "true") -> TaskDefinition:
    return TaskDefinition(namespace, name, ShellSpec(command=command))


def _partition(ref: TaskRef) -> int:
    return partition_of(ref.namespace, ref.name, partition_count=PARTITION_COUNT)


# ── nodes ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_node_gives_back_what_it_owns_and_nothing_else(server: Server) -> None:
    one, two = NodeRow("n1", 0, "a:1", T0, "lock"), NodeRow("n2", 4, "b:1", T0)
    for node in (two, one):
        await server.run(lambda c, node=node: nodes.register_node(c, node))
    assert await server.run(nodes.nodes) == [one, two]
    assert await server.run(lambda c: nodes.renew_node(c, "n2"))
    assert not await server.run(lambda c: nodes.renew_node(c, "n3"))
    for owner, owned in (("n1", [1, 2, 3]), ("n2", [4])):
        owning = update(partition_owner).where(partition_owner.c.partition.in_(owned)).values(owner=owner)
        await server.run(lambda c, owning=owning: c.execute(owning))
    await server.run(lambda c: nodes.release_partitions(c, "n1", partitions=[2, 4, 99]))
    await server.run(lambda c: nodes.release_partitions(c, "n1", partitions=[]))
    owners = await server.run(nodes.partition_owners)
    assert owners[1:5] == [Proof(1, "n1", 0), Proof(2, "", 0), Proof(3, "n1", 0), Proof(4, "n2", 0)]
    for _ in range(2):
        await server.run(lambda c: nodes.remove_node(c, "n1"))
    assert [proof.owner for proof in (await server.run(nodes.partition_owners))[1:5]] == ["", "", "", "n2"]
    assert [node.renewals for node in await server.run(nodes.nodes)] == [5]


# ── tasks ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_thousands_of_definitions_are_applied_and_read_in_a_few_statements(server: Server) -> None:
    def many(command: str) -> list[TaskDefinition]:
        return [_task(f"n{number % 7}", f"t{number}", command=command) for number in range(5_000)]

    receipts = await server.apply(*many("true"))
    assert {receipt.outcome for receipt in receipts} == {"created"}
    assert len(server.statements) <= 10
    assert {receipt.outcome for receipt in await server.apply(*many("true"))} == {"unchanged"}
    assert len(server.statements) == 1
    changed = many("false")
    assert {(receipt.outcome, receipt.version) for receipt in await server.apply(*changed)} == {
        ("changed", 2)
    }
    assert len(server.statements) <= 10
    refs = [definition.ref for definition in changed]
    found = await server.run(lambda c: tasks.get_tasks(c, refs))
    assert [found[ref].definition for ref in refs] == changed
    assert len(server.statements) == 1
    versions = [(ref, version) for ref in refs for version in (1, 2, 3)]
    loaded = await server.run(lambda c: tasks.load_definitions(c, versions))
    assert len(loaded) == 10_000
    assert len(server.statements) == 3
    assert loaded[refs[17], 2] == changed[17]


async def test_one_task_said_twice_in_an_apply_becomes_two_versions(server: Server) -> None:
    one, two = make_definition(), make_definition(command="false")
    assert await server.apply(one, two, two) == [
        ApplyReceipt(REF, 1, "created"),
        ApplyReceipt(REF, 2, "changed"),
        ApplyReceipt(REF, 2, "unchanged"),
    ]
    found = await server.run(lambda c: tasks.get_tasks(c, [REF]))
    assert (found[REF].definition, found[REF].version) == (two, 2)


async def test_a_task_that_is_only_expected_not_to_exist_leaves_nothing_behind(server: Server) -> None:
    gone = TaskRef("default", "gone")
    receipts = await server.apply(make_definition(), expected={gone: 0, REF: 0})
    assert receipts == [ApplyReceipt(REF, 1, "created")]
    assert await server.run(lambda c: c.scalar(select(task.c.name))) == REF.name
    await server.apply(make_definition(), make_definition("b"), expected={gone: 0, REF: 7})
    assert (await server.run(lambda c: c.execute(select(task.c.name)))).all() == [(REF.name,)]


async def test_many_who_apply_the_same_tasks_at_once_make_each_version_once(server: Server) -> None:
    """Each says another content, in another order; nobody fails, and no version is made twice or left out."""
    refs = [TaskRef("default", f"t{number}") for number in range(40)]

    async def apply_as(caller: int) -> list[ApplyReceipt]:
        turned = refs[caller:] + refs[:caller]
        return await server.apply(*[_task(*_named(ref), command=f"echo {caller}") for ref in turned])

    received = await asyncio.gather(*[apply_as(caller) for caller in range(8)])
    versions = {ref: sorted(r.version for rs in received for r in rs if r.ref == ref) for ref in refs}
    assert list(versions.values()) == [list(range(1, 9))] * len(refs)
    # All or none: whoever was last was last for every task.
    found = await server.run(lambda c: tasks.get_tasks(c, refs))
    assert len({str(found[ref].definition.executor) for ref in refs}) == 1
    assert {row.version for row in found.values()} == {8}


async def test_callers_with_tasks_of_their_own_do_not_meet(server: Server) -> None:
    """However few tasks there are: nobody reads, and locks, the whole of a small table."""
    async with server.engine.connect() as elsewhere:
        await server.apply(*[make_definition(f"t{number}") for number in range(3)])
        locking = select(task).where(task.c.name == "t1").with_for_update()
        await elsewhere.execute(locking)
        for command in ("a", "b"):
            changed = [make_definition(name, command=command) for name in ("t0", "t2", "t3")]
            receipts = await asyncio.wait_for(server.apply(*changed, expected={TaskRef("n", "x"): 0}), 5)
            assert "unchanged" not in {receipt.outcome for receipt in receipts}
        definition = make_definition("t0")
        switch = SwitchVersion(*_named(definition.ref), _partition(definition.ref), 2, [])
        await asyncio.wait_for(server.run(lambda c: triggers.switch_versions(c, [switch])), 5)


async def test_partitions_are_released_while_others_prove_theirs(server: Server) -> None:
    for owner, owned in (("n1", [1, 3]), ("n2", [2])):
        owning = update(partition_owner).where(partition_owner.c.partition.in_(owned)).values(owner=owner)
        await server.run(lambda c, owning=owning: c.execute(owning))
    proof = select(partition_owner.c.epoch).where(partition_owner.c.partition == 2)
    async with server.engine.connect() as proving:
        await proving.execute(proof.with_for_update(read=True))
        await asyncio.wait_for(server.run(lambda c: nodes.release_partitions(c, "n1", partitions=[1, 2])), 5)
        await asyncio.wait_for(server.run(lambda c: nodes.remove_node(c, "n1")), 5)
    assert [proof.owner for proof in (await server.run(nodes.partition_owners))[1:4]] == ["", "n2", ""]


async def test_an_apply_waits_for_the_deletion_of_its_task_and_goes_on_from_its_versions(
    server: Server,
) -> None:
    await server.apply(make_definition(), make_definition("other"))
    deletion = DeleteTask(*_named(REF), _partition(REF))
    async with server.engine.connect() as connection:
        await tasks.delete_task(connection, deletion)
        changed = make_definition(command="false")
        applying = asyncio.ensure_future(server.apply(changed, make_definition("other", command="x")))
        await asyncio.wait([applying], timeout=0.2)
        assert not applying.done()
        await connection.commit()
    receipts = await applying
    assert [(receipt.version, receipt.outcome) for receipt in receipts] == [(2, "created"), (2, "changed")]


async def test_flags_and_deletions_reach_only_the_task_of_their_partition(server: Server) -> None:
    await server.apply(make_definition())
    right, wrong = _partition(REF), (_partition(REF) + 1) % PARTITION_COUNT

    async def flags() -> tuple[bool, bool]:
        row = (await server.run(lambda c: tasks.get_tasks(c, [REF])))[REF]
        return row.paused, row.disabled

    for partition, paused, disabled, expected in (
        (wrong, True, True, (False, False)),
        (right, True, None, (True, False)),
        (right, None, True, (True, True)),
        (right, False, None, (False, True)),
        (right, None, None, (False, True)),
    ):
        change = SetTaskFlags(*_named(REF), partition, paused, disabled)
        await server.run(lambda c, change=change: tasks.set_flags(c, change))
        assert await flags() == expected
    await server.run(lambda c: tasks.delete_task(c, DeleteTask(*_named(REF), wrong)))
    assert len(await server.run(lambda c: tasks.get_tasks(c, [REF]))) == 1
    await server.run(lambda c: tasks.delete_task(c, DeleteTask(*_named(REF), right)))
    assert await server.run(lambda c: tasks.get_tasks(c, [REF])) == {}


async def test_switches_of_many_tasks_take_a_few_statements_and_leave_out_the_deleted(server: Server) -> None:
    definitions = [_task("default", f"t{number}") for number in range(300)]
    await server.apply(*definitions)

    def switch(definition: TaskDefinition, *names: str) -> SwitchVersion:
        ref, partition = definition.ref, _partition(definition.ref)
        triggers = [
            make_trigger(f"{ref.name}-{name}", partition=partition, next_us=T0, name=ref.name)
            for name in names
        ]
        return SwitchVersion(*_named(ref), partition, 1, triggers)

    gone = _task("default", "gone")
    first = [switch(definition, "a", "b") for definition in (*definitions, gone)]
    await server.run(lambda c: triggers.switch_versions(c, first))
    assert len(server.statements) <= 4
    second = [switch(definition, "b", "c") for definition in definitions[:2]]
    await server.run(lambda c: triggers.switch_versions(c, second))
    names = [
        [trigger.id for trigger in await server.run(lambda c, ref=ref: triggers.triggers_of(c, ref))]
        for ref in (definitions[0].ref, definitions[5].ref, gone.ref)
    ]
    assert names == [["t0-b", "t0-c"], ["t5-a", "t5-b"], []]
    assert await server.run(lambda c: tasks.find_changed_tasks(c, None, limit=9)) == []
    due = await server.run(lambda c: triggers.find_due_triggers(c, ALL, now_us=T0, limit=700))
    assert (len(due.triggers), due.more, due.next_us) == (600, False, None)


async def test_changed_tasks_come_oldest_first_then_by_name_with_the_triggers_in_force(
    server: Server,
) -> None:
    for now_us, names in ((T0 + 1, ("b", "a", "c")), (T0, ("d",))):
        await server.apply(*[_task("n", name) for name in names], now_us=now_us)
    trigger = make_trigger("x", partition=_partition(TaskRef("n", "d")), next_us=T0)
    switch = SwitchVersion("n", "d", trigger.partition, 1, [trigger])
    await server.run(lambda c: triggers.switch_versions(c, [switch]))
    await server.apply(_task("n", "d", command="false"), now_us=T0)

    async def changed(partitions: list[int] | None, limit: int = 9) -> list[tuple[str, int]]:
        found = await server.run(lambda c: tasks.find_changed_tasks(c, partitions, limit=limit))
        return [(change.task.definition.name, len(change.triggers)) for change in found]

    assert await changed(None) == [("d", 0), ("a", 0), ("b", 0), ("c", 0)]
    assert await changed(None, 2) == [("d", 0), ("a", 0)]
    assert await changed([_partition(TaskRef("n", "b"))]) == [("b", 0)]


async def test_more_namespaces_than_a_recursion_may_be_deep_are_listed(server: Server) -> None:
    names = [f"n{number:05}" for number in range(1_300)]
    row = {"partition": 0, "version": 1, "scheduled_version": 1, "paused": False, "disabled": False}
    rows = [{"namespace": name, "name": "t", "created_us": 0, "updated_us": 0} | row for name in names]
    await server.run(lambda c: c.execute(insert(task), rows))
    assert await server.run(lambda c: tasks.namespaces(c, limit=2_000)) == names
    assert await server.run(lambda c: tasks.namespaces(c, limit=501)) == names[:501]
    assert await server.run(lambda c: tasks.namespaces(c, limit=0)) == []


def _named(ref: TaskRef) -> tuple[str, str]:
    return ref.namespace, ref.name
