"""An executor that comes and goes: every node is greeted anew, and what runs goes on."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from ostinato.core.definition import TaskRef
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Hello
from tests.worker.scripted_node import Cluster, assignment, spec, specs
from tests.worker.worker_stories import FUNCTIONS


class ComingExecutor(InlineExecutor):
    """Ready when the test says so."""

    is_ready = False
    changed: Callable[[], None]

    def on_readiness(self, changed: Callable[[], None]) -> None:
        self.changed = changed

    def becomes(self, *, ready: bool) -> None:
        self.is_ready = ready
        self.changed()


async def story() -> list[list[str]]:
    made = Cluster(FUNCTIONS, capacity={"process": 2, "async": 100})
    named = {TaskRef("default", name): function for name, function in FUNCTIONS.items()}
    executor = ComingExecutor(named, clock=made.clock)
    made.executor = executor
    made.worker = made.new_worker()
    await made.node.start()
    running = asyncio.create_task(made.worker.run())
    try:
        await made.node.connected()
        for count, is_ready in ((2, True), (3, False)):
            executor.becomes(ready=is_ready)
            await made.node.until(lambda count=count: len(made.node.all(Hello)) == count)
            if is_ready:
                await made.node.send(specs(spec("forever")))
                await made.node.assign(assignment("forever", "f1"))
                await made.node.until(lambda: made.worker.running_count == 1)
        assert [report.attempt_id for report in made.node.all(Hello)[-1].running] == ["f1"]
    finally:
        running.cancel()
        await asyncio.wait([running])
        await made.node.kill()
    return [hello.executors for hello in made.node.all(Hello)]


def test_every_change_is_told_by_a_greeting_and_what_runs_goes_on() -> None:
    assert run_virtual(story()) == [[], ["python"], []]
