"""The submitter of every contender: ``python submitting.py APP install|backlog|meanwhile|steady …``.

`APP` is a module of this folder with ``install()`` and ``client()``, an asynchronous context manager whose
value has ``submit(count)`` for no-op tasks in bulk and ``submit_stamped(stamps)`` for tasks that record their
start.

- ``backlog COUNT``: no-op tasks; prints the seconds that it took
- ``meanwhile COUNT BATCH``: the same in batches, one after the other
- ``steady RATE SECONDS``: stamped tasks at this rate, in ticks of 10 ms, or one at a time where that is
  slower; prints how many
"""

from __future__ import annotations

import asyncio
import importlib
import sys
import time
from contextlib import AbstractAsyncContextManager
from typing import Protocol

_TICK_S = 0.01
#: Of one call: larger ones gain nothing, and on a slow disk outlast deadlines.
_BULK_COUNT = 5_000


class Client(Protocol):
    """What the app of a contender gives."""

    async def submit(self, count: int) -> None: ...

    async def submit_stamped(self, stamps: list[int]) -> None: ...


async def _backlog(opened: AbstractAsyncContextManager[Client], count: int, *, batch: int) -> float:
    async with opened as client:
        began = time.perf_counter()
        for start in range(0, count, batch):
            await client.submit(min(batch, count - start))
        return time.perf_counter() - began


async def _steady(opened: AbstractAsyncContextManager[Client], *, rate: float, seconds: float) -> int:
    per_tick = max(1, round(rate * _TICK_S))
    every_s = per_tick / rate
    async with opened as client:
        # The first one connects.
        await client.submit(1)
        began = time.monotonic()
        number = 0
        # By the clock: a contender that takes no more has its own rate, which the measuring side reads.
        while time.monotonic() - began < seconds:
            await asyncio.sleep(max(0.0, began + number * every_s - time.monotonic()))
            await client.submit_stamped([time.monotonic_ns()] * per_tick)
            number += 1
    return number * per_tick


def main() -> None:
    app = importlib.import_module(sys.argv[1])
    verb, values = sys.argv[2], [float(value) for value in sys.argv[3:]]
    if verb == "install":
        app.install()
    elif verb == "backlog":
        print(asyncio.run(_backlog(app.client(), int(values[0]), batch=_BULK_COUNT)))
    elif verb == "meanwhile":
        print(asyncio.run(_backlog(app.client(), int(values[0]), batch=int(values[1]))))
    elif verb == "steady":
        print(asyncio.run(_steady(app.client(), rate=values[0], seconds=values[1])))
    else:
        raise SystemExit(f"unknown verb {verb}")


if __name__ == "__main__":
    main()
