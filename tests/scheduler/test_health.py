"""Attempts that their worker does not end: time-outs and cancels that the node sees to (C103)."""

from __future__ import annotations

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.scheduler.health_loop import START_US_MAX
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Cancel

WORKER_LEASE_US = 6 * SECOND
TIMEOUT_US, GRACE_US = 20 * SECOND, 4 * SECOND
DUE_US = START_US_MAX + TIMEOUT_US + GRACE_US + WORKER_LEASE_US
#: The node looks at least this often.
LOOK_US = 5 * SECOND


def test_c103_a_timeout_that_the_worker_does_not_enforce_is_the_node_s_to_see_to_once_per_lease() -> None:
    async def story() -> None:
        cluster = Cluster()
        task = python_task(timeout_us=TIMEOUT_US, grace_us=GRACE_US, retry=RetryPolicy(max_retry=0))
        await cluster.start(task, python_task("u"))
        worker = await worker_of(cluster, lambda item: None, tasks=["t", "u"])
        identity = await cluster.submit(task)
        await cluster.submit(python_task("u"))
        began_us = cluster.clock.boot_us()
        row = await cluster.in_state(identity, State.RUNNING)
        await cluster.until(lambda: value_of(bool(worker.cancelled)))
        assert DUE_US <= cluster.clock.boot_us() - began_us <= DUE_US + LOOK_US
        await cluster.sleep(4 * WORKER_LEASE_US)
        assert 3 <= len(worker.cancelled) <= 5
        (cancel,) = {(item.attempt_id, item.is_timeout) for item in worker.cancelled}
        assert cancel == (row.attempt_id, True)
        item = next(item for item in worker.assigned if item.attempt_id == row.attempt_id)
        await worker.finish(item, safe_failure("TIMEOUT", "ended because it ran too long"))
        failed = await cluster.in_state(identity, State.FAILED)
        assert failed.failure is not None
        assert failed.failure.code == "TIMEOUT"
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c103_the_timeout_counts_from_the_assignment_also_over_a_restart_of_the_node() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(timeout_us=TIMEOUT_US, grace_us=GRACE_US)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        began_us = cluster.clock.boot_us()
        await cluster.in_state(identity, State.RUNNING)
        await cluster.sleep(DUE_US // 2)
        await worker.disconnect()
        await cluster.restart()
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.until(lambda: value_of(bool(worker.cancelled)))
        assert DUE_US <= cluster.clock.boot_us() - began_us <= DUE_US + LOOK_US
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("when", ["before", "after"])
def test_c103_a_cancel_of_what_a_vanished_worker_has_ends_within_its_lease_and_a_second(when: str) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task(timeout_us=12 * 3600 * SECOND)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        if when == "before":
            assert await cluster.ask("cancel", instance_id=identity) == "OK"
        await worker.disconnect()
        gone_us = cluster.clock.boot_us()
        if when == "after":
            assert await cluster.ask("cancel", instance_id=identity) == "OK"
        ended = await cluster.in_state(identity, State.CANCELLED)
        assert cluster.clock.boot_us() - gone_us <= WORKER_LEASE_US + SECOND
        assert "WORKER_LOST" in ended.reason
        assert ended.failure is not None
        assert "its lease has ended" in ended.failure.message
        await cluster.stop()

    run_virtual(story())


def test_an_adopted_attempt_that_somebody_has_cancelled_is_told_so_without_a_timeout() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        await worker.disconnect()
        assert await cluster.ask("cancel", instance_id=identity) == "OK"
        await worker.connect(ADDRESS)
        await cluster.until(lambda: value_of(bool(worker.cancelled)))
        (told,) = worker.cancelled
        assert isinstance(told, Cancel)
        assert not told.is_timeout
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
