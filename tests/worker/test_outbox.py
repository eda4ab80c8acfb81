"""The outbox with a spool: nothing is sent before it is durable, and nothing is forgotten before its time."""

from __future__ import annotations

from pathlib import Path

from ostinato.wire.messages import Heartbeat, Outcomes
from ostinato.worker.outbox import Outbox
from tests.worker.one_stream import STREAM, credits_of, mail_of, reopened
from tests.worker.scripted_node import HEARTBEAT_US, Cluster, assignment, spec, specs
from tests.worker.spool_stories import ids_of, kept, outcome, outcomes
from tests.worker.worker_stories import on_virtual_time

# ── durable first ─────────────────────────────────────────────────────────────────────────────────────────


async def test_outcomes_are_sent_only_once_they_are_durable_and_in_their_order(tmp_path: Path) -> None:
    async with kept(tmp_path) as made:
        made.outbox.add_outcomes(outcomes(300, "first"))
        made.outbox.add_outcomes(outcomes(300, "second"))
        assert made.sent() == []
        await made.spool.is_safe.wait()
        assert made.sent() == outcomes(300, "first") + outcomes(300, "second")


async def test_slots_are_granted_again_without_waiting_for_the_disk(tmp_path: Path) -> None:
    async with kept(tmp_path) as made:
        assert made.credits.take(made.stream, "async")
        made.credits.give_back("async")
        made.outbox.add_outcomes(outcomes(1))
        (message,) = made.mail.take()
        assert message == Outcomes([], {"async": 3})
        assert made.mail.take() == []
        await made.spool.is_safe.wait()
        assert made.mail.take() == [Outcomes(outcomes(1), {"async": 3})]


async def test_what_is_not_durable_yet_is_reported_and_held_like_everything_else(tmp_path: Path) -> None:
    async with kept(tmp_path) as made:
        made.outbox.add_outcomes(outcomes(1, "durable"))
        await made.spool.is_safe.wait()
        made.outbox.add_outcomes(outcomes(1, "fresh"))
        assert ids_of(made.outbox.unacknowledged) == ["durable-0", "fresh-0"]
        assert made.outbox.holds("fresh-0")
        made.acknowledge(["durable-0"])
        assert not made.outbox.all_acknowledged.is_set()
        await made.spool.is_safe.wait()
        made.acknowledge(["fresh-0"])
        assert made.outbox.all_acknowledged.is_set()


async def test_an_attempt_that_has_an_outcome_keeps_it(tmp_path: Path) -> None:
    async with kept(tmp_path) as made:
        made.outbox.add_outcomes([outcome("a", result=b"1")])
        made.outbox.add_outcomes([outcome("a", result=b"2")])
        await made.spool.is_safe.wait()
        made.outbox.add_outcomes([outcome("a", result=b"3")])
        assert [item.result for item in made.sent()] == [b"1"]


async def test_a_new_stream_repeats_what_is_durable_before_what_comes_later(tmp_path: Path) -> None:
    async with kept(tmp_path) as made:
        made.outbox.add_outcomes(outcomes(2, "early"))
        await made.spool.is_safe.wait()
        assert len(made.sent()) == 2
        made.outbox.add_outcomes(outcomes(1, "late"))
        made.new_stream()
        assert made.sent() == outcomes(2, "early")
        await made.spool.is_safe.wait()
        assert made.sent() == outcomes(1, "late")


async def test_without_a_spool_outcomes_are_sent_at_once() -> None:
    outbox = Outbox()
    mail = mail_of(outbox)
    outbox.add_outcomes(outcomes(2))
    (message,) = mail.take()
    assert isinstance(message, Outcomes)
    assert message.items == outcomes(2)


# ── a worker that cannot keep results safe takes no work ──────────────────────────────────────────────────


def test_grants_paused_and_resumed_lose_none_and_a_drain_is_for_good() -> None:
    credits = credits_of({"async": 3})
    assert credits.take(STREAM, "async")
    credits.pause_granting("no room")
    credits.give_back("async")
    assert credits.granted(STREAM) == {"async": 3}
    stream = reopened(credits, STREAM)
    assert credits.granted(stream) == {"async": 0}
    credits.resume_granting()
    assert credits.granted(stream) == {"async": 3}
    credits.pause_granting("no room")
    credits.stop_granting()
    credits.resume_granting()
    assert credits.take(stream, "async")
    credits.give_back("async")
    assert credits.granted(stream) == {"async": 3}


def test_c123_assignments_that_still_come_to_a_paused_worker_are_refused_with_the_reason() -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("nothing")))
        made.worker._credits.pause_granting("the worker's spool cannot be written: full")
        await made.node.assign(assignment("nothing", "n1"))
        refused = await made.node.outcome_of("n1")
        assert refused.started_us is None
        assert refused.unstarted_reason == "the worker's spool cannot be written: full"
        await made.pass_time(2 * HEARTBEAT_US)
        assert made.node.all(Heartbeat)[-1].granted == {"process": 2, "async": 100}
        made.worker._credits.resume_granting()
        await made.pass_time(2 * HEARTBEAT_US)
        assert made.node.all(Heartbeat)[-1].granted == {"process": 2, "async": 101}
        await made.node.assign(assignment("nothing", "n2"))
        assert (await made.node.outcome_of("n2")).result == b"null"

    on_virtual_time(story)
