"""What an apply of documents would do is shown before it is done, and done only to what was shown."""

from __future__ import annotations

from random import Random

import pytest
from support.cluster import Cluster

from ostinato.control.document.read import Document
from ostinato.control.document.write import task_document
from ostinato.control.plan import Plan, carry_out, change_shapes, plan, write
from ostinato.control.queries import list_tasks, task_triggers
from ostinato.control.requests import Asker
from ostinato.core.definition import HttpSpec, ShellSpec, TaskDefinition, TaskRef
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.core.states import State
from ostinato.errors import ConflictError, UnavailableError, UserError
from ostinato.store.batches import ApplyReceipt
from ostinato.store.memory import MemoryStore
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual


def task(name: str = "t", **changes: object) -> TaskDefinition:
    base: dict[str, object] = {"namespace": "default", "name": name, "executor": ShellSpec("true")}
    return TaskDefinition(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def documents(*definitions: TaskDefinition, namespace: str = "default") -> list[Document]:
    return [Document(namespace, list(definitions))]


def asker_of(clock: VirtualClock) -> Asker:
    return Asker(clock=clock, rng=Random(1), by="ada")


def actions(made: Plan) -> list[tuple[str, str, int]]:
    return [(str(change.ref), change.action, change.version) for change in made.changes]


def outcomes(receipts: list[ApplyReceipt]) -> list[tuple[str, str, int]]:
    return [(receipt.ref.name, receipt.outcome, receipt.version) for receipt in receipts]


async def applied(store: Store, *definitions: TaskDefinition) -> list[ApplyReceipt]:
    return await write(store, await plan(store, documents(*definitions), prune=False), now_us=START_US)


def test_a_plan_says_what_is_created_changed_and_left_alone_and_writes_nothing() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(store, task("a"), task("b"))
        made = await plan(store, documents(task("b", priority=9), task("c"), task("a")), prune=False)
        assert actions(made) == [
            ("default/b", "change", 1),
            ("default/c", "create", 0),
            ("default/a", "unchanged", 1),
        ]
        assert made.counts() == {"create": 1, "change": 1, "unchanged": 1, "delete": 0}
        assert not made.is_empty
        change = made.changes[0]
        assert (change.before, change.after) == (
            task_document(task("b")),
            task_document(task("b", priority=9)),
        )
        assert [row.ref.name for row in await list_tasks(store, None)] == ["a", "b"]
        assert (await plan(store, documents(task("a")), prune=False)).is_empty
        assert (await plan(store, [], prune=True)).changes == []

    run_virtual(story())


def test_c041_carrying_out_the_same_again_is_harmless() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock)
        first = await plan(store, documents(task("a"), task("b")), prune=True)
        receipts = await carry_out(store, first, now_us=START_US, asker=asker_of(clock))
        assert outcomes(receipts) == [("a", "created", 1), ("b", "created", 1)]
        # The very plan again, although it was made for tasks that did not exist.
        again = await carry_out(store, first, now_us=START_US + SECOND, asker=asker_of(clock))
        assert outcomes(again) == [("a", "unchanged", 1), ("b", "unchanged", 1)]
        assert [shape.action for shape in change_shapes(first, again)] == ["unchanged", "unchanged"]
        rows = await list_tasks(store, None)
        assert [(row.version, row.origin) for row in rows] == [(1, "document"), (1, "document")]

    run_virtual(story())


@pytest.mark.parametrize("planned", [task("a", priority=9), task("a")], ids=["changed", "unchanged"])
def test_c193_a_task_that_changed_meanwhile_is_a_conflict_and_nothing_is_written(
    planned: TaskDefinition,
) -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(store, task("a"))
        made = await plan(store, documents(task("new"), planned), prune=False)
        await applied(store, task("a", priority=1))
        with pytest.raises(ConflictError) as caught:
            await write(store, made, now_us=START_US)
        assert (caught.value.code, caught.value.subject) == ("VERSION_CONFLICT", "default/a")
        assert "default/a has version 2 instead of version 1" in caught.value.message
        assert [(row.ref.name, row.version) for row in await list_tasks(store, None)] == [("a", 2)]

    run_virtual(story())


def test_a_task_that_somebody_else_has_made_just_so_is_no_conflict() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(store, task("a"))
        made = await plan(store, documents(task("a", priority=9), task("b")), prune=False)
        await applied(store, task("a", priority=9))
        assert outcomes(await write(store, made, now_us=START_US)) == [
            ("a", "unchanged", 2),
            ("b", "created", 1),
        ]

    run_virtual(story())


def test_a_task_that_was_to_change_and_has_been_deleted_is_a_conflict() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        await applied(cluster.store, task("a"))
        made = await plan(cluster.store, documents(task("a", priority=9)), prune=False)
        gone = await plan(cluster.store, documents(), prune=True)
        await carry_out(cluster.store, gone, now_us=START_US, asker=asker_of(cluster.clock))
        with pytest.raises(ConflictError) as caught:
            await write(cluster.store, made, now_us=START_US)
        assert "default/a has no version instead of version 1" in caught.value.message
        await cluster.stop()

    run_virtual(story())


def test_prune_deletes_what_only_documents_made_in_their_namespaces_alone() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        store, asker = cluster.store, asker_of(cluster.clock)
        await store.apply([task("of_app")], now_us=START_US)
        elsewhere = [Document("other", [task("kept", namespace="other")])]
        await write(store, await plan(store, elsewhere, prune=False), now_us=START_US)
        await applied(store, task("stays"), task("goes"))
        made = await plan(store, documents(task("stays")), prune=True)
        assert actions(made) == [("default/stays", "unchanged", 1), ("default/goes", "delete", 1)]
        assert (made.changes[1].before, made.changes[1].after) == (task_document(task("goes")), None)
        assert not made.is_empty
        for _ in range(2):  # what is gone already is fine
            await carry_out(store, made, now_us=START_US, asker=asker)
        assert [str(row.ref) for row in await list_tasks(store, None)] == [
            "default/of_app",
            "default/stays",
            "other/kept",
        ]
        await cluster.stop()

    run_virtual(story())


def test_a_rename_is_a_creation_and_a_deletion_and_a_name_that_returns_goes_on_with_its_versions() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        store, asker = cluster.store, asker_of(cluster.clock)
        for names, versions in ((["old"], [1]), (["new"], [1]), (["old"], [2])):
            made = await plan(store, documents(*map(task, names)), prune=True)
            receipts = await carry_out(store, made, now_us=cluster.clock.wall_us(), asker=asker)
            assert [(receipt.ref.name, receipt.version) for receipt in receipts] == list(
                zip(names, versions, strict=True)
            )
            assert [row.ref.name for row in await list_tasks(store, None)] == names
        await cluster.stop()

    run_virtual(story())


def test_a_task_to_be_deleted_that_changed_meanwhile_is_a_conflict_and_nothing_is_written() -> None:
    async def story() -> None:
        clock = VirtualClock()
        store = MemoryStore(clock)
        await applied(store, task("goes"))
        made = await plan(store, documents(task("new")), prune=True)
        await applied(store, task("goes", priority=9))
        with pytest.raises(ConflictError) as caught:
            await carry_out(store, made, now_us=START_US, asker=asker_of(clock))
        assert caught.value.code == "VERSION_CONFLICT"
        assert [row.ref.name for row in await list_tasks(store, None)] == ["goes"]

    run_virtual(story())


def test_without_a_scheduler_deletions_are_recorded_and_said_to_be() -> None:
    async def story() -> None:
        cluster = Cluster()
        store, asker = cluster.store, asker_of(cluster.clock)
        await store.open()
        await applied(store, *(task(f"t{number}") for number in range(3)))
        made = await plan(store, documents(task("new")), prune=True)
        with pytest.raises(UnavailableError) as caught:
            await carry_out(store, made, now_us=START_US, asker=asker)
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        assert "3 tasks are not deleted yet" in caught.value.message
        assert len(await list_tasks(store, None)) == 4
        await cluster.node.start()

        async def pruned() -> bool:
            return [row.ref.name for row in await list_tasks(store, None)] == ["new"]

        await cluster.until(pruned)
        await cluster.stop()

    run_virtual(story())


def test_a_wrong_or_repeated_definition_is_refused_before_anything_is_read() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        for wrong in (task("a", priority=10), task("b")):
            with pytest.raises(UserError):
                await plan(store, documents(task("b"), wrong), prune=False)
        assert await list_tasks(store, None) == []

    run_virtual(story())


def test_order_of_keys_in_maps_is_no_difference() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(
            store,
            task("a", labels={"x": "1", "b": "2"}, executor=ShellSpec("true", env={"B": "1", "A": "2"})),
        )
        same = task("a", labels={"b": "2", "x": "1"}, executor=ShellSpec("true", env={"A": "2", "B": "1"}))
        assert (await plan(store, documents(same), prune=False)).is_empty
        other = await plan(store, documents(task("a", labels={"x": "1", "b": "3"})), prune=False)
        before, after = other.changes[0].before, other.changes[0].after
        assert before is not None
        assert after is not None
        assert list(before["labels"]) == list(after["labels"])

    run_virtual(story())


def test_c193_a_document_does_not_change_a_task_that_an_app_declares() -> None:
    """Else either start of the one undoes the other, and which of them holds is chance."""

    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await store.apply([task("a"), task("b")], now_us=START_US, origin="app")
        assert (await plan(store, documents(task("a")), prune=True)).is_empty
        places = ("tasks.yaml:3:5", "tasks.yaml:5:5")
        said = [Document("default", [task("new"), task("b", priority=9)], places)]
        with pytest.raises(ConflictError) as caught:
            await plan(store, said, prune=False)
        refused = caught.value
        assert (refused.code, refused.subject) == ("TASK_OF_APP", "default/b")
        assert (refused.field, refused.place) == ("tasks[1]", "tasks.yaml:5:5")
        assert "declare it in the app, or delete the task first" in refused.hint
        assert [row.ref.name for row in await list_tasks(store, None)] == ["a", "b"]
        both = documents(task("a", priority=9), task("b", priority=9))
        with pytest.raises(ConflictError, match="and so are default/b"):
            await plan(store, both, prune=False)
        assert (await plan(store, both, prune=False, takes_over=True)).counts()["change"] == 2

    run_virtual(story())


def test_c193_an_app_that_takes_a_task_over_after_the_plan_keeps_it() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(store, task("a"))
        made = await plan(store, documents(task("a", priority=9)), prune=False)
        # The very same as is stored, so no new version tells of it.
        await store.apply([task("a")], now_us=START_US, origin="app")
        with pytest.raises(ConflictError) as caught:
            await write(store, made, now_us=START_US)
        assert caught.value.code == "TASK_OF_APP"
        (row,) = await list_tasks(store, None)
        assert (row.version, row.origin) == (1, "app")

    run_virtual(story())


def test_an_app_takes_over_a_task_of_a_document() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await applied(store, task("a"))
        await store.apply([task("a", priority=9)], now_us=START_US, origin="app")
        (row,) = await list_tasks(store, None)
        assert (row.version, row.origin, row.definition.priority) == (2, "app", 9)

    run_virtual(story())


def test_a_task_edited_while_its_instance_runs_keeps_the_version_of_the_instance() -> None:
    """Also from a command to a request: what runs is what it was created as."""

    async def story() -> None:
        cluster = Cluster()
        shell = task("t", executor=ShellSpec("true"))
        await cluster.start()
        await _apply_now(cluster, shell)
        identity = await cluster.submit(shell)
        http = task("t", executor=HttpSpec("GET", "http://127.0.0.1:1/"))
        made = await plan(cluster.store, documents(http), prune=False)
        assert (made.changes[0].action, made.changes[0].version) == ("change", 1)
        await write(cluster.store, made, now_us=cluster.clock.wall_us())
        pinned: Instance = await cluster.instance(identity)
        assert (pinned.task_version, pinned.state) == (1, State.PENDING)
        versions = await cluster.store.load_definitions([(http.ref, 1), (http.ref, 2)])
        assert [type(each.executor) for each in versions.values()] == [ShellSpec, HttpSpec]
        later = await cluster.submit(http)
        assert (await cluster.instance(later)).task_version == 2
        await cluster.stop()

    run_virtual(story())


def test_c029_saving_keeps_a_fire_that_is_due_and_a_new_schedule_starts_after_it() -> None:
    async def story() -> None:
        cluster = Cluster()
        hourly = task("t", triggers=(CronTrigger(cron="0 * * * *"),))
        await cluster.start()
        await _apply_now(cluster, hourly)
        first = (await _in_force(cluster, hourly))[0]
        assert first is not None
        await cluster.sleep(first - cluster.clock.wall_us() - SECOND)
        await cluster.node.stop()
        await cluster.sleep(3 * SECOND)  # the fire is due now, and nobody has fired it
        await _apply_now(cluster, task("t", triggers=hourly.triggers, labels={"a": "b"}))
        changed = task("t", triggers=(CronTrigger(cron="5 * * * *"),), labels={"a": "b"})
        await _apply_now(cluster, changed)
        cluster.node = cluster._node()
        await cluster.node.start()
        assert await _in_force(cluster, changed) == [first + 5 * MINUTE]
        assert [row.fire_us for row in await cluster.instances()] == [first]
        await cluster.sleep(HOUR)
        assert [row.fire_us for row in await cluster.instances()] == [first, first + 5 * MINUTE]
        await cluster.stop()

    run_virtual(story())


async def _apply_now(cluster: Cluster, definition: TaskDefinition) -> None:
    made = await plan(cluster.store, documents(definition), prune=False)
    await write(cluster.store, made, now_us=cluster.clock.wall_us())


async def _in_force(cluster: Cluster, definition: TaskDefinition) -> list[int | None]:
    """Next fires once the newest version is scheduled."""

    async def is_scheduled() -> bool:
        row = (await cluster.store.get_tasks([definition.ref]))[definition.ref]
        return row.scheduled_version == row.version

    await cluster.until(is_scheduled)
    return [row.next_us for row in await task_triggers(cluster.store, definition.ref)]


def test_a_thousand_and_more_tasks_are_read_in_pieces() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        many = [task(f"t{number:04}") for number in range(2_500)]
        assert {receipt.outcome for receipt in await applied(store, *many)} == {"created"}
        assert (await plan(store, documents(*many), prune=True)).is_empty
        left = await plan(store, documents(*many[1:]), prune=True)
        assert [change.ref for change in left.deletions] == [TaskRef("default", "t0000")]

    run_virtual(story())
