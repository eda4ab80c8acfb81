"""Refuses ``time.sleep`` in tasks of a test: virtual time cannot pass while the interpreter sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from types import BuiltinFunctionType
from typing import SupportsIndex, TypeAlias

from ostinato.core.instants import SECOND

#: So much of the test's own time a task may sleep away at once.
SLEEP_US_MAX = SECOND

#: Makes the error of a sleep of so many seconds.
Refuse: TypeAlias = Callable[[float], Exception]

#: Set in the code of tasks alone.
_refuse: ContextVar[Refuse | None] = ContextVar("ostinato_refuse_sleep", default=None)


@contextmanager
def refusing_sleeps(refuse: Refuse) -> Iterator[None]:
    """What the block runs may not sleep for long: that raises what `refuse` makes, before it begins."""
    token = _refuse.set(refuse)
    try:
        yield
    finally:
        _refuse.reset(token)


@contextmanager
def guarded_sleep() -> Iterator[None]:
    """Inside the block ``time.sleep`` looks who calls it.

    One that a test has replaced itself, or that is guarded already, is left alone. A module that has imported
    the function by name before sleeps on.
    """
    real = time.sleep  # noqa: TID251 - what is guarded
    if not isinstance(real, BuiltinFunctionType):
        yield
        return

    def sleep(seconds: SupportsIndex | float, /) -> None:
        refuse = _refuse.get()
        if refuse is not None and isinstance(seconds, int | float) and seconds * SECOND > SLEEP_US_MAX:
            raise refuse(float(seconds))
        real(seconds)

    time.sleep = sleep  # noqa: TID251 - what is guarded
    try:
        yield
    finally:
        if time.sleep is sleep:  # noqa: TID251 - what is guarded
            time.sleep = real  # noqa: TID251 - what is guarded
