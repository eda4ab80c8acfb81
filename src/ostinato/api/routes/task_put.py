"""Put a task in force, if it is still the one that was looked at."""

from __future__ import annotations

import re
from typing import Annotated, Any

from litestar import Response, put
from litestar.params import HeaderParameter, JSONBody

from ostinato.api.parameters import Namespace, ServicesOf, TaskName
from ostinato.api.routes.tasks import shape_of, with_tag
from ostinato.api.services import Services
from ostinato.control.document.read import Document, read_task
from ostinato.control.names import validate_name
from ostinato.control.plan import Change, plan, write
from ostinato.control.shapes.task import TaskShape
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.errors import ConflictError, UserError

_ENTITY_TAG = re.compile(r'"(\d{1,18})"', re.ASCII)
_PUT_TRIES_MAX = 5

IfMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match",
        required=False,
        description='Only if the task has this version, as `"3"`.',
        schema_extra={"pattern": '^"[0-9]{1,18}"$'},
    ),
]
IfNoneMatch = Annotated[
    str | None,
    HeaderParameter(
        name="If-None-Match",
        required=False,
        description="`*`: only if there is no such task.",
        schema_extra={"enum": ["*"]},
    ),
]


@put(
    "/namespaces/{namespace:str}/tasks/{task:str}",
    operation_id="put_task",
    tags=["tasks"],
    opt={
        "codes": ("VERSION_CONFLICT", "TASK_OF_APP", "PAYLOAD_TOO_LARGE"),
        "also": {201: "The task is new."},
        "etag": True,
        "body": "Task",
    },
)
async def put_task(
    *,
    services: ServicesOf,
    namespace: Namespace,
    task: TaskName,
    data: JSONBody[dict[str, Any]],
    if_match: IfMatch = None,
    if_none_match: IfNoneMatch = None,
) -> Response[TaskShape]:
    """Put a definition in force; one that is the same as stored makes no new version.

    The body is an entry of `tasks.yaml`; its `name` may be left out.
    """
    validate_name(namespace, field="namespace")
    validate_name(task, field="task")
    if data.get("name", task) != task:
        raise UserError("INVALID_VALUE", f"the address names {task}", field="name", hint="leave it out")
    wanted = _expected(if_match, if_none_match)
    definition = read_task({"name": task, **data}, namespace=namespace, field="")
    change, row = await _put(services, Document(namespace, [definition]), wanted=wanted)
    shape = await shape_of(services, row)
    return with_tag(shape, status_code=201 if change.action == "create" else 200)


async def _put(services: Services, document: Document, *, wanted: int | None) -> tuple[Change, TaskRow]:
    """Store the one task of `document`; `wanted` is the version that it must have, None for whichever."""
    ref = document.definitions[0].ref
    for tries_left in reversed(range(_PUT_TRIES_MAX)):
        intended = await plan(services.store, [document], prune=False)
        change = intended.changes[0]
        if wanted is not None and change.version != wanted:
            raise _version_conflict(change, wanted=wanted)
        try:
            await write(services.store, intended, now_us=await services.store.now_us())
        except ConflictError as error:
            # Whoever names no version means "the last one wins", and another was just faster.
            if error.code != "VERSION_CONFLICT" or wanted is not None or not tries_left:
                raise
            continue
        row = (await services.store.get_tasks([ref])).get(ref)
        if row is not None:
            return change, row
        # It was put in force, or was so already, and others have deleted it since.
        if wanted is not None or not tries_left:
            raise _deleted_meanwhile(ref)
    raise AssertionError("the last try returns or raises")


def _expected(if_match: str | None, if_none_match: str | None) -> int | None:
    if if_none_match is not None:
        if if_match is not None:
            raise UserError("INVALID_VALUE", "excludes If-None-Match", field="If-Match")
        if if_none_match.strip() != "*":
            raise UserError("INVALID_VALUE", "only * is understood", field="If-None-Match")
        return 0
    if if_match is None:
        return None
    tag = _ENTITY_TAG.fullmatch(if_match.strip())
    if tag is None:
        raise UserError(
            "INVALID_VALUE", f"{if_match[:50]!a} is not one version", field="If-Match", hint='write it as "3"'
        )
    return int(tag[1])


def _deleted_meanwhile(ref: TaskRef) -> ConflictError:
    return ConflictError(
        "VERSION_CONFLICT",
        f"task {ref} has been deleted at the same moment",
        subject=str(ref),
        hint="look whether it is there, then repeat",
    )


def _version_conflict(change: Change, *, wanted: int) -> ConflictError:
    has = f"has version {change.version}" if change.version else "does not exist"
    return ConflictError(
        "VERSION_CONFLICT",
        f"task {change.ref} {has}, not version {wanted}" if wanted else f"task {change.ref} exists already",
        subject=str(change.ref),
        field="If-Match" if wanted else "If-None-Match",
        hint="look at what has changed, then repeat with its version",
    )


ROUTES = [put_task]
