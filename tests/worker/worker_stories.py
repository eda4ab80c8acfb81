"""Functions that stories about a worker need, and how a story is played on virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from ostinato.testing.virtual_clock import run_virtual
from tests.worker.scripted_node import Cluster, cluster

Functions = dict[str, Callable[..., object]]


def nothing() -> None:
    return None


def add(a: int, b: int) -> int:
    return a + b


def boom() -> None:
    raise ValueError("boom")


async def forever() -> None:
    await asyncio.Event().wait()


def huge() -> str:
    return "x" * 1_000_000


FUNCTIONS: Functions = {"nothing": nothing, "add": add, "boom": boom, "forever": forever, "huge": huge}


def on_virtual_time(
    story: Callable[[Cluster], Awaitable[None]],
    functions: Functions | None = None,
    *,
    capacity: dict[str, int] | None = None,
) -> None:
    """Play `story` with a connected worker."""

    async def play() -> None:
        async with cluster(FUNCTIONS if functions is None else functions, capacity=capacity) as made:
            await story(made)

    run_virtual(play())
