"""SAQ's functions, settings of its worker, and client."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from recording import count_completion, record_start
from saq import Queue

CONCURRENCY = 100

queue = Queue.from_url(os.environ["BENCH_URL"], name=os.environ["BENCH_QUEUE"])


async def noop(context: dict[str, Any]) -> None:
    return None


async def stamped(context: dict[str, Any], *, stamp: int) -> None:
    record_start(stamp)


async def count(context: dict[str, Any]) -> None:
    """Runs once the job's end is in Redis."""
    count_completion()


settings = {"queue": queue, "functions": [noop, stamped], "concurrency": CONCURRENCY, "after_process": count}


class SaqClient:
    async def submit(self, count: int) -> None:
        await asyncio.gather(*(queue.enqueue("noop") for _ in range(count)))

    async def submit_stamped(self, stamps: list[int]) -> None:
        await asyncio.gather(*(queue.enqueue("stamped", stamp=stamp) for stamp in stamps))


@asynccontextmanager
async def client() -> AsyncIterator[SaqClient]:
    await queue.connect()
    yield SaqClient()
    await queue.disconnect()


def install() -> None:
    """A queue is there once something is in it."""
