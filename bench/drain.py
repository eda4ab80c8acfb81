"""How fast a backlog of no-op ``async def`` tasks drains: real scheduler and worker processes on SQLite.

Run ``python bench/drain.py [--count 20000] [--async-slots 500] [--runs 3]``. An instance counts once its
result is committed. Prints instances per second from the first assignment to the last commit of each run, and
the median.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

APP = """
from ostinato import App

app = App("bench")


@app.task()
async def noop() -> None:
    return None
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def process(arguments: list[str], *, folder: Path, environment: dict[str, str]) -> Iterator[None]:
    name = arguments[0]
    with (folder / f"{name}.log").open("wb") as log:
        running = subprocess.Popen(
            [sys.executable, "-m", "ostinato.cli", *arguments],
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            yield
        finally:
            running.send_signal(signal.SIGTERM)
            try:
                running.wait(30)
            except subprocess.TimeoutExpired:
                running.kill()
                running.wait()


def submit(count: int, *, folder: Path, environment: dict[str, str]) -> float:
    code = (
        "import time; from app import app, noop\n"
        "app.apply(); began = time.perf_counter()\n"
        f"app.submit_many(noop, [{{}}] * {count})\n"
        "print(time.perf_counter() - began); app.close()"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, env=environment, check=True, capture_output=True, text=True
    )
    return float(done.stdout)


def drained(database: Path, *, count: int, limit_s: float) -> float:
    """Wait for the end; seconds from the first assignment to the last end of an attempt."""
    end = time.monotonic() + limit_s
    connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True)
    try:
        while time.monotonic() < end:
            (ended,) = connection.execute("select count(*) from instance where state = 'success'").fetchone()
            if ended == count:
                first, last = connection.execute(
                    "select min(assigned_us), max(finished_us) from instance"
                ).fetchone()
                return float(last - first) / 1e6
            time.sleep(0.05)
    finally:
        connection.close()
    raise SystemExit(f"not drained within {limit_s:g} s")


def one_run(count: int, slots: int) -> float:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "app.py").write_text(APP)
        environment = {
            **os.environ,
            "OSTINATO_DATABASE": f"sqlite:///{folder / 'bench.db'}",
            "PYTHONPATH": str(folder),
        }
        submit_s = submit(count, folder=folder, environment=environment)
        workers, health = free_port(), free_port()
        scheduler = ["scheduler", "--worker-bind", f"127.0.0.1:{workers}", "--bind", f"127.0.0.1:{health}"]
        worker = [
            *("worker", "--scheduler", f"127.0.0.1:{workers}", "--app", "app:app"),
            *("--async-slots", str(slots), "--slots", "1"),
        ]
        with (
            process(scheduler, folder=folder, environment=environment),
            process(worker, folder=folder, environment=environment),
        ):
            seconds = drained(folder / "bench.db", count=count, limit_s=300)
    print(
        f"submitted {count / submit_s:,.0f}/s, drained {count / seconds:,.0f}/s "
        f"({count:,} instances, {slots} async slots)",
        flush=True,
    )
    return count / seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=20_000)
    parser.add_argument("--async-slots", type=int, default=500)
    parser.add_argument("--runs", type=int, default=3)
    options = parser.parse_args()
    rates = [one_run(options.count, options.async_slots) for _ in range(options.runs)]
    print(f"median {statistics.median(rates):,.0f} instances/s drained")


if __name__ == "__main__":
    main()
