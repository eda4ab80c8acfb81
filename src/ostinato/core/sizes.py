"""Sizes in bytes as people write them: ``512MiB``, ``1.5 GB``."""

from __future__ import annotations

import re
from decimal import Decimal

from ostinato.errors import UserError

KIB = 1024
MIB = 1024 * KIB
GIB = 1024 * MIB
_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KiB": KIB, "MiB": MIB, "GiB": GIB}
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]{1,9})?)\s*(B|KB|MB|GB|KiB|MiB|GiB)\s*", re.ASCII)


def parse_size(value: object, *, field: str) -> int:
    """Bytes of ``"512MiB"``, or of a whole number of them; what is less than a byte is cut off.

    ``KiB``, ``MiB`` and ``GiB`` count by 1024, ``KB``, ``MB`` and ``GB`` by 1000. Raises ``INVALID_VALUE``.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise UserError(
            "INVALID_VALUE",
            f"{value!r} is not a size",
            field=field,
            hint="write a number and a unit (B, KiB, MiB, GiB, KB, MB, GB), as 512MiB, or a number of bytes",
        )
    return int(Decimal(match[1]) * _UNITS[match[2]])


def format_size(size_bytes: int) -> str:
    """Shortest text that `parse_size` reads back as the same number: ``512MiB``, ``1500B``."""
    for name, unit in (("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if size_bytes >= unit and size_bytes % unit == 0:
            return f"{size_bytes // unit}{name}"
    return f"{size_bytes}B"
