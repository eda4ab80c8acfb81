"""Checks of what runs: ports, the scheduler, its nodes and workers."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import httpx

from ostinato.api.server import listen
from ostinato.clock import Clock, SystemClock
from ostinato.control.cluster import list_workers
from ostinato.control.queries import list_tasks
from ostinato.control.shapes.cluster import WorkerShape
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.instants import SECOND
from ostinato.core.routing import WorkerView, is_eligible, no_worker_reason
from ostinato.doctor.database import DatabaseLook
from ostinato.doctor.report import Status
from ostinato.errors import OstinatoError
from ostinato.settings import Address, Settings, naming_sources
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store

Found = Iterator[tuple[Status, str, str]]
_V = TypeVar("_V")

_HTTP_SECONDS_MAX = 3.0
_RENEWAL_US = 2 * SECOND
_NAMED_MAX = 10
#: State of a socket that listens in ``/proc/net/tcp``.
_LISTENS = "0A"


# ── ports and scheduler ───────────────────────────────────────────────────────────────────────────────


def check_ports(settings: Settings) -> Found:
    """Whether a scheduler could listen, or one of ours does."""
    is_ours = readiness(settings.bind) is not None
    for name, address in (("bind", settings.bind), ("worker_bind", settings.worker_bind)):
        field = settings.source(name)
        try:
            listen(address, field=field).close()
        except OstinatoError as error:
            if error.code != "PORT_IN_USE":
                yield "fail", f"{field}: {error.message}", error.hint
            elif is_ours:
                yield "ok", f"{address} is taken by a scheduler of ours{_holder(address)}", ""
            else:
                what = f"{field}: {address} is taken by another program{_holder(address)}"
                yield "fail", what, "end it, or choose another port"
        else:
            yield "ok", f"{address} is free", ""


def readiness(bind: Address) -> dict[str, Any] | None:
    """What the node at `bind` says of itself; None: nobody is there, or it is no node."""
    host = "127.0.0.1" if bind.host == "localhost" else bind.host
    try:
        answer = httpx.get(f"http://{Address(host, bind.port)}/readyz", timeout=_HTTP_SECONDS_MAX)
        said = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    return said if isinstance(said, dict) and {"ready", "node", "partitions"} <= said.keys() else None


def _holder(address: Address) -> str:
    """`` (process 12, name)`` where that can be seen."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, _lines(table)[1:])
        if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == address.port
    }
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) in wanted for entry in folder.iterdir()):
                name = (folder.parent / "comm").read_text(encoding="utf-8", errors="replace").strip()
                return f" (process {folder.parent.name}, {name})"
        except OSError:
            # Ended meanwhile, or another user's.
            continue
    return ""


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return [""]


def check_scheduler(look: DatabaseLook) -> Found:
    """Whether a scheduler runs and does its work, by its own word and by its sign of life in the database."""
    settings = look.settings
    said = readiness(settings.bind)
    if said is not None:
        node = f"node {said['node']} at {settings.bind}"
        if said["ready"]:
            shown = f"{said['partitions']} partitions, {said.get('workers', 0)} workers"
            yield "ok", f"{node} is ready: {shown}, {said.get('running', 0)} attempts run", ""
        elif said.get("database", "ok") != "ok":
            yield "fail", f"{node} is not ready: {said['database']}", "see the check of the database"
        else:
            yield "fail", f"{node} is not ready", "its log says why; it ends by itself if it can"
    if not look.is_current():
        if said is None:
            yield "warn", "no scheduler is running", "ostinato dev, or ostinato scheduler"
        return

    async def nodes(store: Store, clock: Clock) -> list[tuple[Status, str, str]]:
        before = {node.id: node for node in await store.nodes()}
        await clock.sleep_until_us(clock.boot_us() + _RENEWAL_US)
        after = {node.id: node.renewals for node in await store.nodes()}
        found: list[tuple[Status, str, str]] = []
        for node in before.values():
            moved = after.get(node.id, node.renewals) - node.renewals
            if moved > 0:
                found.append(("ok", f"node {node.id} renews itself", ""))
            else:
                hint = "it was killed, or hangs; the next start takes over"
                found.append(("warn", f"node {node.id} shows no sign of life", hint))
        if not found:
            found.append(("warn", "no scheduler is running", "ostinato dev, or ostinato scheduler"))
        return found

    yield from _in_store(settings, nodes)


def check_workers(look: DatabaseLook) -> Found:
    """Workers that are connected, what they could not import, and tasks that none of them can run."""
    if not look.is_current():
        yield "ok", "there is no database in which workers could be recorded", ""
        return

    async def read(store: Store, _clock: Clock) -> tuple[list[WorkerShape], list[TaskRow]]:
        return await list_workers(store), await list_tasks(store, None)

    workers, tasks = _in_store(look.settings, read)
    connected = [worker for worker in workers if worker.state == "connected"]
    for worker in connected:
        slots = ", ".join(f"{count} {pool}" for pool, count in sorted(worker.capacity.items()))
        yield "ok", f"worker {worker.name} is connected: {slots} slots, {worker.running} attempts run", ""
        for problem in worker.problems:
            yield "fail", f"worker {worker.name}: {problem}", "correct it, and restart the worker"
    if not connected:
        yield "warn", "no worker is connected", "ostinato worker --app APP"
        return
    views = [_view(worker) for worker in connected]
    reasons = [
        no_worker_reason(task.definition, views)
        for task in tasks
        if not task.disabled and not any(is_eligible(view, task.definition) for view in views)
    ]
    for reason in reasons[:_NAMED_MAX]:
        yield "warn", reason, "start a worker that can, or disable or delete the task"
    if len(reasons) > _NAMED_MAX:
        yield "warn", f"and {len(reasons) - _NAMED_MAX} more tasks that no worker can run", ""


def _view(worker: WorkerShape) -> WorkerView:
    return WorkerView(
        worker_id=worker.id,
        worker_name=worker.name,
        labels=worker.labels,
        tasks=frozenset(TaskRef(*name.split("/", 1)) for name in worker.tasks),
        executors=frozenset(worker.executors),
        capacity=worker.capacity,
        free=dict(worker.capacity),
    )


def _in_store(settings: Settings, use: Callable[[Store, Clock], Awaitable[_V]]) -> _V:
    async def work() -> _V:
        clock = SystemClock()
        store = open_store_from_url(settings.database, clock=clock)
        try:
            await store.open()
            return await use(store, clock)
        finally:
            await store.close()

    with naming_sources(settings):
        return asyncio.run(work())
