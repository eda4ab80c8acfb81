"""The outside witness: reads what attempts wrote about themselves, and what the database says of them.

It knows nothing of Ostinato's code. `Witness` judges one round of instances:

* I1: no two attempts of an instance were executed at the same time;
* I2: every instance reached success;
* I6: each result counted once, and it is that of the attempt which the database names;
* nothing that a command started is left.
"""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import msgspec
import psutil
from support.processes_of import is_living
from support.witness_trace import GATE

Rows = Callable[..., list[tuple[object, ...]]]

#: Rows of the history that end an attempt; each attempt but the last has exactly one of them.
ENDED_BADLY = ("retry", "refused", "handed_back", "gave_up")


def boot_ns() -> int:
    """Now, on the clock of the traces."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def boot_ns_of(wall_us: int) -> int:
    """An instant of the database on the clock of the traces."""
    return wall_us * 1000 - (time.time_ns() - boot_ns())


class Line(NamedTuple):
    """One line of a trace."""

    word: str
    at_ns: int
    pid: int


class Trail(NamedTuple):
    """All that one attempt wrote; it has at least its first line."""

    instance_id: str
    attempt: int
    attempt_id: str
    lines: list[Line]

    @property
    def began_ns(self) -> int:
        return self.lines[0].at_ns

    @property
    def last_ns(self) -> int:
        return max(line.at_ns for line in self.lines)

    @property
    def has_ended(self) -> bool:
        return any(line.word == "end" for line in self.lines)


class Excused(NamedTuple):
    """A time in which a thawed attempt may still have run: its machine slept through the end of its lease."""

    from_ns: int
    to_ns: int


class InstanceFacts(NamedTuple):
    """What the database says of an instance."""

    id: str
    task: str
    state: str
    attempt: int
    attempt_id: str
    worker_name: str
    result: bytes | None


class Event(NamedTuple):
    """A row of the history."""

    instance_id: str
    attempt: int
    kind: str
    code: str
    at_us: int
    due_us: int | None
    worker_name: str
    sentence: str
    #: Of the failure that ended the attempt.
    message: str | None


class Witness:
    """Reads traces in `folder` and rows through `rows`, a query of an outsider."""

    def __init__(self, folder: Path, rows: Rows) -> None:
        self._folder = folder
        self._rows = rows

    def trails(self, instance_ids: Iterable[str]) -> dict[str, list[Trail]]:
        """By instance: what its attempts wrote, in order of their numbers."""
        found: dict[str, list[Trail]] = {instance_id: [] for instance_id in instance_ids}
        for path in self._folder.iterdir():
            if path.name.startswith(GATE):
                continue
            instance_id, attempt, attempt_id = path.name.split(".")
            lines = _lines(path) if instance_id in found else []
            if lines:
                found[instance_id].append(Trail(instance_id, int(attempt), attempt_id, lines))
        for trails in found.values():
            trails.sort(key=lambda trail: trail.attempt)
        return found

    def facts(self, instance_ids: Iterable[str]) -> dict[str, InstanceFacts]:
        """By instance: its row."""
        columns = "id, task, state, attempt, attempt_id, worker_name, result"
        rows = self._rows_where(f"select {columns} from instance where id", instance_ids)
        return {facts.id: facts for facts in msgspec.convert(rows, list[InstanceFacts])}

    def events(self, instance_ids: Iterable[str]) -> list[Event]:
        """The history of the instances, in order."""
        columns = "instance_id, attempt, kind, code, at_us, due_us, worker_name, sentence, failure"
        rows = self._rows_where(
            f"select {columns} from history where instance_id", instance_ids, "order by sequence"
        )
        return msgspec.convert([(*row[:-1], _message(row[-1])) for row in rows], list[Event])

    def _rows_where(self, query: str, values: Iterable[str], order: str = "") -> list[tuple[object, ...]]:
        """Rows of `query`, which ends with a column that is one of `values`; in words of any SQL database."""
        listed = list(values)
        if not listed:
            return []
        return self._rows(f"{query} in ({', '.join('?' * len(listed))}) {order}", *listed)

    def judge(self, instance_ids: Sequence[str], *, excused: Sequence[Excused] = ()) -> None:
        """Fail with ``AssertionError`` that says everything that is wrong."""
        facts, trails = self.facts(instance_ids), self.trails(instance_ids)
        events = self.events(instance_ids)
        wrong = [sentence for each in trails.values() for sentence in overlaps(each, excused=excused)]
        for instance_id in instance_ids:
            wrong += _wrong_result(facts[instance_id], trails[instance_id])
        wrong += _wrong_history(facts, events)
        wrong += _left_behind(trail for each in trails.values() for trail in each)
        assert not wrong, "\n".join(wrong)


def overlaps(trails: Sequence[Trail], *, excused: Sequence[Excused] = ()) -> list[str]:
    """Sentences for every two attempts that were executed at the same time (I1)."""
    wrong: list[str] = []
    for earlier, later in pairwise(trails):
        lasted = [
            line.at_ns
            for line in earlier.lines
            if not any(excuse.from_ns <= line.at_ns <= excuse.to_ns for excuse in excused)
        ]
        overlap_ns = max(lasted, default=0) - later.began_ns
        if earlier.attempt == later.attempt or overlap_ns >= 0:
            wrong.append(
                f"I1: {earlier.instance_id}: attempt {earlier.attempt} ({earlier.attempt_id}) still ran "
                f"{overlap_ns / 1e6:.0f} ms after attempt {later.attempt} ({later.attempt_id}) had begun"
            )
    return wrong


def _wrong_result(facts: InstanceFacts, trails: Sequence[Trail]) -> list[str]:
    if facts.state != "success":
        return [f"I2: {facts.id} ({facts.task}) is {facts.state} after attempt {facts.attempt}"]
    ended = [trail for trail in trails if trail.has_ended and trail.attempt_id == facts.attempt_id]
    if len(ended) != 1 or ended[0].attempt != facts.attempt:
        return [f"I6: {facts.id} is a success of attempt {facts.attempt}, which the witness did not see end"]
    if (
        facts.task in ("hold", "block_relaxed", "block")
        and facts.result != b'"%s"' % facts.attempt_id.encode()
    ):
        return [f"I6: {facts.id} has the result {facts.result!r}, not that of its attempt {facts.attempt_id}"]
    return []


def _wrong_history(facts: dict[str, InstanceFacts], events: Sequence[Event]) -> list[str]:
    ends = Counter((event.instance_id, event.attempt) for event in events if event.kind in ENDED_BADLY)
    expected = Counter(
        {(item.id, attempt): 1 for item in facts.values() for attempt in range(1, item.attempt)}
    )
    return [
        f"I6: attempt {attempt} of {instance_id} ended {ends[instance_id, attempt]} times in the history, "
        f"and should have {expected[instance_id, attempt]} times"
        for instance_id, attempt in sorted((ends - expected) + (expected - ends))
    ]


def _left_behind(trails: Iterable[Trail]) -> list[str]:
    """Commands and what they started; slots and loop processes outlive an attempt."""
    trail_of = {
        line.pid: trail for trail in trails for line in trail.lines if line.word in ("start", "escaped")
    }
    return [
        f"process {pid} of attempt {trail.attempt} of {trail.instance_id} is left"
        for pid, trail in trail_of.items()
        if _is_traced_command(pid)
    ]


def _is_traced_command(pid: int) -> bool:
    try:
        process = psutil.Process(pid)
        return is_living(process) and any("witness_trace" in part for part in process.cmdline())
    except psutil.NoSuchProcess:
        return False


def _message(failure: object) -> object:
    """What a failure in JSON says; None where there is none."""
    return None if failure is None else json.loads(str(failure)).get("message")


def _lines(path: Path) -> list[Line]:
    lines = (line.split() for line in path.read_text().splitlines())
    return [Line(word, int(at_ns), int(pid)) for word, at_ns, pid in lines]
