"""What a real node makes of lost workers, restarts, late, repeated and bad reports; on virtual time."""

from __future__ import annotations

from typing import cast

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import LoopFailed
from ostinato.scheduler.loop import Loop
from ostinato.store.batches import CommitBatch, RequestCancel
from ostinato.testing.virtual_clock import run_virtual

FAST = RetryPolicy(backoff="exponential", interval_us=5 * SECOND, max_retry=3)
REFUSED = safe_failure("ECONNREFUSED", "connection refused")


def test_a_lost_worker_s_attempts_are_retried_after_its_lease_and_not_before() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=FAST)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await worker.disconnect()
        gone_us = cluster.clock.boot_us()
        other = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"2", tasks=["t"])
        other.worker_id = "worker-2"
        await other.connect(ADDRESS)
        other.beat(HEARTBEAT_US)
        done = await cluster.in_state(identity, State.SUCCESS)
        waited_us = cluster.clock.boot_us() - gone_us
        assert 5 * SECOND <= waited_us <= 7 * SECOND
        assert (done.attempt, done.counters.lost, done.counters.failures) == (2, 1, 0)
        await other.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_restarted_node_adopts_what_a_worker_is_running() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await worker.disconnect()
        await cluster.restart()
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.sleep(60 * SECOND)
        assert (await cluster.instance(identity)).state is State.RUNNING
        (item,) = worker.assigned
        await worker.finish(item, b"7")
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.result) == (1, b"7")
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_result_counts_once_and_a_repeated_one_is_acknowledged_and_kept() -> None:
    """I6, C083."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.SUCCESS)
        (item,) = worker.assigned
        await worker.finish(item, REFUSED)
        await cluster.until(lambda: value_of(worker.acknowledged.count(item.attempt_id) == 2))
        assert (await cluster.instance(identity)).state is State.SUCCESS
        (row,) = await cluster.store.history(identity)
        assert row.kind == "late_result"
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_an_outcome_that_cannot_be_recorded_fails_alone_and_holds_up_no_other() -> None:
    """Design section 3: one bad row does not stop a group; the offender becomes a failure with safe text."""

    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=RetryPolicy(max_retry=0))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        bad, good = await cluster.submit(task), await cluster.submit(task)
        for identity in (bad, good):
            await cluster.in_state(identity, State.RUNNING)
        items = {item.instance_id: item for item in worker.assigned}
        outcomes = [
            Outcome(
                instance_id=identity,
                attempt=items[identity].attempt,
                attempt_id=items[identity].attempt_id,
                started_us=cluster.clock.wall_us(),
                finished_us=finished_us,
                result=b"1",
            )
            # A time that is none, as a worker with a bug might report it.
            for identity, finished_us in ((bad, cast(int, "soon")), (good, cluster.clock.wall_us()))
        ]
        await worker.report(outcomes)
        await cluster.in_state(good, State.SUCCESS)
        failed = await cluster.in_state(bad, State.FAILED)
        assert failed.failure is not None
        assert failed.failure.code == "BAD_RESULT"
        assert "could not be recorded" in failed.failure.message
        await cluster.until(lambda: value_of(len(worker.acknowledged) == 2))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_bug_in_a_round_is_told_with_its_traceback_and_the_loop_goes_on() -> None:
    class Broken(Loop):
        name = "broken"
        rounds = 0

        async def run_once(self) -> int | None:
            self.rounds += 1
            if self.rounds == 1:
                raise ZeroDivisionError("a bug")
            return None

    async def story() -> None:
        cluster = Cluster()
        loop = Broken(cluster.clock, Hooks([cluster.recorder]))
        loop.start()
        await cluster.until(lambda: value_of(loop.rounds == 2))
        await loop.stop()
        (told,) = [record for record in cluster.recorder.records if isinstance(record, LoopFailed)]
        assert (told.error_code, told.error_message) == ("INTERNAL", "ZeroDivisionError: a bug")
        assert "in run_once" in told.traceback

    run_virtual(story())


@pytest.mark.parametrize("ends", ["failure", "success", "loss"])
def test_c129_a_wish_that_comes_while_the_end_is_decided_is_not_lost(ends: str) -> None:
    """The wish is on record, and the owner that decides about the failure has not been told yet."""

    async def story() -> None:
        cluster, task = Cluster(), python_task(retry=FAST)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        row = await cluster.in_state(identity, State.RUNNING)
        wish = RequestCancel(identity, row.partition, row.attempt, cluster.clock.wall_us(), "by ada")
        proofs = cluster.node.parts.ownership.proofs({row.partition})
        await cluster.store.commit(CommitBatch(proofs=proofs, cancel_requests=[wish]))
        if ends == "loss":
            await worker.disconnect()
            await cluster.in_state(identity, State.CANCELLED)
        else:
            (item,) = worker.assigned
            await worker.finish(item, REFUSED if ends == "failure" else b"1")
            expected = State.CANCELLED if ends == "failure" else State.SUCCESS
            await cluster.in_state(identity, expected)
            await cluster.until(lambda: value_of(worker.acknowledged == [item.attempt_id]))
            await worker.disconnect()
        ended = await cluster.instance(identity)
        assert ended.attempt == 1
        if ends != "success":
            assert "by ada" in ended.reason
        await cluster.stop()

    run_virtual(story())
