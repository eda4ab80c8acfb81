"""PgQueuer's entrypoints, its worker and client."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import asyncpg
import uvloop
from pgqueuer import Job, PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver, AsyncpgPoolDriver
from recording import record_start

_URL = os.environ["BENCH_URL"]
_BATCH = 500
_CONNECTIONS = 4


class PgQueuerClient:
    def __init__(self, queries: Queries) -> None:
        self._queries = queries

    async def submit(self, count: int) -> None:
        await self._queries.enqueue(["noop"] * count, [None] * count, [0] * count)

    async def submit_stamped(self, stamps: list[int]) -> None:
        payloads: list[bytes | None] = [str(stamp).encode() for stamp in stamps]
        await self._queries.enqueue(["stamped"] * len(stamps), payloads, [0] * len(stamps))


@asynccontextmanager
async def client() -> AsyncIterator[PgQueuerClient]:
    connection = await asyncpg.connect(_URL)
    yield PgQueuerClient(Queries(AsyncpgDriver(connection)))
    await connection.close()


def install() -> None:
    async def run() -> None:
        connection = await asyncpg.connect(_URL)
        await Queries(AsyncpgDriver(connection)).install()
        await connection.close()

    asyncio.run(run())


async def work() -> None:
    async with asyncpg.create_pool(_URL, min_size=_CONNECTIONS, max_size=_CONNECTIONS) as pool:
        queuer = PgQueuer(AsyncpgPoolDriver(pool))

        @queuer.entrypoint("noop")
        async def noop(job: Job) -> None:
            return None

        @queuer.entrypoint("stamped")
        async def stamped(job: Job) -> None:
            record_start(int(job.payload or b"0"))

        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, queuer.shutdown.set)
        await queuer.run(batch_size=_BATCH)


if __name__ == "__main__":
    uvloop.run(work())
