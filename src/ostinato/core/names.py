"""Which texts are names of tasks, namespaces and labels."""

from __future__ import annotations

import re

from ostinato.errors import UserError

NAME_LENGTH_MAX = 200

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*", re.ASCII)


def validate_name(name: str, *, field: str) -> None:
    """Names of tasks, namespaces and labels.

    Raises ``INVALID_NAME`` naming `field`, and ``INVALID_VALUE`` for what Python handed in and is no text.
    """
    if not isinstance(name, str):
        raise UserError("INVALID_VALUE", f"{name!r} is not a text", field=field)
    if not name:
        raise UserError("INVALID_NAME", "a name is needed", field=field)
    if len(name) > NAME_LENGTH_MAX:
        raise UserError("INVALID_NAME", f"{len(name)} characters, at most {NAME_LENGTH_MAX}", field=field)
    if _NAME.fullmatch(name) is None:
        raise UserError(
            "INVALID_NAME",
            f"{name!a} is not a name",
            field=field,
            hint="begin with a letter or digit; then letters, digits, '_', '.' and '-'",
        )
