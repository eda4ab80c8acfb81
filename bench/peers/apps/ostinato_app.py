"""Ostinato's tasks and its client; ``BENCH_KIND`` says which of the tasks a backlog has."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from recording import record_start

from ostinato import App, Context, Retry

app = App("bench")
_KIND = os.environ["BENCH_KIND"]


@app.task(name="noop-async")
async def noop_async() -> None:
    return None


@app.task(name="noop-def")
def noop_def() -> None:
    return None


@app.task(name="failing-async", retry=Retry.fixed(0, max_retry=1))
async def failing_async(context: Context) -> None:
    if context.retry_count == 0:
        raise OSError("the first attempt fails")


@app.task(name="failing-def", retry=Retry.fixed(0, max_retry=1))
def failing_def(context: Context) -> None:
    if context.retry_count == 0:
        raise OSError("the first attempt fails")


@app.task(name="stamped-async")
async def stamped_async(stamp: int) -> None:
    record_start(stamp)


@app.task(name="stamped-def")
def stamped_def(stamp: int) -> None:
    record_start(stamp)


class OstinatoClient:
    async def submit(self, count: int) -> None:
        name = f"{os.environ['BENCH_TASK']}-{_KIND}"
        await app.submit_many_async(name, [{}] * count)

    async def submit_stamped(self, stamps: list[int]) -> None:
        if len(stamps) == 1:
            await app.submit_async(f"stamped-{_KIND}", {"stamp": stamps[0]})
        else:
            await app.submit_many_async(f"stamped-{_KIND}", [{"stamp": stamp} for stamp in stamps])


@asynccontextmanager
async def client() -> AsyncIterator[OstinatoClient]:
    yield OstinatoClient()
    app.close()


def install() -> None:
    if not os.environ["OSTINATO_DATABASE"].startswith("sqlite:"):
        subprocess.run([sys.executable, "-m", "ostinato.cli", "db", "upgrade"], check=True)
    app.apply()
    app.close()
