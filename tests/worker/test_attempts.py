"""What a worker does with its attempts when their leases move or end, on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine

import pytest

from ostinato.core.definition import TaskRef
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.sdk.context import current_context
from ostinato.testing.inline_executor import InlineExecutor
from ostinato.testing.virtual_clock import VirtualClock, run_virtual
from ostinato.wire.messages import Accepted, Assignments, Cancel, Heartbeat
from ostinato.worker.attempts import Attempts
from ostinato.worker.credits import Credits
from ostinato.worker.epochs import Epochs
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.outbox import Outbox
from tests.worker.one_stream import STREAM, credits_of
from tests.worker.scripted_node import WORKER_LEASE_US, Cluster, assignment, spec, specs
from tests.worker.worker_stories import on_virtual_time

GRACE_US = WORKER_LEASE_US // 6
MARGIN_US = GRACE_US + SECOND


class Frozen:
    """Attempts of a supervisor that looks at no limit, as if it were frozen, over an inline executor."""

    def __init__(self, functions: dict[str, Callable[..., object]], credits: Credits | None = None) -> None:
        self.clock = VirtualClock()
        self.lease = LeaseGuard()
        self.outbox = Outbox()
        self.executor = InlineExecutor(
            {TaskRef("default", name): function for name, function in functions.items()}, clock=self.clock
        )
        self.attempts = Attempts(
            clock=self.clock,
            credits=credits_of({"async": 10}) if credits is None else credits,
            outbox=self.outbox,
            lease=self.lease,
            epochs=Epochs(),
            executors=[self.executor],
            on_deadline=lambda _: None,
        )

    async def open(self) -> None:
        await self.executor.open(self.attempts)
        self.lease.welcome(STREAM, worker_lease_us=WORKER_LEASE_US, hello_sent_us=self.clock.boot_us())

    async def outcome(self) -> Outcome:
        """The only outcome, once everything has ended."""
        await self.attempts.is_idle.wait()
        (outcome,) = self.outbox.unacknowledged
        return outcome


def play(
    story: Callable[[Frozen], Coroutine[None, None, None]],
    functions: dict[str, Callable[..., object]],
    *,
    credits: Credits | None = None,
) -> None:
    async def whole() -> None:
        frozen = Frozen(functions, credits)
        await frozen.open()
        await story(frozen)
        await frozen.executor.close()

    run_virtual(whole())


def dying_at(seconds: float, *, exclusive: str = "strict", result: bool = False) -> Outcome:
    """Outcome of a task that ends so long after its lease began, while the supervisor looks at nothing."""
    ended: list[Outcome] = []

    async def last() -> str:
        clock = VirtualClock()
        await clock.sleep_until_us(clock.boot_us() + round(seconds * SECOND))
        if result:
            return "done"
        raise OSError("killed")

    async def story(frozen: Frozen) -> None:
        frozen.attempts.learn(STREAM, [spec("last", exclusive=exclusive)])
        frozen.attempts.assign(STREAM, Assignments(0, [assignment("last", "a1")]))
        ended.append(await frozen.outcome())

    play(story, {"last": last})
    return ended[0]


# ── the end of an attempt that nobody stopped ─────────────────────────────────────────────────────────────


def test_i1_what_died_after_its_lease_s_stop_time_died_of_the_lease_though_nobody_here_stopped_it() -> None:
    outcome = dying_at((WORKER_LEASE_US - MARGIN_US) / SECOND)
    assert outcome.failure is not None
    assert (outcome.failure.code, outcome.failure.category) == ("LEASE_EXPIRED", "lost")


def test_what_died_before_its_lease_s_stop_time_died_its_own_death() -> None:
    outcome = dying_at((WORKER_LEASE_US - MARGIN_US) / SECOND - 0.001)
    assert outcome.failure is not None
    assert outcome.failure.code != "LEASE_EXPIRED"


def test_a_death_that_is_told_late_counts_by_when_it_happened() -> None:
    """A supervisor that was frozen hears of it only after the lease has ended."""

    async def boom() -> None:
        raise OSError("its own fault")

    async def story(frozen: Frozen) -> None:
        held: list[object] = []
        sink = frozen.attempts.finished
        frozen.attempts.finished = held.extend  # type: ignore[method-assign]  # the supervisor hears nothing
        frozen.attempts.learn(STREAM, [spec("boom")])
        frozen.attempts.assign(STREAM, Assignments(0, [assignment("boom", "a1")]))
        await frozen.clock.sleep_until_us(frozen.clock.boot_us() + 2 * WORKER_LEASE_US)
        sink(held)  # type: ignore[arg-type]  # what the executor has said
        outcome = await frozen.outcome()
        assert outcome.failure is not None
        assert outcome.failure.code != "LEASE_EXPIRED"

    play(story, {"boom": boom})


def test_a_result_is_reported_whenever_it_came() -> None:
    """The scheduler decides whether the attempt still counts (I6)."""
    assert dying_at(2 * WORKER_LEASE_US / SECOND, result=True).result == b'"done"'


def test_a_relaxed_attempt_depends_on_no_lease() -> None:
    outcome = dying_at(2 * WORKER_LEASE_US / SECOND, exclusive="relaxed")
    assert outcome.failure is not None
    assert outcome.failure.code != "LEASE_EXPIRED"


# ── partitions ────────────────────────────────────────────────────────────────────────────────────────────


def test_each_attempt_depends_on_the_lease_of_its_own_partition() -> None:
    """An owner that has lost partition 2 acknowledges for partition 1 alone."""
    stopped: dict[str, int] = {}

    async def story(made: Cluster) -> None:
        async def last() -> None:
            try:
                await asyncio.Event().wait()
            finally:
                stopped[current_context().attempt_id] = made.clock.boot_us()

        made.executor._callees.update(  # type: ignore[attr-defined]  # a task that knows the cluster's clock
            InlineExecutor({TaskRef("default", "last"): last}, clock=made.clock)._callees
        )
        made.node.owned = [1, 2]
        await made.node.send(specs(spec("last")))
        await made.node.assign(assignment("last", "one", partition=1), assignment("last", "two", partition=2))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        await made.pass_time(WORKER_LEASE_US)
        newest_us = made.node.all(Heartbeat)[-1].sent_boot_us
        made.node.owned = [1]
        await made.pass_time(3 * WORKER_LEASE_US)
        assert stopped == {"two": newest_us + WORKER_LEASE_US - MARGIN_US}
        assert made.worker.running_count == 1

    on_virtual_time(story)


def test_the_end_of_the_lease_that_an_attempt_starts_with_moves_until_it_begins() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    async def story(frozen: Frozen) -> None:
        begun_us = frozen.clock.boot_us()
        frozen.attempts.learn(STREAM, [spec("wait"), spec("relaxed", exclusive="relaxed")])
        frozen.attempts.assign(
            STREAM,
            Assignments(0, [assignment("wait", "a1", partition=7), assignment("relaxed", "a2", partition=7)]),
        )
        starts = {name: attempt.start for name, attempt in frozen.attempts._running.items()}
        assert starts["a1"].lease_ends_us == begun_us + WORKER_LEASE_US
        assert starts["a2"].lease_ends_us is None
        frozen.lease.sent(STREAM, 1, at_us=begun_us + SECOND)
        frozen.lease.acknowledged(STREAM, 1, partitions=[7])
        frozen.attempts.lease_extended([7])
        assert starts["a1"].lease_ends_us == begun_us + SECOND + WORKER_LEASE_US
        assert starts["a2"].lease_ends_us is None

    play(story, {"wait": wait, "relaxed": wait})


def test_i1_a_grace_that_reaches_beyond_the_lease_ends_with_the_lease() -> None:
    """Cancelled with a grace of an hour, and it does not want to end."""
    clusters: list[Cluster] = []

    async def stubborn() -> None:
        while True:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if clusters[0].worker.running_count == 0:
                    raise

    async def story(made: Cluster) -> None:
        clusters.append(made)
        await made.node.send(specs(spec("stubborn", grace_us=3600 * SECOND)))
        await made.node.assign(assignment("stubborn", "a1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        await made.node.send(Cancel("instance-of-a1", "a1", "no longer wanted"))
        await made.pass_time(SECOND)
        newest_us = made.node.all(Heartbeat)[-1].sent_boot_us
        await made.node.kill()
        await made.clock.sleep_until_us(newest_us + WORKER_LEASE_US - 2 * SECOND)
        assert made.worker.running_count == 1
        await made.clock.sleep_until_us(newest_us + WORKER_LEASE_US - SECOND // 2)
        assert made.worker.running_count == 0
        await made.node.restart()
        failure = (await made.node.outcome_of("a1")).failure
        assert failure is not None
        assert failure.code == "CANCELLED"

    on_virtual_time(story, {"stubborn": stubborn})


# ── what the scheduler asks ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("is_timeout", "code"), [(True, "TIMEOUT"), (False, "CANCELLED")])
def test_c103_a_cancel_because_of_the_timeout_ends_as_one(is_timeout: bool, code: str) -> None:
    async def story(made: Cluster) -> None:
        await made.node.send(specs(spec("forever", timeout_us=3600 * SECOND)))
        await made.node.assign(assignment("forever", "a1"))
        await made.node.until(lambda: len(made.node.all(Accepted)) == 1)
        await made.node.send(Cancel("instance-of-a1", "a1", "too long", is_timeout=is_timeout))
        failure = (await made.node.outcome_of("a1")).failure
        assert failure is not None
        assert failure.code == code

    on_virtual_time(story)


def test_what_is_refused_just_before_its_start_is_handed_back_unstarted() -> None:
    async def story(frozen: Frozen) -> None:
        frozen.attempts.learn(STREAM, [spec("never")])
        frozen.attempts.assign(STREAM, Assignments(0, [assignment("never", "a1")]))
        # As if the process had been busy until now.
        frozen.executor._running["a1"].run.item.lease_ends_us = frozen.clock.boot_us() + SECOND
        outcome = await frozen.outcome()
        assert outcome.unstarted_reason == "its lease was over just before its start"
        assert (outcome.started_us, outcome.failure, outcome.result) == (None, None, None)

    play(story, {"never": _never})


def _never() -> None:
    raise AssertionError("user code ran without a lease")
