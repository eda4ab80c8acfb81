"""``make demo``: runs one night for real, tells the story of each instance, and checks what came out.

Starts the orders service and ``ostinato dev`` as processes of their own on free ports, with a fresh database
below ``out/``. Ends with status 0 only if every check holds.
"""

from __future__ import annotations

import csv
import hashlib
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
from orders_service import DAY, manifest_of

from ostinato import Handle, InstanceFailed, State
from ostinato.control.explain import Story

HERE = Path(__file__).resolve().parent
OSTINATO = [sys.executable, "-m", "ostinato.cli"]

#: Longest wait for any single step; the whole night takes about half a minute.
PATIENCE_SECONDS = 45.0

#: A retry that comes later than this is no longer put down to a busy machine; microseconds.
LATE_US = 2_000_000

#: A connection that broke, as the HTTP client reports it.
RESET = "CONNECTION_RESET"


def main() -> int:
    """Run the night; 0 if it came out as it should."""
    out = HERE / "out" / datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    out.mkdir(parents=True)
    started = time.monotonic()
    with ExitStack() as stack:
        orders_url = stack.enter_context(orders_service(out / "orders-service.log"))
        os.environ |= {
            "ORDERS_URL": orders_url,
            "NIGHTLY_OUT": str(out),
            "OSTINATO_DATABASE": f"sqlite:///{out / 'ostinato.db'}",
        }
        stack.enter_context(ostinato_dev(out))
        say("the orders service and ostinato dev are up; the night begins")
        handles, results = night(out)
        for title, handle in handles.items():
            print(f"\n━━ {title} ━━\n{ostinato('instance', 'show', handle.id)}", flush=True)
        fires = ostinato("instance", "list", "--task", "watch_freshness", "--limit", "3")
        print(f"\n━━ what the interval of watch_freshness fired ━━\n{fires}\n", flush=True)
        stories = {title: handle.story() for title, handle in handles.items()}
    failed = 0
    for sentence, holds in [*check_retries(stories), *check_outcome(out, results)]:
        print(f"  {'ok  ' if holds else 'FAIL'} {sentence}", flush=True)
        failed += not holds
    say(
        f"{len(handles)} instances in {time.monotonic() - started:.0f} s; files are in {os.path.relpath(out)}"
    )
    return 1 if failed else 0


def night(out: Path) -> tuple[dict[str, Handle[Any]], dict[str, Any]]:
    """Submit the night's work in its order; handles by title, and what the tasks returned."""
    # Imported late, because the tasks read their settings from the environment.
    import tasks

    handles: dict[str, Handle[Any]] = {}
    results: dict[str, Any] = {}

    def submit(title: str, task: Any, **payload: object) -> None:
        handles[title] = task.submit(**payload)

    def wait(title: str) -> Any:
        results[title] = handles[title].result(timeout=PATIENCE_SECONDS)
        return results[title]

    say("reading the manifest and fetching the orders")
    submit("read the manifest", tasks.read_manifest)
    submit("fetch the orders", tasks.fetch_orders, day=DAY)
    wait("read the manifest")
    fetched = wait("fetch the orders")

    say("loading them, twice, because twice must be the same as once")
    for title in ("load the orders", "load them again"):
        submit(title, tasks.load_orders, path=fetched["path"], sha256=fetched["sha256"])
        wait(title)

    say("backing up into a vault that is not mounted yet, and building the report")
    submit("back up the sales", tasks.back_up_sales)
    submit("build the report", tasks.build_report)
    report = wait("build the report")
    missed = handles["back up the sales"]
    wait_until(lambda: missed.status() == State.RETRY_WAITING, "the backup to miss its vault")
    (out / "vault").mkdir()
    say("the vault is mounted now")
    wait("back up the sales")

    say("delivering the report to a customer, and to one whose account is closed")
    submit("deliver to acme", tasks.deliver_report, path=report["path"], account="acme")
    submit("deliver to closed-ltd", tasks.deliver_report, path=report["path"], account="closed-ltd")
    submit("announce the end", tasks.announce_end)
    wait("deliver to acme")
    wait("announce the end")
    try:
        wait("deliver to closed-ltd")
    except InstanceFailed as error:
        say(f"as it should be: {error.message}")
    wait_until(lambda: watched(out) >= 2, "the freshness watch to fire twice")
    return handles, results


#: What every attempt of an instance has to end with, and the seconds that had to pass before the next.
EXPECTED: dict[str, list[tuple[str, float]]] = {
    "read the manifest": [("HTTP_503", 2), ("READ_TIMEOUT", 2), ("success", 0)],
    # The date in the second Retry-After is in whole seconds, so less than the 3 s may be left of them.
    "fetch the orders": [(RESET, 1), ("RETRY_LATER", 2), ("success", 0)],
    "load the orders": [("success", 0)],
    "load them again": [("success", 0)],
    "back up the sales": [("EXIT_75", 2), ("success", 0)],
    "build the report": [("success", 0)],
    "deliver to acme": [("success", 0)],
    "deliver to closed-ltd": [("ACCOUNT_CLOSED", 0)],
    "announce the end": [("HTTP_503", 1), ("success", 0)],
}


def check_retries(stories: dict[str, Story]) -> Iterator[tuple[str, bool]]:
    """Sentences about the attempts, and whether they hold."""
    for title, expected in EXPECTED.items():
        attempts = stories[title].attempts
        ends = [attempt.code or attempt.ended for attempt in attempts]
        waits_us = [(after.started_us or 0) - (before.ended_us or 0) for before, after in pairwise(attempts)]
        told = ", ".join(ends)
        yield f"{title}: {told}", ends == [end for end, _ in expected]
        wanted_us = [round(seconds * 1e6) for _, seconds in expected[:-1]]
        if wanted_us:
            waited = ", ".join(f"{wait_us / 1e6:.2f} s" for wait_us in waits_us)
            early = any(wait < wanted for wait, wanted in zip(waits_us, wanted_us, strict=False))
            late = any(wait > wanted + LATE_US for wait, wanted in zip(waits_us, wanted_us, strict=False))
            yield f"{title}: waited {waited}", len(waits_us) == len(wanted_us) and not (early or late)


def check_outcome(out: Path, results: dict[str, Any]) -> Iterator[tuple[str, bool]]:
    """Sentences about what the tasks made, and whether they hold."""
    manifest = manifest_of(DAY)
    first, again = results["load the orders"], results["load them again"]
    yield (
        f"{manifest['count']} orders are loaded, as the service says",
        (first["count"], first["total_cents"]) == (manifest["count"], manifest["total_cents"]),
    )
    yield "loading them again changed nothing", again == first
    with (out / "report.csv").open(newline="", encoding="utf-8") as file:
        total_cents = sum(int(row["total_cents"]) for row in csv.DictReader(file))
    yield (
        f"the report adds up to {manifest['total_cents'] / 100:,.2f}",
        total_cents == manifest["total_cents"],
    )
    checksum, _ = (out / "vault/sales.db.sha256").read_text(encoding="utf-8").split()
    backup = out / "vault/sales.db"
    yield "the backup's checksum verifies", hashlib.sha256(backup.read_bytes()).hexdigest() == checksum
    with closing(sqlite3.connect(backup)) as copy:
        (saved_cents,) = copy.execute("SELECT SUM(total_cents) FROM orders").fetchone()
    yield "the backup holds the same orders", saved_cents == manifest["total_cents"]
    yield "the watch fired on its interval", watched(out) >= 2


def ostinato(*arguments: str) -> str:
    """What a command prints."""
    finished = subprocess.run([*OSTINATO, *arguments], stdout=subprocess.PIPE, text=True, check=True)
    return finished.stdout.strip()


def watched(out: Path) -> int:
    """How often the watch has noted the freshness."""
    with closing(sqlite3.connect(out / "sales.db", timeout=10)) as sales:
        (count,) = sales.execute("SELECT COUNT(*) FROM freshness").fetchone()
    return int(count)


@contextmanager
def orders_service(log: Path) -> Iterator[str]:
    """The misbehaving service; gives its address."""
    with running([sys.executable, "-u", str(HERE / "orders_service.py")], log):
        wait_until(lambda: log.read_text(encoding="utf-8").startswith("http://"), "the orders service")
        yield log.read_text(encoding="utf-8").splitlines()[0]


@contextmanager
def ostinato_dev(out: Path) -> Iterator[None]:
    """Scheduler and worker, ready to work."""
    bind = f"127.0.0.1:{free_port()}"
    log = out / "ostinato.log"
    command = [*OSTINATO, "dev", str(HERE / "tasks.py"), "--bind", bind]
    with running([*command, "--slots", "4", "--data-dir", str(out / "worker")], log) as process:

        def ready() -> bool:
            if process.poll() is not None:
                raise SystemExit(f"ostinato dev ended:\n{log.read_text(encoding='utf-8')}")
            try:
                return httpx.get(f"http://{bind}/readyz").is_success
            except httpx.TransportError:
                return False

        wait_until(ready, "ostinato dev")
        yield


@contextmanager
def running(command: list[str], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its output in a file; interrupted at the end, killed if it does not go."""
    with log.open("wb") as file:
        # A group of its own, so that Ctrl-C reaches us alone and we end things in their order.
        process = subprocess.Popen(command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True)
    try:
        yield process
    finally:
        process.send_signal(signal.SIGINT)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def free_port() -> int:
    """A port that nobody listens on just now."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        return int(held.getsockname()[1])


def wait_until(condition: Callable[[], bool], what: str) -> None:
    """Return once `condition` holds; end the demo if it does not in time."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        if time.monotonic() > deadline:
            raise SystemExit(f"waited {PATIENCE_SECONDS:.0f} s for {what}")
        time.sleep(0.05)


def say(sentence: str) -> None:
    print(f"{datetime.now().astimezone():%H:%M:%S} {sentence}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
