"""The night's work of a shop: fetch its orders, load them, back up, report. Five tasks and a watch.

``make demo`` runs all of it; by hand, with the orders service running on its default address::

    python examples/nightly/orders_service.py --port 8090
    ostinato dev examples/nightly/tasks.py
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import sqlite3
import sys
from contextlib import closing
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any

import httpx

from ostinato import App, Context, Permanent, Retry, RetryLater

HERE = Path(__file__).resolve().parent
ORDERS_URL = os.environ.get("ORDERS_URL", "http://127.0.0.1:8090")
OUT = Path(os.environ.get("NIGHTLY_OUT", HERE / "out"))
SALES = OUT / "sales.db"

app = App("nightly")

#: A server that has not answered within a second is asked again, rather than waited for.
PATIENCE = httpx.Timeout(5, read=1)

SCHEMA = """
CREATE TABLE IF NOT EXISTS orders (
    id TEXT PRIMARY KEY, product TEXT NOT NULL, quantity INTEGER NOT NULL, total_cents INTEGER NOT NULL
);
-- Which attempt has written a day: an older one that comes late is refused.
CREATE TABLE IF NOT EXISTS loads (day TEXT PRIMARY KEY, instance TEXT NOT NULL, attempt INTEGER NOT NULL);
CREATE TABLE IF NOT EXISTS freshness (at TEXT DEFAULT CURRENT_TIMESTAMP, order_count INTEGER NOT NULL);
"""

read_manifest = app.http(
    "read_manifest",
    method="GET",
    url=f"{ORDERS_URL}/manifest",
    read_timeout="1s",
    retry=Retry.exponential("1s", max_retry=4),
    timeout="10s",
)


@app.task(
    cron="0 2 * * *",
    timezone="Europe/Berlin",
    retry=Retry.exponential("1s", max_retry=4),
    timeout="20s",
)
def fetch_orders(context: Context, day: str = "2026-03-14") -> dict[str, Any]:
    """The orders of a day as a file; its checksum goes to whoever reads it next."""
    response = httpx.get(f"{ORDERS_URL}/orders", params={"day": day}, timeout=PATIENCE)
    if response.status_code == httpx.codes.SERVICE_UNAVAILABLE:
        raise _come_again(response)
    response.raise_for_status()
    orders = response.json()
    path = OUT / f"orders-{day}.json"
    _write_whole(path, response.content)
    context.logger.info("fetched orders", day=day, count=len(orders))
    return {"path": str(path), "count": len(orders), "sha256": hashlib.sha256(response.content).hexdigest()}


@app.task(retry=Retry.fixed("2s", max_retry=3), timeout="20s")
def load_orders(context: Context, *, path: str, sha256: str) -> dict[str, Any]:
    """Put a day's orders into the sales database: all or none, and twice is the same as once."""
    content = Path(path).read_bytes()
    if hashlib.sha256(content).hexdigest() != sha256:
        raise Permanent(f"{path} is not the file that was fetched", code="ORDERS_CHANGED")
    orders = json.loads(content)
    day = Path(path).stem.removeprefix("orders-")
    token = context.fencing_token
    with closing(_sales()) as sales, sales:
        sales.execute("BEGIN IMMEDIATE")
        refused = sales.execute(
            "SELECT 1 FROM loads WHERE day = ? AND instance = ? AND attempt > ?",
            (day, token.instance, token.attempt),
        ).fetchone()
        if refused:
            raise Permanent("a newer attempt has loaded this day", code="STALE_ATTEMPT")
        sales.execute("INSERT OR REPLACE INTO loads VALUES (?, ?, ?)", (day, token.instance, token.attempt))
        sales.executemany(
            "INSERT INTO orders VALUES (:id, :product, :quantity, :total_cents)"
            " ON CONFLICT (id) DO UPDATE"
            " SET quantity = excluded.quantity, total_cents = excluded.total_cents",
            orders,
        )
        count, total_cents = sales.execute("SELECT COUNT(*), SUM(total_cents) FROM orders").fetchone()
    return {"count": count, "total_cents": total_cents}


back_up_sales = app.shell(
    "back_up_sales",
    command=["/bin/sh", str(HERE / "backup.sh")],
    env={"PYTHON": sys.executable, "SALES": str(SALES), "VAULT": str(OUT / "vault")},
    # 75 is EX_TEMPFAIL: the script says itself that another time may do.
    retry=Retry.fixed("2s", max_retry=5, retry_on=["EXIT_75"]),
    timeout="20s",
)


@app.task(timeout="20s")
def build_report() -> dict[str, Any]:
    """Sales by product as CSV."""
    path = OUT / "report.csv"
    with closing(_sales()) as sales:
        rows = sales.execute(
            "SELECT product, SUM(quantity), SUM(total_cents) FROM orders GROUP BY product ORDER BY product"
        ).fetchall()
    lines = [("product", "quantity", "total_cents"), *rows]
    partial = path.with_suffix(".part")
    with partial.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows(lines)
    partial.replace(path)
    return {"path": str(path), "products": len(rows), "total_cents": sum(row[2] for row in rows)}


@app.task(retry=Retry.exponential("1s", max_retry=4), timeout="20s")
def deliver_report(path: str, account: str) -> None:
    """Send the report to a customer. A closed account stays closed, so that is no reason to try again."""
    answer = httpx.post(
        f"{ORDERS_URL}/accounts/{account}/reports", content=Path(path).read_bytes(), timeout=PATIENCE
    )
    if answer.status_code == httpx.codes.GONE:
        raise Permanent(f"the account {account} is closed", code="ACCOUNT_CLOSED")
    answer.raise_for_status()


announce_end = app.http(
    "announce_end",
    method="POST",
    url=f"{ORDERS_URL}/night-closed",
    body='{"night": "closed"}',
    retry=Retry.exponential("1s", max_retry=2),
    timeout="10s",
)


@app.task(every="3s", timeout="5s")
def watch_freshness() -> int:
    """Note how many orders are loaded, so that a night without any is seen."""
    with closing(_sales()) as sales, sales:
        (count,) = sales.execute("SELECT COUNT(*) FROM orders").fetchone()
        sales.execute("INSERT INTO freshness (order_count) VALUES (?)", (count,))
    return int(count)


def _come_again(response: httpx.Response) -> RetryLater:
    """The server's own wish, in seconds or as a date, for the scheduler to follow."""
    wish = response.headers.get("Retry-After", "")
    if wish.isdigit():
        return RetryLater("the orders service is busy", after=int(wish))
    return RetryLater("the orders service is busy", at=parsedate_to_datetime(wish) if wish else None)


def _sales() -> sqlite3.Connection:
    OUT.mkdir(parents=True, exist_ok=True)
    # Transactions are begun by hand where they matter.
    sales = sqlite3.connect(SALES, timeout=10, isolation_level=None)
    sales.executescript(SCHEMA)
    return sales


def _write_whole(path: Path, content: bytes) -> None:
    """A reader sees the old file or the new one, never a half."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".part")
    partial.write_bytes(content)
    partial.replace(path)
