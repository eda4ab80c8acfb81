"""Pause, resume, disable and enable a task."""

from __future__ import annotations

from typing import Any

from litestar import post

from ostinato.api.bodies import FlagBody
from ostinato.api.parameters import By, Namespace, ServicesOf, TaskName
from ostinato.api.services import Services
from ostinato.control.pause import FlagVerb, set_task_flag
from ostinato.core.definition import TaskRef

_COMMON: dict[str, Any] = {
    "tags": ["tasks"],
    "status_code": 200,
    "opt": {"codes": ("TASK_NOT_FOUND", "SCHEDULER_UNREACHABLE")},
}


@post("/namespaces/{namespace:str}/tasks/{task:str}/pause", operation_id="pause_task", **_COMMON)
async def pause_task(*, services: ServicesOf, by: By, namespace: Namespace, task: TaskName) -> FlagBody:
    """Stop fires and new attempts; what waits is held. Answered once the owner has done it."""
    return await _done(services, TaskRef(namespace, task), verb="pause", by=by)


@post("/namespaces/{namespace:str}/tasks/{task:str}/resume", operation_id="resume_task", **_COMMON)
async def resume_task(*, services: ServicesOf, by: By, namespace: Namespace, task: TaskName) -> FlagBody:
    """Let fires and attempts go on; what was missed is not fired."""
    return await _done(services, TaskRef(namespace, task), verb="resume", by=by)


@post("/namespaces/{namespace:str}/tasks/{task:str}/disable", operation_id="disable_task", **_COMMON)
async def disable_task(*, services: ServicesOf, by: By, namespace: Namespace, task: TaskName) -> FlagBody:
    """As pause, and what waits is cancelled, submissions and replays are refused."""
    return await _done(services, TaskRef(namespace, task), verb="disable", by=by)


@post("/namespaces/{namespace:str}/tasks/{task:str}/enable", operation_id="enable_task", **_COMMON)
async def enable_task(*, services: ServicesOf, by: By, namespace: Namespace, task: TaskName) -> FlagBody:
    """Undo disable."""
    return await _done(services, TaskRef(namespace, task), verb="enable", by=by)


async def _done(services: Services, ref: TaskRef, *, verb: FlagVerb, by: str) -> FlagBody:
    await set_task_flag(services.store, ref, verb=verb, asker=services.asker(by))
    return FlagBody(namespace=ref.namespace, task=ref.name, done=verb)


ROUTES = [pause_task, resume_task, disable_task, enable_task]
