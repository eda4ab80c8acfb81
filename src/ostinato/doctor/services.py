"""Checks of what runs: ports, the scheduler, its nodes and workers."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from ostinato.api.server import listen
from ostinato.clock import Clock
from ostinato.control.cluster import list_workers, silent_nodes
from ostinato.control.queries import collect_instances, list_tasks
from ostinato.control.shapes.cluster import WorkerShape
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.instants import SECOND
from ostinato.core.routing import WorkerView, is_eligible, no_worker_reason
from ostinato.core.states import State
from ostinato.doctor.database import DatabaseLook
from ostinato.doctor.report import Status, shown_error
from ostinato.errors import OstinatoError
from ostinato.settings import Address
from ostinato.store.batches import InstanceFilter, NodeRow
from ostinato.store.protocol import Store

Found = Iterator[tuple[Status, str, str]]

_HTTP_SECONDS_MAX = 3.0
_RENEWAL_US = 2 * SECOND
_NAMED_MAX = 10
#: Instances that are looked at.
_WAITING_MAX = 5_000
_EVERY_HOST = frozenset({"0.0.0.0", "::"})
_LOOPBACK = frozenset({"127.0.0.1", "localhost", "::1"})
_UNREAD: tuple[Status, str, str] = (
    "warn",
    "nothing can be told, as the database cannot be read",
    "see the check of the database",
)
#: State of a socket that listens in ``/proc/net/tcp``.
_LISTENS = "0A"


# ── ports and scheduler ───────────────────────────────────────────────────────────────────────────────


def check_ports(look: DatabaseLook) -> Found:
    """Whether a scheduler could listen, or one of ours does."""
    settings = look.settings
    answers = readiness(settings.bind) is not None
    known = _node_addresses(look)
    for name, address in (("bind", settings.bind), ("worker_bind", settings.worker_bind)):
        field = settings.source(name)
        try:
            listen(address, field=field).close()
        except OstinatoError as error:
            if error.code != "PORT_IN_USE":
                yield "fail", shown_error(error), error.hint
                continue
            holder = _holder(address)
            by_row = any(_is_same(address, said) for said in known) and holder.is_ostinato is not False
            if answers or by_row:
                yield "ok", f"{address} is taken by a scheduler of ours{holder.shown}", ""
            elif holder.is_ostinato:
                yield "warn", f"{field}: {address} is taken by another Ostinato{holder.shown}", _OPTIONS
            else:
                yield "fail", f"{field}: {address} is taken by another program{holder.shown}", _OPTIONS
        else:
            yield "ok", f"{address} is free", ""


#: Who holds a port is never certain, so nobody is told to end it.
_OPTIONS = (
    "if it is a scheduler of yours, give doctor its options (--database, --bind, --worker-bind); "
    "otherwise choose another port"
)


def _node_addresses(look: DatabaseLook) -> list[str]:
    """Where the nodes of the database say that workers reach them."""
    if not look.is_current():
        return []
    try:
        return [node.address for node in look.read(lambda store, _clock: store.nodes())]
    except OstinatoError:
        # The check of the database tells it.
        return []


def _is_same(address: Address, said: str) -> bool:
    host, _, port = said.rpartition(":")
    hosts = {host.strip("[]"), address.host.strip("[]")}
    return port == str(address.port) and (len(hosts) == 1 or bool(hosts & _EVERY_HOST) or hosts <= _LOOPBACK)


def readiness(bind: Address) -> dict[str, Any] | None:
    """What the node at `bind` says of itself; None: nobody is there, or it is no node."""
    host = "127.0.0.1" if bind.host == "localhost" else bind.host
    try:
        answer = httpx.get(f"http://{Address(host, bind.port)}/readyz", timeout=_HTTP_SECONDS_MAX)
        said = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL, ValueError):
        return None
    return said if isinstance(said, dict) and {"ready", "node", "partitions"} <= said.keys() else None


class _Holder(NamedTuple):
    """Which process listens at an address, as far as that can be seen."""

    shown: str = ""
    #: None: no process can be seen, or a Python program that may be anything.
    is_ostinato: bool | None = None


def _holder(address: Address) -> _Holder:
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
                command = (folder.parent / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                return _Holder(f" (process {folder.parent.name}, {name})", is_ostinato(command))
        except OSError:
            # Ended meanwhile, or another user's.
            continue
    return _Holder()


def is_ostinato(command: Sequence[str]) -> bool | None:
    """Whether a command line is one of ours; None: a Python program that may be anything."""
    for at, word in enumerate(command):
        is_module = word.partition(".")[0] == "ostinato" and at > 0 and command[at - 1] == "-m"
        # The script itself, or what the interpreter that comes first is given.
        if is_module or (at < 2 and Path(word).name == "ostinato"):
            return True
    return None if command and Path(command[0]).name.startswith("python") else False


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
    if look.has_problems():
        yield _UNREAD
        return
    if not look.is_current():
        if said is None:
            yield "warn", "no scheduler is running", "ostinato dev, or ostinato scheduler"
        return

    async def nodes(store: Store, clock: Clock) -> tuple[list[NodeRow], set[str]]:
        known = await store.nodes()
        return known, await silent_nodes(store, clock=clock, limit_us=_RENEWAL_US)

    try:
        registered, silent = look.read(nodes)
    except OstinatoError:
        yield _UNREAD
        return
    for row in registered:
        if row.id in silent:
            hint = "it was killed, or hangs: start a scheduler, which takes over"
            yield "fail", f"node {row.id} shows no sign of life", hint
        elif row.standing == "idle":
            what = f"no worker reaches node {row.id} at {row.address}, and the others do without it"
            yield "warn", what, "see that workers can connect to that address, or correct its --advertise"
        else:
            yield "ok", f"node {row.id} renews itself", ""
    if not registered:
        yield "warn", "no scheduler is running", "ostinato dev, or ostinato scheduler"


class _Work(NamedTuple):
    """Who could work, and what waits for it."""

    workers: list[WorkerShape]
    tasks: list[TaskRow]
    #: Instances that are due and have not started, by task.
    waiting: Counter[TaskRef]


async def _look_at_work(store: Store, clock: Clock) -> _Work:
    silent = await silent_nodes(store, clock=clock)
    workers = await list_workers(store, silent=silent)
    due = InstanceFilter(states=(State.PENDING, State.RETRY_WAITING))
    now_us = await store.now_us()
    found = (await collect_instances(store, due, limit=_WAITING_MAX)).instances
    waiting = Counter(instance.ref for instance in found if instance.due_us <= now_us)
    return _Work(workers, await list_tasks(store, None), waiting)


def check_workers(look: DatabaseLook) -> Found:
    """Workers that are connected, what they could not import, and tasks that none of them can run."""
    if look.has_problems():
        yield _UNREAD
        return
    if not look.is_current():
        yield "ok", "there is no database in which workers could be recorded", ""
        return
    try:
        work = look.read(_look_at_work)
    except OstinatoError:
        yield _UNREAD
        return
    connected = [worker for worker in work.workers if worker.state == "connected"]
    for worker in connected:
        slots = ", ".join(f"{count} {pool}" for pool, count in sorted(worker.capacity.items()))
        yield "ok", f"worker {worker.name} is connected: {slots} slots, {worker.running} attempts run", ""
        for problem in worker.problems:
            yield "fail", f"worker {worker.name}: {problem}", "correct it, and restart the worker"
    if not connected:
        yield "warn", "no worker is connected", "ostinato worker --app APP"
    yield from _without_worker(work, [_view(worker) for worker in connected])


def _without_worker(work: _Work, views: list[WorkerView]) -> Found:
    """Tasks that no worker can run: those with instances that wait are a failure, and come first."""
    rows = [
        row
        for row in work.tasks
        if not row.disabled and not any(is_eligible(view, row.definition) for view in views)
    ]
    waiting: list[tuple[Status, str, str]] = []
    others: list[tuple[Status, str, str]] = []
    for row in rows:
        reason = no_worker_reason(row.definition, views)
        count = 0 if row.paused else work.waiting[row.ref]
        if count:
            who = "1 instance waits" if count == 1 else f"{count} instances wait"
            waiting.append(("fail", f"{who}: {reason}", "start a worker that can run them, or cancel them"))
        elif views:
            others.append(("warn", reason, "start a worker that can, or disable or delete the task"))
    for found in (waiting, others):
        yield from found[:_NAMED_MAX]
        if len(found) > _NAMED_MAX:
            yield found[0][0], f"and {len(found) - _NAMED_MAX} more tasks that no worker can run", ""


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
