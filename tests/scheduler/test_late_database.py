"""C091: outcomes that come before the database answers again, or just after; on virtual time."""

from __future__ import annotations

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.errors import UnavailableError
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import PROTOCOL_VERSION, GuardianHello, TreeEnded

WORKER_LEASE_US = 6 * SECOND
AWAY = UnavailableError("DATABASE_UNAVAILABLE", "connection refused")


async def heir_of(cluster: Cluster, worker: ScriptedWorker) -> ScriptedWorker:
    """A worker that has taken over the spool of one that is gone."""
    heir = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"2", tasks=["t"])
    heir.worker_id = "worker-2"
    heir.ended_workers = [worker.worker_id]
    heir.running = dict(worker.running)
    await heir.connect(ADDRESS)
    heir.beat(HEARTBEAT_US)
    return heir


@pytest.mark.parametrize("gone", ["silent", "reported by its guardian"])
def test_c091_an_attempt_whose_outcome_is_here_is_not_lost_however_long_that_waits_for_the_database(
    gone: str,
) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        commit, is_refusing = cluster.store.commit, True

        async def refusing(batch: CommitBatch) -> CommitReport:
            if is_refusing and batch.successes:
                raise AWAY
            return await commit(batch)

        cluster.store.commit = refusing  # type: ignore[method-assign]  # only this transaction fails
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        identity = await cluster.submit(task)
        await cluster.until(lambda: value_of(bool(worker.assigned)))
        await cluster.sleep(SECOND)
        await worker.disconnect()
        if gone != "silent":
            stream = await cluster.network.worker_transport().connect(ADDRESS)
            hello = GuardianHello(PROTOCOL_VERSION, worker.worker_id, "scripted", "")
            await stream.send([hello, TreeEnded(None, "killed by signal 9")])
        await cluster.sleep(3 * WORKER_LEASE_US)
        assert (await cluster.instance(identity)).state is State.RUNNING
        is_refusing = False
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.counters.lost, done.result) == (1, 0, b"1")
        assert await cluster.store.history(identity) == []
        await cluster.stop()

    run_virtual(story())


def test_c091_an_outcome_of_which_nobody_knows_whether_it_was_stored_waits_until_that_has_been_read() -> None:
    """Its worker is gone for good, so nobody would bring it again."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        commit, renew, is_away = cluster.store.commit, cluster.store.renew_node, False

        async def committing(batch: CommitBatch) -> CommitReport:
            if is_away:
                raise AWAY
            return await commit(batch)

        async def renewing(node_id: str) -> bool:
            if is_away:
                raise AWAY
            return await renew(node_id)

        cluster.store.commit = committing  # type: ignore[method-assign]  # its answers may be lost
        cluster.store.renew_node = renewing  # type: ignore[method-assign]  # what the belief rests on
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        (item,) = worker.assigned
        is_away = True
        await worker.finish(item, b"1")
        await cluster.sleep(SECOND)
        await worker.disconnect()
        await cluster.sleep(3 * WORKER_LEASE_US)
        ownership = cluster.node.parts.ownership
        assert ownership.doubted
        is_away = False
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.counters.lost, done.result) == (1, 0, b"1")
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("comes", [True, False], ids=["comes", "never-comes"])
def test_c091_who_could_not_be_let_in_while_the_database_was_away_has_a_lease_s_time_to_bring_what_ended(
    comes: bool,
) -> None:
    """The greeting of a worker that is new needs the database, and outcomes are taken after a greeting."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        renew, is_away = cluster.store.renew_node, False

        async def renewing(node_id: str) -> bool:
            if is_away:
                raise AWAY
            return await renew(node_id)

        cluster.store.renew_node = renewing  # type: ignore[method-assign]  # what the belief rests on
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        is_away = True
        await worker.disconnect()
        await cluster.sleep(3 * WORKER_LEASE_US)
        is_away = False
        ownership = cluster.node.parts.ownership
        await cluster.until(lambda: value_of(ownership.is_believed))
        back_us = cluster.clock.boot_us()
        if comes:
            await cluster.sleep(WORKER_LEASE_US - SECOND)
            heir = await heir_of(cluster, worker)
            (item,) = worker.assigned
            await heir.finish(item, b"1")
            done = await cluster.in_state(identity, State.SUCCESS)
            assert (done.attempt, done.counters.lost, done.result) == (1, 0, b"1")
            await heir.disconnect()
        else:
            row = await cluster.in_state(identity, State.RETRY_WAITING)
            assert row.counters.lost == 1
            waited_us = cluster.clock.boot_us() - back_us
            assert WORKER_LEASE_US - SECOND <= waited_us <= WORKER_LEASE_US + SECOND
        await cluster.stop()

    run_virtual(story())
