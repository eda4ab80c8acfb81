"""Workers, nodes and partitions: who is there; the drain of a worker."""

from __future__ import annotations

from litestar import get, post
from litestar.params import JSONBody

from ostinato.api.bodies import DrainBody, NodeList, PartitionList, ReasonBody, WorkerList
from ostinato.api.parameters import By, ServicesOf, WorkerName
from ostinato.control.cluster import drain_worker as drain_by_owner
from ostinato.control.cluster import get_worker as find_worker
from ostinato.control.cluster import list_nodes as find_nodes
from ostinato.control.cluster import list_partitions as find_partitions
from ostinato.control.cluster import list_workers as find_workers
from ostinato.control.shapes.cluster import PressureShape, WorkerShape


@get("/workers", operation_id="list_workers", tags=["cluster"])
async def list_workers(services: ServicesOf) -> WorkerList:
    """Workers by name, those that left within the last day included."""
    return WorkerList(items=await find_workers(services.store))


@get(
    "/workers/{worker:str}",
    operation_id="get_worker",
    tags=["cluster"],
    opt={"codes": ("WORKER_NOT_FOUND",)},
)
async def get_worker(services: ServicesOf, worker: WorkerName) -> WorkerShape:
    """A worker by name or id."""
    return await find_worker(services.store, worker)


@post(
    "/workers/{worker:str}/drain",
    operation_id="drain_worker",
    tags=["cluster"],
    status_code=200,
    opt={"codes": ("WORKER_NOT_FOUND", "SCHEDULER_UNREACHABLE")},
)
async def drain_worker(
    *, services: ServicesOf, by: By, worker: WorkerName, data: JSONBody[ReasonBody | None] = None
) -> DrainBody:
    """Tell a worker to take no more work and to end; what it has not ended in time runs elsewhere."""
    reason = "" if data is None else data.reason
    await drain_by_owner(services.store, worker, reason=reason, asker=services.asker(by))
    return DrainBody(worker=worker, done="drain")


@get("/nodes", operation_id="list_nodes", tags=["cluster"])
async def list_nodes(services: ServicesOf) -> NodeList:
    """Scheduler nodes that have registered."""
    return NodeList(items=await find_nodes(services.store))


@get("/pressure", operation_id="get_pressure", tags=["cluster"])
async def get_pressure(services: ServicesOf) -> PressureShape:
    """How many due instances have not started, and whether submissions pass, wait or are refused."""
    if services.pressure is None:
        return PressureShape(level="green", waiting=None, yellow=None, red=None)
    return await services.pressure.look()


@get("/partitions", operation_id="list_partitions", tags=["cluster"])
async def list_partitions(services: ServicesOf) -> PartitionList:
    """Partitions by number, each with the node that owns it."""
    return PartitionList(items=await find_partitions(services.store))


ROUTES = [list_workers, get_worker, drain_worker, list_nodes, get_pressure, list_partitions]
