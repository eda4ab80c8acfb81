"""What an executor can say of the tasks that it knows, for the worker's ``Hello``."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import msgspec

from ostinato.core.definition import TaskRef


class KnownTasks(msgspec.Struct):
    """Tasks found in the app, their definitions as canonical JSON, and what could not be imported and why."""

    tasks: list[TaskRef] = []
    declarations: list[bytes] = []
    problems: list[str] = []
    #: By problem: the last lines of its traceback in the user's code, for whoever is at a terminal.
    tracebacks: list[str] = []


@runtime_checkable
class KnowsTasks(Protocol):
    """An executor whose tasks are named, as Python functions are; asked once it is open."""

    @property
    def known_tasks(self) -> KnownTasks: ...
