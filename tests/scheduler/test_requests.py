"""Requests that no client of this release makes do not stand in the way of those that it does."""

from __future__ import annotations

import pytest
from support.cluster import Cluster, python_task

from ostinato.core.ids import new_id
from ostinato.core.states import State
from ostinato.store.batches import Request
from ostinato.testing.virtual_clock import run_virtual


@pytest.mark.parametrize(("kind", "body"), [("drain", b"no json"), ("rewind", b"{}"), ("", b"{}")])
def test_a_request_that_makes_no_sense_is_answered_and_the_next_is_carried_out(
    kind: str, body: bytes
) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        identity = await cluster.submit(task)
        assert await cluster.ask("disable", task="t") == "OK"
        now_us = cluster.clock.wall_us()
        row = await cluster.instance(identity)
        senseless = Request(
            id=new_id(now_us, cluster.rng),
            partition=row.partition,
            kind=kind,  # type: ignore[arg-type]  # what another release might ask
            namespace="default",
            created_us=now_us,
            task="t",
            instance_id="",
            body=body,
        )
        await cluster.store.add_requests([senseless])
        answers = await cluster.until(lambda: cluster.store.answers([senseless.id]))
        assert answers[senseless.id].code == "INVALID_VALUE"
        assert (await cluster.store.get_tasks([task.ref]))[task.ref].disabled
        assert await cluster.ask("enable", task="t") == "OK"
        assert (await cluster.instance(identity)).state is State.CANCELLED
        await cluster.stop()

    run_virtual(story())
