"""Procrastinate's tasks, connector and client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import procrastinate
from recording import record_start

#: Jobs at a time, each of which takes a connection to fetch and to finish.
CONCURRENCY = 20

app = procrastinate.App(
    connector=procrastinate.PsycopgConnector(
        conninfo=os.environ["BENCH_URL"], min_size=4, max_size=CONCURRENCY + 2
    )
)


@app.task(name="noop-async")
async def noop_async() -> None:
    return None


@app.task(name="noop-def")
def noop_def() -> None:
    return None


@app.task(name="stamped")
async def stamped(stamp: int) -> None:
    record_start(stamp)


class ProcrastinateClient:
    async def submit(self, count: int) -> None:
        task = noop_async if os.environ["BENCH_KIND"] == "async" else noop_def
        await task.batch_defer_async(*[{} for _ in range(count)])

    async def submit_stamped(self, stamps: list[int]) -> None:
        await stamped.batch_defer_async(*[{"stamp": stamp} for stamp in stamps])


@asynccontextmanager
async def client() -> AsyncIterator[ProcrastinateClient]:
    async with app.open_async():
        yield ProcrastinateClient()


def install() -> None:
    async def run() -> None:
        async with app.open_async():
            await app.schema_manager.apply_schema_async()

    asyncio.run(run())


async def work() -> None:
    async with app.open_async():
        await app.run_worker_async(concurrency=CONCURRENCY)


if __name__ == "__main__":
    asyncio.run(work())
