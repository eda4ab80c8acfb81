"""Which instances: the filter of a query and of a body, read by one code."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.control.names import did_you_mean, validate_key, validate_name, validate_text
from ostinato.core.instants import parse_instant
from ostinato.core.states import State
from ostinato.errors import UserError
from ostinato.store.batches import InstanceFilter

STATES = tuple(str(state) for state in State)
CODE_LENGTH_MAX = 200


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
    if namespace is not None:
        validate_name(namespace, field=f"{prefix}namespace")
    if task is not None:
        validate_name(task, field=f"{prefix}task")
    if key is not None:
        validate_key(key, field=f"{prefix}key")
    if code is not None:
        validate_text(code, field=f"{prefix}code", length_max=CODE_LENGTH_MAX)
    return InstanceFilter(
        namespace=namespace,
        task=task,
        states=tuple(_state(text, field=f"{prefix}state") for text in dict.fromkeys(states)),
        key=key,
        code=code,
        created_from_us=_instant(created_from, field=f"{prefix}created_from"),
        created_before_us=_instant(created_before, field=f"{prefix}created_before"),
    )


def _state(text: str, *, field: str) -> State:
    if text not in STATES:
        raise UserError(
            "INVALID_VALUE",
            f"{text[:100]!a} is no state",
            field=field,
            hint=did_you_mean(text[:100], STATES) or f"one of {', '.join(STATES)}",
        )
    return State(text)


def _instant(text: str | None, *, field: str) -> int | None:
    return None if text is None else parse_instant(text, field=field)
