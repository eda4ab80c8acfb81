"""JSON Schema of documents, made of the description of the fields that the reader uses."""

from __future__ import annotations

from typing import Any

from ostinato.control.document.read import DOCUMENT
from ostinato.control.document.retry_block import retry_schema, rule_schema
from ostinato.control.document.task_fields import EXECUTORS, TASK
from ostinato.control.document.trigger_block import trigger_schema


def json_schema() -> dict[str, Any]:
    """Schema of a document of tasks, JSON Schema draft 2020-12; ``$defs/task`` is that of one entry.

    It accepts every valid document. Rules between fields (a contradiction in a retry policy, a payload that
    does not fit the parameters) and the words of cron and zones are beyond it.
    """
    task = TASK.schema()
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ostinato:schema:tasks",
        "title": "Tasks of Ostinato",
        "description": "A document of tasks, as `ostinato apply` reads it.",
        **DOCUMENT.schema(),
        "$defs": {
            "task": {**task, "oneOf": [{"required": [entry.name]} for entry in EXECUTORS]},
            "trigger": trigger_schema(),
            "retry": retry_schema(),
            "rule": rule_schema(),
        },
    }
