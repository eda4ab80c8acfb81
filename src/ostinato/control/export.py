"""Export: the tasks of a namespace as a document that an apply reads back without a change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ostinato.control.document.write import document
from ostinato.control.queries import get_task, list_tasks
from ostinato.core.definition import Origin, TaskRef, TaskRow
from ostinato.store.protocol import Store


async def export(
    store: Store, namespace: str, *, origin: Origin | None = None, names: Sequence[str] = ()
) -> dict[str, Any]:
    """Tasks of `namespace` by name as a document; none for none.

    `origin` None means tasks of apps too. `names` asks for these alone. Raises ``INVALID_NAME``, and
    ``TASK_NOT_FOUND`` for one of `names` that does not exist.
    """
    rows = await exported_tasks(store, namespace, origin=origin, names=names)
    return document(namespace, [row.definition for row in rows])


async def exported_tasks(
    store: Store, namespace: str, *, origin: Origin | None = None, names: Sequence[str] = ()
) -> list[TaskRow]:
    """The tasks that `export` writes, for whoever also wants to know what they belong to."""
    if names:
        refs = sorted({TaskRef(namespace, name) for name in names})
        rows = [await get_task(store, ref) for ref in refs]
    else:
        rows = await list_tasks(store, namespace)
    return [row for row in rows if origin is None or row.origin == origin]
