"""What a new owner makes of attempts that a former one has assigned; on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from support.cluster import python_task
from support.fleet import OWNERSHIP_LEASE_US, WORKER_LEASE_US, Fleet, FleetNode, lasting

from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.partition.effects import Effects
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import Hold, State
from ostinato.observe.records import WritesRefused
from ostinato.scheduler.committer import CommitOutcome
from ostinato.store.batches import CommitBatch, CommitReport, NodeRow, RequestCancel
from ostinato.testing.virtual_clock import run_virtual

RETRY = RetryPolicy(interval_us=SECOND, max_retry=3)


async def owner_of(fleet: Fleet, task: TaskDefinition) -> FleetNode:
    row = (await fleet.store.get_tasks([task.ref]))[task.ref]
    return fleet.owner(row.partition)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_an_assignment_that_never_arrived_is_retried_once_no_lease_of_its_owner_can_run(how: str) -> None:
    """I9: its worker is connected to the new owner, lives, and says nothing of it."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        fleet.add_worker("w1", lasting(fleet, SECOND))
        await fleet.sleep(2 * SECOND)
        # Committed, and then the owner is gone before it could send.
        former.node.dispatch._send = lambda *_, **__: None  # type: ignore[method-assign]  # the moment of its end
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        gone_us = fleet.clock.boot_us()
        await fleet.end(former.address, how=how)
        await fleet.until(lambda: _has_attempts(fleet, identity, 2))
        waited_us = fleet.clock.boot_us() - gone_us
        least_us = WORKER_LEASE_US + (OWNERSHIP_LEASE_US if how == "kill" else 0)
        assert least_us <= waited_us <= 2 * OWNERSHIP_LEASE_US + WORKER_LEASE_US + 2 * SECOND
        if how == "stop":
            assert waited_us <= WORKER_LEASE_US + 2 * SECOND
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.counters.lost, done.counters.failures) == (2, 1, 0)
        await fleet.close()

    run_virtual(story())


def test_an_assignment_that_is_still_on_its_way_at_the_hand_over_runs_once_and_counts() -> None:
    """I1: the worker greets the new owner without it, and gets it from the former one afterwards."""

    async def story() -> None:
        fleet, task = Fleet(), python_task("late", retry=RETRY)
        await fleet.open("a", task)
        assert (await fleet.store.get_tasks([task.ref]))[task.ref].partition >= 32, (
            "it goes to the second node"
        )
        fleet.add_worker("w1", lasting(fleet, 20 * SECOND), tasks="late")
        await fleet.sleep(2 * SECOND)
        fleet.nodes["a"].gate.travel_to_worker = lambda: fleet.sleep(1_500 * MILLISECOND)
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        await fleet.add("b")
        fleet.workers[0].dial("b")
        await fleet.settled()
        assert fleet.executions == []
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, len(fleet.executions)) == (1, 1)
        await fleet.close()

    run_virtual(story())


def test_an_owner_that_has_lost_its_database_extends_no_lease() -> None:
    """I1: its worker can reach it alone, and must have ended before another owner starts the work again."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        (other,) = (member for member in fleet.nodes.values() if member is not former)
        worker = fleet.add_worker("w1", lasting(fleet, 60 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        worker.cut(other.address)
        former.gate.is_cut_off = True
        fleet.add_worker("w2", lasting(fleet, SECOND))
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, len(fleet.executions)) == (2, 2)
        assert fleet.executions[0].ended_us is not None
        await fleet.close()

    run_virtual(story())


def test_an_answer_that_comes_when_belief_has_ended_sends_no_assignment() -> None:
    """I1: by then another owner may have given up the attempt, though this node hears its worker well."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        fleet.add_worker("w1", lasting(fleet, 30 * SECOND))
        await fleet.sleep(2 * SECOND)
        commit = former.node.parts.committer.commit

        async def commit_slowly(effects: Effects) -> CommitOutcome:
            outcome = await commit(effects)
            if effects.started:
                former.gate.is_cut_off = True
                await fleet.sleep(20 * SECOND)
            return outcome

        former.node.parts.committer.commit = commit_slowly  # type: ignore[method-assign]  # the answer's way
        identity = await fleet.submit(task)
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, len(fleet.executions)) == (2, 1)
        await fleet.close()

    run_virtual(story())


def test_a_hand_over_waits_for_what_is_under_way() -> None:
    """What a node has begun to commit when it finds that it has too much is committed, and sent."""

    async def story() -> None:
        fleet, task = Fleet(), python_task("late", retry=RETRY)
        await fleet.open("a", task)
        first = fleet.nodes["a"]
        fleet.add_worker("w1", lasting(fleet, 5 * SECOND), tasks="late")
        await fleet.sleep(2 * SECOND)
        commit, begun = first.node.parts.committer._store.commit, asyncio.Event()

        async def commit_slowly(batch: CommitBatch) -> CommitReport:
            begun.set()
            await fleet.sleep(SECOND)
            return await commit(batch)

        first.node.parts.committer._store.commit = commit_slowly  # type: ignore[method-assign]  # a slow server
        identity = await fleet.submit(task)
        await begun.wait()
        await fleet.add("b")
        fleet.workers[0].dial("b")
        await fleet.settled()
        assert first.seen(WritesRefused) == []
        assert (await fleet.instance(identity)).partition in fleet.nodes["b"].owned
        done = await fleet.in_state(identity, State.SUCCESS)
        assert (done.attempt, len(fleet.executions)) == (1, 1)
        await fleet.close()

    run_virtual(story())


def test_an_outcome_that_comes_while_its_partition_is_warmed_up_is_kept_until_then() -> None:
    """Its worker need not bring it again: it may be gone by then."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        (other,) = (member for member in fleet.nodes.values() if member is not former)
        worker = fleet.add_worker("w1", lasting(fleet, 4 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        await fleet.sleep(2 * SECOND)
        held_tasks = other.node.parts.store.held_tasks

        async def held_slowly(partitions: Sequence[int]) -> list[tuple[TaskRef, Hold]]:
            await fleet.sleep(5 * SECOND)
            return await held_tasks(partitions)

        other.node.parts.store.held_tasks = held_slowly  # type: ignore[method-assign]  # a slow server
        await fleet.end(former.address)
        await fleet.sleep(3 * SECOND)
        assert worker.holding
        await worker.kill()
        await fleet.sleep(4 * SECOND)
        done = await fleet.instance(identity)
        assert (done.state, done.attempt) == (State.SUCCESS, 1)
        await fleet.close()

    run_virtual(story())


def test_a_worker_that_dies_with_its_owner_is_waited_for_and_no_longer() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        worker = fleet.add_worker("w1", lasting(fleet, 100 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        await fleet.sleep(3 * SECOND)
        gone_us = fleet.clock.boot_us()
        await worker.kill()
        await fleet.end(former.address, how="kill")
        fleet.add_worker("w2", lasting(fleet, SECOND))
        done = await fleet.in_state(identity, State.SUCCESS)
        waited_us = fleet.clock.boot_us() - gone_us
        assert waited_us >= WORKER_LEASE_US + OWNERSHIP_LEASE_US
        assert waited_us <= 2 * OWNERSHIP_LEASE_US + WORKER_LEASE_US + 4 * SECOND
        assert done.attempt == 2
        await fleet.close()

    run_virtual(story())


def test_a_worker_that_only_its_owner_can_hear_keeps_its_attempt_through_a_take_over() -> None:
    """The new owner has heard of it long ago; what it was promised since by the former owner counts."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        (other,) = (member for member in fleet.nodes.values() if member is not former)
        worker = fleet.add_worker("w1", lasting(fleet, 30 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        await fleet.sleep(2 * SECOND)
        worker.cut(other.address)
        # Longer than a lease, shorter than the memory of a worker that has left.
        await fleet.sleep(9 * SECOND)
        await fleet.end(former.address)
        await fleet.sleep(3 * SECOND)
        worker.dial(other.address)
        done = await fleet.in_state(identity, State.SUCCESS)
        assert done.attempt == 1
        await fleet.close()

    run_virtual(story())


def test_a_cancel_reaches_the_worker_though_its_owner_died_before_it_could_signal() -> None:
    """Design section 11: a new owner signals again."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        worker = fleet.add_worker("w1", lasting(fleet, 100 * SECOND))
        identity = await fleet.submit(task)
        row = await fleet.in_state(identity, State.RUNNING)
        await fleet.sleep(2 * SECOND)
        wish = RequestCancel(identity, row.partition, row.attempt, fleet.clock.wall_us(), "by ada")
        proofs = former.node.parts.ownership.proofs({row.partition})
        await fleet.store.commit(CommitBatch(proofs=proofs, cancel_requests=[wish]))
        await fleet.end(former.address, how="kill")
        ended = await fleet.in_state(identity, State.CANCELLED)
        assert worker.cancelled == [row.attempt_id]
        assert (ended.attempt, "by ada" in ended.reason) == (1, True)
        await fleet.close()

    run_virtual(story())


def test_a_cancel_asked_for_while_nobody_owns_the_partition_is_answered_by_the_next_owner_alone() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b c", task)
        former = await owner_of(fleet, task)
        worker = fleet.add_worker("w1", lasting(fleet, 100 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        await fleet.end(former.address, how="kill")
        assert await fleet.ask("cancel", instance_id=identity) == "OK"
        await fleet.in_state(identity, State.CANCELLED)
        assert len(worker.cancelled) == 1
        await fleet.close()

    run_virtual(story())


def test_an_outcome_is_recorded_by_the_owner_alone_and_acknowledged_once_it_is() -> None:
    """The worker brings it to every node; those that do not own the partition say nothing."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b c", task)
        owner = await owner_of(fleet, task)
        worker = fleet.add_worker("w1", lasting(fleet, 3 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        owner.freeze()
        # The end is reported while its owner hears nothing, and before another one has taken over.
        await fleet.sleep(3_200 * MILLISECOND)
        assert worker.holding
        assert (await fleet.instance(identity)).state is State.RUNNING
        done = await fleet.in_state(identity, State.SUCCESS)
        await fleet.until(lambda: _is(not worker.holding))
        owner.thaw()
        await fleet.settled()
        await fleet.sleep(5 * SECOND)
        assert await fleet.instance(identity) == done
        assert {row.kind for row in await fleet.store.history(identity)} <= {"late_result"}
        await fleet.close()

    run_virtual(story())


def test_a_transaction_of_a_former_owner_moves_nothing() -> None:
    """I5: it was sent before the take-over and arrives after it."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        former = await owner_of(fleet, task)
        fleet.add_worker("w1", lasting(fleet, 60 * SECOND))
        identity = await fleet.submit(task)
        row = await fleet.in_state(identity, State.RUNNING)
        proofs = former.node.parts.ownership.proofs({row.partition})
        await fleet.end(former.address, how="kill")
        await fleet.settled()
        wish = RequestCancel(identity, row.partition, row.attempt, fleet.clock.wall_us(), "too late")
        report = await fleet.store.commit(CommitBatch(proofs=proofs, cancel_requests=[wish]))
        assert report.lost_partitions == {row.partition}
        assert (await fleet.instance(identity)).cancel_requested_us is None
        await fleet.close()

    run_virtual(story())


def test_a_pause_by_another_owner_holds_when_the_partition_comes_back() -> None:
    """What a node remembers of a task says nothing once another node has owned it."""

    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a", task)
        first = fleet.nodes["a"]
        fleet.add_worker("w1", lasting(fleet, 100 * MILLISECOND))
        await fleet.in_state(await fleet.submit(task), State.SUCCESS)
        # Frozen, so that it keeps what it has read; another node owns all of it meanwhile.
        await fleet.add("b")
        await fleet.settled()
        if (await owner_of(fleet, task)) is first:
            first.freeze()
            await fleet.until(lambda: _is(len(fleet.nodes["b"].owned) == 64))
        assert await fleet.ask("pause", task="t") == "OK"
        first.thaw()
        await fleet.end("b")
        await fleet.settled()
        identity = await fleet.submit(task)
        await fleet.sleep(10 * SECOND)
        row = await fleet.instance(identity)
        assert (row.state, row.reason) == (State.PENDING, "task default/t is paused")
        await fleet.close()

    run_virtual(story())


def test_a_stranger_is_told_to_end_and_another_owner_s_attempt_is_none() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.open("a b", task)
        owner = await owner_of(fleet, task)
        (other,) = (member for member in fleet.nodes.values() if member is not owner)
        worker = fleet.add_worker("w1", lasting(fleet, 20 * SECOND))
        identity = await fleet.submit(task)
        await fleet.in_state(identity, State.RUNNING)
        # It greets the node that does not own the partition anew, and reports what it runs.
        worker.cut(other.address)
        await fleet.sleep(SECOND)
        worker.dial(other.address)
        await fleet.in_state(identity, State.SUCCESS)
        assert worker.cancelled == []
        await fleet.close()

    run_virtual(story())


def test_a_starting_node_waits_for_the_row_of_a_dead_one_to_prove_so_and_for_nobody_else() -> None:
    async def story() -> None:
        fleet, task = Fleet(), python_task(retry=RETRY)
        await fleet.store.register_node(NodeRow("of-a-killed-process", 7, "gone", 0))
        await fleet.store.take_partitions("of-a-killed-process", range(32))
        began_us = fleet.clock.boot_us()
        await fleet.add("a")
        assert fleet.nodes["a"].node.ready()["ready"] is True
        assert len(fleet.nodes["a"].owned) == 32
        await fleet.settled()
        assert fleet.clock.boot_us() - began_us <= OWNERSHIP_LEASE_US + 1_500 * MILLISECOND
        await fleet.store.apply([task], now_us=fleet.clock.wall_us())
        await fleet.close()

    run_virtual(story())


async def _has_attempts(fleet: Fleet, identity: str, count: int) -> bool:
    return (await fleet.instance(identity)).attempt >= count


async def _is(condition: bool) -> bool:
    return condition
