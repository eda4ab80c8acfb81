"""How a guardian's report reaches a node: tried again, outcomes first, given up in time; virtual time."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest
from support.cluster import ADDRESS, Cluster, python_task, worker_of

from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.core.states import State
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.virtual_clock import run_virtual
from ostinato.worker.guardian_messages import Report, ReportTarget
from ostinato.worker.guardian_report import NotRecordedError, deliver
from ostinato.worker.spool_file import SpoolFile


def report_of(spool: Path | None, *, heartbeat_sequence: int | None = None, token: str = "") -> Report:
    path = "" if spool is None else str(spool)
    target = ReportTarget("worker-1", "scripted", ["nobody", ADDRESS], token, spool_path=path)
    return Report(target, "killed", heartbeat_sequence, limit_us=6 * SECOND)


def outcome_of(instance_id: str, attempt_id: str, *, now_us: int) -> Outcome:
    return Outcome(
        instance_id=instance_id,
        attempt=1,
        attempt_id=attempt_id,
        started_us=now_us,
        finished_us=now_us,
        result=b"7",
    )


async def bring(cluster: Cluster, report: Report) -> None:
    await deliver(report, transport=cluster.network.worker_transport(), clock=cluster.clock, rng=Random(1))


def test_what_was_spooled_counts_and_the_rest_is_retried_once_a_node_can_be_reached(tmp_path: Path) -> None:
    """I2, I6: the first address answers nobody; the node is away at first."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        finished, lost = [await cluster.submit(task) for _ in range(2)]
        for identity in (finished, lost):
            await cluster.in_state(identity, State.RUNNING)
        await worker.disconnect()
        item = next(item for item in worker.assigned if item.instance_id == finished)
        now_us = cluster.clock.wall_us()
        spool = SpoolFile(tmp_path / "worker-1.db")
        spool.add([outcome_of(finished, item.attempt_id, now_us=now_us)])
        spool.close()
        await cluster.restart()
        await bring(cluster, report_of(tmp_path / "worker-1.db"))
        first, second = await cluster.instance(finished), await cluster.instance(lost)
        assert (first.state, first.attempt, first.result) == (State.SUCCESS, 1, b"7")
        assert (second.state, second.counters.lost) == (State.RETRY_WAITING, 1)
        await cluster.stop()

    run_virtual(story())
    assert not list(tmp_path.iterdir())


def test_the_spool_of_a_frozen_supervisor_is_left_to_it(tmp_path: Path) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(python_task())
        spool = SpoolFile(tmp_path / "worker-1.db")
        spool.add([outcome_of("instance", "attempt", now_us=1)])
        spool.close()
        await bring(cluster, report_of(tmp_path / "worker-1.db", heartbeat_sequence=4))
        assert (tmp_path / "worker-1.db").exists()
        await cluster.stop()

    run_virtual(story())


def test_it_is_given_up_once_nobody_waits_for_it_any_more() -> None:
    async def story() -> None:
        cluster = Cluster()
        began_us = cluster.clock.boot_us()
        with pytest.raises(TimeoutError):
            await bring(cluster, report_of(None))
        assert cluster.clock.boot_us() - began_us == 6 * SECOND

    run_virtual(story())


def test_a_node_that_does_not_know_the_token_ends_it() -> None:
    async def story() -> None:
        cluster = Cluster(config=NodeConfig(worker_lease_us=6 * SECOND, join_token="right"))
        await cluster.start()
        with pytest.raises(NotRecordedError, match="token"):
            await bring(cluster, report_of(None, token="wrong"))
        await cluster.stop()

    run_virtual(story())
