"""What a worker reports is made fit to be recorded: instants of a wrong clock, results that are none."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.partition_facts import NOW_US, running

from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND
from ostinato.core.model import Outcome
from ostinato.core.partition.reported import checked, plausible_us
from ostinato.core.payload import RESULT_BYTES_MAX

ANY_INSTANT = st.integers(-(2**63), 2**63 - 1)


def reported(started_us: int | None, finished_us: int, result: bytes | None = b"1") -> Outcome:
    return Outcome(
        instance_id="i1",
        attempt=1,
        attempt_id="a1",
        started_us=started_us,
        finished_us=finished_us,
        result=result,
    )


@given(started_us=st.none() | ANY_INSTANT, finished_us=ANY_INSTANT, later_us=st.integers(0, DAY))
def test_whatever_a_worker_s_clock_says_an_attempt_lies_between_its_assignment_and_now(
    started_us: int | None, finished_us: int, later_us: int
) -> None:
    attempt = running()
    now_us = attempt.assigned_us + later_us
    outcome = checked(reported(started_us, finished_us), attempt, now_us=now_us)
    assert attempt.assigned_us <= outcome.finished_us <= now_us
    assert (outcome.started_us is None) == (started_us is None)
    if outcome.started_us is not None:
        assert attempt.assigned_us <= outcome.started_us <= outcome.finished_us


@pytest.mark.parametrize("off_us", [-50 * 365 * DAY, -HOUR, 0, HOUR, 50 * 365 * DAY])
def test_how_long_it_ran_is_the_worker_s_to_say_however_wrong_its_clock_is(off_us: int) -> None:
    attempt = running()
    began_us = attempt.assigned_us + MINUTE + off_us
    now_us = attempt.assigned_us + 10 * MINUTE
    outcome = checked(reported(began_us, began_us + 30 * SECOND), attempt, now_us=now_us)
    assert outcome.started_us is not None
    ran_us = outcome.finished_us - outcome.started_us
    assert ran_us == (0 if off_us < 0 else 30 * SECOND)


def test_an_honest_report_is_left_as_it_is() -> None:
    attempt = running()
    said = reported(attempt.assigned_us + SECOND, attempt.assigned_us + 2 * SECOND)
    assert checked(said, attempt, now_us=attempt.assigned_us + 3 * SECOND) == said


@pytest.mark.parametrize(
    ("result", "what"),
    [
        (b"", "no JSON"),
        (b"{", "no JSON"),
        (b"nan", "no JSON"),
        (b'"\xff"', "no JSON"),
        (b"[" * 100_000, "no JSON"),
    ],
)
def test_a_result_that_is_no_json_is_a_bad_result(result: bytes, what: str) -> None:
    outcome = checked(reported(None, NOW_US, result), running(), now_us=NOW_US)
    assert outcome.result is None
    assert outcome.failure is not None
    assert outcome.failure.code == "BAD_RESULT"
    assert what in outcome.failure.message


def test_a_result_of_the_greatest_size_counts_and_one_byte_more_does_not() -> None:
    text = b'"' + b"x" * (RESULT_BYTES_MAX - 2) + b'"'
    assert checked(reported(None, NOW_US, text), running(), now_us=NOW_US).failure is None
    failure = checked(reported(None, NOW_US, text + b" "), running(), now_us=NOW_US).failure
    assert failure is not None
    assert failure.code == "BAD_RESULT"


def test_an_instant_of_a_stale_report_is_one_that_can_be_shown() -> None:
    assert plausible_us(None, now_us=NOW_US) is None
    assert [plausible_us(at, now_us=NOW_US) for at in (-5, 7, 2**63 - 1)] == [0, 7, NOW_US]
    assert msgspec.json.encode(plausible_us(2**63 - 1, now_us=NOW_US))
