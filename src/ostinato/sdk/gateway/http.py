"""The gateway over HTTP: the API's addresses, what is sent there, and what its answers mean."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ostinato.control.document.write import document
from ostinato.control.explain import Story
from ostinato.control.names import instance_not_found, may_be_id
from ostinato.control.requests import require_ok
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.ids import new_id
from ostinato.core.instants import format_duration, format_instant
from ostinato.core.states import State
from ostinato.errors import UserError, invariant
from ostinato.sdk.gateway.protocol import Glimpse
from ostinato.sdk.gateway.story_answer import StoryAnswer, story_of
from ostinato.sdk.gateway.transport import Transport
from ostinato.store.batches import ApplyReceipt, RequestAnswer, SubmitReceipt

T = TypeVar("T")

_ROOT = "/api/v1"
_OUTCOMES = {"create": "created", "change": "changed", "unchanged": "unchanged"}
_OUTPUT_LIMIT = 500


class _Change(msgspec.Struct):
    namespace: str
    name: str
    action: str
    version: int


class _Changes(msgspec.Struct):
    changes: list[_Change]


class _Submitted(msgspec.Struct):
    instance_id: str
    created: bool


class _SubmittedMany(msgspec.Struct):
    items: list[_Submitted]


class _Glimpsed(msgspec.Struct):
    id: str
    namespace: str
    task: str
    state: State
    reason: str = ""
    failure: Failure | None = None
    result: msgspec.Raw = msgspec.Raw(b"null")


class _Answered(msgspec.Struct):
    instance_id: str
    code: str
    message: str = ""


class HttpGateway:
    """Asks the API of a scheduler. The ids of its instances are its own, so that it may repeat itself."""

    def __init__(self, transport: Transport, *, rng: Random, by: str) -> None:
        """`by` is the app's name, which the history tells of its requests."""
        self._by = by
        self._transport = transport
        self._rng = rng

    async def apply(self, definitions: Sequence[TaskDefinition]) -> list[ApplyReceipt]:
        if not definitions:
            return []
        body = document(definitions[0].namespace, definitions)
        answer = self._decoded(await self._transport.post(f"{_ROOT}/apply?origin=app", body), _Changes)
        receipts = {
            TaskRef(change.namespace, change.name): _receipt(change)
            for change in answer.changes
            if change.action in _OUTCOMES
        }
        missing = [definition.ref for definition in definitions if definition.ref not in receipts]
        if missing:
            raise self._transport.unreadable(f"nothing is said of task {missing[0]}")
        return [receipts[definition.ref] for definition in definitions]

    async def submit(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        if not requests:
            return []
        namespace = requests[0].namespace
        invariant(
            all(request.namespace == namespace for request in requests),
            "one namespace",
            "a submission of many is of one namespace",
        )
        now_us = self._transport.now_us()
        entries = [_entry(request, new_id(now_us, self._rng)) for request in requests]
        place = f"{_ROOT}/namespaces/{quote(namespace, safe='')}"
        lost = f"whether {_named(entries)} accepted is not known"
        if len(entries) == 1:
            task = quote(str(entries[0].pop("task")), safe="")
            answer = await self._transport.post(f"{place}/tasks/{task}/instances", entries[0], lost=lost)
            items = [self._decoded(answer, _Submitted)]
        else:
            answer = await self._transport.post(f"{place}/instances", {"submissions": entries}, lost=lost)
            items = self._decoded(answer, _SubmittedMany).items
            if len(items) != len(entries):
                raise self._transport.unreadable(f"{len(items)} receipts for {len(entries)} submissions")
        return [SubmitReceipt(item.instance_id, created=item.created) for item in items]

    async def look(self, instance_id: str) -> Glimpse:
        found = self._decoded(await self._instance(instance_id), _Glimpsed)
        return Glimpse(
            id=found.id,
            ref=TaskRef(found.namespace, found.task),
            state=found.state,
            reason=found.reason,
            failure=found.failure,
            result=bytes(found.result) if found.state is State.SUCCESS else None,
        )

    async def cancel(self, instance_id: str, *, reason: str) -> None:
        _check_id(instance_id)
        answer = await self._transport.post(
            f"{_ROOT}/instances/{instance_id}/cancel",
            {"reason": reason},
            asked_by=self._by,
            lost="whether the request is recorded is not known; repeating it does no harm",
        )
        answered = self._decoded(answer, _Answered)
        require_ok(RequestAnswer("", 0, answered.code, answered.message, instance_id=answered.instance_id))

    async def story(self, instance_id: str) -> Story:
        answer = self._decoded(await self._instance(instance_id), StoryAnswer)
        try:
            return story_of(answer)
        except UserError as error:
            raise self._transport.unreadable(error) from None

    async def close(self) -> None:
        await self._transport.close()

    async def _instance(self, instance_id: str) -> bytes:
        _check_id(instance_id)
        return await self._transport.get(f"{_ROOT}/instances/{instance_id}")

    def _decoded(self, body: bytes, kind: type[T]) -> T:
        try:
            return msgspec.json.decode(body, type=kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            raise self._transport.unreadable(error) from None


def _receipt(change: _Change) -> ApplyReceipt:
    outcome: Any = _OUTCOMES[change.action]
    return ApplyReceipt(TaskRef(change.namespace, change.name), change.version, outcome)


def _entry(request: SubmitRequest, instance_id: str) -> dict[str, object]:
    entry: dict[str, object] = {
        "task": request.task,
        "id": instance_id,
        "payload": msgspec.Raw(request.payload),
    }
    if request.key:
        entry["key"] = request.key
    if request.delay_us is not None:
        entry["delay"] = format_duration(request.delay_us)
    if request.due_us is not None:
        entry["at"] = format_instant(request.due_us)
    if request.priority is not None:
        entry["priority"] = request.priority
    if request.reason:
        entry["reason"] = request.reason
    return entry


def _named(entries: Sequence[dict[str, object]]) -> str:
    first = f"instance {entries[0]['id']} was"
    return first if len(entries) == 1 else f"the {len(entries)} instances from {entries[0]['id']} on were"


def _check_id(instance_id: str) -> None:
    """Say of a text that no id can be what the store says of an id that it does not know."""
    if not may_be_id(instance_id):
        raise instance_not_found(instance_id)
