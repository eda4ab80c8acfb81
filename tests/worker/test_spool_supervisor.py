"""A whole supervisor with a spool: what it reports at first, and what it leaves behind when it must end."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import pytest
from support.small_disk import small_disk

from ostinato.clock import SystemClock
from ostinato.core.definition import TaskRef
from ostinato.core.instants import SECOND
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import Hello
from ostinato.worker.config import WorkerConfig
from ostinato.worker.spool import Spool
from ostinato.worker.spool_file import read_spool
from ostinato.worker.supervisor import Supervisor
from tests.worker.scripted_node import ADDRESS, ScriptedNode, assignment, spec, specs
from tests.worker.spool_stories import ids_of, leave, names_in, outcomes
from tests.worker.worker_stories import FUNCTIONS


class Worker:
    """A supervisor with a spool in `folder`, and a node that it may find."""

    def __init__(self, folder: Path, *, drain_timeout_us: int = 5 * SECOND) -> None:
        clock, network = SystemClock(), InProcessNetwork()
        self.node = ScriptedNode(network)
        self.spool = Spool(folder, worker_id="own", clock=clock)
        self.supervisor = Supervisor(
            WorkerConfig(
                worker_name="worker-1",
                scheduler=ADDRESS,
                capacity={"async": 10},
                data_dir=folder,
                drain_timeout_us=drain_timeout_us,
            ),
            clock=clock,
            transport=network.worker_transport(),
            executors=[
                InlineExecutor(
                    {TaskRef("default", name): call for name, call in FUNCTIONS.items()}, clock=clock
                )
            ],
            rng=Random(1),
            spool=self.spool,
        )


@asynccontextmanager
async def running(worker: Worker) -> AsyncIterator[asyncio.Task[None]]:
    """The worker at work; what is left of it at the end is cancelled."""
    await worker.node.start()
    task = asyncio.create_task(worker.supervisor.run())
    try:
        await asyncio.wait_for(worker.node.connected(), 30)
        yield task
    finally:
        task.cancel()
        await asyncio.wait([task])
        await worker.node.kill()


async def test_what_a_dead_worker_has_left_is_in_the_first_report_and_arrives(tmp_path: Path) -> None:
    leave(tmp_path, "dead", count=20)
    worker = Worker(tmp_path)
    async with running(worker) as task:
        (hello,) = worker.node.all(Hello)
        assert hello.worker_id == "own"
        assert [report.attempt_id for report in hello.running] == ids_of(outcomes(20, "dead"))
        await asyncio.wait_for(worker.node.outcome_of("dead-19"), 30)
        assert worker.node.outcomes == outcomes(20, "dead")
        worker.supervisor.drain()
        await asyncio.wait_for(task, 30)
    assert names_in(tmp_path) == []


async def test_a_worker_that_is_cut_off_leaves_what_ended_and_hands_back_what_ran(tmp_path: Path) -> None:
    worker = Worker(tmp_path)
    worker.node.acknowledges_outcomes = False
    async with running(worker):
        await worker.node.send(specs(spec("add"), spec("forever")))
        await worker.node.assign(assignment("add", "a1", b'{"a": 2, "b": 3}'), assignment("forever", "f1"))
        await asyncio.wait_for(worker.node.outcome_of("a1"), 30)
    left = {item.attempt_id: item for item in read_spool(worker.spool.path).outcomes}
    assert left["a1"].result == b"5"
    assert left["f1"].failure is not None
    assert left["f1"].failure.code == "HANDED_BACK"


@pytest.mark.parametrize("has_room_later", [True, False])
async def test_c123_a_drain_waits_for_disk_or_scheduler_while_neither_has_the_results(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, has_room_later: bool
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        worker = Worker(disk.path, drain_timeout_us=(30 if has_room_later else 3) * SECOND)
        async with running(worker) as task:
            worker.node.acknowledges_outcomes = False
            await worker.node.send(specs(spec("huge")))
            disk.fill()
            await worker.node.assign(assignment("huge", "h1"))
            # It gets there nevertheless, but is not known to.
            await asyncio.wait_for(worker.node.outcome_of("h1"), 30)
            await worker.node.kill()
            worker.supervisor.drain()
            if has_room_later:
                # Long after all that a drain of nothing else takes.
                await asyncio.wait([task], timeout=4)
                assert not task.done()
                disk.free()
            await asyncio.wait_for(task, 20)
        lost = [record for record in caplog.records if record.message == "outcomes_not_spooled"]
        assert [record.levelno for record in lost] == ([] if has_room_later else [logging.ERROR])
        assert ids_of(read_spool(worker.spool.path).outcomes) == (["h1"] if has_room_later else [])
