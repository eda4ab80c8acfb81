"""Lost streams, leases and drains of a worker, on a virtual clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from itertools import pairwise
from typing import Any

import pytest

from ostinato.core.instants import MINUTE, SECOND
from ostinato.errors import UserError
from ostinato.sdk.context import current_context
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import (
    Accepted,
    Drain,
    Draining,
    Heartbeat,
    Hello,
    Outcomes,
    Rejected,
    RunningReport,
)
from ostinato.worker.connection import BACKOFF_US_MAX
from tests.worker.scripted_node import (
    HEARTBEAT_US,
    WORKER_LEASE_US,
    Cluster,
    assignment,
    spec,
    specs,
)
from tests.worker.worker_stories import FUNCTIONS, Functions, nothing, on_virtual_time

# ── lost streams ──────────────────────────────────────────────────────────────────────────────────────────


def test_i6_a_node_that_is_killed_and_restarted_adopts_and_nothing_is_doubled() -> None:
    runs: list[str] = []
    gate: list[asyncio.Event] = []

    async def note() -> str:
        runs.append(current_context().attempt_id)
        await gate[0].wait()
        return "done"

    async def story(made: Cluster) -> None:
        gate.append(asyncio.Event())
        made.node.acknowledges_outcomes = False
        await made.node.send(specs(spec("note"), spec("nothing")))
        await made.node.assign(assignment("note", "a1"), assignment("nothing", "n1"))
        await made.node.outcome_of("n1")
        await made.node.kill()
        await made.pass_time(5 * SECOND)
        made.node.heard.clear()
        made.node.acknowledges_outcomes = True
        await made.node.restart()
        await made.node.connected(2)
        (hello,) = made.node.all(Hello)
        assert sorted(report.attempt_id for report in hello.running) == ["a1", "n1"]
        assert RunningReport("instance-of-a1", 1, "a1") in hello.running
        assert hello.granted == {"process": 2, "async": 99}
        # What is unacknowledged is the first word after the greeting.
        await made.node.outcome_of("n1")
        assert isinstance(made.node.heard[1], Outcomes)
        gate[0].set()
        outcome = await made.node.outcome_of("a1")
        assert outcome.result == b'"done"'
        assert runs == ["a1"]
        await made.pass_time(10 * HEARTBEAT_US)
        assert [item.attempt_id for item in made.node.outcomes] == ["n1", "a1"]

    on_virtual_time(story, {"note": note, "nothing": nothing})


def test_declarations_are_sent_until_a_node_has_them() -> None:
    async def story(made: Cluster) -> None:
        await made.node.kill()
        await made.node.restart()
        await made.node.connected(2)
        first, second = made.node.all(Hello)
        assert first.worker_id == second.worker_id
        assert second.declarations == []

    on_virtual_time(story)


def test_scheduler_that_stays_away_is_a_warning_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    async def story(made: Cluster) -> None:
        for minutes in (3, 1):
            await made.pass_time(SECOND)
            caplog.clear()
            await made.node.kill()
            await made.pass_time(minutes * MINUTE)
            told = [(record.msg, record.levelname) for record in caplog.records]
            assert told[0] == ("scheduler_lost", "WARNING")
            assert told[1] == ("scheduler_unreachable", "WARNING")
            assert told.count(("scheduler_lost", "WARNING")) == 1
            assert minutes - 1 <= told.count(("scheduler_unreachable", "WARNING")) <= minutes
            assert told.count(("scheduler_unreachable", "DEBUG")) > minutes
            await made.node.restart()
            await made.pass_time(WORKER_LEASE_US)

    caplog.set_level("DEBUG", logger="ostinato.worker")
    on_virtual_time(story)


def test_reconnecting_backs_off_with_jitter_to_at_most_5_s_and_a_sixth_of_the_worker_lease() -> None:
    async def story(made: Cluster) -> None:
        transport = made.worker._transport
        dialled: list[int] = []
        connect = transport.connect

        async def noting(address: str) -> Any:
            dialled.append(made.clock.boot_us())
            return await connect(address)

        transport.connect = noting  # type: ignore[method-assign]  # a witness; it changes nothing
        await made.node.kill()
        await made.pass_time(5 * MINUTE)
        pauses = [later - earlier for earlier, later in pairwise(dialled)]
        assert max(pauses) <= min(BACKOFF_US_MAX, WORKER_LEASE_US // 6)
        assert max(pauses) > BACKOFF_US_MAX // 2
        assert pauses[0] <= SECOND // 5
        assert len(set(pauses)) == len(pauses)

    on_virtual_time(story)


def test_a_worker_started_before_its_node_waits_for_it() -> None:
    async def play() -> None:
        made = Cluster(FUNCTIONS, capacity={"async": 1})
        running = asyncio.create_task(made.worker.run())
        await made.pass_time(3 * MINUTE)
        await made.node.start()
        await made.node.connected()
        made.worker.stop()
        await running
        await made.node.kill()
        assert len(made.node.all(Hello)) == 1

    run_virtual(play())


def test_a_node_that_refuses_the_protocol_ends_the_worker_with_what_it_said() -> None:
    async def play() -> None:
        made = Cluster(FUNCTIONS, capacity={"async": 1})
        made.node.answer = lambda _: Rejected("PROTOCOL_MISMATCH", "the scheduler is newer")
        await made.node.start()
        with pytest.raises(UserError, match="the scheduler is newer"):
            await made.worker.run()
        await made.node.kill()

    run_virtual(play())


def test_a_node_that_never_answers_is_left_after_the_time_allowed() -> None:
    async def play() -> None:
        made = Cluster(FUNCTIONS, capacity={"async": 1})
        hellos: list[int] = []

        async def mute(stream: Any) -> None:
            hellos.append(made.clock.boot_us())
            while True:
                await stream.receive()

        transport = made.network.node_transport("node-1")
        await transport.start(mute)
        running = asyncio.create_task(made.worker.run())
        await made.pass_time(MINUTE)
        assert len(hellos) >= 3
        made.worker.stop()
        await running
        await transport.stop()

    run_virtual(play())


# ── the lease ─────────────────────────────────────────────────────────────────────────────────────────────


def test_i1_a_strict_attempt_is_gone_when_the_lease_is_and_a_relaxed_one_goes_on() -> None:
    ends: dict[str, int] = {}

    def lasting(made_clock: list[Cluster]) -> Functions:
        async def last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                ends[current_context().attempt_id] = made_clock[0].clock.boot_us()

        return {"strict": last, "relaxed": last}

    made_clock: list[Cluster] = []

    async def story(made: Cluster) -> None:
        made_clock.append(made)
        await made.node.send(specs(spec("strict"), spec("relaxed", exclusive="relaxed")))
        await made.node.assign(assignment("strict", "s1"), assignment("relaxed", "r1"))
        await made.pass_time(2 * HEARTBEAT_US + SECOND)
        newest = made.node.all(Heartbeat)[-1].sent_boot_us
        await made.node.kill()
        await made.pass_time(2 * WORKER_LEASE_US)
        # The grace of 10 s is WL/6; a second is for the clocks.
        assert ends == {"s1": newest + WORKER_LEASE_US - 11 * SECOND}
        await made.node.restart()
        outcome = await made.node.outcome_of("s1")
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.category) == ("LEASE_EXPIRED", "lost")
        assert made.worker.running_count == 1

    on_virtual_time(story, lasting(made_clock))


def test_a_heartbeat_that_no_owner_acknowledges_extends_nothing() -> None:
    async def story(made: Cluster) -> None:
        made.node.acknowledges_heartbeats = False
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        outcome = await made.node.outcome_of("f1")
        assert outcome.failure is not None
        assert outcome.failure.code == "LEASE_EXPIRED"

    on_virtual_time(story)


def test_an_attempt_outlives_many_leases_while_heartbeats_are_acknowledged() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        await made.pass_time(20 * WORKER_LEASE_US)
        assert made.worker.running_count == 1
        assert made.node.outcomes == []

    on_virtual_time(story)


def test_an_assignment_whose_lease_is_over_when_it_arrives_is_refused_unstarted() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("nothing")))
        await made.pass_time(2 * WORKER_LEASE_US)
        await made.node.assign(assignment("nothing", "old"), heartbeat=1)
        outcome = await made.node.outcome_of("old")
        assert "lease" in outcome.unstarted_reason
        await made.node.assign(assignment("nothing", "new"))
        assert (await made.node.outcome_of("new")).result == b"null"

    on_virtual_time(story)


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────


async def drained(made: Cluster, running: asyncio.Task[None]) -> int:
    """Wait for the end of the worker; returns how long that took."""
    began_us = made.clock.boot_us()
    await running
    return made.clock.boot_us() - began_us


def play_drain(
    story: Callable[[Cluster, asyncio.Task[None]], Coroutine[Any, Any, None]], functions: Functions
) -> None:
    async def play() -> None:
        made = Cluster(functions, capacity={"async": 10})
        await made.node.start()
        running = asyncio.create_task(made.worker.run())
        await made.node.connected()
        await story(made, running)
        await made.node.kill()

    run_virtual(play())


def test_c133_a_drain_lets_short_attempts_end_and_hands_the_long_one_back_within_its_limit() -> None:
    clusters: list[Cluster] = []

    async def take(seconds: int) -> str:
        await clusters[0].pass_time(seconds * SECOND)
        return "done"

    async def story(made: Cluster, running: asyncio.Task[None]) -> None:
        clusters.append(made)
        await made.node.send(specs(spec("take")))
        await made.node.assign(
            *(assignment("take", f"t{s}", f'{{"seconds": {s}}}'.encode()) for s in (5, 20, 60))
        )
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        made.worker.drain("SIGTERM")
        await made.pass_time(SECOND)
        assert made.node.all(Draining)[0].reason == "SIGTERM"
        await made.node.assign(assignment("take", "late", b'{"seconds": 1}'))
        late = await made.node.outcome_of("late")
        assert late.unstarted_reason == "SIGTERM"
        assert await drained(made, running) <= 25 * SECOND
        assert (await made.node.outcome_of("t5")).result == b'"done"'
        assert (await made.node.outcome_of("t20")).result == b'"done"'
        handed_back = (await made.node.outcome_of("t60")).failure
        assert handed_back is not None
        assert (handed_back.code, handed_back.category) == ("HANDED_BACK", "lost")

    play_drain(story, {"take": take})


def test_a_drain_of_an_idle_worker_ends_at_once() -> None:
    async def story(made: Cluster, running: asyncio.Task[None]) -> None:
        await made.node.send(Drain("rolling update"))
        assert await drained(made, running) < SECOND

    play_drain(story, FUNCTIONS)


def test_a_second_request_hastens_a_drain() -> None:
    async def story(made: Cluster, running: asyncio.Task[None]) -> None:
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        made.worker.drain()
        await made.pass_time(2 * SECOND)
        assert not running.done()
        made.worker.stop()
        assert await drained(made, running) < SECOND
        failure = (await made.node.outcome_of("f1")).failure
        assert failure is not None
        assert failure.code == "HANDED_BACK"

    play_drain(story, FUNCTIONS)


def test_a_drain_without_a_node_ends_within_its_limit() -> None:
    async def story(made: Cluster, running: asyncio.Task[None]) -> None:
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        await made.node.kill()
        made.worker.drain()
        assert await drained(made, running) <= 25 * SECOND

    play_drain(story, FUNCTIONS)


def test_the_same_seed_gives_the_same_conversation() -> None:
    def conversation() -> list[object]:
        heard: list[object] = []

        async def story(made: Cluster) -> None:
            await made.node.send(specs(spec("nothing"), spec("boom"), spec("forever", timeout_us=3 * SECOND)))
            names = ["nothing", "boom", "forever"] * 10
            await made.node.assign(*(assignment(name, f"{name}-{i}") for i, name in enumerate(names)))
            await made.pass_time(7 * SECOND)
            await made.node.kill()
            await made.pass_time(10 * SECOND)
            await made.node.restart()
            await made.pass_time(MINUTE)
            heard.extend(made.node.heard)

        on_virtual_time(story)
        return heard

    assert repr(conversation()) == repr(conversation())
