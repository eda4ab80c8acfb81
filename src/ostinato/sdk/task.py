"""Tasks as an app declares them: still callable as plain functions, and able to be submitted."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping
from datetime import datetime
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, cast

import msgspec

from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.payload import encode_payload
from ostinato.errors import UserError
from ostinato.sdk.context import Context, context_or_none
from ostinato.sdk.handle import Handle
from ostinato.sdk.retry import Duration
from ostinato.sdk.signature import Call, Signature
from ostinato.sdk.submission import NOW, SubmitOptions

P = ParamSpec("P")
R = TypeVar("R")


class Submitter(Protocol):
    """What a task asks of its app."""

    def submit_request(
        self,
        request: SubmitRequest,
        *,
        decode: Callable[[bytes], object] | None,
        connection: object | None = None,
    ) -> Handle[Any]: ...

    async def submit_request_async(
        self,
        request: SubmitRequest,
        *,
        decode: Callable[[bytes], object] | None,
        connection: object | None = None,
    ) -> Handle[Any]: ...


class DeclaredTask(Generic[R]):
    """A task of any kind that results in R: shell, http and container tasks are of this class itself."""

    def __init__(self, app: Submitter, definition: TaskDefinition) -> None:
        self._app = app
        self.definition = definition
        self._defaults = frozenset(msgspec.json.decode(bytes(definition.payload), type=dict[str, object]))

    @property
    def ref(self) -> TaskRef:
        return self.definition.ref

    @property
    def name(self) -> str:
        return self.definition.name

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.ref}>"

    def submit(self, **payload: object) -> Handle[R]:
        """Make an instance that is due now, with `payload` as its JSON object."""
        return self.submit_payload(payload, NOW)

    async def submit_async(self, **payload: object) -> Handle[R]:
        """As `submit`."""
        return await self.submit_payload_async(payload, NOW)

    def options(
        self,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> BoundDeclaredTask[R]:
        """The task with options for one submission: ``backup.options(delay="5m").submit()``.

        `connection`: in the transaction of this connection of the user's, as for ``app.submit``.
        """
        options = SubmitOptions(key=key, delay=delay, at=at, priority=priority)
        return BoundDeclaredTask(self, options, connection=connection)

    def submit_payload(
        self, payload: Mapping[str, object], options: SubmitOptions, *, connection: object | None = None
    ) -> Handle[R]:
        """Submit arguments by name with options."""
        request = options.request(self.ref, self.encode_object(payload))
        return self._app.submit_request(request, decode=self.decoder, connection=connection)

    async def submit_payload_async(
        self, payload: Mapping[str, object], options: SubmitOptions, *, connection: object | None = None
    ) -> Handle[R]:
        """As `submit_payload`."""
        request = options.request(self.ref, self.encode_object(payload))
        return await self._app.submit_request_async(request, decode=self.decoder, connection=connection)

    def encode_object(self, payload: Mapping[str, object]) -> bytes:
        """JSON of a payload given by name. Raises ``INVALID_PAYLOAD``, ``PAYLOAD_TOO_LARGE``."""
        return encode_payload(dict(payload))

    @property
    def decoder(self) -> Callable[[bytes], object] | None:
        """How a handle reads the result; None: as plain JSON."""
        return None


class Task(DeclaredTask[R], Generic[P, R]):
    """A Python task made of a ``def`` function. Called directly it runs here, as unit tests want it."""

    def __init__(
        self,
        app: Submitter,
        definition: TaskDefinition,
        *,
        function: Callable[..., Any],
        signature: Signature,
    ) -> None:
        super().__init__(app, definition)
        self.function = function
        self._signature = signature
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", definition.name)
        self.__module__ = function.__module__
        self.__qualname__ = getattr(function, "__qualname__", definition.name)
        self.__wrapped__ = function

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now; a context parameter that is left out gets one without a worker."""
        call = self._signature.call_locally(args, kwargs, context=self._local_context())
        return cast(R, self.function(*call.args, **call.kwargs))

    @property
    def is_async(self) -> bool:
        """Whether the function is an ``async def``."""
        return inspect.iscoroutinefunction(self.function)

    # The arguments are the function's own, checked by type checkers as such; the base takes any names.
    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:  # type: ignore[override]  # as said above
        """Make an instance that is due now, with the function's own arguments.

        Raises ``INVALID_PAYLOAD`` naming an argument that is missing, unknown or of the wrong type,
        ``PAYLOAD_TOO_LARGE``, ``TASK_DISABLED``, ``SCHEDULER_UNREACHABLE`` and ``DATABASE_UNAVAILABLE``.
        """
        return self.submit_call(NOW, args, kwargs=kwargs)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:  # type: ignore[override]  # as said above
        """As `submit`."""
        return await self.submit_call_async(NOW, args, kwargs=kwargs)

    def options(  # type: ignore[override]  # as for submit: bound to the function's own arguments
        self,
        *,
        key: str | None = None,
        delay: Duration | None = None,
        at: datetime | None = None,
        priority: int | None = None,
        connection: object | None = None,
    ) -> BoundTask[P, R]:
        """The task with options for one submission: ``task.options(delay="5m").submit(17)``.

        `connection`: in the transaction of this connection of the user's, as for ``app.submit``.
        """
        options = SubmitOptions(key=key, delay=delay, at=at, priority=priority)
        return BoundTask(self, options, connection=connection)

    def submit_call(
        self,
        options: SubmitOptions,
        args: tuple[object, ...],
        *,
        kwargs: Mapping[str, object],
        connection: object | None = None,
    ) -> Handle[R]:
        """Submit the function's own arguments with options."""
        request = options.request(self.ref, self.encode_call(args, kwargs))
        return self._app.submit_request(request, decode=self.decoder, connection=connection)

    async def submit_call_async(
        self,
        options: SubmitOptions,
        args: tuple[object, ...],
        *,
        kwargs: Mapping[str, object],
        connection: object | None = None,
    ) -> Handle[R]:
        """As `submit_call`."""
        request = options.request(self.ref, self.encode_call(args, kwargs))
        return await self._app.submit_request_async(request, decode=self.decoder, connection=connection)

    def encode_call(self, args: tuple[object, ...], kwargs: Mapping[str, object]) -> bytes:
        """Payload of a call. Raises ``INVALID_PAYLOAD`` naming the argument, ``PAYLOAD_TOO_LARGE``."""
        return self._signature.encode_call(args, kwargs, defaults=self._defaults)

    def encode_object(self, payload: Mapping[str, object]) -> bytes:
        return self._signature.encode_object(payload, defaults=self._defaults)

    @property
    def decoder(self) -> Callable[[bytes], object]:
        return self._signature.decode_result

    # ── for the worker ────────────────────────────────────────────────────────────────────────────────

    def bind_payload(self, payload: bytes, context: Context) -> Call:
        """Arguments for `function`: rebuilt as their annotated types, the context put in.

        Raises ``INVALID_PAYLOAD`` naming the argument; for an attempt that is a ``BAD_PAYLOAD``.
        """
        return self._signature.decode_call(payload, context)

    def encode_result(self, value: object) -> bytes:
        """JSON of what `function` returned.

        Raises ``INVALID_PAYLOAD`` or ``PAYLOAD_TOO_LARGE`` naming the path below ``result``; for an attempt
        that is a ``BAD_RESULT``.
        """
        return self._signature.encode_result(value)

    def _local_context(self) -> Context:
        current = context_or_none()
        if current is not None:
            return current
        return Context(instance_id="local", task=self.name, namespace=self.ref.namespace)


class AsyncTask(Task[P, R]):
    """A Python task made of an ``async def`` function; called directly it gives the coroutine."""

    def __call__(  # type: ignore[override]  # a call gives a coroutine of what a submission results in
        self, *args: P.args, **kwargs: P.kwargs
    ) -> Coroutine[Any, Any, R]:
        call = self._signature.call_locally(args, kwargs, context=self._local_context())
        return cast("Coroutine[Any, Any, R]", self.function(*call.args, **call.kwargs))


class BoundDeclaredTask(Generic[R]):
    """A shell, http or container task with options for its next submission."""

    def __init__(
        self, task: DeclaredTask[R], options: SubmitOptions, *, connection: object | None = None
    ) -> None:
        self._task = task
        self._options = options
        self._connection = connection

    def submit(self, **payload: object) -> Handle[R]:
        """As ``DeclaredTask.submit``; also raises ``KEY_CONFLICT``."""
        return self._task.submit_payload(payload, self._options, connection=self._connection)

    async def submit_async(self, **payload: object) -> Handle[R]:
        """As `submit`."""
        return await self._task.submit_payload_async(payload, self._options, connection=self._connection)


class BoundTask(Generic[P, R]):
    """A task with options for its next submission."""

    def __init__(self, task: Task[P, R], options: SubmitOptions, *, connection: object | None = None) -> None:
        self._task = task
        self._options = options
        self._connection = connection

    def submit(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As ``Task.submit``; also raises ``KEY_CONFLICT`` if the key is live with other arguments."""
        return self._task.submit_call(self._options, args, kwargs=kwargs, connection=self._connection)

    async def submit_async(self, *args: P.args, **kwargs: P.kwargs) -> Handle[R]:
        """As `submit`."""
        return await self._task.submit_call_async(
            self._options, args, kwargs=kwargs, connection=self._connection
        )


def read_function(function: Callable[..., object], *, subject: str) -> Signature:
    """Signature of a function that can be a task. Raises ``INVALID_VALUE`` if it cannot."""
    if not callable(function):
        raise UserError("INVALID_VALUE", f"{function!r} is not a function", field="function")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise UserError(
            "INVALID_VALUE",
            "a generator has no result that could be kept",
            subject=subject,
            field="function",
            hint="return a list, or submit a task for each item",
        )
    return Signature(function, subject=subject)
