"""What ``app.task(...)`` gives back: turns a function into a task, typed by its own parameters."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, overload

from ostinato.sdk.context import Context
from ostinato.sdk.task import AsyncTask, Task

P = ParamSpec("P")
R = TypeVar("R")


class TaskDecorator(Protocol):
    """A leading parameter ``context: Context`` is the worker's to give, so it is no part of a submission."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def __call__(self, function: Callable[P, R], /) -> Task[P, R]: ...
