"""A worker with streams to several nodes: found from any one, each for itself, survived by what runs."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import OutputChunk
from ostinato.errors import UserError
from ostinato.sdk.context import current_context
from ostinato.wire.messages import (
    Accepted,
    Cancel,
    Draining,
    Heartbeat,
    Hello,
    Outcomes,
    Output,
    Rejected,
    Report,
    RunningReport,
)
from ostinato.worker.links import FORGOTTEN_US
from tests.worker.many_nodes import ManyNodes, play
from tests.worker.scripted_node import HEARTBEAT_US, WORKER_LEASE_US, ScriptedNode, assignment, spec, specs

# ── found ─────────────────────────────────────────────────────────────────────────────────────────────────


def test_all_nodes_are_found_from_any_one_and_each_hears_heartbeats_of_one_count() -> None:
    async def story(made: ManyNodes) -> None:
        await made.pass_time(3 * HEARTBEAT_US + SECOND)
        heard = [[beat.sequence for beat in node.all(Heartbeat)] for node in made.nodes]
        assert all(len(sequences) >= 4 for sequences in heard)
        together = [sequence for sequences in heard for sequence in sequences]
        assert len(set(together)) == len(together)
        assert [node.stream_count for node in made.nodes] == [1, 1, 1]

    play(story, given=("node-1",))


def test_a_node_that_is_named_later_is_dialled_and_one_that_nobody_names_is_dropped_some_time_after() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, third = made.nodes
        await first.connected()
        await second.connected()
        assert third.stream_count == 0
        first.nodes = ["node-0", "node-1", "node-2"]
        await third.connected()
        await third.kill()
        first.nodes = ["node-0", "node-1"]
        await made.pass_time(FORGOTTEN_US + MINUTE)
        await third.restart()
        await made.pass_time(5 * MINUTE)
        assert third.stream_count == 1

    async def apart(made: ManyNodes) -> None:
        await story(made)

    def begin(made: ManyNodes) -> None:
        for node in made.nodes:
            node.nodes = ["node-0", "node-1"]

    play(apart, waits=False, prepare=begin)


def test_a_configured_address_is_tried_for_ever() -> None:
    async def story(made: ManyNodes) -> None:
        await made.nodes[0].connected()
        await made.nodes[1].kill()
        made.nodes[0].nodes = ["node-0"]
        await made.pass_time(FORGOTTEN_US + 10 * MINUTE)
        await made.nodes[1].restart()
        await made.pass_time(10 * SECOND)
        assert made.nodes[1].stream_count == 2

    play(story, count=2, given=("node-0", "node-1"))


def test_while_no_node_answers_none_is_forgotten() -> None:
    async def story(made: ManyNodes) -> None:
        for node in made.nodes:
            await node.kill()
        await made.pass_time(2 * FORGOTTEN_US)
        await made.nodes[2].restart()
        await made.pass_time(10 * SECOND)
        assert made.nodes[2].stream_count == 2

    play(story)


def test_two_addresses_that_lead_to_one_node_keep_one_stream() -> None:
    """The node refuses the second; when the first one ends, the other address is dialled at once."""

    async def story(made: ManyNodes) -> None:
        node, alias = made.nodes
        await made.pass_time(MINUTE)
        assert (node.stream_count, alias.stream_count) == (1, 0)
        await node.kill()
        alias.answer = ScriptedNode(made.network, address="unused", node_id="id-node-0").answer
        await made.pass_time(10 * SECOND)
        assert alias.stream_count == 1

    def begin(made: ManyNodes) -> None:
        made.nodes[1].answer = lambda _: Rejected("ALREADY_CONNECTED", "by node-0", "id-node-0")

    play(story, count=2, waits=False, prepare=begin)


def test_a_node_that_welcomes_a_second_stream_keeps_that_one() -> None:
    async def story(made: ManyNodes) -> None:
        await made.pass_time(30 * SECOND)
        serving = [node for node in made.nodes if node.all(Heartbeat)[-1].sent_boot_us > _ago(made)]
        assert len(serving) == 1
        assert sum(made.free()[made.nodes.index(node)] for node in serving) == 9

    def begin(made: ManyNodes) -> None:
        for node in made.nodes:
            node.node_id = "one"

    play(story, count=2, given=("node-0", "node-1"), prepare=begin)


def _ago(made: ManyNodes) -> int:
    return made.clock.boot_us() - 2 * HEARTBEAT_US


def test_the_first_node_that_refuses_for_good_ends_the_worker_and_a_later_one_does_not() -> None:
    async def refused(made: ManyNodes) -> None:
        with pytest.raises(UserError, match="wrong token"):
            await made.worker.run()

    def refuse(made: ManyNodes) -> None:
        made.nodes[0].answer = lambda _: Rejected("UNKNOWN_TOKEN", "wrong token")

    play(refused, count=1, waits=False, runs=False, prepare=refuse)

    async def later(made: ManyNodes) -> None:
        await made.nodes[0].connected()
        await made.pass_time(MINUTE)
        assert made.nodes[1].all(Hello)
        assert made.nodes[0].stream_count == 1

    def refuse_second(made: ManyNodes) -> None:
        made.nodes[1].answer = lambda _: Rejected("UNKNOWN_TOKEN", "wrong token")

    play(later, count=2, waits=False, prepare=refuse_second)


# ── death of a node ───────────────────────────────────────────────────────────────────────────────────────


def test_a_node_dies_and_its_attempts_go_on_and_their_outcomes_reach_the_new_owner() -> None:
    gates: dict[str, asyncio.Event] = {}

    async def wait() -> str:
        await gates.setdefault(current_context().attempt_id, asyncio.Event()).wait()
        return "done"

    async def story(made: ManyNodes) -> None:
        first, second, third = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("wait", "a", partition=0), assignment("wait", "b", partition=0))
        await first.until(lambda: len(first.all(Accepted)) == 1)
        await made.pass_time(SECOND)
        await first.kill()
        gates["a"].set()
        await made.pass_time(SECOND)
        # Nobody owns it now: everybody is asked, and nobody takes it.
        assert [item.attempt_id for item in second.outcomes + third.outcomes] == ["a", "a"]
        assert not made.worker._outbox.all_acknowledged.is_set()
        made.own(second, 0, 1, epoch=2)
        await made.pass_time(3 * WORKER_LEASE_US)
        assert made.worker.running_count == 1
        assert [item.attempt_id for item in made.recorded(second)] == ["a", "a"]
        gates["b"].set()
        await made.pass_time(SECOND)
        assert made.recorded(second)[-1].attempt_id == "b"
        assert [item.attempt_id for item in third.outcomes] == ["a"]
        assert made.worker._outbox.all_acknowledged.is_set()

    play(story, functions={"wait": wait})


def test_i1_the_lease_of_one_partition_ends_and_stops_only_its_own_strict_attempts() -> None:
    """A link that is cut longer than the lease: they are gone before the lease is."""
    ends: dict[str, int] = {}
    made_by: list[ManyNodes] = []

    async def last() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ends[current_context().attempt_id] = made_by[0].clock.boot_us()

    async def story(made: ManyNodes) -> None:
        made_by.append(made)
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        for number, node in enumerate((first, second)):
            await made.assign(node, assignment("last", f"a{number}", partition=number))
        await made.pass_time(2 * HEARTBEAT_US)
        newest_us = first.all(Heartbeat)[-1].sent_boot_us
        await first.kill()
        await made.pass_time(2 * WORKER_LEASE_US)
        assert list(ends) == ["a0"]
        assert ends["a0"] == newest_us + WORKER_LEASE_US - 11 * SECOND
        assert made.worker.running_count == 1

    play(story, functions={"last": last})


def test_i1_what_a_former_owner_sent_before_it_died_is_refused_once_its_successor_was_heard() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        made.own(second, 0, 1, epoch=2)
        await made.pass_time(2 * HEARTBEAT_US)
        late = assignment("forever", "late", partition=0)
        late.epoch = 1
        await made.assign(first, late)
        outcome = await second.outcome_of("late")
        assert "another owner" in outcome.unstarted_reason
        assert made.worker.running_count == 0
        fresh = assignment("forever", "fresh", partition=0)
        fresh.epoch = 2
        await made.assign(second, fresh)
        await second.until(lambda: any("fresh" in item.attempt_ids for item in second.all(Accepted)))
        assert made.worker.running_count == 1

    play(story)


def test_a_lease_is_extended_by_whichever_owner_acknowledges_and_not_by_a_former_one() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("forever", "a", partition=0))
        made.own(second, 0, 1, epoch=2)
        await made.pass_time(2 * HEARTBEAT_US)
        second.acknowledges_heartbeats = False
        began_us = made.clock.boot_us()
        outcome = await second.outcome_of("a")
        assert outcome.failure is not None
        assert outcome.failure.code == "LEASE_EXPIRED"
        # The former owner has acknowledged to the end.
        assert made.clock.boot_us() - began_us <= WORKER_LEASE_US
        assert first.all(Heartbeat)[-1].sent_boot_us > made.clock.boot_us() - 2 * HEARTBEAT_US

    play(story)


def test_a_node_that_asks_is_told_what_the_worker_has() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("forever", "a", partition=0))
        await first.until(lambda: len(first.all(Accepted)) == 1)
        second.asks_report = True
        await second.until(lambda: bool(second.all(Report)))
        report = second.all(Report)[0]
        assert report.running == [RunningReport("instance-of-a", 1, "a")]
        assert report.sequence in [beat.sequence for beat in second.all(Heartbeat)]
        assert not first.all(Report)

    play(story)


def test_every_greeting_reports_all_that_runs_and_names_the_other_streams() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, third = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("forever", "a", partition=0))
        await made.assign(second, assignment("forever", "b", partition=1))
        await made.pass_time(SECOND)
        await third.kill()
        await third.restart()
        await third.connected(2)
        hello = third.all(Hello)[-1]
        assert [report.attempt_id for report in hello.running] == ["a", "b"]
        others = [node.all(Hello)[-1].stream for node in (first, second)]
        assert sorted(hello.open_streams) == sorted(others)
        assert hello.stream > max(others)

    play(story)


def test_a_cancel_may_come_from_any_node() -> None:
    async def story(made: ManyNodes) -> None:
        first, _, third = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("forever", "a", partition=0))
        await first.until(lambda: len(first.all(Accepted)) == 1)
        await third.send(Cancel("instance-of-a", "another", "not this one"))
        await third.send(Cancel("instance-of-a", "a", "anna"))
        outcome = await first.outcome_of("a")
        assert outcome.failure is not None
        assert outcome.failure.code == "CANCELLED"

    play(story)


# ── each at its own pace ──────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_does_not_read_slows_no_other() -> None:
    """Its stream is full of output; the others' work goes on, and its own stream is given up in time."""

    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        await made.assign(first, assignment("forever", "c", partition=0))
        await first.until(lambda: len(first.all(Accepted)) == 1)
        stuck = asyncio.Event()

        async def stall(*_: object) -> None:
            await stuck.wait()

        first._answer = stall  # type: ignore[method-assign,assignment]  # it hears nothing any more
        began_us = made.clock.boot_us()
        for number in range(20):
            for sequence in range(1_000):
                made.worker._attempts.output([chunk("c", sequence)])
            await made.assign(second, assignment("nothing", f"n{number}", partition=1))
            await second.outcome_of(f"n{number}")
        assert made.clock.boot_us() - began_us < SECOND
        del first._answer
        await first.connected(2)
        assert made.clock.boot_us() - began_us <= WORKER_LEASE_US // 2 + 10 * SECOND
        stuck.set()
        await second.send(Cancel("instance-of-c", "c", "enough"))
        await made.pass_time(5 * SECOND)
        assert [item.attempt_id for item in made.recorded(first)] == ["c"]

    play(story)


def chunk(attempt_id: str, sequence: int) -> OutputChunk:
    return OutputChunk(
        instance_id=f"instance-of-{attempt_id}",
        attempt=1,
        attempt_id=attempt_id,
        sequence=sequence,
        at_us=0,
        stream="stdout",
        text="a line\n",
    )


def test_output_goes_to_the_owner_of_the_partition_alone() -> None:
    async def story(made: ManyNodes) -> None:
        _, second, _ = made.nodes
        await made.pass_time(SECOND)
        await made.assign(second, assignment("forever", "t", partition=1))
        await second.until(lambda: len(second.all(Accepted)) == 1)
        made.worker._attempts.output([chunk("t", 1)])
        await second.send(Cancel("instance-of-t", "t", "enough"))
        await second.outcome_of("t")
        assert [len(node.all(Output)) for node in made.nodes] == [0, 1, 0]
        assert [len([m for m in node.all(Outcomes) if m.items]) for node in made.nodes] == [0, 1, 0]

    play(story)


def test_output_of_a_stream_that_has_ended_goes_to_another() -> None:
    async def story(made: ManyNodes) -> None:
        _, second, _ = made.nodes
        await made.pass_time(SECOND)
        await made.assign(second, assignment("forever", "t", partition=1))
        await second.until(lambda: len(second.all(Accepted)) == 1)
        await second.kill()
        made.worker._attempts.output([chunk("t", 1)])
        await made.pass_time(SECOND)
        assert sum(len(node.all(Output)) for node in made.nodes) == 1

    play(story)


# ── the end ───────────────────────────────────────────────────────────────────────────────────────────────


def test_a_drain_is_told_to_all_nodes_and_ends_when_every_owner_has_its_outcomes() -> None:
    async def story(made: ManyNodes) -> None:
        await made.pass_time(SECOND)
        for number, node in enumerate(made.nodes):
            await made.assign(node, assignment("forever", f"a{number}", partition=number))
        await made.pass_time(SECOND)
        made.worker.drain("SIGTERM")
        await made.pass_time(SECOND)
        assert [node.all(Draining)[0].reason for node in made.nodes] == ["SIGTERM"] * 3
        await made.pass_time(25 * SECOND)
        assert made.worker.running_count == 0
        for number, node in enumerate(made.nodes):
            (outcome,) = made.recorded(node)
            assert outcome.attempt_id == f"a{number}"
            assert outcome.failure is not None
            assert outcome.failure.code == "HANDED_BACK"

    play(story)


def test_a_repeated_acknowledgement_changes_nothing() -> None:
    async def story(made: ManyNodes) -> None:
        first, second, _ = made.nodes
        await made.pass_time(SECOND)
        await first.send(specs(spec("nothing")))
        await first.assign(assignment("nothing", "n", partition=0))
        await first.outcome_of("n")
        await made.pass_time(SECOND)
        before = made.free()
        for beat in second.all(Heartbeat) + second.all(Heartbeat):
            await second.send(second._acknowledgement(beat))
        await made.pass_time(SECOND)
        assert made.free() == before
        assert made.worker._outbox.all_acknowledged.is_set()

    play(story)
