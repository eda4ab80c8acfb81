"""The real node, supervisor and control code in simulated processes."""

from __future__ import annotations

from collections import Counter

from support.simulated import SimulatedCluster, short

from ostinato.core.instants import SECOND
from ostinato.simulation.history import ExecutionBegan, ExecutionEnded


def test_what_is_submitted_is_executed_once() -> None:
    cluster = SimulatedCluster(1)
    cluster.task("short", short)

    async def story(made: SimulatedCluster) -> None:
        await made.open()
        for _ in range(20):
            assert await made.submit("short")
        await made.all_ended()
        assert Counter(row.state for row in await made.instances()) == {"success": 20}

    cluster.run(story)
    began = [event for event in cluster.events if isinstance(event, ExecutionBegan)]
    ended = [event for event in cluster.events if isinstance(event, ExecutionEnded)]
    assert len({event.instance_id for event in began}) == len(began) == 20
    assert [event.how for event in ended] == ["returned"] * 20
