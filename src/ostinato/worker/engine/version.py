"""Which version of the API is spoken with an engine; pure."""

from __future__ import annotations

#: Newest one that this was written for; an older engine is spoken to in its own.
VERSION_MAX = (1, 47)


def negotiated(announced: str) -> str:
    """Version to speak with an engine whose newest one is `announced`; the newest of ours if it says none."""
    parts = announced.split(".")
    if len(parts) == 2 and all(part.isdecimal() for part in parts):
        return "{}.{}".format(*min((int(parts[0]), int(parts[1])), VERSION_MAX))
    return "{}.{}".format(*VERSION_MAX)
