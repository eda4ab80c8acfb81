"""Milliseconds from request to whole answer of the questions of ``lists.py``, asked of a running API (C189).

The API is served as a node serves it, over HTTP on this machine; client and server share one process, so that
what is measured includes what the client computes. Each question is asked of a server whose caches are warm
from the questions before it, `ROUNDS` times.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from random import Random
from typing import Any

import httpx
from prometheus_client import CollectorRegistry

from ostinato.api.app import build_app
from ostinato.api.server import ApiServer
from ostinato.clock import SystemClock
from ostinato.core.instants import format_instant
from ostinato.settings import Address
from ostinato.store.batches import InstanceFilter
from ostinato.store.sqlite.store import SqliteStore

ROUNDS = 20
_PATH = "/api/v1"

Query = list[tuple[str, str]]


@asynccontextmanager
async def served(path: str) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the API over the database at `path`."""
    clock = SystemClock()
    store = SqliteStore(path, clock=clock)
    await store.open()
    api = build_app(store=store, clock=clock, rng=Random(1))
    server = ApiServer(
        Address("127.0.0.1", 0), readiness=lambda: {"ready": True}, registry=CollectorRegistry(), api=api
    )
    address = await server.start()
    try:
        async with httpx.AsyncClient(base_url=f"http://{address}{_PATH}", timeout=60) as client:
            yield client
    finally:
        await server.stop()
        await store.close()


def query_of(where: InstanceFilter) -> Query:
    """The filter as parameters of an address."""
    said = [("namespace", where.namespace), ("task", where.task), ("key", where.key), ("code", where.code)]
    query = [(name, value) for name, value in said if value is not None]
    query += [("state", str(state)) for state in where.states]
    for name, instant_us in (
        ("created_from", where.created_from_us),
        ("created_before", where.created_before_us),
    ):
        if instant_us is not None:
            query.append((name, format_instant(instant_us)))
    return query


async def _last_page(client: httpx.AsyncClient, *, created_before: str) -> Query:
    """Parameters of the last full page: behind an instance that was created among the first fifty or so."""
    answer = await client.get("/instances", params=[("created_before", created_before), ("limit", "20")])
    return [("cursor", answer.json()["cursor"])]


async def _last_tasks(client: httpx.AsyncClient, namespace: str) -> Query:
    """Parameters of the last page of a namespace's tasks."""
    query: Query = [("limit", "200")]
    while (
        cursor := (await client.get(f"/namespaces/{namespace}/tasks", params=query)).json()["cursor"]
    ) is not None:
        query = [("limit", "200"), ("cursor", cursor)]
    return query


async def questions(
    client: httpx.AsyncClient, filters: Mapping[str, InstanceFilter], *, attempt_count: int, first: str
) -> dict[str, tuple[str, Query]]:
    """Address and parameters by name; `first` is an instant shortly after the first instance was made."""
    newest = (await client.get("/instances?limit=1")).json()["items"][0]["id"]
    asked: dict[str, tuple[str, Query]] = {
        "page: last": ("/instances", await _last_page(client, created_before=first)),
        "page: a thousand rows": ("/instances", [("limit", "1000")]),
    }
    for name, where in filters.items():
        asked[f"page: {name}"] = ("/instances", query_of(where))
        asked[f"count: {name}"] = ("/instances/counts", query_of(where))
    tasks = "/namespaces/team07/tasks"
    return asked | {
        "tasks: first page": (tasks, []),
        "tasks: last page": (tasks, await _last_tasks(client, "team07")),
        "tasks: search": (tasks, [("search", "JOB.000")]),
        "tasks: search nothing": (tasks, [("search", "nothing")]),
        "one task": (f"{tasks}/job.00007", []),
        "namespaces": ("/namespaces", []),
        f"story of {attempt_count} attempts": (f"/instances/{newest}", []),
        "history: first": (f"/instances/{newest}/history", []),
        "history: last": (f"/instances/{newest}/history", [("after", str(attempt_count - 50))]),
        "output: first": (f"/instances/{newest}/output", []),
        "output: last": (f"/instances/{newest}/output", [("after", f"{attempt_count - 10}.0")]),
    }


def _said(answer: dict[str, Any], size_bytes: int) -> str:
    items = answer.get("items")
    if items is not None:
        return f"{len(items)} items{', more' if answer.get('cursor') else ''}, {size_bytes / 1000:.0f} kB"
    if "by_state" in answer:
        return f"{sum(answer['by_state'].values())}{'' if answer['exact'] else '+'}"
    if "left_out" in answer:
        return f"{len(answer['history'])} rows, {answer['left_out']} left out, {size_bytes / 1000:.0f} kB"
    return f"{size_bytes / 1000:.0f} kB"


async def ask_all(
    path: str,
    filters: Mapping[str, InstanceFilter],
    *,
    attempt_count: int,
    first: str,
    allowed_ms: float,
    rounds: int = ROUNDS,
) -> int:
    """Ask each question `rounds` times and print how long it took; how many took `allowed_ms` or more."""
    slow = 0
    print(f"{'asked of the API':<42}{'p50 ms':>10}{'max ms':>10}  answer")
    async with served(path) as client:
        asked = await questions(client, filters, attempt_count=attempt_count, first=first)
        for name, (address, query) in asked.items():
            taken: list[float] = []
            for _ in range(rounds):
                began = time.perf_counter()
                answer = await client.get(address, params=query)
                taken.append((time.perf_counter() - began) * 1000)
                answer.raise_for_status()
            mark = "" if max(taken) < allowed_ms else "  TOO SLOW"
            slow += bool(mark)
            said = _said(answer.json(), len(answer.content))
            print(f"{name:<42}{statistics.median(taken):>10.1f}{max(taken):>10.1f}  {said}{mark}")
    return slow
