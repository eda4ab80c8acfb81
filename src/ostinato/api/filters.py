"""Which instances: the filter of a query and of a body, read by one code."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.control.filters import instance_filter
from ostinato.core.instants import parse_instant
from ostinato.store.batches import InstanceFilter


def read_filter(
    *,
    namespace: str | None,
    task: str | None,
    states: Sequence[str],
    key: str | None,
    code: str | None,
    created_from: str | None,
    created_before: str | None,
    prefix: str = "",
) -> InstanceFilter:
    """The filter, each part checked. Raises ``INVALID_NAME``, ``INVALID_VALUE``, ``INVALID_INSTANT``.

    `prefix` stands before the name of a field in an error.
    """
    return instance_filter(
        namespace=namespace,
        task=task,
        states=states,
        key=key,
        code=code,
        created_from_us=_instant(created_from, field=f"{prefix}created_from"),
        created_before_us=_instant(created_before, field=f"{prefix}created_before"),
        prefix=prefix,
    )


def _instant(text: str | None, *, field: str) -> int | None:
    return None if text is None else parse_instant(text, field=field)
