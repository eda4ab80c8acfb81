"""Cancels that cross assignment, start and end of real processes: one end, and nothing runs on behind it."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.services import Services

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
RUN_COUNT, ROUND_COUNT = (12, 80) if FULL else (1, 60)

APP = """
FAST = {"retry": Retry.none(), "overlap": "allow", "grace": "100ms"}


@app.task(**FAST)
def function(context: Context, seconds: float) -> str:
    witness(context, "start")
    time.sleep(seconds)
    witness(context, "end")
    return "done"


@app.task(**FAST)
async def coroutine(context: Context, seconds: float) -> str:
    import asyncio

    witness(context, "start")
    await asyncio.sleep(seconds)
    witness(context, "end")
    return "done"


app.shell(
    "command",
    "F=$WITNESS/$OSTINATO_INSTANCE_ID-$OSTINATO_ATTEMPT; echo start $$ >> $F;"
    " sleep $(tr -cd 0-9. < payload.json); echo end >> $F",
    env={"WITNESS": str(HERE / "witness")},
    **FAST,
)
"""

RACE = """
import random

from ostinato.errors import OstinatoError

chance = random.Random({seed})


def seen(identity):
    files = sorted((HERE / "witness").glob(identity + "-*"))
    return [line for path in files for line in path.read_text().splitlines()]


def is_alive(lines):
    for words in map(str.split, lines):
        status = pathlib.Path("/proc", words[-1], "stat")
        # One that has ended, and whose parent has not asked how yet, runs no more.
        if len(words) == 2 and status.exists() and ") Z " not in status.read_text():
            return True
    return False


def cancel(handle):
    try:
        handle.cancel()
    except OstinatoError as error:
        return error.code
    return "OK"


told = []
for number in range({rounds}):
    kind = chance.choice(["command", "command", "function", "coroutine"])
    handle = app.submit(kind, {{"seconds": chance.choice([0.001, 0.01, 0.03])}})
    time.sleep(chance.uniform(0, 0.08))
    answer = cancel(handle)
    while (state := handle.status()) not in ("success", "failed", "cancelled"):
        pass
    lines = seen(handle.id)
    told.append([handle.id, state, answer, lines, kind == "command" and is_alive(lines)])
print(json.dumps([[*each, seen(each[0]) == each[3]] for each in told]))
"""


@pytest.fixture
def services(tmp_path: Path) -> Iterator[Services]:
    started = Services(tmp_path, APP)
    yield started
    started.close()


def test_c129_a_cancel_at_any_moment_leaves_one_end_and_no_process_behind(services: Services) -> None:
    services.start_scheduler()
    services.start_worker(slots=2)
    ends: Counter[tuple[str, str]] = Counter()
    for seed in range(RUN_COUNT):
        told = json.loads(services.run(RACE.format(seed=seed, rounds=ROUND_COUNT)))
        for identity, state, answer, lines, is_alive, is_unchanged in told:
            ends[state, answer] += 1
            words = [line.split()[0] for line in lines]
            assert services.state(identity)[0] == state
            assert services.state(identity)[1] <= 1
            assert not is_alive
            assert is_unchanged
            if state == "success":
                assert words == ["start", "end"]
            else:
                # An end that was reached before the stop may have been reported too late to count.
                assert (state, answer) == ("cancelled", "OK")
                assert words in ([], ["start"], ["start", "end"])
    assert ends["cancelled", "OK"] > 5
    assert ends["success", "INSTANCE_TERMINAL"] > 5
