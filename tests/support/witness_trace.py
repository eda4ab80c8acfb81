"""What one attempt does, line by line in a file of its own; as a command, a task that does it.

A line is ``WORD BOOT_NANOSECONDS PID``: ``start``, a ``tick`` every 50 ms for as long as it runs, ``end``.
Ticks show when an attempt was executed even where it was killed and could write no end. Imports nothing of
Ostinato, so that a command that uses it starts in a few milliseconds.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

TICK_SECONDS = 0.05
#: What escaped from everything ends by itself after this, lest it stay on the machine.
ESCAPED_SECONDS_MAX = 300
#: In the folder of a round: what runs until it is there may end.
GATE = "gate"
#: This file as a command, for an executor that gives it the environment of its attempt.
COMMAND = (sys.executable, "-S", "-I", str(Path(__file__).resolve()))


class Trace:
    """The file of one attempt, in the folder of its round."""

    def __init__(self, folder: str, *, name: str) -> None:
        self._descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._gate = f"{folder}/{GATE}"
        self._began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        self.write("start")

    def write(self, word: str) -> None:
        """One line, whole or not at all."""
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(self._descriptor, f"{word} {now_ns} {os.getpid()}\n".encode())

    def goes_on(self, seconds: float | None) -> bool:
        """Whether an attempt of `seconds` runs on; one without runs until the gate of its round is open."""
        if seconds is None:
            return not os.path.exists(self._gate)
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - self._began_ns < seconds * 1e9

    def end(self) -> None:
        """The last line."""
        self.write("end")
        os.close(self._descriptor)


def gate_of(attempt: int) -> str:
    """The gate of one attempt number alone, in the folder of its round."""
    return f"{GATE}-{attempt}"


def trace_name(instance_id: str, attempt: int, *, attempt_id: str) -> str:
    """Name of the file of an attempt."""
    return f"{instance_id}.{attempt}.{attempt_id}"


def _run_command() -> None:
    payload = json.loads(os.environ["OSTINATO_PAYLOAD"])
    folder = f"{os.environ['WITNESS_FOLDER']}/{payload['round']}"
    name = trace_name(
        os.environ["OSTINATO_INSTANCE_ID"],
        int(os.environ["OSTINATO_ATTEMPT"]),
        attempt_id=os.environ["OSTINATO_ATTEMPT_ID"],
    )
    trace = Trace(folder, name=name)
    if "--escape" in sys.argv:
        _escape(folder, name)
    while trace.goes_on(payload["seconds"]):
        time.sleep(TICK_SECONDS)
        trace.write("tick")
    trace.end()


def _escape(folder: str, name: str) -> None:
    """Leave a process of the same attempt in a session of its own, without parents and environment."""
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            arguments = [sys.executable, "-S", "-I", __file__, "--escaped", folder, name]
            os.execve(sys.executable, arguments, {})
        os._exit(0)
    os.wait()


def _run_escaped() -> None:
    folder, name = sys.argv[-2:]
    descriptor = os.open(f"{folder}/{name}", os.O_WRONLY | os.O_APPEND)
    for _ in range(round(ESCAPED_SECONDS_MAX / TICK_SECONDS)):
        now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        os.write(descriptor, f"escaped {now_ns} {os.getpid()}\n".encode())
        time.sleep(TICK_SECONDS)


if __name__ == "__main__":
    if "--escaped" in sys.argv:
        _run_escaped()
    else:
        _run_command()
