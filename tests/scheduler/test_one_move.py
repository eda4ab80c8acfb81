"""A batch moves an instance once, and nothing stays running that nobody runs."""

from __future__ import annotations

import pytest
from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.changes import Assign, EndWaiting
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.partition.effects import Effects
from ostinato.core.states import TERMINAL_STATES, State
from ostinato.errors import InternalError
from ostinato.observe.records import OrphanFound
from ostinato.testing.virtual_clock import run_virtual


@pytest.mark.parametrize(
    ("overlap", "of_replayed", "of_newer"),
    [
        ("replace", State.CANCELLED, State.SUCCESS),
        ("forbid", State.SUCCESS, State.SKIPPED),
        ("queue", State.SUCCESS, State.SUCCESS),
    ],
)
def test_a_replay_that_a_newer_submission_meets_while_paused_is_not_left_running(
    overlap: str, of_replayed: State, of_newer: State
) -> None:
    """Under ``replace`` the newer one ends it in the very batch in which it would be assigned."""

    async def story() -> None:
        cluster, task = Cluster(), python_task(overlap=overlap)
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: b"1")
        replayed = await cluster.submit(task)
        await cluster.in_state(replayed, State.SUCCESS)
        assert await cluster.ask("pause", task="t") == "OK"
        newer = await cluster.submit(task)
        await cluster.sleep(SECOND)
        assert await cluster.ask("replay", instance_id=replayed, body={"force": True}) == "OK"
        assert await cluster.ask("resume", task="t") == "OK"

        async def all_ended() -> bool:
            rows = [await cluster.instance(identity) for identity in (replayed, newer)]
            return all(row.state in TERMINAL_STATES for row in rows)

        await cluster.until(all_ended)
        assert (await cluster.instance(replayed)).state is of_replayed
        assert (await cluster.instance(newer)).state is of_newer
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_batch_that_moves_an_instance_twice_is_refused_whole() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)
        row = await cluster.instance(identity)
        effects = Effects()
        effects.batch.assigns.append(
            Assign(identity, row.partition, row.state, 0, "attempt", "worker", "worker", row.due_us)
        )
        effects.batch.ended_waiting.append(
            EndWaiting(identity, row.partition, row.state, 0, State.CANCELLED, "why", row.due_us)
        )
        with pytest.raises(InternalError, match="twice"):
            await cluster.node.parts.committer.commit(effects)
        assert (await cluster.instance(identity)).state is State.PENDING
        await cluster.stop()

    run_virtual(story())


def test_what_runs_by_the_database_alone_is_found_and_lost_with_its_worker() -> None:
    """I9, should memory and database ever differ."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.until(lambda: value_of(len(worker.assigned) == 1))
        first = await cluster.in_state(identity, State.RUNNING)
        # What no code of ours does.
        del cluster.node.parts.ownership.memory.running[identity]
        await worker.disconnect()
        await cluster.sleep(3 * MINUTE)
        found = [record for record in cluster.recorder.records if isinstance(record, OrphanFound)]
        assert [record.instance_id for record in found] == [identity]
        row = await cluster.instance(identity)
        assert (row.state, row.attempt_id) == (State.RETRY_WAITING, first.attempt_id)
        assert row.failure is not None
        assert row.failure.code == "WORKER_LOST"
        await cluster.stop()

    run_virtual(story())
