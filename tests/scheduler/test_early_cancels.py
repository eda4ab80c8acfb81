"""A cancel of what its owner has assigned and not sent yet; on virtual time."""

from __future__ import annotations

import asyncio

import pytest
from support.cluster import Cluster, python_task, value_of, worker_of

from ostinato.core.instants import SECOND
from ostinato.core.states import State
from ostinato.errors import UnavailableError
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Assignments, Cancel


@pytest.mark.parametrize("answer", ["late", "lost"])
def test_a_cancel_that_comes_before_the_answer_to_the_assignment_s_commit_follows_the_assignment(
    answer: str,
) -> None:
    """What is written can be found and cancelled; its worker cannot end what it has not been given."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        commit, heard, is_first = cluster.store.commit, asyncio.Event(), True

        async def committing(batch: CommitBatch) -> CommitReport:
            nonlocal is_first
            report = await commit(batch)
            if batch.assigns and is_first:
                is_first = False
                await heard.wait()
                if answer == "lost":
                    raise UnavailableError("DATABASE_UNAVAILABLE", "the connection was reset")
            return report

        cluster.store.commit = committing  # type: ignore[method-assign]  # only one answer is late
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.RUNNING)
        assert await cluster.ask("cancel", instance_id=identity, body={"reason": "a mistake"}) == "OK"
        await cluster.sleep(SECOND)
        assert worker.assigned == []
        heard.set()
        await cluster.until(lambda: value_of(bool(worker.assigned)))
        await cluster.sleep(SECOND)
        (item,) = worker.assigned
        told = [message for message in worker.messages if isinstance(message, Assignments | Cancel)]
        assert told[-1] == Cancel(identity, item.attempt_id, "a mistake")
        assert isinstance(told[-2], Assignments)
        assert cluster.node.parts.ownership.memory.entering == {}
        await worker.finish(item, b"1")
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
