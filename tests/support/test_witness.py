"""The witness sees what it is there to see: each rule that it judges by is broken here once."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from support.witness import Excused, Line, Rows, Trail, Witness, overlaps
from support.witness_trace import COMMAND, Trace, trace_name

#: Of one instance: id, task, state, attempt, attempt id, worker, result.
DONE = ("i1", "hold", "success", 2, "y", "w", b'"y"')
RETRIED = ("i1", 1, "retry", "WORKER_LOST", 0, 0, "w", "", None)


def witness_of(
    folder: Path, *, instance: tuple[object, ...] = DONE, history: tuple[tuple[object, ...], ...] = (RETRIED,)
) -> Witness:
    """A witness who is told these rows and finds these traces: attempt 1 was killed, attempt 2 has ended."""
    folder.mkdir()
    for attempt, attempt_id in ((1, "x"), (2, "y")):
        trace = Trace(str(folder), name=trace_name("i1", attempt, attempt_id=attempt_id))
        trace.write("tick")
    trace.end()
    return Witness(folder, rows_of(instance, history))


def rows_of(instance: tuple[object, ...], history: Sequence[tuple[object, ...]]) -> Rows:
    """A database with one instance and its history."""

    def rows(query: str, *_: object) -> list[tuple[object, ...]]:
        return [instance] if "from instance" in query else list(history)

    return rows


def trail(attempt: int, *at_ns: int) -> Trail:
    return Trail("i1", attempt, f"x{attempt}", [Line("tick", at, 1) for at in at_ns])


def test_a_round_in_which_everything_is_right_passes(tmp_path: Path) -> None:
    witness = witness_of(tmp_path / "round")
    witness.judge(["i1"])
    assert [trail.has_ended for trail in witness.trails(["i1"])["i1"]] == [False, True]


def test_attempts_that_follow_each_other_do_not_overlap() -> None:
    assert overlaps([trail(1, 10, 20), trail(2, 21, 30)]) == []


def test_a_tick_of_an_earlier_attempt_after_the_next_has_begun_is_an_overlap() -> None:
    (sentence,) = overlaps([trail(1, 10, 3_000_020), trail(2, 20, 30)])
    assert sentence == "I1: i1: attempt 1 (x1) still ran 3 ms after attempt 2 (x2) had begun"


def test_two_executions_of_one_attempt_are_an_overlap_even_one_after_the_other() -> None:
    assert overlaps([trail(1, 10, 20), trail(1, 30, 40)])


def test_what_a_thawed_attempt_does_in_the_time_that_is_excused_is_no_overlap_and_later_it_is() -> None:
    assert overlaps([trail(1, 10, 25), trail(2, 20)], excused=[Excused(24, 26)]) == []
    assert overlaps([trail(1, 10, 27), trail(2, 20)], excused=[Excused(24, 26)])


@pytest.mark.parametrize(
    ("instance", "told"),
    [
        (("i1", "hold", "failed", 2, "y", "w", None), "I2: i1 (hold) is failed after attempt 2"),
        (("i1", "hold", "success", 1, "x", "w", b'"x"'), "which the witness did not see end"),
        (("i1", "hold", "success", 2, "y", "w", b'"x"'), "not that of its attempt y"),
    ],
    ids=["lost", "not-executed", "foreign-result"],
)
def test_an_instance_that_was_lost_or_has_anothers_result_is_told(
    tmp_path: Path, instance: tuple[object, ...], told: str
) -> None:
    with pytest.raises(AssertionError, match=told.replace("(", r"\(").replace(")", r"\)")):
        witness_of(tmp_path / "round", instance=instance).judge(["i1"])


@pytest.mark.parametrize("count", [0, 2])
def test_an_end_that_counted_twice_or_never_is_told(tmp_path: Path, count: int) -> None:
    with pytest.raises(AssertionError, match=f"attempt 1 of i1 ended {count} times"):
        witness_of(tmp_path / "round", history=(RETRIED,) * count).judge(["i1"])


@pytest.fixture
def command(tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A command of attempt 2 that has left a process of its own behind; it goes on until it is killed."""
    environment = {
        "OSTINATO_PAYLOAD": '{"round": "round", "seconds": 300}',
        "OSTINATO_INSTANCE_ID": "i1",
        "OSTINATO_ATTEMPT": "2",
        "OSTINATO_ATTEMPT_ID": "y",
        "WITNESS_FOLDER": str(tmp_path),
    }
    (tmp_path / "round").mkdir()
    with subprocess.Popen(COMMAND, env=environment) as process:
        yield process
        process.kill()


def test_a_process_that_an_attempt_has_left_is_told(tmp_path: Path, command: subprocess.Popen[bytes]) -> None:
    path = tmp_path / "round" / "i1.2.y"
    end = time.monotonic() + 10
    while not (path.exists() and path.read_text()):
        assert time.monotonic() < end
    Trace(str(path.parent), name=trace_name("i1", 1, attempt_id="x"))
    with path.open("a") as file:
        file.write(f"end {time.clock_gettime_ns(time.CLOCK_BOOTTIME)} {command.pid}\n")
    witness = Witness(path.parent, rows_of(DONE, [RETRIED]))
    with pytest.raises(AssertionError, match=f"process {command.pid} of attempt 2 of i1 is left"):
        witness.judge(["i1"])
