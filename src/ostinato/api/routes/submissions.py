"""Submit runs of tasks: one, or many of which all are accepted or none."""

from __future__ import annotations

from typing import Any

from litestar import Response, post
from litestar.params import JSONBody

from ostinato.api.bodies import (
    SUBMISSIONS_COUNT_MAX,
    SubmissionsBody,
    SubmitBody,
    SubmittedList,
)
from ostinato.api.parameters import By, IdempotencyKey, Namespace, ServicesOf, TaskName
from ostinato.api.services import BY_DEFAULT, header_text
from ostinato.control.document.kinds import Instant, read_duration
from ostinato.control.document.reading import Reading
from ostinato.control.names import validate_key, validate_name, validate_text
from ostinato.control.pressure import passing
from ostinato.control.requests import REASON_LENGTH_MAX
from ostinato.control.shapes.answers import SubmittedShape, submitted_shape
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.ids import is_id
from ostinato.core.payload import encode_payload
from ostinato.errors import UserError, restated

_CODES = ("TASK_NOT_FOUND", "TASK_DISABLED", "KEY_CONFLICT", "PAYLOAD_TOO_LARGE", "BACKPRESSURE")


@post(
    "/namespaces/{namespace:str}/tasks/{task:str}/instances",
    operation_id="submit_instance",
    tags=["instances"],
    opt={"codes": _CODES, "also": {200: "An instance existed under the live key."}},
)
async def submit_instance(
    *,
    services: ServicesOf,
    by: By,
    namespace: Namespace,
    task: TaskName,
    data: JSONBody[SubmitBody | None] = None,
    idempotency_key: IdempotencyKey = None,
) -> Response[SubmittedShape]:
    """Run a task: now, after a delay or at an instant. Without a body: now, with the task's own payload."""
    body = SubmitBody() if data is None else data
    key = _key(body, idempotency_key)
    request = _request(body, namespace=namespace, task=task, key=key, by=by, prefix="")
    async with passing(services.pressure, [request]):
        now_us = await services.time.now_us()
        (receipt,) = await submit(
            services.store, [request], now_us=now_us, rng=services.rng, seen=services.seen
        )
    return Response(submitted_shape(receipt), status_code=201 if receipt.created else 200)


@post(
    "/namespaces/{namespace:str}/instances",
    operation_id="submit_instances",
    tags=["instances"],
    opt={"codes": _CODES},
)
async def submit_instances(
    *, services: ServicesOf, by: By, namespace: Namespace, data: JSONBody[SubmissionsBody]
) -> SubmittedList:
    """Run tasks of a namespace: all of the submissions are accepted, or none."""
    validate_name(namespace, field="namespace")
    if len(data.submissions) > SUBMISSIONS_COUNT_MAX:
        raise UserError(
            "INVALID_VALUE",
            f"{len(data.submissions)} submissions, at most {SUBMISSIONS_COUNT_MAX}",
            field="submissions",
        )
    requests = [
        _request(
            body, namespace=namespace, task=body.task, key=body.key, by=by, prefix=f"submissions[{index}]."
        )
        for index, body in enumerate(data.submissions)
    ]
    try:
        async with passing(services.pressure, requests):
            now_us = await services.time.now_us()
            receipts = await submit(services.store, requests, now_us=now_us, rng=services.rng)
    except UserError as error:
        # Of several it names the one itself.
        if len(requests) > 1 or not error.field:
            raise
        raise restated(error, field=f"submissions[0].{error.field}") from None
    return SubmittedList(items=[submitted_shape(receipt) for receipt in receipts])


def _request(body: SubmitBody, *, namespace: str, task: str, key: Any, by: str, prefix: str) -> SubmitRequest:
    """What ``control.submit`` takes; `prefix` stands before the fields of an error."""
    if key is not None:
        # In ``control`` an empty key means none; who sends one has lost it on the way.
        validate_key(key, field=f"{prefix}key")
    validate_text(body.reason, field=f"{prefix}reason", length_max=REASON_LENGTH_MAX)
    reason = body.reason or ("" if by == BY_DEFAULT else f"started by {by}")
    return SubmitRequest(
        namespace=namespace,
        task=task,
        payload=encode_payload(body.payload, field=f"{prefix}payload"),
        key=key or "",
        delay_us=None if body.delay is None else _delay_us(body.delay, field=f"{prefix}delay"),
        due_us=None if body.at is None else _instant_us(body.at, field=f"{prefix}at"),
        priority=body.priority,
        reason=reason,
        id="" if body.id is None else _id(body.id, field=f"{prefix}id"),
    )


def _delay_us(said: object, *, field: str) -> int:
    return read_duration(said, field, reading=Reading())


def _instant_us(said: object, *, field: str) -> int:
    return Instant().read(said, field, reading=Reading())


def _id(identifier: str, *, field: str) -> str:
    # In ``control`` an empty id means a new one; who sends one has lost it on the way.
    if not is_id(identifier):
        raise UserError("INVALID_VALUE", f"{identifier!a} is not an id", field=field)
    return identifier


def _key(body: SubmitBody, header: str | None) -> Any:
    """The key of the header or the body, of whatever type that is; None for none."""
    if header is None:
        return body.key
    key = header_text(header, field="Idempotency-Key")
    if body.key is not None and body.key != key:
        raise UserError(
            "INVALID_VALUE",
            "the header and the body's key are not the same",
            field="Idempotency-Key",
            hint="give one of them",
        )
    return key


ROUTES = [submit_instance, submit_instances]
