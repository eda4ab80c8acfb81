"""A worker's stream: half open, refused, of another version; on a virtual clock."""

from __future__ import annotations

import asyncio

import msgspec
import pytest

from ostinato.core.instants import MINUTE, SECOND
from ostinato.errors import EXIT_BAD_INPUT, UserError
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Heartbeat,
    Hello,
    NodeMessage,
    Outcomes,
    Rejected,
    RunningReport,
    Welcome,
)
from ostinato.worker.waiting import GATHERING_US_MIN
from tests.worker.scripted_node import (
    HEARTBEAT_US,
    WORKER_LEASE_US,
    Cluster,
    assignment,
    spec,
    specs,
)
from tests.worker.worker_stories import FUNCTIONS, on_virtual_time


def test_what_comes_alone_is_told_at_once_and_what_comes_with_others_gathers() -> None:
    ended = asyncio.Event()

    async def waits() -> None:
        await ended.wait()

    async def story(made: Cluster) -> None:
        async def told_us(*attempt_ids: str) -> int:
            ended.clear()
            await made.node.assign(*(assignment("waits", each) for each in attempt_ids))
            await made.node.until(lambda: _accepted(made, *attempt_ids))
            ended.set()
            began_us = made.clock.boot_us()
            await made.node.outcome_of(attempt_ids[0])
            return made.clock.boot_us() - began_us

        await made.node.send(specs(spec("waits")))
        await made.pass_time(SECOND)
        assert await told_us("w1") == 0
        await made.pass_time(SECOND)
        assert await told_us("w2", "w3") == GATHERING_US_MIN

    on_virtual_time(story, {"waits": waits})


def _accepted(made: Cluster, *attempt_ids: str) -> bool:
    told = {each for message in made.node.all(Accepted) for each in message.attempt_ids}
    return told.issuperset(attempt_ids)


def test_c113_a_stream_on_which_no_heartbeat_is_acknowledged_is_dropped_after_half_a_lease() -> None:
    """The connection looks alive, but nobody answers; what runs is reported on the next stream in time."""

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        await made.pass_time(SECOND)
        acknowledged_us = made.node.all(Heartbeat)[-1].sent_boot_us
        made.node.heard.clear()
        made.node.acknowledges_heartbeats = False
        welcome = made.node.answer

        def recover(hello: Hello) -> NodeMessage:
            made.node.acknowledges_heartbeats = True
            return welcome(hello)

        made.node.answer = recover
        await made.clock.sleep_until_us(acknowledged_us + WORKER_LEASE_US // 2 - 1)
        assert made.node.stream_count == 1
        await made.node.connected(2)
        assert made.clock.boot_us() - acknowledged_us <= WORKER_LEASE_US // 2 + SECOND
        (hello,) = made.node.all(Hello)
        assert hello.running == [RunningReport("instance-of-f1", 1, "f1")]
        await made.pass_time(3 * WORKER_LEASE_US)
        assert (made.worker.running_count, made.node.outcomes, made.node.stream_count) == (1, [], 2)

    on_virtual_time(story)


def test_c099_a_run_of_hours_and_a_stream_that_breaks_now_and_then_is_one_attempt() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever")))
        await made.node.assign(assignment("forever", "f1"))
        for count in range(2, 8):
            await made.pass_time(30 * MINUTE)
            assert made.node.stream is not None
            await made.node.stream.close()
            await made.node.connected(count)
        assert (made.worker.running_count, made.node.outcomes) == (1, [])
        assert made.node.all(Hello)[-1].running == [RunningReport("instance-of-f1", 1, "f1")]

    on_virtual_time(story)


def test_a_welcome_alone_extends_no_lease() -> None:
    """A node that greets but never acknowledges keeps nothing running, however often the worker dials."""

    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever", grace_us=0)))
        await made.node.assign(assignment("forever", "f1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        began_us = made.clock.boot_us()
        made.node.acknowledges_heartbeats = False
        outcome = await made.node.outcome_of("f1")
        assert outcome.failure is not None
        assert outcome.failure.code == "LEASE_EXPIRED"
        assert made.clock.boot_us() - began_us <= WORKER_LEASE_US
        assert made.node.stream_count == 2

    on_virtual_time(story)


def test_the_word_that_assignments_have_arrived_leaves_with_what_they_came_to_in_two_milliseconds() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever"), spec("nothing")))
        await made.pass_time(SECOND)
        for name, said in (("forever", [Accepted]), ("nothing", [Accepted, Outcomes])):
            made.node.heard.clear()
            await made.node.assign(assignment(name, name), assignment(name, f"{name}-too"))
            await made.pass_time(GATHERING_US_MIN - 1)
            assert made.node.heard == []
            await made.pass_time(2)
            assert [type(message) for message in made.node.heard] == said
            await made.pass_time(SECOND)

    on_virtual_time(story)


# ── refused ───────────────────────────────────────────────────────────────────────────────────────────────


def _welcome(protocol: int) -> Welcome:
    return Welcome(
        protocol=protocol, node_id="scripted", worker_lease_us=WORKER_LEASE_US, heartbeat_us=HEARTBEAT_US
    )


ANSWERS = [
    (Rejected("UNKNOWN_TOKEN", "the worker's token is not the scheduler's"), "UNKNOWN_TOKEN", "token"),
    (_welcome(PROTOCOL_VERSION + 1), "PROTOCOL_MISMATCH", "the scheduler is newer"),
    (_welcome(PROTOCOL_VERSION - 1), "PROTOCOL_MISMATCH", "the worker is newer"),
]


@pytest.mark.parametrize(("answer", "code", "words"), ANSWERS)
def test_a_worker_that_can_never_be_welcome_ends_with_the_reason(
    answer: NodeMessage, code: str, words: str
) -> None:
    async def play() -> None:
        made = Cluster(FUNCTIONS, capacity={"async": 1})
        made.node.answer = lambda _: answer
        await made.node.start()
        with pytest.raises(UserError, match=words) as caught:
            await made.worker.run()
        assert (caught.value.code, caught.value.exit_code) == (code, EXIT_BAD_INPUT)
        await made.node.kill()

    run_virtual(play())


@pytest.mark.parametrize(("answer", "code", "words"), ANSWERS)
def test_a_worker_that_has_been_welcome_waits_until_it_is_again(
    answer: NodeMessage, code: str, words: str, caplog: pytest.LogCaptureFixture
) -> None:
    """It has attempts to keep, and the answer may be a mistake of the operator that is put right."""

    async def story(made: Cluster) -> None:
        welcome = made.node.answer
        made.node.answer = lambda _: answer
        assert made.node.stream is not None
        await made.node.stream.close()
        await made.pass_time(MINUTE)
        assert any(words in str(getattr(record, "reason", "")) for record in caplog.records), code
        assert len(made.node.all(Hello)) > 3
        made.node.answer = welcome
        count = made.node.stream_count
        await made.node.connected(count + 1)

    caplog.set_level("WARNING", logger="ostinato.worker")
    on_virtual_time(story)


def test_a_worker_sends_its_token() -> None:
    async def play() -> None:
        made = Cluster(FUNCTIONS, capacity={"async": 1})
        made.config = msgspec.structs.replace(made.config, token="s3")
        made.worker = made.new_worker()
        await made.node.start()
        running = asyncio.create_task(made.worker.run())
        await made.node.connected()
        assert made.node.all(Hello)[0].token == "s3"
        made.worker.stop()
        await running
        await made.node.kill()

    run_virtual(play())
