"""Instances: list, count, show one whole."""

from __future__ import annotations

import re
from typing import Annotated

from litestar import get
from litestar.params import QueryParameter

from ostinato.api.bodies import HistoryPage, InstancePageBody
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
from ostinato.control.explain import whole_story
from ostinato.control.queries import count_instances as count_matching
from ostinato.control.queries import list_history as read_history
from ostinato.control.queries import list_instances as list_page
from ostinato.control.shapes.answers import CountsShape, counts_shape
from ostinato.control.shapes.instance import StoryShape, history_shape, instance_shape, story_shape
from ostinato.errors import UserError

#: As many digits as any count of rows has.
_COUNT = re.compile(r"\d{1,15}", re.ASCII)

AfterRows = Annotated[
    # A text, because Litestar takes "null" for no number at all.
    str | None,
    QueryParameter(
        name="after",
        required=False,
        description="Only what follows the first so many rows, as the page before said.",
        schema_extra={"pattern": "^[0-9]{1,15}$"},
    ),
]


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
) -> CountsShape:
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
    return counts_shape(await count_matching(services.store, where))


@get(
    "/instances/{instance_id:str}",
    operation_id="get_instance",
    tags=["instances"],
    opt={"codes": ("INSTANCE_NOT_FOUND",)},
)
async def get_instance(services: ServicesOf, instance_id: InstanceId) -> StoryShape:
    """An instance whole: its attempts, what was decided after each and why, what comes next.

    Of a long history only the newest rows are here; `left_out` says how many come before.
    """
    told = await whole_story(services.store, instance_id)
    return story_shape(told.instance, told.story, history=told.history)


@get(
    "/instances/{instance_id:str}/history",
    operation_id="list_history",
    tags=["instances"],
    opt={"codes": ("INSTANCE_NOT_FOUND",)},
)
async def list_history(
    *, services: ServicesOf, instance_id: InstanceId, after: AfterRows = None, limit: Limit = LIMIT_DEFAULT
) -> HistoryPage:
    """What happened to an instance, oldest first: failures, decisions, and the acts of people."""
    start = 0 if after is None else _row_count(after)
    rows = await read_history(services.store, instance_id, after=start, limit=limit)
    return HistoryPage(
        items=await in_pieces(services.clock, rows, make=history_shape),
        cursor=str(start + limit) if len(rows) == limit else None,
    )


def _row_count(text: str) -> int:
    """The number that `after` is. Raises ``INVALID_VALUE``."""
    if _COUNT.fullmatch(text) is None:
        raise UserError("INVALID_VALUE", f"{text[:50]!a} is no number of rows", field="after", hint="as 50")
    return int(text)


ROUTES = [list_instances, count_instances, get_instance, list_history]
