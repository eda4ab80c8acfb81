"""The app: declares tasks, registers them with the scheduler, submits them."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, Concatenate, ParamSpec, TypeVar, Unpack, cast, overload

from ostinato.clock import Clock
from ostinato.control.document.container_block import CONTAINER
from ostinato.control.document.executor_blocks import HTTP, SHELL
from ostinato.control.names import validate_name
from ostinato.core.definition import (
    ContainerSpec,
    ExecutorSpec,
    HttpSpec,
    PullPolicy,
    ShellSpec,
    TaskDefinition,
    TaskRef,
)
from ostinato.errors import UserError
from ostinato.sdk.client import Client
from ostinato.sdk.context import Context
from ostinato.sdk.declaration import TaskOptions, make_definition, read_executor
from ostinato.sdk.decorator import TaskDecorator
from ostinato.sdk.gateway.address import said_url
from ostinato.sdk.gateway.connection import Connection, OpenStore
from ostinato.sdk.gateway.protocol import Gateway
from ostinato.sdk.results import HttpResult, ShellResult
from ostinato.sdk.retry import Duration
from ostinato.sdk.submitting import Submitting, encode_mapping
from ostinato.sdk.task import AsyncTask, DeclaredTask, Task, read_function
from ostinato.store.batches import ApplyReceipt

P = ParamSpec("P")
R = TypeVar("R")


class App(Submitting):
    """A set of tasks in one namespace, and the way to submit them.

    `url` is the scheduler's address (``http://…``, ``https://…``), or the database that it uses
    (``sqlite:///…``), into which submissions then go directly. Without it ``OSTINATO_URL`` counts, then
    ``OSTINATO_DATABASE`` (a database only), then ``http://127.0.0.1:8640``. Nothing is opened before the
    first call that needs it. `name` is what the history says of requests made through this app. Raises
    ``INVALID_NAME`` and, for a URL that is neither, ``INVALID_SETTING``.
    """

    def __init__(self, name: str, url: str | None = None, *, namespace: str = "default") -> None:
        validate_name(name, field="name")
        validate_name(namespace, field="namespace")
        if url is not None:
            said_url(url)
        self.name = name
        self.namespace = namespace
        #: Python tasks, which a worker can run.
        self.registered: dict[TaskRef, Task[..., Any]] = {}
        self._declared: dict[TaskRef, DeclaredTask[Any]] = {}
        self._connection = Connection(url, self.definitions, by=name)

    def __repr__(self) -> str:
        return f"<App {self.name}, {len(self._declared)} tasks>"

    # ── declare ───────────────────────────────────────────────────────────────────────────────────────

    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, R]], /
    ) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[P, Coroutine[Any, Any, R]], /) -> AsyncTask[P, R]: ...

    @overload
    def task(self, function: Callable[Concatenate[Context, P], R], /) -> Task[P, R]: ...

    @overload
    def task(self, function: Callable[P, R], /) -> Task[P, R]: ...

    @overload
    def task(self, /, *, name: str | None = None, **options: Unpack[TaskOptions]) -> TaskDecorator: ...

    def task(
        self,
        function: Callable[..., Any] | None = None,
        /,
        *,
        name: str | None = None,
        **options: Unpack[TaskOptions],
    ) -> Any:
        """Declare a function as a task; as ``@app.task`` or ``@app.task(cron=…, retry=…)``.

        `name` is the function's own where none is given; the options are those of `TaskOptions`. The result
        is still callable as the function. Raises ``INVALID_VALUE`` for a name that is taken and
        for a function that cannot travel by name, and as ``validate_definition``.
        """
        if function is None:
            return cast(TaskDecorator, lambda target: self._declare_python(target, name, options=options))
        return self._declare_python(function, name, options=options)

    def shell(
        self,
        name: str,
        command: str | Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        directory: str = "",
        **options: Unpack[TaskOptions],
    ) -> DeclaredTask[ShellResult]:
        """Declare a command: a text runs through ``/bin/sh -c``, a list as it stands.

        It runs in `directory`, and without one in a fresh folder that is removed afterwards. `env` is added
        to the few variables that it gets of the worker (``PATH``, ``HOME``, ``LANG``) and to ``OSTINATO_*``.
        """
        said = {"command": _listed(command), "env": env, "directory": directory}
        spec: ShellSpec = read_executor(SHELL, said, field="shell", subject=str(self._ref(name)))
        return self._declare(name, spec, options=options)

    def http(
        self,
        name: str,
        method: str,
        *,
        url: str,
        headers: Mapping[str, str] | None = None,
        body: str = "",
        success_status: Sequence[str] = ("2xx",),
        connect_timeout: Duration = 10,
        read_timeout: Duration = 60,
        follow_redirects: bool = False,
        **options: Unpack[TaskOptions],
    ) -> DeclaredTask[HttpResult]:
        """Declare an HTTP request; statuses as ``200``, ``2xx`` or ``200-204`` say what is a success."""
        said = {
            "method": method.upper() if isinstance(method, str) else method,
            "url": url,
            "headers": headers,
            "body": body,
            "success_status": _listed(success_status),
            "connect_timeout": connect_timeout,
            "read_timeout": read_timeout,
            "follow_redirects": follow_redirects,
        }
        spec: HttpSpec = read_executor(HTTP, said, field="http", subject=str(self._ref(name)))
        return self._declare(name, spec, options=options)

    def container(
        self,
        name: str,
        image: str,
        *,
        command: str | Sequence[str] | None = None,
        entrypoint: Sequence[str] = (),
        env: Mapping[str, str] | None = None,
        mounts: Sequence[Mapping[str, object]] = (),
        directory: str = "",
        user: str = "",
        network: str = "",
        pull: PullPolicy = "missing",
        init: bool = True,
        **options: Unpack[TaskOptions],
    ) -> DeclaredTask[ShellResult]:
        """Declare a container: a text is run by the image's ``/bin/sh -c``, a list is what its program gets.

        `mounts` are ``{"source": …, "target": …, "read_only": …}``. `memory_limit` and `cpu_limit` of the
        options bound the container. It runs on workers whose Docker or Podman answers.
        """
        said = {
            "image": image,
            "command": _listed(command),
            "entrypoint": _listed(entrypoint),
            "env": env,
            "mounts": _listed(mounts),
            "directory": directory,
            "user": user,
            "network": network,
            "pull": pull,
            "init": init,
        }
        spec: ContainerSpec = read_executor(CONTAINER, said, field="container", subject=str(self._ref(name)))
        return self._declare(name, spec, options=options)

    def definitions(self) -> list[TaskDefinition]:
        """Definitions of all tasks, in the order of their declaration."""
        return [task.definition for task in self._declared.values()]

    def _declare_python(
        self, function: Callable[..., Any], name: str | None, *, options: TaskOptions
    ) -> Task[..., Any]:
        ref = self._ref(name if name is not None else getattr(function, "__name__", ""))
        signature = read_function(function, subject=str(ref))
        is_async = inspect.iscoroutinefunction(function)
        # The app's name stands for the module, which has another name when it is run as a script (C041).
        call = f"{self.name}:{getattr(function, '__qualname__', ref.name)}"
        spec = signature.spec(call, is_async=is_async)
        payload = signature.encode_object(options.get("payload", {}), partial=True)
        definition = make_definition(ref, spec, options=options, payload=payload)
        kind = AsyncTask if is_async else Task
        task: Task[..., Any] = kind(self, definition, function=function, signature=signature)
        self._add(task, same_as=function)
        self.registered[ref] = task
        return task

    def _declare(self, name: str, spec: ExecutorSpec, *, options: TaskOptions) -> DeclaredTask[Any]:
        payload = encode_mapping(options.get("payload", {}))
        definition = make_definition(self._ref(name), spec, options=options, payload=payload)
        task: DeclaredTask[Any] = DeclaredTask(self, definition)
        self._add(task, same_as=None)
        return task

    def _add(self, task: DeclaredTask[Any], *, same_as: Callable[..., Any] | None) -> None:
        earlier = self._declared.get(task.ref)
        if earlier is not None and not _is_redeclaration(earlier, same_as):
            raise UserError(
                "INVALID_VALUE",
                f"task {task.ref} is given twice",
                subject=str(task.ref),
                field="name",
                hint="give one of them another name",
            )
        self._declared[task.ref] = task

    # ── apply ─────────────────────────────────────────────────────────────────────────────────────────

    def apply(self) -> list[ApplyReceipt]:
        """Register all definitions with the scheduler; unchanged ones make no new version.

        The first submission of a process does it by itself. Where the URL is a database's, only this makes
        an SQLite file that does not exist; every other call refuses that. Raises ``SCHEDULER_UNREACHABLE``
        and ``DATABASE_UNAVAILABLE``.
        """
        with self._connection.making_database():
            return self._connection.client.call(self._connection.apply)

    async def apply_async(self) -> list[ApplyReceipt]:
        """As `apply`."""
        with self._connection.making_database():
            return await self._connection.client.call_async(self._connection.apply)

    # ── connection ────────────────────────────────────────────────────────────────────────────────────

    def use_store(self, open_store: OpenStore, *, clock: Clock | None = None) -> None:
        """Ask this store from now on instead of the URL's; for tests and for embedding a scheduler.

        `open_store` is awaited on the app's own loop with the clock that the app waits by.
        """
        self._connection.use_store(open_store, clock=clock)

    def use_client(self, client: Client[Gateway]) -> Client[Gateway]:
        """Make every call through `client` from now on; returns the one until now. For testing kits."""
        return self._connection.use_client(client)

    def close(self) -> None:
        """Close the connection and its thread; idempotent, and done by itself at the end of the process.

        A later call opens a new one.
        """
        self._connection.client.close()


def _listed(value: object) -> object:
    """Any sequence but a text as a list, which is what documents have."""
    return list(value) if isinstance(value, Sequence) and not isinstance(value, str | bytes) else value


def _is_redeclaration(earlier: DeclaredTask[Any], function: Callable[..., Any] | None) -> bool:
    """A module that is loaded again, or a notebook's cell that is run again, replaces its own tasks."""
    if function is None or not isinstance(earlier, Task):
        return False
    old = earlier.function
    return (old.__module__, old.__qualname__) == (function.__module__, function.__qualname__)
