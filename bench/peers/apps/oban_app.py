"""Oban's jobs and client; its worker is its own command."""

from __future__ import annotations

import os
from asyncio import run
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from oban import Oban, job
from oban.schema import install as install_schema
from recording import record_start


@job(queue="default")
async def noop() -> None:
    return None


@job(queue="default")
async def stamped(stamp: int) -> None:
    record_start(stamp)


class ObanClient:
    def __init__(self, oban: Oban) -> None:
        self._oban = oban

    async def submit(self, count: int) -> None:
        await self._oban.enqueue_many([noop.new() for _ in range(count)])

    async def submit_stamped(self, stamps: list[int]) -> None:
        await self._oban.enqueue_many([stamped.new(stamp) for stamp in stamps])


@asynccontextmanager
async def client() -> AsyncIterator[ObanClient]:
    pool = await Oban.create_pool(os.environ["BENCH_URL"])
    async with Oban(pool=pool) as oban:
        yield ObanClient(oban)
    await pool.close()


def install() -> None:
    async def install_once() -> None:
        pool = await Oban.create_pool(os.environ["BENCH_URL"])
        await install_schema(pool)
        await pool.close()

    run(install_once())
