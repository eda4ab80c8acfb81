"""Documents of tasks: apply one, export a namespace."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Literal

from litestar import get, post
from litestar.params import JSONBody, QueryParameter

from ostinato.api.bodies import ChangeList
from ostinato.api.paging import in_pieces
from ostinato.api.parameters import By, Namespace, ServicesOf
from ostinato.api.reading import StrictRequest
from ostinato.control.apply import apply
from ostinato.control.document.read import Document, read_document
from ostinato.control.document.write import document, task_document
from ostinato.control.document.yaml_text import read_yaml
from ostinato.control.export import exported_tasks
from ostinato.control.plan import carry_out, change_shapes, plan
from ostinato.errors import UserError

OfOrigin = Annotated[
    Literal["app", "document"] | None,
    QueryParameter(
        name="origin", required=False, description="Only tasks declared in code, or only applied ones."
    ),
]


@get("/namespaces/{namespace:str}/export", operation_id="export_namespace", tags=["documents"])
async def export_namespace(
    *, services: ServicesOf, namespace: Namespace, origin: OfOrigin = None
) -> dict[str, Any]:
    """The tasks of a namespace as a document, which `apply` reads back without a change."""
    rows = await exported_tasks(services.store, namespace, origin=origin)
    whole = document(namespace, [])
    return {
        **whole,
        "tasks": await in_pieces(services.clock, rows, make=lambda row: task_document(row.definition)),
    }


@post(
    "/apply",
    operation_id="apply_document",
    tags=["documents"],
    status_code=200,
    opt={
        "codes": ("VERSION_CONFLICT", "TASK_OF_APP", "PAYLOAD_TOO_LARGE", "SCHEDULER_UNREACHABLE"),
        "body": "Document",
        "also_as": ("application/yaml", "text/yaml"),
    },
)
async def apply_document(
    *,
    services: ServicesOf,
    by: By,
    request: StrictRequest,
    data: JSONBody[dict[str, Any]],
    origin: Annotated[
        Literal["app", "document"],
        QueryParameter(required=False, description="`app`: for the SDK, of tasks declared in code."),
    ] = "document",
    dry_run: Annotated[
        bool, QueryParameter(required=False, description="Only say what would change.")
    ] = False,
    prune: Annotated[
        bool,
        QueryParameter(
            required=False,
            description="Also delete tasks that an apply has made and that the document does not name.",
        ),
    ] = False,
) -> ChangeList:
    """Store the tasks of a document, all or none, unless somebody else changes one meanwhile.

    As YAML it may hold several documents, and faults have a place: `body`, line, column.
    """
    # A long document takes a while, and the scheduler shares the loop.
    read = await asyncio.to_thread(_documents, await request.body() if request.holds_yaml else None, data)
    if prune and origin == "app":
        raise UserError("INVALID_VALUE", "an app's tasks are not pruned", field="prune", hint="leave it out")
    intended = await plan(services.store, read, prune=prune, takes_over=origin == "app")
    if dry_run:
        return ChangeList(changes=change_shapes(intended))
    if origin == "app":
        # The newest start of an app wins, whatever version it found.
        declared = [definition for document in read for definition in document.definitions]
        applied = await apply(services.store, declared, now_us=await services.store.now_us())
        return ChangeList(changes=change_shapes(intended, applied))
    receipts = await carry_out(
        services.store, intended, now_us=await services.store.now_us(), asker=services.asker(by)
    )
    return ChangeList(changes=change_shapes(intended, receipts))


def _documents(yaml: bytes | None, data: dict[str, Any]) -> list[Document]:
    return [read_document(data)] if yaml is None else read_yaml(yaml, name="body")


ROUTES = [export_namespace, apply_document]
