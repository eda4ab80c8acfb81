"""Workers, nodes and partitions: who is there, and the drain of a worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from ostinato.clock import Clock
from ostinato.control.names import did_you_mean, validate_label_value
from ostinato.control.requests import Asker, ask, make_request, require_ok, validate_reason
from ostinato.control.shapes.cluster import NodeShape, PartitionShape, WorkerShape
from ostinato.control.shapes.text import instant
from ostinato.core.instants import HOUR, MILLISECOND, SECOND, parse_instant
from ostinato.errors import UserError
from ostinato.store.batches import RequestAnswer, WorkerRow
from ostinato.store.protocol import Store

#: Requests that concern no task go to the owner of this partition.
CLUSTER_PARTITION = 0
_GONE = "gone"
_UNKNOWN = "unknown"
#: A node renews itself once a second, so one that has not in so long is gone or frozen.
SILENCE_US = 2 * SECOND
_LOOK_US = 50 * MILLISECOND
#: Ids that a message names.
_NAMED_MAX = 5


async def list_workers(store: Store, *, silent: Collection[str] = ()) -> list[WorkerShape]:
    """Recorded workers by name and id, each once, those that left within the last day included.

    Records are at most about a second older than what they tell; ``seen`` says when the newest was made. What
    nodes in `silent` (`silent_nodes`) have recorded is of no worth any more: their workers are ``unknown``.
    """
    workers = [worker for _, worker in await _last_seen_first(store, silent=silent)]
    return sorted(workers, key=lambda worker: (worker.name, worker.id))


def without_past(workers: Sequence[WorkerShape], *, now_us: int) -> list[WorkerShape]:
    """`workers` without those that are gone for more than an hour, or replaced by one of the same name.

    Of several of one name that are gone, each has replaced the one before it: the last one seen is kept.
    """
    newest: dict[str, WorkerShape] = {}
    for worker in workers:
        other = newest.setdefault(worker.name, worker)
        if _newness(worker) > _newness(other):
            newest[worker.name] = worker
    return [
        worker
        for worker in workers
        if worker.state != _GONE
        or (worker is newest[worker.name] and worker.seen and now_us - parse_instant(worker.seen) <= HOUR)
    ]


def _newness(worker: WorkerShape) -> tuple[bool, int]:
    """Orders workers of one name: who is there comes after who is gone, then by when it was seen."""
    return worker.state != _GONE, 0 if worker.seen is None else parse_instant(worker.seen)


async def silent_nodes(store: Store, *, clock: Clock, limit_us: int = SILENCE_US) -> set[str]:
    """Ids of registered nodes that did not renew themselves while they were watched.

    Returns as soon as all have, within a second as a rule, and after `limit_us` otherwise.
    """
    before = {node.id: node.renewals for node in await store.nodes()}
    silent = set(before)
    deadline_us = clock.boot_us() + limit_us
    while silent and clock.boot_us() < deadline_us:
        await clock.sleep_until_us(clock.boot_us() + _LOOK_US)
        now = {node.id: node.renewals for node in await store.nodes()}
        # One that has ended cleanly, and so has no row any more, is no silent one.
        silent = {node for node in silent if now.get(node) == before[node]}
    return silent


async def _last_seen_first(store: Store, *, silent: Collection[str] = ()) -> list[tuple[int, WorkerShape]]:
    by_id: dict[str, list[WorkerRow]] = {}
    for row in await store.workers():
        by_id.setdefault(row.worker_id, []).append(row)
    nodes = {node.id for node in await store.nodes()}
    workers = [
        (max(row.seen_us for row in rows), _worker_shape(rows, nodes=nodes, silent=silent))
        for rows in by_id.values()
    ]
    return sorted(workers, key=lambda worker: (-worker[0], worker[1].id))


async def get_worker(store: Store, name_or_id: str, *, silent: Collection[str] = ()) -> WorkerShape:
    """The worker of that id, or the only one of that name that is connected, or the last that was.

    Raises ``WORKER_NOT_FOUND`` with the closest name, ``INVALID_VALUE`` where several connected ones share
    the name. `silent` as for `list_workers`.
    """
    validate_label_value(name_or_id, field="worker")
    workers = [worker for _, worker in await _last_seen_first(store, silent=silent)]
    found = [worker for worker in workers if worker.id == name_or_id]
    if not found:
        named = [worker for worker in workers if worker.name == name_or_id]
        found = [worker for worker in named if worker.state != _GONE] or named
    present = [worker.id for worker in found if worker.state != _GONE]
    if len(present) > 1:
        raise UserError(
            "INVALID_VALUE",
            f"{len(present)} connected workers have the name {name_or_id!a}",
            subject=name_or_id,
            field="worker",
            hint=f"give the id of one: {', '.join(present[:_NAMED_MAX])}",
        )
    if not found:
        known = [worker.name for worker in workers] + [worker.id for worker in workers]
        hint = did_you_mean(name_or_id, known)
        if not workers:
            hint = "no worker is or was connected within the last day"
        raise UserError(
            "WORKER_NOT_FOUND",
            f"no worker has the name or id {name_or_id!a}",
            subject=ascii(name_or_id)[1:-1],
            hint=hint,
        )
    return found[0]


async def drain_worker(store: Store, name_or_id: str, *, reason: str = "", asker: Asker) -> RequestAnswer:
    """Ask a worker to take no new work and to end; returns once its node has told it so.

    What it runs may end within its drain time-out; the rest is handed back and runs elsewhere, uncounted.
    Asking twice is fine. Raises ``WORKER_NOT_FOUND`` also for one that is not connected any more, otherwise
    as `get_worker` and `ask`.
    """
    validate_reason(reason)
    worker = await get_worker(store, name_or_id)
    request = make_request(
        asker,
        "drain",
        partition=CLUSTER_PARTITION,
        namespace="",
        created_us=await store.now_us(),
        body={"worker_id": worker.id, "reason": reason},
    )
    return require_ok((await ask(store, [request], asker=asker))[0])


async def list_nodes(store: Store, *, clock: Clock | None = None) -> list[NodeShape]:
    """Scheduler nodes that have registered, by id; one that was killed stays until another takes over.

    With a `clock` they are watched for up to `SILENCE_US`, to tell which of them live.
    """
    silent = None if clock is None else await silent_nodes(store, clock=clock)
    owned = Counter(proof.owner for proof in await store.partition_owners())
    return [
        NodeShape(
            id=node.id,
            address=node.address,
            started=instant(node.started_us),
            renewals=node.renewals,
            partitions=owned[node.id],
            alive=None if silent is None else node.id not in silent,
        )
        for node in sorted(await store.nodes(), key=lambda node: node.id)
    ]


async def list_partitions(store: Store) -> list[PartitionShape]:
    """All partitions by number, each with its owner."""
    return [
        PartitionShape(partition=proof.partition, owner=proof.owner or None, epoch=proof.epoch)
        for proof in sorted(await store.partition_owners(), key=lambda proof: proof.partition)
    ]


def _worker_shape(rows: Sequence[WorkerRow], *, nodes: set[str], silent: Collection[str]) -> WorkerShape:
    """One worker of what its nodes say; a row counts while its node is registered."""
    present = [row for row in rows if row.state != _GONE and row.node_id in nodes]
    newest = max(present or rows, key=lambda row: row.seen_us)
    state = _GONE
    if present and all(row.node_id in silent for row in present):
        state = _UNKNOWN
    elif present:
        state = "draining" if any(row.state == "draining" for row in present) else "connected"
    return WorkerShape(
        id=newest.worker_id,
        name=newest.worker_name,
        state=state,
        labels=newest.labels,
        capacity=newest.capacity,
        running=sum(row.running_count for row in present),
        tasks=newest.tasks,
        executors=newest.executors,
        problems=newest.problems,
        protocol=newest.protocol,
        connected=instant(min(row.connected_us for row in present or rows)),
        seen=instant(newest.seen_us),
        nodes=sorted(row.node_id for row in present),
    )
