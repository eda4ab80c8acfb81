"""What tasks write down about their own executions, and what follows from it.

A task appends lines ``WORD ID ATTEMPT NANOSECONDS`` to files in one folder: ``start`` when it begins, any
number of ``tick`` while it runs, ``end`` when it has done its work. ID is what the executions of one
instance have in common, ATTEMPT its number, and the time that of a clock which all processes share and which
never goes back (``CLOCK_BOOTTIME``), so that all of them have to run on one machine. Each line is written by
one system call, so that those of a process that is killed are whole or missing.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from ostinato.clock import SystemClock

#: Without an offset: the clock that all processes of the machine share.
_clock = SystemClock(offset_us=0)


class Execution(NamedTuple):
    """What one attempt wrote, on the clock of the machine."""

    attempt: int
    began_ns: int
    last_ns: int
    has_ended: bool


def now_ns() -> int:
    """Now, on the clock of the lines."""
    return _clock.boot_us() * 1000


def note(word: str, *, folder: str | Path, of: str, attempt: int) -> None:
    """Write one line about an attempt that this process executes, into a file of this process.

    A pid that comes back goes on with the file of the one before it.
    """
    path = Path(folder) / str(os.getpid())
    number = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(number, f"{word} {of} {attempt} {now_ns()}\n".encode())
    finally:
        os.close(number)


def read_executions(folder: Path, *, since_ns: int = 0) -> dict[str, list[Execution]]:
    """By id, in order of their starts; those that began before `since_ns` are left out.

    So is a line that is no such line, as one that a full disk has cut. Raises ``OSError``.
    """
    found: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
    # What else is there, a folder or a pipe, no task has written.
    for path in filter(Path.is_file, folder.iterdir()):
        for word, of, attempt, at_ns in _lines(path):
            found[of, attempt].append((word, at_ns))
    executions: dict[str, list[Execution]] = defaultdict(list)
    for (of, attempt), lines in found.items():
        times = [at_ns for _, at_ns in lines]
        if min(times) < since_ns:
            continue
        ended = any(word == "end" for word, _ in lines)
        executions[of].append(Execution(attempt, min(times), max(times), ended))
    for each in executions.values():
        each.sort(key=lambda execution: execution.began_ns)
    return executions


def overlaps(executions: Mapping[str, Iterable[Execution]]) -> list[str]:
    """Executions of one instance of which the later one had begun before the earlier one was over."""
    found: list[str] = []
    for of, ran in executions.items():
        longest: Execution | None = None
        for execution in ran:
            if longest is not None and execution.began_ns < longest.last_ns:
                found.append(
                    f"{of}: attempt {longest.attempt} until {longest.last_ns}, "
                    f"attempt {execution.attempt} from {execution.began_ns}"
                )
            if longest is None or execution.last_ns > longest.last_ns:
                longest = execution
    return found


def _lines(path: Path) -> Iterator[tuple[str, str, int, int]]:
    for line in path.read_text("utf-8", "replace").splitlines():
        parts = line.split(" ")
        if len(parts) == 4 and all(part.isdecimal() for part in parts[2:]):
            yield parts[0], parts[1], int(parts[2]), int(parts[3])
