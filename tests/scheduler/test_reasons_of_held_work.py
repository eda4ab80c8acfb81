"""What people read of held work is why it waits now, whatever happens to its task meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from support.cluster import Cluster, python_task, value_of, worker_of
from support.fleet import Fleet, lasting
from support.scripted_worker import ScriptedWorker

from ostinato.core.definition import PythonSpec, TaskDefinition
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.states import Hold, State
from ostinato.errors import UnavailableError
from ostinato.store.batches import FoundWork, HeldQuery
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Assignment

#: More than a round looks at, also when it goes further.
MANY = 400
PAUSED = (Hold.PAUSED, "task default/t is paused")
BUSY = (Hold.BUSY, "the worker that can run it is busy")


#: It has a pool of slots of its own.
OTHER = python_task("other", executor=PythonSpec("tasks:other"))


async def _busy_cluster(task: TaskDefinition) -> tuple[Cluster, ScriptedWorker, list[str]]:
    """All but the first of many wait, held: the work of another pool's idle slot stands behind them."""
    cluster = Cluster()
    await cluster.start(task, OTHER)
    worker = await worker_of(cluster, _goes_on, tasks=["t", "other"], slots=1)
    first = await cluster.submit(task)
    await cluster.in_state(first, State.RUNNING)
    await cluster.node.dispatch.stop()
    due_us = cluster.clock.wall_us() - SECOND
    identities = [await cluster.submit(task, due_us=due_us + number) for number in range(MANY)]
    await cluster.submit(OTHER)
    cluster.node.dispatch.start()
    return cluster, worker, identities


def _succeeds(_: Assignment) -> bytes:
    return b"1"


def _goes_on(_: Assignment) -> None:
    """It never ends."""


async def _held(cluster: Cluster, identity: str) -> tuple[Hold | None, str]:
    row = await cluster.instance(identity)
    return row.hold, row.reason


async def _says(cluster: Cluster, identity: str, *, said: tuple[Hold, str]) -> bool:
    return await _held(cluster, identity) == said


def test_work_held_for_a_busy_worker_says_that_its_task_is_paused_and_after_that_again_what_holds_it() -> (
    None
):
    async def story() -> None:
        cluster, worker, identities = await _busy_cluster(python_task())
        held = identities[1]
        await cluster.until(lambda: _says(cluster, held, said=BUSY))
        assert await cluster.ask("pause", task="t") == "OK"
        await cluster.until(lambda: _says(cluster, held, said=PAUSED), within_us=SECOND)
        assert await cluster.ask("resume", task="t") == "OK"
        await cluster.until(lambda: _says(cluster, held, said=BUSY), within_us=SECOND)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_that_no_worker_can_run_says_that_its_task_is_paused() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)
        said = (Hold.NO_WORKER, "no worker can run default/t: no worker is connected")
        await cluster.until(lambda: _says(cluster, identity, said=said))
        assert await cluster.ask("pause", task="t") == "OK"
        await cluster.until(lambda: _says(cluster, identity, said=PAUSED), within_us=SECOND)
        # A worker comes, and has nothing to do with it.
        worker = await worker_of(cluster, _succeeds)
        await cluster.sleep(MINUTE)
        assert await _held(cluster, identity) == PAUSED
        assert await cluster.ask("resume", task="t") == "OK"
        await cluster.in_state(identity, State.SUCCESS)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_work_held_for_a_busy_worker_says_that_no_worker_has_the_labels_of_an_edit() -> None:
    async def story() -> None:
        cluster, worker, identities = await _busy_cluster(python_task())
        await cluster.until(lambda: _says(cluster, identities[1], said=BUSY))
        edited = python_task(labels={"zone": "b"})
        await cluster.store.apply([edited], now_us=cluster.clock.wall_us())
        reason = "no worker can run default/t: none of the 1 that know it has labels zone=b"
        said = (Hold.NO_WORKER, reason)
        await cluster.until(lambda: _says(cluster, identities[1], said=said), within_us=2 * SECOND)
        assert await _held(cluster, identities[1]) == said
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_an_owner_that_died_after_a_pause_leaves_no_false_reason_to_its_heir() -> None:
    """The flag is on record and the rows are not corrected: the next owner does that."""

    async def story() -> None:
        fleet, task = Fleet(), python_task()
        first, second = await fleet.open("a b", task)
        fleet.add_worker("w1", lasting(fleet, 10 * SECOND), tasks="other")
        identity = await fleet.submit(task)
        await fleet.until(
            lambda: value_of(first.node.parts.sessions.by_id and second.node.parts.sessions.by_id)
        )
        await fleet.until(lambda: _is_held_as(fleet, identity, Hold.NO_WORKER))
        owner = fleet.owner((await fleet.instance(identity)).partition)
        # It commits the flag, and dies before it looks at the rows.
        owner.node.parts.held.take_stale = list  # type: ignore[method-assign]  # it finds nothing more
        assert await fleet.ask("pause", task="t") == "OK"
        await fleet.end(owner.address, how="kill")
        await fleet.until(lambda: _says(fleet, identity, said=PAUSED), within_us=20 * SECOND)
        await fleet.close()

    run_virtual(story())


class _FailingStore(MemoryStore):
    """The next look for held rows alone fails."""

    def __init__(self) -> None:
        super().__init__(VirtualClock())
        self.fails = False

    async def find_work(
        self, partitions: Sequence[int], *, now_us: int, limit: int, held: Sequence[HeldQuery] = ()
    ) -> FoundWork:
        if self.fails and limit == 0:
            self.fails = False
            raise UnavailableError("DATABASE_UNAVAILABLE", "the database does not answer")
        return await super().find_work(partitions, now_us=now_us, limit=limit, held=held)


def test_a_correction_of_reasons_that_the_database_refuses_is_made_later() -> None:
    async def story() -> None:
        store = _FailingStore()
        cluster, task = Cluster(store=store), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)
        await cluster.until(partial(_is_held_as, cluster, identity, Hold.NO_WORKER))
        store.fails = True
        assert await cluster.ask("pause", task="t") == "OK"
        await cluster.until(lambda: _says(cluster, identity, said=PAUSED), within_us=20 * SECOND)
        assert not store.fails
        await cluster.stop()

    run_virtual(story())


async def _is_held_as(cluster: Cluster, identity: str, cause: Hold) -> bool:
    return (await cluster.instance(identity)).hold is cause
