"""Cancel instances, and run ended ones again: one, several by id, or those that a filter matches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from litestar import post
from litestar.params import JSONBody

from ostinato.api.bodies import (
    BATCH_COUNT_MAX,
    MATCHING_COUNT_MAX,
    AnswerList,
    CancelManyBody,
    FilterBody,
    ReasonBody,
    RetryBody,
    RetryManyBody,
)
from ostinato.api.filters import read_filter
from ostinato.api.parameters import By, InstanceId, RetryKey, ServicesOf
from ostinato.api.services import header_text
from ostinato.control.cancel import cancel, cancel_matching
from ostinato.control.matching import Matched
from ostinato.control.names import validate_key
from ostinato.control.replay import replay, replay_matching
from ostinato.control.requests import require_ok
from ostinato.control.shapes.answers import AnswerShape, answer_shape
from ostinato.core.payload import encode_payload
from ostinato.errors import UserError
from ostinato.store.batches import InstanceFilter, RequestAnswer

_CANCEL_CODES = ("INSTANCE_NOT_FOUND", "SCHEDULER_UNREACHABLE")
_RETRY_CODES = (*_CANCEL_CODES, "TASK_NOT_FOUND", "TASK_DISABLED", "INSTANCE_SUCCEEDED", "PAYLOAD_TOO_LARGE")


def _act(*codes: str) -> dict[str, Any]:
    return {"tags": ["instances"], "status_code": 200, "opt": {"codes": codes}}


@post(
    "/instances/{instance_id:str}/cancel",
    operation_id="cancel_instance",
    **_act(*_CANCEL_CODES, "INSTANCE_TERMINAL"),
)
async def cancel_instance(
    *, services: ServicesOf, by: By, instance_id: InstanceId, data: JSONBody[ReasonBody | None] = None
) -> AnswerShape:
    """End an instance: what waits at once, what runs by asking its attempt to end."""
    reason = "" if data is None else data.reason
    answers = await cancel(services.store, [instance_id], asker=services.asker(by), reason=reason)
    return answer_shape(instance_id, require_ok(answers[0]))


@post(
    "/instances/{instance_id:str}/retry",
    operation_id="retry_instance",
    **_act(*_RETRY_CODES, "INSTANCE_NOT_TERMINAL", "VERSION_CONFLICT"),
)
async def retry_instance(
    *,
    services: ServicesOf,
    by: By,
    instance_id: InstanceId,
    data: JSONBody[RetryBody | None] = None,
    idempotency_key: RetryKey = None,
) -> AnswerShape:
    """Run an instance that has ended again, as a new generation."""
    body = RetryBody() if data is None else data
    answers = await replay(
        services.store,
        [instance_id],
        asker=services.asker(by),
        reason=body.reason,
        latest=body.latest,
        payload=_payload(body),
        key=_key(idempotency_key),
        force=body.force,
        generation=body.generation,
    )
    return answer_shape(instance_id, require_ok(answers[0]))


@post("/instances/cancel", operation_id="cancel_instances", **_act(*_CANCEL_CODES))
async def cancel_instances(*, services: ServicesOf, by: By, data: JSONBody[CancelManyBody]) -> AnswerList:
    """End instances, each answered by itself; a filter without states means those that have not ended."""
    asker = services.asker(by)
    if data.ids is not None:
        ids = _ids(data.ids, data)
        return _listed(ids, await cancel(services.store, ids, asker=asker, reason=data.reason))
    where, limit = _where(data)
    return _matched(
        await cancel_matching(services.store, where, limit=limit, asker=asker, reason=data.reason)
    )


@post("/instances/retry", operation_id="retry_instances", **_act(*_RETRY_CODES))
async def retry_instances(
    *,
    services: ServicesOf,
    by: By,
    data: JSONBody[RetryManyBody],
    idempotency_key: RetryKey = None,
) -> AnswerList:
    """Run instances again, each answered by itself; a filter without states means those that failed."""
    if data.generation is not None:
        raise UserError("INVALID_VALUE", "is for one instance", field="generation", hint="leave it out")
    asker, payload, key = services.asker(by), _payload(data), _key(idempotency_key)
    if data.ids is not None:
        ids = _ids(data.ids, data)
        answers = await replay(
            services.store,
            ids,
            asker=asker,
            reason=data.reason,
            latest=data.latest,
            payload=payload,
            key=key,
            force=data.force,
        )
        return _listed(ids, answers)
    where, limit = _where(data)
    return _matched(
        await replay_matching(
            services.store,
            where,
            limit=limit,
            asker=asker,
            reason=data.reason,
            latest=data.latest,
            payload=payload,
            key=key,
            force=data.force,
        )
    )


def _key(said: str | None) -> str:
    """The key of the header, empty for none. Raises ``INVALID_NAME`` for one that is empty itself."""
    if said is None:
        return ""
    key = header_text(said, field="Idempotency-Key")
    validate_key(key, field="Idempotency-Key")
    return key


def _payload(body: RetryBody) -> bytes | None:
    return None if body.payload is None else encode_payload(body.payload)


def _ids(ids: Sequence[str], body: CancelManyBody | RetryManyBody) -> list[str]:
    if body.filter is not None:
        raise UserError("INVALID_VALUE", "give ids or a filter, not both", field="filter")
    if body.limit is not None:
        raise UserError("INVALID_VALUE", "belongs to a filter", field="limit", hint="leave it out")
    if len(ids) > BATCH_COUNT_MAX:
        raise UserError("INVALID_VALUE", f"{len(ids)} ids, at most {BATCH_COUNT_MAX}", field="ids")
    return [*dict.fromkeys(ids)]


def _where(body: CancelManyBody | RetryManyBody) -> tuple[InstanceFilter, int]:
    if body.filter is None:
        raise UserError("INVALID_VALUE", "is missing", field="ids", hint="give ids or a filter")
    limit = MATCHING_COUNT_MAX if body.limit is None else body.limit
    if not 1 <= limit <= MATCHING_COUNT_MAX:
        raise UserError("INVALID_VALUE", f"{limit} is not within 1 to {MATCHING_COUNT_MAX}", field="limit")
    return _read(body.filter), limit


def _read(said: FilterBody) -> InstanceFilter:
    return read_filter(
        namespace=said.namespace,
        task=said.task,
        states=said.state,
        key=said.key,
        code=said.code,
        created_from=said.created_from,
        created_before=said.created_before,
        prefix="filter.",
    )


def _listed(ids: Sequence[str], answers: Sequence[RequestAnswer]) -> AnswerList:
    return AnswerList(items=[answer_shape(*pair) for pair in zip(ids, answers, strict=True)])


def _matched(matched: Sequence[Matched]) -> AnswerList:
    return AnswerList(
        items=[answer_shape(entry.instance.id, entry.answer) for entry in matched if entry.answer is not None]
    )


ROUTES = [cancel_instance, retry_instance, cancel_instances, retry_instances]
