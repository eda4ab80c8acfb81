"""How soon a retry runs: from the commit of a failure, and from its due time under load, on SQLite.

Run ``python bench/retries.py [--count 1000] [--waiting 100000] [--rate 100] [--seconds 30]``.

* Idle node: a no-op ``async def`` task fails once, and its retry is due at once. Measured from the commit of
  the failure to the first line of user code of the retry, one instance after the other.
* Under load: so many instances wait for a retry, `rate` of them come due each second. Measured from the due
  time to the first line of user code.

One node, as ``ostinato scheduler`` runs it, and one worker process. Prints distributions in milliseconds.
"""

from __future__ import annotations

import argparse
import asyncio
import sqlite3
import tempfile
import time
from pathlib import Path
from random import Random

import uvloop
from timed_node import TimedStore, running_cluster, summary

from ostinato.clock import SystemClock
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.instants import DAY, SECOND
from ostinato.store.batches import CommitBatch, InstanceFilter

APP = """
import os
import time

from ostinato import App, Context, Retry

app = App("bench")
log = os.open("starts.log", os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def note(context: Context) -> None:
    os.write(log, f"{context.instance_id} {context.attempt} {time.time_ns() // 1000}\\n".encode())


@app.task(retry=Retry.fixed(0, max_retry=1))
async def fails_once(context: Context) -> None:
    note(context)
    if context.attempt == 1:
        raise ValueError("the first attempt fails")


@app.task(retry=Retry.fixed(0, max_retry=1))
async def succeeds(context: Context) -> None:
    note(context)
"""


class Starts:
    """First lines of user code, by instance and attempt, as wall time in microseconds."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "starts.log"

    def read(self) -> dict[tuple[str, int], int]:
        lines = [line.split() for line in self._path.read_text().splitlines()] if self._path.exists() else []
        return {(line[0], int(line[1])): int(line[2]) for line in lines}


async def until_known(store: TimedStore, names: set[str]) -> None:
    """The worker's tasks have been registered."""
    while not names <= {row.ref.name for row in await store.list_tasks("default", after=None, limit=10)}:
        await asyncio.sleep(0.05)


async def when_idle(store: TimedStore, *, count: int, clock: SystemClock, folder: Path) -> list[float]:
    committed_us: dict[str, int] = {}
    ended: asyncio.Queue[str] = asyncio.Queue()

    def on_commit(batch: CommitBatch) -> None:
        now_us = clock.wall_us()
        committed_us.update((row.instance_id, now_us) for row in batch.ended_attempts)
        for row in batch.successes:
            ended.put_nowait(row.instance_id)

    store.on_commit = on_commit
    rng = Random()
    for _ in range(count):
        request = SubmitRequest(task="fails_once")
        (receipt,) = await submit(store, [request], now_us=await store.now_us(), rng=rng)
        while await ended.get() != receipt.instance_id:
            pass
        # As idle as it was: what follows a success has been done.
        await asyncio.sleep(0.005)
    store.on_commit = lambda batch: None
    starts = Starts(folder).read()
    return [(starts[identity, 2] - at_us) / 1000 for identity, at_us in committed_us.items()]


async def seed(store: TimedStore, path: Path, *, waiting: int, rate: int, seconds: int) -> int:
    """Instances whose first attempt failed before the node began; returns the due time of the first."""
    rng = Random(7)
    now_us = await store.now_us()
    first_us = now_us + 20 * SECOND
    requests = [SubmitRequest(task="succeeds", due_us=now_us + DAY) for _ in range(waiting)]
    ids: list[str] = []
    for start in range(0, waiting, 10_000):
        receipts = await submit(store, requests[start : start + 10_000], now_us=now_us, rng=rng)
        ids += [receipt.instance_id for receipt in receipts]
    coming = ids[: rate * seconds]
    with sqlite3.connect(path) as connection:
        connection.execute(
            "UPDATE instance SET state = 'retry_waiting', attempt = 1, attempt_id = 'seed',"
            " counters = '{\"failures\":1}' WHERE task = 'succeeds'"
        )
        connection.executemany(
            "UPDATE instance SET due_us = ? WHERE id = ?",
            [(first_us + number * SECOND // rate, identity) for number, identity in enumerate(coming)],
        )
    connection.close()
    return first_us


async def under_load(
    store: TimedStore, *, first_us: int, count: int, seconds: int, clock: SystemClock, folder: Path
) -> list[float]:
    end_us = first_us + (seconds + 30) * SECOND
    starts: dict[tuple[str, int], int] = {}
    due_us: dict[str, int] = {}
    while clock.wall_us() < end_us and len(due_us) < count:
        await asyncio.sleep(1)
        if clock.wall_us() < first_us + seconds * SECOND:
            continue
        starts = {key: at for key, at in Starts(folder).read().items() if key[1] == 2}
        identities = [identity for identity, _ in starts]
        due_us = {}
        for begin in range(0, len(identities), 500):
            rows = await store.get_instances(identities[begin : begin + 500])
            due_us.update({row.id: row.due_us for row in rows.values() if row.task == "succeeds"})
    if len(due_us) != count:
        raise SystemExit(f"{len(due_us)} of {count} were started")
    return [(starts[identity, 2] - due) / 1000 for identity, due in due_us.items()]


async def measure(options: argparse.Namespace) -> None:
    clock = SystemClock()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        path = folder / "bench.db"
        store = TimedStore(str(path), clock=clock)
        await store.open()
        try:
            worker = ["--app", "app:app", "--async-slots", "200", "--slots", "1"]
            async with running_cluster(store, clock=clock, folder=folder, options=worker):
                await until_known(store, {"fails_once", "succeeds"})
                late_ms = await when_idle(store, count=options.count, clock=clock, folder=folder)
            print(f"idle, commit of a failure to first line of its retry, {summary(late_ms)}", flush=True)
            began = time.monotonic()
            count = options.rate * options.seconds
            first_us = await seed(
                store, path, waiting=options.waiting, rate=options.rate, seconds=options.seconds
            )
            print(f"seeded {options.waiting:,} waiting in {time.monotonic() - began:.1f} s", flush=True)
            async with running_cluster(store, clock=clock, folder=folder, options=worker):
                late_ms = await under_load(
                    store,
                    first_us=first_us,
                    count=count,
                    seconds=options.seconds,
                    clock=clock,
                    folder=folder,
                )
            page = await store.list_instances(InstanceFilter(task="succeeds"), cursor=None, limit=1)
            assert page.instances
            load = f"{options.waiting:,} waiting, {options.rate} due a second"
            print(f"{load}, due to first line, {summary(late_ms)}")
        finally:
            await store.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1_000)
    parser.add_argument("--waiting", type=int, default=100_000)
    parser.add_argument("--rate", type=int, default=100)
    parser.add_argument("--seconds", type=int, default=30)
    options = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(measure(options))


if __name__ == "__main__":
    main()
