"""What every executor must do; the test class of an adapter inherits it and gives the fixture `case`."""

from __future__ import annotations

import pytest

from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import ExecutorCase, attempt_of, opened
from ostinato.worker.executors.protocol import StopReason


class ExecutorContract:
    """Starts, ends and stops of attempts."""

    @pytest.fixture
    def case(self) -> ExecutorCase:
        """Given by the adapter's test class."""
        raise NotImplementedError

    async def test_a_good_attempt_has_a_result_and_times_in_order(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.succeeds)
            executor.start([start])
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.failure is None
        assert end.result is not None
        assert end.started_us is not None
        assert end.started_us <= end.finished_us
        assert not end.collateral

    async def test_a_failed_attempt_says_why_and_has_no_result(self, case: ExecutorCase) -> None:
        executor = case.make()
        spec, code = case.fails
        async with opened(executor) as sink:
            start = attempt_of(spec)
            executor.start([start])
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.result is None
        assert end.failure is not None
        assert end.failure.code == code
        assert end.failure.message

    async def test_what_cannot_start_ends_with_a_failure_and_no_start_time(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.broken)
            executor.start([start])
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.failure is not None
        assert end.result is None

    async def test_of_many_attempts_each_ends_exactly_once(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            starts = [attempt_of(case.succeeds) for _ in range(8)] + [attempt_of(case.fails[0])]
            executor.start(starts)
            for start in starts:
                await sink.end_of(start.assignment.attempt_id)
        assert sink.end_counts == {start.assignment.attempt_id: 1 for start in starts}

    async def test_an_attempt_is_reported_as_started_before_it_ends(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.waits)
            executor.start([start])
            await sink.start_of(start.assignment.attempt_id)
            assert start.assignment.attempt_id not in sink.ends
            executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=10 * SECOND)
            await sink.end_of(start.assignment.attempt_id)
        assert sink.started_ids.count(start.assignment.attempt_id) == 1

    @pytest.mark.parametrize("reason", [StopReason.CANCELLED, StopReason.TIMEOUT])
    async def test_a_stopped_attempt_ends_and_its_neighbour_does_not(
        self, case: ExecutorCase, reason: StopReason
    ) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            stopped, neighbour = attempt_of(case.waits), attempt_of(case.waits)
            executor.start([stopped, neighbour])
            for start in (stopped, neighbour):
                await sink.start_of(start.assignment.attempt_id)
            executor.stop(stopped.assignment.attempt_id, reason=reason, grace_us=MINUTE)
            end = await sink.end_of(stopped.assignment.attempt_id)
            assert neighbour.assignment.attempt_id not in sink.ends
            executor.stop(neighbour.assignment.attempt_id, reason=reason, grace_us=MINUTE)
            await sink.end_of(neighbour.assignment.attempt_id)
        assert end.result is None
        assert not end.collateral

    async def test_an_attempt_that_is_stopped_at_once_ends_within_its_grace(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.waits)
            executor.start([start])
            executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=10 * MINUTE)
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.result is None
        assert end.failure is not None

    async def test_what_does_not_end_when_asked_is_killed_after_its_grace(self, case: ExecutorCase) -> None:
        spec = case.stubborn
        if spec is None:
            return
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(spec)
            executor.start([start])
            await sink.start_of(start.assignment.attempt_id)
            executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=SECOND // 5)
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.failure is not None
        assert sink.end_counts[start.assignment.attempt_id] == 1

    async def test_a_second_stop_shortens_the_grace_and_never_lengthens_it(self, case: ExecutorCase) -> None:
        spec = case.stubborn
        if spec is None:
            return
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(spec)
            executor.start([start])
            await sink.start_of(start.assignment.attempt_id)
            for grace_us in (10 * MINUTE, SECOND // 5, 10 * MINUTE):
                executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=grace_us)
            end = await sink.end_of(start.assignment.attempt_id)
        assert end.failure is not None

    async def test_stopping_what_is_unknown_or_has_ended_changes_nothing(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(case.succeeds)
            executor.start([start])
            await sink.end_of(start.assignment.attempt_id)
            for attempt_id in (start.assignment.attempt_id, "never heard of"):
                executor.stop(attempt_id, reason=StopReason.TIMEOUT, grace_us=0)
            again = attempt_of(case.succeeds)
            executor.start([again])
            end = await sink.end_of(again.assignment.attempt_id)
        assert end.failure is None
        assert set(sink.end_counts.values()) == {1}

    async def test_closing_ends_what_runs_and_can_be_repeated(self, case: ExecutorCase) -> None:
        executor = case.make()
        async with opened(executor) as sink:
            starts = [attempt_of(case.waits), attempt_of(case.waits)]
            executor.start(starts)
            for start in starts:
                await sink.start_of(start.assignment.attempt_id)
            await executor.close()
            assert sink.ends.keys() == {start.assignment.attempt_id for start in starts}
            await executor.close()
            late = attempt_of(case.succeeds)
            executor.start([late])
            end = await sink.end_of(late.assignment.attempt_id)
        assert end.failure is not None
        assert end.started_us is None

    async def test_output_arrives_in_order_before_the_end(self, case: ExecutorCase) -> None:
        spec = case.talks
        if spec is None:
            return
        executor = case.make()
        async with opened(executor) as sink:
            start = attempt_of(spec)
            executor.start([start])
            await sink.end_of(start.assignment.attempt_id)
            text = sink.text_of(start.assignment.attempt_id)
        assert [line for line in text.splitlines() if line] == ["one", "two"]
        sequences = [chunk.sequence for chunk in sink.chunks]
        assert sequences == sorted(set(sequences))
