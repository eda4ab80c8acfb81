"""Instances: list, count, show one whole."""

from __future__ import annotations

from litestar import get

from ostinato.api.bodies import CountsBody, InstancePageBody
from ostinato.api.filters import read_filter
from ostinato.api.paging import LIMIT_DEFAULT, in_pieces, read_cursor, write_cursor
from ostinato.api.parameters import (
    CreatedBefore,
    CreatedFrom,
    Cursor,
    InNamespace,
    InstanceId,
    InStates,
    Limit,
    OfTask,
    ServicesOf,
    WithCode,
    WithKey,
)
from ostinato.control.explain import story
from ostinato.control.queries import count_instances as count_matching
from ostinato.control.queries import get_instance as find_instance
from ostinato.control.queries import list_instances as list_page
from ostinato.control.shapes.instance import StoryShape, instance_shape, story_shape


@get("/instances", operation_id="list_instances", tags=["instances"])
async def list_instances(
    *,
    services: ServicesOf,
    namespace: InNamespace = None,
    task: OfTask = None,
    states: InStates = None,
    key: WithKey = None,
    code: WithCode = None,
    created_from: CreatedFrom = None,
    created_before: CreatedBefore = None,
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> InstancePageBody:
    """Instances, newest first. A page may be short, even empty, and still have a cursor."""
    where = read_filter(
        namespace=namespace,
        task=task,
        states=states or [],
        key=key,
        code=code,
        created_from=created_from,
        created_before=created_before,
    )
    after = read_cursor(cursor, count=1)
    page = await list_page(services.store, where, cursor=None if after is None else after[0], limit=limit)
    return InstancePageBody(
        items=await in_pieces(services.clock, page.instances, make=instance_shape),
        cursor=None if page.cursor is None else write_cursor(page.cursor),
    )


@get("/instances/counts", operation_id="count_instances", tags=["instances"])
async def count_instances(
    *,
    services: ServicesOf,
    namespace: InNamespace = None,
    task: OfTask = None,
    states: InStates = None,
    key: WithKey = None,
    code: WithCode = None,
    created_from: CreatedFrom = None,
    created_before: CreatedBefore = None,
) -> CountsBody:
    """How many instances there are by state; where that is many, at least so many."""
    where = read_filter(
        namespace=namespace,
        task=task,
        states=states or [],
        key=key,
        code=code,
        created_from=created_from,
        created_before=created_before,
    )
    counts = await count_matching(services.store, where)
    return CountsBody(by_state=counts.by_state, exact=counts.exact)


@get(
    "/instances/{instance_id:str}",
    operation_id="get_instance",
    tags=["instances"],
    opt={"codes": ("INSTANCE_NOT_FOUND",)},
)
async def get_instance(services: ServicesOf, instance_id: InstanceId) -> StoryShape:
    """An instance whole: its attempts, what was decided after each and why, what comes next."""
    told = await story(services.store, instance_id)
    instance = await find_instance(services.store, instance_id)
    history = await services.store.history(instance_id)
    return story_shape(instance, told, history=history)


ROUTES = [list_instances, count_instances, get_instance]
