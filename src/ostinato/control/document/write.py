"""Definitions as entries of ``tasks.yaml``: defaults left out, durations and instants as texts."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ostinato.control.document.read import VERSION
from ostinato.control.document.task_fields import EXECUTORS, OPTIONS
from ostinato.core.definition import ContainerSpec, HttpSpec, PythonSpec, ShellSpec, TaskDefinition

_EXECUTOR_NAMES = {
    ShellSpec: "shell",
    HttpSpec: "http",
    PythonSpec: "python",
    ContainerSpec: "container",
}
_KINDS = {entry.name: entry.kind for entry in EXECUTORS}


def task_document(definition: TaskDefinition) -> dict[str, Any]:
    """An entry of ``tasks.yaml`` that ``read_task`` reads as an equal definition."""
    executor = _EXECUTOR_NAMES[type(definition.executor)]
    options = OPTIONS.write(definition)
    description = {"description": options.pop("description")} if "description" in options else {}
    return {
        "name": definition.name,
        **description,
        executor: _KINDS[executor].write(definition.executor),
        **options,
    }


def document(namespace: str, definitions: Iterable[TaskDefinition]) -> dict[str, Any]:
    """A document of tasks, which are of that namespace; ``read_document`` reads it back."""
    return {
        "version": VERSION,
        "namespace": namespace,
        "tasks": [task_document(definition) for definition in definitions],
    }
