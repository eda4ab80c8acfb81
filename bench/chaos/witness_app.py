"""The tasks of the soak. Each execution writes its start, its life and its end to a file of its process."""

from __future__ import annotations

import asyncio
import os
import time

from ostinato import App, Context, Retry
from ostinato.chaos.witness import note

app = App("soak")

_FOLDER = os.environ["SOAK_WITNESS"]
_TICK_S = 0.25


def _write(word: str, number: int, attempt: int) -> None:
    note(word, folder=_FOLDER, of=str(number), attempt=attempt)


_POLICY = Retry.exponential("200ms", max_interval="2s", max_retry=5, max_lost=50)
#: Copies of each task: a task lives in one partition, and all nodes should have some.
COPIES = 16


async def _quick(context: Context, number: int) -> int:
    _write("start", number, context.attempt)
    await asyncio.sleep(number % 7 * 0.01)
    _write("end", number, context.attempt)
    return number


async def _long(context: Context, number: int) -> int:
    _write("start", number, context.attempt)
    end = time.monotonic() + 2 + number % 4
    while time.monotonic() < end:
        await asyncio.sleep(_TICK_S)
        _write("tick", number, context.attempt)
    _write("end", number, context.attempt)
    return number


async def _flaky(context: Context, number: int) -> int:
    """Fails twice of its own, whatever else happens to it."""
    _write("start", number, context.attempt)
    _write("end", number, context.attempt)
    if context.retry_count < 2:
        raise OSError(f"failure {context.retry_count + 1} of 2")
    return number


def _process(context: Context, number: int) -> int:
    _write("start", number, context.attempt)
    time.sleep(0.02)
    _write("end", number, context.attempt)
    return number


for _copy in range(COPIES):
    for _function in (_quick, _long, _flaky, _process):
        app.task(name=f"{_function.__name__[1:]}-{_copy}", retry=_POLICY, timeout="60s")(_function)
