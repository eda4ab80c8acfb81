"""Tasks registered: by ``Store.apply``, as the SDK and ``ostinato apply`` do, or as rows that are in force.

A million of the former take a scheduler minutes to put in force, which is measured with fewer. For a start
beside a million, `insert_in_force` writes what an apply and the switch of its owner leave behind: the tables
``task``, ``task_definition`` and ``task_trigger``, with contents made by the functions that these two use.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from itertools import islice

import msgspec

from kit.filling import Target
from ostinato.clock import SystemClock
from ostinato.core.definition import TaskDefinition, encode_definition
from ostinato.core.ids import partition_of
from ostinato.core.partition.effects import Effects
from ostinato.core.partition.switch import switch_version
from ostinato.store.from_url import open_store_from_url

_CHUNK_COUNT = 5_000
_TASK = (
    "namespace",
    "name",
    "partition",
    "version",
    "scheduled_version",
    "paused",
    "disabled",
    "created_us",
    "updated_us",
    "origin",
)
_DEFINITION = ("namespace", "name", "version", "definition")
_TRIGGER = (
    "id",
    "namespace",
    "task",
    "partition",
    "task_version",
    "spec",
    "created_us",
    "next_us",
    "last_us",
)


async def apply_all(url: str, definitions: Sequence[TaskDefinition]) -> float:
    """Apply to a database with a schema of ours, by the store; returns the seconds that it took."""
    store = open_store_from_url(url, clock=SystemClock())
    await store.open()
    try:
        began = time.monotonic()
        for start in range(0, len(definitions), _CHUNK_COUNT):
            chunk = definitions[start : start + _CHUNK_COUNT]
            await store.apply(chunk, now_us=await store.now_us())
        return time.monotonic() - began
    finally:
        await store.close()


def insert_in_force(target: Target, definitions: Iterable[TaskDefinition]) -> None:
    """Insert tasks that are new to the database, as if they had been applied and switched just now."""
    partition_count = target.number("SELECT count(*) FROM partition_owner")
    now_us = time.time_ns() // 1000
    remaining = iter(definitions)
    while chunk := list(islice(remaining, 20 * _CHUNK_COUNT)):
        effects = Effects()
        for definition in chunk:
            switch_version(
                definition,
                version=1,
                partition=partition_of(
                    definition.namespace, definition.name, partition_count=partition_count
                ),
                in_force=[],
                edited_us=now_us,
                into=effects,
            )
        switches = effects.batch.switches
        target.insert(
            "task",
            _TASK,
            rows=[
                (row.namespace, row.task, row.partition, 1, 1, False, False, now_us, now_us, "app")
                for row in switches
            ],
        )
        target.insert(
            "task_definition",
            _DEFINITION,
            rows=[(row.namespace, row.name, 1, encode_definition(row)) for row in chunk],
        )
        target.insert(
            "task_trigger",
            _TRIGGER,
            rows=[
                (
                    *(trigger.id, trigger.namespace, trigger.task, trigger.partition, trigger.task_version),
                    *(
                        msgspec.json.encode(trigger.spec),
                        trigger.created_us,
                        trigger.next_us,
                        trigger.last_us,
                    ),
                )
                for row in switches
                for trigger in row.triggers
            ],
        )


def not_in_force(target: Target) -> int:
    """Tasks whose newest version waits for its owner."""
    return target.number("SELECT count(*) FROM task WHERE scheduled_version <> version")
