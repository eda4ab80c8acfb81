"""Checks of what runs: ports, the scheduler, its nodes and workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Any, NamedTuple

import httpx

from ostinato.api.server import listen
from ostinato.clock import Clock
from ostinato.control.cluster import list_workers, silent_nodes, without_past
from ostinato.control.queries import collect_instances, list_tasks
from ostinato.control.shapes.cluster import WorkerShape
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.instants import SECOND
from ostinato.core.routing import WorkerView, is_eligible, no_worker_reason
from ostinato.core.states import State
from ostinato.doctor.database import DatabaseLook
from ostinato.doctor.processes import holder_of
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
            holder = holder_of(address)
            by_row = any(_is_same(address, said) for said in known) and holder.is_ostinato is not False
            if holder.is_stopped and holder.is_ostinato is not False:
                yield (
                    "fail",
                    f"{field}: {address} is taken by a process that is stopped{holder.shown}",
                    _CONTINUE,
                )
            elif answers or by_row:
                yield "ok", f"{address} is taken by a scheduler of ours{holder.shown}", ""
            elif holder.is_ostinato:
                yield "warn", f"{field}: {address} is taken by another Ostinato{holder.shown}", _OPTIONS
            else:
                yield "fail", f"{field}: {address} is taken by another program{holder.shown}", _OPTIONS
        else:
            yield "ok", f"{address} is free", ""


_CONTINUE = "nothing answers there until it goes on: kill -CONT and its number, or end it and start it again"
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
    elif said is None and "bind" in settings.sources and settings.bind.port:
        # Its row went with the take-over, so that the database knows nothing of it.
        what = f"no scheduler answers at {settings.bind} ({settings.source('bind')}); others do the work"
        yield "warn", what, "if one should run there it was killed, is stopped or cut off: start it again"


class _Work(NamedTuple):
    """Who could work, and what waits for it."""

    workers: list[WorkerShape]
    tasks: list[TaskRow]
    #: Those that left within the hour and have no successor of their name.
    left: list[WorkerShape]
    #: Instances that are due and have not started, by task.
    waiting: Counter[TaskRef]


async def _look_at_work(store: Store, clock: Clock) -> _Work:
    silent = await silent_nodes(store, clock=clock)
    workers = await list_workers(store, silent=silent)
    due = InstanceFilter(states=(State.PENDING, State.RETRY_WAITING))
    now_us = await store.now_us()
    found = (await collect_instances(store, due, limit=_WAITING_MAX)).instances
    waiting = Counter(instance.ref for instance in found if instance.due_us <= now_us)
    left = [worker for worker in without_past(workers, now_us=now_us) if worker.state == "gone"]
    return _Work(workers, await list_tasks(store, None), left, waiting)


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
    for worker in work.left[:_NAMED_MAX]:
        what = f"worker {worker.name} has been gone since {worker.seen}, and none of its name has come"
        yield "warn", what, "if it should run it was killed, is stopped or cut off: start it again"
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
