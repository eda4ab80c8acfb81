"""A text that is never shown: the join token, wherever it is kept."""

from __future__ import annotations


class Secret(str):
    """A string that is used as any other, and whose ``repr`` does not say it.

    Structs that hold it are shown in errors, logs and debuggers without it.
    """

    __slots__ = ()

    def __repr__(self) -> str:
        return "'[redacted]'" if self else "''"
