"""Tasks: list, show, delete."""

from __future__ import annotations

from typing import Annotated

from litestar import Response, delete, get
from litestar.params import QueryParameter

from ostinato.api.bodies import TaskPage
from ostinato.api.paging import LIMIT_DEFAULT, read_cursor, write_cursor
from ostinato.api.parameters import By, Cursor, Limit, Namespace, ServicesOf, TaskName
from ostinato.api.services import Services
from ostinato.control.delete import delete_task as delete_task_by_owner
from ostinato.control.names import TEXT_LENGTH_MAX, validate_text
from ostinato.control.queries import get_task as find_task
from ostinato.control.queries import list_tasks as find_tasks
from ostinato.control.queries import task_triggers, validate_limit
from ostinato.control.shapes.task import TaskShape, task_shape
from ostinato.core.definition import TaskRef, TaskRow

Search = Annotated[
    str,
    QueryParameter(
        description="A part of the name, upper and lower case alike.",
        required=False,
        schema_extra={"maxLength": TEXT_LENGTH_MAX},
    ),
]


@get("/namespaces/{namespace:str}/tasks", operation_id="list_tasks", tags=["tasks"])
async def list_tasks(
    *,
    services: ServicesOf,
    namespace: Namespace,
    search: Search = "",
    limit: Limit = LIMIT_DEFAULT,
    cursor: Cursor = None,
) -> TaskPage:
    """Tasks of a namespace by name."""
    validate_limit(limit)
    validate_text(search, field="search")
    after = read_cursor(cursor, count=1)
    rows = await find_tasks(
        services.store,
        namespace,
        after=None if after is None else TaskRef(namespace, after[0]),
        limit=limit + 1,
        search=search,
    )
    shown = rows[:limit]
    return TaskPage(
        items=[await shape_of(services, row) for row in shown],
        cursor=write_cursor(shown[-1].ref.name) if len(rows) > limit else None,
    )


@get(
    "/namespaces/{namespace:str}/tasks/{task:str}",
    operation_id="get_task",
    tags=["tasks"],
    opt={"codes": ("TASK_NOT_FOUND",), "etag": True},
)
async def get_task(*, services: ServicesOf, namespace: Namespace, task: TaskName) -> Response[TaskShape]:
    """A task: its newest version, what is in force, and the policy with every default filled in."""
    return with_tag(await shape_of(services, await find_task(services.store, TaskRef(namespace, task))))


@delete(
    "/namespaces/{namespace:str}/tasks/{task:str}",
    operation_id="delete_task",
    tags=["tasks"],
    opt={"codes": ("TASK_NOT_FOUND",)},
)
async def delete_task(*, services: ServicesOf, by: By, namespace: Namespace, task: TaskName) -> None:
    """Delete a task and its triggers. What waits is cancelled; attempts that run end without a retry."""
    await delete_task_by_owner(services.store, TaskRef(namespace, task), asker=services.asker(by))


async def shape_of(services: Services, row: TaskRow) -> TaskShape:
    """A task as it is shown."""
    return task_shape(row, await task_triggers(services.store, row.ref))


def with_tag(shape: TaskShape, *, status_code: int = 200) -> Response[TaskShape]:
    """The task, its version as an entity tag."""
    return Response(shape, status_code=status_code, headers={"etag": f'"{shape.version}"'})


ROUTES = [list_tasks, get_task, delete_task]
