"""The supervisor against a scripted node, on a virtual clock: attempts and their limits."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ostinato.core.definition import ShellSpec
from ostinato.core.instants import MINUTE, SECOND
from ostinato.sdk.context import current_context
from ostinato.wire.messages import (
    Accepted,
    Assignments,
    Cancel,
    Heartbeat,
    Hello,
    Outcomes,
    Output,
    Progress,
)
from tests.worker.scripted_node import (
    HEARTBEAT_US,
    Cluster,
    assignment,
    spec,
    specs,
)
from tests.worker.worker_stories import FUNCTIONS, Functions, on_virtual_time


def test_hello_says_what_the_worker_is_and_has() -> None:
    async def story(made: Cluster) -> None:
        (hello,) = made.node.all(Hello)
        assert hello.worker_name == "worker-1"
        assert hello.worker_id == made.worker.worker_id
        assert hello.capacity == hello.granted == {"process": 2, "async": 100}
        assert {ref.name for ref in hello.tasks} == set(FUNCTIONS)
        assert hello.executors == ["python"]
        assert hello.running == []

    on_virtual_time(story)


def test_an_assignment_is_accepted_run_and_its_outcome_repeated_until_acknowledged() -> None:
    async def story(made: Cluster) -> None:
        made.node.acknowledges_outcomes = False
        await made.node.send(specs(spec("add")))
        assigned_us = made.clock.wall_us()
        await made.node.assign(assignment("add", "a1", b'{"a": 2, "b": 3}'))
        outcome = await made.node.outcome_of("a1")
        assert made.node.all(Accepted)[0].attempt_ids == ["a1"]
        assert outcome.result == b"5"
        assert outcome.started_us == outcome.finished_us == assigned_us
        await made.pass_time(10 * HEARTBEAT_US)
        repeated = [item for item in made.node.outcomes if item.attempt_id == "a1"]
        assert len(repeated) > 1
        made.node.acknowledges_outcomes = True
        await made.pass_time(10 * HEARTBEAT_US)
        count = len(made.node.outcomes)
        await made.pass_time(10 * HEARTBEAT_US)
        assert len(made.node.outcomes) == count

    on_virtual_time(story)


def test_what_ends_together_is_reported_together() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("nothing")))
        await made.node.assign(*(assignment("nothing", f"n{i}") for i in range(100)))
        await made.node.until(lambda: len(made.node.outcomes) == 100)
        assert len(made.node.all(Outcomes)) <= 3

    on_virtual_time(story)


def test_a_failure_carries_the_exception() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("boom")))
        await made.node.assign(assignment("boom", "b1"))
        outcome = await made.node.outcome_of("b1")
        assert outcome.result is None
        assert outcome.failure is not None
        assert outcome.failure.message == "ValueError: boom"

    on_virtual_time(story)


def test_a_free_slot_is_granted_again_and_never_twice() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("nothing"), spec("forever")))
        await made.node.assign(assignment("forever", "f1"), assignment("nothing", "n1"))
        await made.node.outcome_of("n1")
        assert made.node.all(Outcomes)[-1].granted["async"] == 101
        await made.pass_time(2 * HEARTBEAT_US)
        assert made.node.all(Heartbeat)[-1].granted == {"process": 2, "async": 101}

    on_virtual_time(story)


@pytest.mark.parametrize("why", ["version", "slot", "executor"])
def test_what_cannot_be_run_is_refused_unstarted_with_the_reason(why: str) -> None:
    async def story(made: Cluster) -> None:
        if why == "executor":
            task = msgspec.structs.replace(spec("nothing"), executor=ShellSpec(command="true"))
            await made.node.send(specs(task))
        elif why == "slot":
            await made.node.send(specs(spec("nothing", is_async=False)))
        await made.node.assign(assignment("nothing", "n1"))
        outcome = await made.node.outcome_of("n1")
        assert outcome.started_us is None
        assert outcome.failure is None
        expected = {"version": "not told of version 1", "slot": "no free slot", "executor": "shell"}
        assert expected[why] in outcome.unstarted_reason

    on_virtual_time(story, capacity={"async": 1, "process": 0} if why == "slot" else None)


def test_a_repeated_assignment_is_accepted_and_run_once() -> None:
    runs: list[str] = []

    async def note() -> None:
        runs.append(current_context().attempt_id)
        await asyncio.Event().wait()

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("note")))
        for _ in range(3):
            await made.node.assign(assignment("note", "a1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) >= 1)
        await made.pass_time(2 * HEARTBEAT_US)
        assert runs == ["a1"]
        assert made.worker.running_count == 1
        granted, used = made.node.all(Heartbeat)[-1].granted["async"], 3
        assert granted - used == 99

    on_virtual_time(story, {"note": note})


def test_output_and_progress_stand_before_the_outcome() -> None:
    def tell() -> None:
        current_context().progress(0.5, "half")
        current_context().logger.info("a line")

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("tell")))
        await made.node.assign(assignment("tell", "t1"))
        await made.node.outcome_of("t1")
        kinds = [type(message) for message in made.node.heard]
        assert kinds.index(Output) < kinds.index(Outcomes)
        (progress,) = made.node.all(Progress)
        assert (progress.attempt_id, progress.fraction, progress.text) == ("t1", 0.5, "half")
        assert "a line" in made.node.all(Output)[0].chunks[0].text

    on_virtual_time(story, {"tell": tell})


# ── limits ────────────────────────────────────────────────────────────────────────────────────────────────


def test_c061_a_timeout_ends_the_attempt_at_its_limit_with_that_failure() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever", timeout_us=2 * SECOND)))
        began_us = made.clock.wall_us()
        await made.node.assign(assignment("forever", "f1"))
        outcome = await made.node.outcome_of("f1")
        assert outcome.failure is not None
        assert outcome.failure.code == "TIMEOUT"
        assert "2s" in outcome.failure.message
        assert outcome.finished_us - began_us == pytest.approx(2 * SECOND, abs=SECOND // 100)

    on_virtual_time(story)


def test_an_earlier_limit_is_kept_although_a_later_one_was_set_first() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever", timeout_us=MINUTE)))
        await made.node.assign(assignment("forever", "slow"))
        await made.pass_time(SECOND)
        await made.node.send(specs(spec("forever", timeout_us=2 * SECOND)))
        await made.node.assign(assignment("forever", "fast"))
        began_us = made.clock.wall_us()
        outcome = await made.node.outcome_of("fast")
        assert outcome.finished_us - began_us < 3 * SECOND
        assert made.worker.running_count == 1

    on_virtual_time(story)


def test_a_missed_heartbeat_ends_the_attempt_and_a_kept_one_does_not() -> None:
    def beats(made_clock: list[Cluster]) -> Functions:
        async def beat(times: int) -> str:
            made, context = made_clock[0], current_context()
            for _ in range(times):
                context.heartbeat()
                await made.pass_time(2 * SECOND)
            await made.pass_time(30 * SECOND)
            return "never"

        return {"beat": beat}

    made_clock: list[Cluster] = []

    async def story(made: Cluster) -> None:
        made_clock.append(made)
        await made.node.send(specs(spec("beat", heartbeat_timeout_us=3 * SECOND)))
        began_us = made.clock.wall_us()
        await made.node.assign(assignment("beat", "b1", b'{"times": 5}'))
        outcome = await made.node.outcome_of("b1")
        assert outcome.failure is not None
        assert outcome.failure.code == "HEARTBEAT_TIMEOUT"
        # The last of five beats comes after 8 s; three seconds of silence follow.
        assert outcome.finished_us - began_us == pytest.approx(11 * SECOND, abs=SECOND // 10)

    on_virtual_time(story, beats(made_clock))


def test_what_does_not_end_when_asked_ends_after_its_grace() -> None:
    async def stubborn() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            await asyncio.Event().wait()

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("stubborn", timeout_us=2 * SECOND, grace_us=3 * SECOND)))
        began_us = made.clock.wall_us()
        await made.node.assign(assignment("stubborn", "s1"))
        outcome = await made.node.outcome_of("s1")
        assert outcome.failure is not None
        assert outcome.failure.code == "TIMEOUT"
        assert outcome.finished_us - began_us == pytest.approx(5 * SECOND, abs=SECOND // 100)

    on_virtual_time(story, {"stubborn": stubborn})


def test_a_cancelled_attempt_says_who_asked_and_a_late_cancel_changes_nothing() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever"), spec("nothing")))
        await made.node.assign(assignment("forever", "f1"), assignment("nothing", "n1"))
        await made.node.outcome_of("n1")
        for attempt_id in ("f1", "n1", "unknown"):
            await made.node.send(Cancel("i", attempt_id, "asked for by anna"))
        outcome = await made.node.outcome_of("f1")
        assert outcome.failure is not None
        assert outcome.failure.code == "CANCELLED"
        assert outcome.failure.category == "cancelled"
        assert "anna" in outcome.failure.message
        assert len(made.node.outcomes) == 2

    on_virtual_time(story)


def test_c129_a_result_that_was_there_before_the_stop_counts() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("nothing")))
        # Both arrive in one batch: the attempt ends in the turn in which it is cancelled.
        await made.node.send(Assignments(0, [assignment("nothing", "n1")]), Cancel("i", "n1", "asked for"))
        outcome = await made.node.outcome_of("n1")
        assert (outcome.result is None) == (outcome.failure is not None)

    on_virtual_time(story)


def test_a_result_over_the_limit_is_refused_as_permanent() -> None:
    def result() -> str:
        return "x" * (1024 * 1024)

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("result")))
        await made.node.assign(assignment("result", "r1"))
        outcome = await made.node.outcome_of("r1")
        assert outcome.failure is not None
        assert (outcome.failure.code, outcome.failure.category) == ("BAD_RESULT", "permanent")

    on_virtual_time(story, {"result": result})


def test_many_large_results_travel_in_several_batches() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("huge")))
        await made.node.assign(*(assignment("huge", f"h{i}") for i in range(10)))
        await made.node.until(lambda: len(made.node.outcomes) == 10)
        assert all(len(message.items) <= 2 for message in made.node.all(Outcomes))

    on_virtual_time(story)
