"""A scheduler node in this process whose commits are timed, and worker processes for it."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

from prometheus_client import CollectorRegistry

from ostinato.clock import SystemClock
from ostinato.observe.hooks import Hooks
from ostinato.observe.metrics import MetricsHook
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.node import SchedulerNode
from ostinato.store.batches import CommitBatch, CommitReport
from ostinato.store.sqlite.store import SqliteStore
from ostinato.wire.grpc_server import GrpcNodeTransport


class TimedStore(SqliteStore):
    """Tells of each owner's transaction once it has been committed."""

    def __init__(self, path: str, *, clock: SystemClock) -> None:
        super().__init__(path, clock=clock)
        self.on_commit: Callable[[CommitBatch], None] = lambda batch: None

    async def commit(self, batch: CommitBatch) -> CommitReport:
        report = await super().commit(batch)
        self.on_commit(batch)
        return report


@asynccontextmanager
async def running_node(store: TimedStore, *, clock: SystemClock) -> AsyncIterator[SchedulerNode]:
    """A node over an open store, as ``ostinato scheduler`` runs it, metrics included."""
    hooks = Hooks([MetricsHook(CollectorRegistry())])
    node = SchedulerNode(
        NodeConfig(address="bench"),
        store=store,
        transport=GrpcNodeTransport("127.0.0.1:0"),
        clock=clock,
        rng=Random(),
        hooks=hooks,
    )
    await node.start()
    try:
        yield node
    finally:
        await node.stop()


@asynccontextmanager
async def worker_process(node: SchedulerNode, *, folder: Path, options: Sequence[str]) -> AsyncIterator[None]:
    """``ostinato worker`` with `options`, connected to `node`; drained at the end."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    command = [sys.executable, "-m", "ostinato.cli", "worker", "--scheduler", node.address, *options]
    with (folder / "worker.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *command, cwd=folder, env=environment, stdout=log, stderr=asyncio.subprocess.STDOUT
        )
    try:
        while not node.parts.sessions.by_id:
            if process.returncode is not None:
                raise SystemExit((folder / "worker.log").read_text())
            await asyncio.sleep(0.05)
        yield
    finally:
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(30):
            await process.wait()


@asynccontextmanager
async def running_cluster(
    store: TimedStore, *, clock: SystemClock, folder: Path, options: Sequence[str]
) -> AsyncIterator[SchedulerNode]:
    """A node and one worker process."""
    async with (
        running_node(store, clock=clock) as node,
        worker_process(node, folder=folder, options=options),
    ):
        yield node


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def summary(values: Sequence[float]) -> str:
    """Median, 99th percentile and maximum, in milliseconds."""
    shares = (("median", 0.5), ("p90", 0.9), ("p99", 0.99))
    shown = [f"{name} {percentile(values, share):.2f} ms" for name, share in shares]
    return f"{len(values):,} samples: {', '.join(shown)}, most {max(values):.2f} ms"
