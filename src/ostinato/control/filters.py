"""Which instances are meant: the filter of a list, a count, a retry or a cancel, each part checked."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.control.names import did_you_mean, validate_key, validate_name, validate_text
from ostinato.core.instants import format_instant
from ostinato.core.states import State
from ostinato.errors import UserError
from ostinato.store.batches import InstanceFilter

STATES = tuple(str(state) for state in State)
CODE_LENGTH_MAX = 200


def instance_filter(
    *,
    namespace: str | None,
    task: str | None,
    states: Sequence[str],
    key: str | None,
    code: str | None,
    created_from_us: int | None,
    created_before_us: int | None,
    prefix: str = "",
    before_field: str = "created_before",
) -> InstanceFilter:
    """The filter of what somebody said; None and empty match all.

    Raises ``INVALID_NAME`` and ``INVALID_VALUE``; `prefix` stands before the name of a field in an error.
    `before_field` is what the end of the span is called.
    """
    if namespace is not None:
        validate_name(namespace, field=f"{prefix}namespace")
    if task is not None:
        validate_name(task, field=f"{prefix}task")
    if key is not None:
        validate_key(key, field=f"{prefix}key")
    if code is not None:
        validate_text(code, field=f"{prefix}code", length_max=CODE_LENGTH_MAX)
    if created_from_us is not None and created_before_us is not None and created_from_us >= created_before_us:
        # Nothing could be in between, which would look like an empty list.
        message = f"{format_instant(created_before_us)} is not after {format_instant(created_from_us)}"
        raise UserError("INVALID_VALUE", message, field=f"{prefix}{before_field}")
    return InstanceFilter(
        namespace=namespace,
        task=task,
        states=states_of(states, field=f"{prefix}state"),
        key=key,
        code=code,
        created_from_us=created_from_us,
        created_before_us=created_before_us,
    )


def states_of(names: Sequence[str], *, field: str) -> tuple[State, ...]:
    """States by their names, each once. Raises ``INVALID_VALUE``."""
    return tuple(_state(name, field=field) for name in dict.fromkeys(names))


def _state(name: str, *, field: str) -> State:
    if name not in STATES:
        raise UserError(
            "INVALID_VALUE",
            f"{name[:100]!a} is no state",
            field=field,
            hint=did_you_mean(name[:100], STATES) or f"one of {', '.join(STATES)}",
        )
    return State(name)
