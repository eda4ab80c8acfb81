"""What a task may know of its own attempt, and how it speaks to its worker."""

from __future__ import annotations

import logging
import shutil
import tempfile
import weakref
from contextvars import ContextVar
from datetime import datetime
from functools import cached_property
from numbers import Real
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from ostinato.core.failure.text import cut_text
from ostinato.core.instants import to_datetime
from ostinato.errors import UserError
from ostinato.observe.records import trace_id_of

if TYPE_CHECKING:
    _Adapter = logging.LoggerAdapter[logging.Logger]
else:
    _Adapter = logging.LoggerAdapter

LOGGER_NAME = "ostinato.task"
#: What is kept of the text of one progress report.
PROGRESS_TEXT_BYTES_MAX = 1024
_LOGGING_KEYWORDS = frozenset({"exc_info", "stack_info", "stacklevel", "extra"})


class TaskCancelled(Exception):
    """Raised by ``Context.raise_if_cancelled``: let it through, and the attempt ends as cancelled."""

    __module__ = "ostinato"
    ostinato_code = "CANCELLED"


class FencingToken(NamedTuple):
    """Names one attempt; as text ``instance:attempt:attempt-id``.

    The attempt number only ever rises, so the other side keeps the highest that it has seen of an instance
    and refuses lower ones.
    """

    instance: str
    attempt: int
    attempt_id: str

    def __str__(self) -> str:
        return f"{self.instance}:{self.attempt}:{self.attempt_id}"


class ContextBackend(Protocol):
    """What the worker that runs an attempt does for its context. Called from the task's own thread."""

    def progress(self, fraction: float, text: str) -> None:
        """The task is `fraction` (0 to 1) through; counts as a heartbeat."""
        ...

    def heartbeat(self) -> None:
        """The task lives; feeds its ``heartbeat_timeout``."""
        ...

    def is_cancelled(self) -> bool:
        """Whether somebody has asked the attempt to end."""
        ...

    def log(self, record: logging.LogRecord) -> None:
        """Keep a line that the task logged through ``context.logger``."""
        ...

    def scratch_directory(self) -> Path:
        """The attempt's own directory, made when it is first asked for."""
        ...


class LocalBackend:
    """No worker: the function was called directly, as unit tests do. Log lines go to the root logger."""

    def __init__(self) -> None:
        self._scratch: Path | None = None

    def progress(self, fraction: float, text: str) -> None:
        return

    def heartbeat(self) -> None:
        return

    def is_cancelled(self) -> bool:
        return False

    def log(self, record: logging.LogRecord) -> None:
        logging.getLogger().handle(record)

    def scratch_directory(self) -> Path:
        if self._scratch is None:
            self._scratch = Path(tempfile.mkdtemp(prefix="ostinato-"))
            # Gone with the context, or with the program.
            weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        return self._scratch


class Context:
    """The running attempt. A parameter annotated ``Context`` receives it; so does `current_context`.

    `attempt` counts every attempt of the instance from 1; `retry_count` the failures of the task itself in
    this generation. `deadline` is when the attempt is ended for running too long, `scheduled` the instant of
    the fire that made the instance; both are aware UTC datetimes, or None where there is none.
    """

    def __init__(
        self,
        *,
        instance_id: str,
        task: str,
        namespace: str = "default",
        attempt: int = 1,
        attempt_id: str = "",
        retry_count: int = 0,
        deadline_us: int | None = None,
        fire_us: int | None = None,
        shard: int = 0,
        shard_total: int = 1,
        backend: ContextBackend | None = None,
    ) -> None:
        self.instance_id = instance_id
        self.task = task
        self.namespace = namespace
        self.attempt = attempt
        self.attempt_id = attempt_id
        self.retry_count = retry_count
        self._deadline_us = deadline_us
        self._fire_us = fire_us
        self.shard = shard
        self.shard_total = shard_total
        self._backend = LocalBackend() if backend is None else backend

    @cached_property
    def deadline(self) -> datetime | None:
        """When the attempt is ended for running too long, in UTC; None if it has all the time it wants."""
        return None if self._deadline_us is None else to_datetime(self._deadline_us)

    @cached_property
    def scheduled(self) -> datetime | None:
        """Instant of the fire that made the instance, in UTC; None if no fire did."""
        return None if self._fire_us is None else to_datetime(self._fire_us)

    @property
    def fencing_token(self) -> FencingToken:
        """By which another system can refuse an attempt that is not the current one (I1)."""
        return FencingToken(self.instance_id, self.attempt, self.attempt_id)

    @property
    def cancelled(self) -> bool:
        """Whether somebody has asked this attempt to end."""
        return self._backend.is_cancelled()

    @property
    def scratch_directory(self) -> Path:
        """Directory of this attempt alone, made when it is first asked for, removed when the attempt ends.

        Raises ``OSError`` when it cannot be made.
        """
        return self._backend.scratch_directory()

    def raise_if_cancelled(self) -> None:
        """Raise ``TaskCancelled`` if somebody has asked this attempt to end."""
        if self.cancelled:
            raise TaskCancelled(f"instance {self.instance_id} was cancelled")

    def progress(self, fraction: float, text: str = "") -> None:
        """Say how far the attempt is, from 0 to 1, and in what words, of which 1 KiB is kept.

        Raises ``INVALID_VALUE`` naming ``fraction`` or ``text``.
        """
        # Checked here, in the task's own code: what cannot be sent would end others with it.
        if not isinstance(fraction, Real) or isinstance(fraction, bool) or not 0 <= fraction <= 1:
            raise UserError("INVALID_VALUE", f"{fraction!r} is not a number from 0 to 1", field="fraction")
        if not isinstance(text, str):
            raise UserError(
                "INVALID_VALUE",
                f"the text of a progress report is a str, not {type(text).__name__}",
                field="text",
            )
        # str.__str__ makes a plain str of a subclass.
        self._backend.progress(float(fraction), cut_text(str.__str__(text), PROGRESS_TEXT_BYTES_MAX))

    def heartbeat(self) -> None:
        """Say that the attempt lives, for the task's ``heartbeat_timeout``."""
        self._backend.heartbeat()

    @cached_property
    def logger(self) -> _Adapter:
        """Logger whose lines carry instance, attempt and trace, and are kept with the instance's output.

        ``logger.info("fetched %d orders", 17, day="2026-03-14")``: further keyword arguments are fields.
        """
        return _ContextLogger(self)

    def log(self, record: logging.LogRecord) -> None:
        """Hand a line to the worker."""
        self._backend.log(record)


class _ContextLogger(_Adapter):
    def __init__(self, context: Context) -> None:
        super().__init__(
            _task_logger,
            {
                "ostinato_context": context,
                "trace_id": trace_id_of(context.instance_id),
                "instance_id": context.instance_id,
                "task": context.task,
                "attempt": context.attempt,
                "retry_count": context.retry_count,
            },
        )

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """As ``Logger.log``; further keyword arguments are fields, told after the message."""
        if not self.isEnabledFor(level):
            return
        fields = {name: kwargs.pop(name) for name in [*kwargs] if name not in _LOGGING_KEYWORDS}
        if fields:
            told = " ".join(f"{name}={value!r}" for name, value in fields.items())
            # With arguments the message is a format, and a percent sign in a value is not part of it.
            msg = f"{msg} {told.replace('%', '%%') if args else told}"
        own = kwargs.pop("extra", None) or {}
        kwargs["extra"] = {**own, **(self.extra or {}), "fields": fields}
        # This frame is not the caller that a record names.
        kwargs["stacklevel"] = kwargs.get("stacklevel", 1) + 1
        self.logger.log(level, msg, *args, **kwargs)


class _ContextHandler(logging.Handler):
    """Leads each line to the context that it was logged through."""

    def emit(self, record: logging.LogRecord) -> None:
        context = getattr(record, "ostinato_context", None)
        if isinstance(context, Context):
            context.log(record)


def _make_task_logger() -> logging.Logger:
    logger = logging.getLogger(LOGGER_NAME)
    logger.setLevel(logging.INFO)
    # The context is the one way out; a root handler of the task's own would write each line twice.
    logger.propagate = False
    logger.handlers = [_ContextHandler()]
    return logger


_task_logger = _make_task_logger()
_current: ContextVar[Context | None] = ContextVar("ostinato_context", default=None)


def current_context() -> Context:
    """Context of the attempt that the calling code belongs to. Raises ``INVALID_VALUE`` outside a task.

    It follows the code into coroutines, asyncio tasks and ``asyncio.to_thread``, not into threads that the
    task starts itself.
    """
    context = _current.get()
    if context is None:
        raise UserError(
            "INVALID_VALUE",
            "no task is running here",
            field="context",
            hint="call it from the task's own code, or pass the context on",
        )
    return context


def context_or_none() -> Context | None:
    """Context of the running attempt, or None outside a task."""
    return _current.get()


class running_in:
    """Make `context` the current one inside the block; what a worker does around a task."""

    # No generator with a decorator: that takes longer than many a task.

    def __init__(self, context: Context) -> None:
        self._context = context

    def __enter__(self) -> Context:
        self._token = _current.set(self._context)
        return self._context

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)
