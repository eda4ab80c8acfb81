"""The alarm: each thing that must hold is broken here once, and told."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from ostinato.chaos.scenario import Workload
from ostinato.chaos.verdict import Outcome, Violation, judge_witness, judge_workload, workload_report
from ostinato.chaos.witness import note, overlaps, read_executions
from ostinato.control.explain import AttemptStory, Story
from ostinato.core.instants import SECOND
from ostinato.core.states import State

#: The end of the last fault.
_LAST_US = 1_000 * SECOND
_WORKLOAD = Workload(
    url="", task="probe", rate=1, worker_lease_us=6 * SECOND, runs_for_us=SECOND, settle_us=60 * SECOND
)
_NOW_US = _LAST_US + 60 * SECOND


def attempt(number: int = 1, **facts: Any) -> AttemptStory:
    defaults: dict[str, Any] = {
        "generation": 1,
        "attempt_id": f"x{number}",
        "worker": "w",
        "started_us": _LAST_US - SECOND,
        "ended_us": _LAST_US,
        "ended": "success",
    }
    return AttemptStory(number=number, **{**defaults, **facts})


def story(*attempts: AttemptStory, **facts: Any) -> Story:
    defaults: dict[str, Any] = {
        "id": "i1",
        "namespace": "default",
        "task": "probe",
        "task_version": 1,
        "state": State.SUCCESS,
        "generation": 1,
        "priority": 5,
        "key": "k",
        "created_us": 0,
        "due_us": 0,
        "fire_us": None,
        "expires_us": None,
        "finished_us": None,
        "payload": "{}",
        "result": None,
        "reason": "",
        "waits": "",
        "next": "",
        "cancel_requested_us": None,
        "cancel_reason": "",
        "failures": 0,
        "max_retry": 3,
        "lost": 0,
        "max_lost": 3,
        "events": [],
    }
    return Story(attempts=list(attempts), **{**defaults, **facts})


def judged(told: Story | None) -> list[Violation]:
    outcome = Outcome("i1", None if told is None else told.state, told)
    return list(judge_workload([outcome], _WORKLOAD, last_fault_us=_LAST_US, now_us=_NOW_US))


def test_an_instance_that_was_lost_once_and_then_ran_violates_nothing() -> None:
    lost = attempt(1, ended="lost", started_us=None, ended_us=_LAST_US + SECOND)
    told = story(lost, attempt(2, started_us=_LAST_US + 2 * SECOND, ended_us=_LAST_US + 40 * SECOND), lost=1)
    assert judged(told) == []
    report = workload_report([Outcome("i1", told.state, told)], unanswered=0, repeated=2)
    assert (report.accepted, report.attempts, report.lost, report.states) == (1, 2, 1, {"success": 1})


@pytest.mark.parametrize(
    ("told", "rule", "sentence"),
    [
        (None, "I2", "accepted, and there is no such instance"),
        (
            story(state=State.PENDING, waits="no connected worker can run it"),
            "I2",
            "pending after 1m: no conn",
        ),
        (story(state=State.FAILED, reason="max_lost is used up"), "success", "failed: max_lost is used up"),
        (story(attempt(), failures=5), "I3", "failed 5 times, max_retry is 3"),
        (story(attempt(), lost=5), "I3", "lost 5 times, max_lost is 3"),
        (story(attempt(1), attempt(2)), "I6", "attempts [1, 2] ended in success"),
        # 2·3 s + 6 s + 2 s and what the task takes.
        (
            story(attempt(ended_us=_LAST_US + 16 * SECOND)),
            "I9",
            "was running 16s after the last fault, bound 15s",
        ),
        (
            story(attempt(ended="lost", started_us=None, ended_us=_LAST_US + 20 * SECOND), attempt(2)),
            "I9",
            "attempt 1 was running 20s",
        ),
    ],
    ids=["missing", "waiting", "failed", "failures", "losses", "twice", "hanging", "declared-late"],
)
def test_what_the_history_tells_against_it_is_told(told: Story | None, rule: str, sentence: str) -> None:
    (found,) = judged(told)
    assert found.rule == rule
    assert sentence in found.what


def test_an_instance_that_still_runs_at_the_end_hangs() -> None:
    running = story(attempt(ended="running", ended_us=None), state=State.RUNNING, next="it runs")
    assert [found.rule for found in judged(running)] == ["I2", "I9"]


def write(folder: Path, *lines: str) -> None:
    (folder / "one").write_text("".join(f"{line}\n" for line in lines))


def test_executions_one_after_the_other_do_not_overlap_and_a_cut_line_is_left_out(tmp_path: Path) -> None:
    write(
        tmp_path, "start i1 1 10", "tick i1 1 20", "start i1 2 20", "end i1 2 30", "end i1 2", "tick i1 1 x"
    )
    # What no task has written is left alone.
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    executions = read_executions(tmp_path)
    assert [(ran.attempt, ran.began_ns, ran.last_ns, ran.has_ended) for ran in executions["i1"]] == [
        (1, 10, 20, False),
        (2, 20, 30, True),
    ]
    assert overlaps(executions) == []


@pytest.mark.parametrize(
    "lines",
    [
        ("start i1 1 10", "tick i1 1 25", "start i1 2 20", "end i1 2 30"),
        # The third begins after the second is over, and within the first.
        ("start i1 1 10", "end i1 1 90", "start i1 3 50", "end i1 3 60"),
    ],
)
def test_an_execution_that_begins_within_another_is_told(lines: tuple[str, ...], tmp_path: Path) -> None:
    write(tmp_path, *lines)
    (sentence,) = overlaps(read_executions(tmp_path))
    assert sentence.startswith("i1: attempt 1 until ")
    (found,) = judge_witness(read_executions(tmp_path), outcomes=[])
    assert found == Violation("I1", sentence)


def test_a_success_that_the_witness_did_not_see_end_is_told(tmp_path: Path) -> None:
    write(tmp_path, "start i1 1 10")
    outcome = Outcome("i1", State.SUCCESS, story(attempt()))
    (found,) = judge_witness(read_executions(tmp_path), outcomes=[outcome])
    assert found.rule == "I6"


def test_executions_from_before_the_run_are_left_out(tmp_path: Path) -> None:
    write(tmp_path, "start i1 1 10", "end i1 1 20", "start i2 1 30", "end i2 1 40")
    assert list(read_executions(tmp_path, since_ns=30)) == ["i2"]


def test_an_instance_that_nobody_could_be_asked_about_is_told() -> None:
    outcome = Outcome("i1", None, None, error="no scheduler answers")
    (found,) = judge_workload([outcome], _WORKLOAD, last_fault_us=_LAST_US, now_us=_NOW_US)
    assert found == Violation("I2", "i1: accepted, and nobody could be asked: no scheduler answers")


def test_what_a_task_notes_is_read_back(tmp_path: Path) -> None:
    note("start", folder=tmp_path, of="i1", attempt=2)
    note("end", folder=tmp_path, of="i1", attempt=2)
    (execution,) = read_executions(tmp_path)["i1"]
    assert execution.has_ended
    assert 0 < execution.began_ns <= execution.last_ns
