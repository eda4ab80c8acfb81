"""Ostinato: a distributed task scheduler in which every retry is decided in one place, by the scheduler.

The names below are what users import. Each is loaded when it is first used, so that ``import ostinato`` costs
nothing in a process that needs little of it.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.core.failure.signals import Permanent, RetryLater, TaskError
    from ostinato.core.retry.policy import RetryPolicy
    from ostinato.core.states import State
    from ostinato.errors import ConflictError, InternalError, OstinatoError, UnavailableError, UserError
    from ostinato.sdk.app import App
    from ostinato.sdk.context import Context, FencingToken, TaskCancelled, current_context
    from ostinato.sdk.handle import Handle, InstanceFailed, ResultNotReady
    from ostinato.sdk.results import HttpResult, ShellResult
    from ostinato.sdk.retry import Retry
    from ostinato.sdk.schedules import at, cron, every
    from ostinato.sdk.submission import Submission
    from ostinato.sdk.task import AsyncTask, Task

__all__ = [
    "App",
    "AsyncTask",
    "ConflictError",
    "Context",
    "FencingToken",
    "Handle",
    "HttpResult",
    "InstanceFailed",
    "InternalError",
    "OstinatoError",
    "Permanent",
    "ResultNotReady",
    "Retry",
    "RetryLater",
    "RetryPolicy",
    "ShellResult",
    "State",
    "Submission",
    "Task",
    "TaskCancelled",
    "TaskError",
    "UnavailableError",
    "UserError",
    "at",
    "cron",
    "current_context",
    "every",
]

_MODULES = {
    "core.failure.signals": ("Permanent", "RetryLater", "TaskError"),
    "core.retry.policy": ("RetryPolicy",),
    "core.states": ("State",),
    "errors": ("ConflictError", "InternalError", "OstinatoError", "UnavailableError", "UserError"),
    "sdk.app": ("App",),
    "sdk.context": ("Context", "FencingToken", "TaskCancelled", "current_context"),
    "sdk.handle": ("Handle", "InstanceFailed", "ResultNotReady"),
    "sdk.results": ("HttpResult", "ShellResult"),
    "sdk.retry": ("Retry",),
    "sdk.schedules": ("at", "cron", "every"),
    "sdk.submission": ("Submission",),
    "sdk.task": ("AsyncTask", "Task"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
