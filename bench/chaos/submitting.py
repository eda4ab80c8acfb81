"""Submits at a steady rate in a process of its own, and writes down what was accepted.

``python submitting.py RATE SECONDS ACCEPTED_FILE``: one line ``number name`` for each accepted submission,
written after the answer. A call without an answer is repeated under the same keys until it has one, so
that what is not in the file was never accepted.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from ostinato import App, Submission
from ostinato.errors import OstinatoError

_BATCH_S = 0.1
_PAUSE_S = 0.2
#: Of a hundred submissions.
_SHARES = (("long", 3), ("flaky", 7), ("process", 5), ("quick", 85))
_COPIES = 16


def kind_of(number: int) -> str:
    place = number % 100
    for kind, share in _SHARES:
        if place < share:
            return kind
        place -= share
    raise AssertionError("the shares are a hundred")


def task_of(number: int) -> str:
    return f"{kind_of(number)}-{number // 100 % _COPIES}"


def _submit(app: App, name: str, numbers: list[int]) -> None:
    entries = [Submission(payload={"number": number}, key=str(number)) for number in numbers]
    while True:
        try:
            app.submit_many(name, entries)
        except OstinatoError as error:
            if error.code not in ("DATABASE_UNAVAILABLE", "DATABASE_FULL", "OVERLOADED"):
                raise
            time.sleep(_PAUSE_S)
        else:
            return


def main() -> None:
    rate, seconds, accepted = float(sys.argv[1]), float(sys.argv[2]), Path(sys.argv[3])
    app = App("soak")
    number, began = 0, time.monotonic()
    with accepted.open("w") as file:
        while (elapsed := time.monotonic() - began) < seconds:
            due = int(min(elapsed + _BATCH_S, seconds) * rate)
            by_task: dict[str, list[int]] = {}
            for each in range(number, due):
                by_task.setdefault(task_of(each), []).append(each)
            for name, numbers in by_task.items():
                _submit(app, name, numbers)
                file.writelines(f"{each} {name}\n" for each in numbers)
            file.flush()
            number = due
            time.sleep(max(0.0, began + number / rate - time.monotonic()))
    app.close()


if __name__ == "__main__":
    main()
