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
from pathlib import Path
from typing import Any

import httpx
from orders_service import DAY, manifest_of

from ostinato import InstanceFailed

HERE = Path(__file__).resolve().parent
OSTINATO = [sys.executable, "-m", "ostinato.cli"]

#: Longest wait for any single step; the whole night takes about half a minute.
PATIENCE_SECONDS = 45.0


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
            "OSTINATO_URL": f"sqlite:///{out / 'ostinato.db'}",
            "OSTINATO_DATABASE": f"sqlite:///{out / 'ostinato.db'}",
        }
        stack.enter_context(ostinato_dev(out))
        say("the orders service and ostinato dev are up; the night begins")
        instances, results = night(out)
        stories = {name: story(identifier) for name, identifier in instances.items()}
    for name, text in stories.items():
        print(f"\n━━ {name} ━━\n{text}", flush=True)
    print()
    failed = [
        sentence
        for sentence, holds in checks(out, results=results, stories=stories)
        if not report(sentence, holds=holds)
    ]
    say(f"{len(instances)} instances in {time.monotonic() - started:.0f} s; files are in {shown(out)}")
    return 1 if failed else 0


def night(out: Path) -> tuple[dict[str, str], dict[str, Any]]:
    """Submit the night's work in its order; instance ids by title, and what the tasks returned."""
    # Imported late, because the tasks read their settings from the environment.
    import tasks

    handles: dict[str, Any] = {}
    results: dict[str, Any] = {}

    def submit(title: str, task: Any, **payload: object) -> Any:
        handles[title] = task.submit(**payload)
        return handles[title]

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
    backup = submit("back up the sales", tasks.back_up_sales)
    submit("build the report", tasks.build_report)
    made = wait("build the report")
    wait_until(lambda: str(backup.status()) == "retry_waiting", "the backup to miss its vault")
    (out / "vault").mkdir()
    say("the vault is mounted now")
    wait("back up the sales")

    say("delivering the report to a customer, and to one whose account is closed")
    submit("deliver to acme", tasks.deliver_report, path=made["path"], account="acme")
    submit("deliver to closed-ltd", tasks.deliver_report, path=made["path"], account="closed-ltd")
    submit("announce the end", tasks.announce_end)
    wait("deliver to acme")
    try:
        results["deliver to closed-ltd"] = wait("deliver to closed-ltd")
    except InstanceFailed as error:
        results["deliver to closed-ltd"] = error
    wait("announce the end")
    wait_until(lambda: watched(out) >= 2, "the freshness watch to fire twice")
    return {title: handle.id for title, handle in handles.items()}, results


def checks(out: Path, *, results: dict[str, Any], stories: dict[str, str]) -> Iterator[tuple[str, bool]]:
    """Sentences about the outcome, and whether they hold."""
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
        (saved,) = copy.execute("SELECT SUM(total_cents) FROM orders").fetchone()
    yield "the backup holds the same orders", saved == manifest["total_cents"]
    yield "the watch fired on its interval", watched(out) >= 2
    for title, codes in EXPECTED_FAILURES.items():
        told = ", ".join(codes) or "nothing"
        yield f"{title}: failed with {told}", all(code in stories[title] for code in codes)
    refused = results["deliver to closed-ltd"]
    yield "the closed account was not tried again", isinstance(refused, InstanceFailed)


#: What has to go wrong, by title: codes or words that the story must name.
EXPECTED_FAILURES: dict[str, tuple[str, ...]] = {
    "read the manifest": ("HTTP_503", "READ_TIMEOUT"),
    "fetch the orders": ("Connection reset by peer", "RETRY_LATER"),
    "back up the sales": ("EXIT_75",),
    "deliver to closed-ltd": ("ACCOUNT_CLOSED",),
    "announce the end": ("HTTP_503",),
}


def story(identifier: str) -> str:
    """What ``ostinato instance show`` tells."""
    shown_ = subprocess.run(
        [*OSTINATO, "instance", "show", identifier], capture_output=True, text=True, check=False
    )
    return (shown_.stdout + shown_.stderr).strip()


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


def report(sentence: str, *, holds: bool) -> bool:
    """Print one check."""
    print(f"  {'ok  ' if holds else 'FAIL'} {sentence}", flush=True)
    return holds


def say(sentence: str) -> None:
    print(f"{datetime.now().astimezone():%H:%M:%S} {sentence}", flush=True)


def shown(path: Path) -> str:
    """A path as people would type it from where they are."""
    return os.path.relpath(path)


if __name__ == "__main__":
    sys.exit(main())
