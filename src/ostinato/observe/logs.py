"""Logs: every line has a stable event name and the fields of design section 8, stdlib logging included.

JSON, one object a line, for machines; a text form for a terminal. A field that does not apply is null, so
that each line has the same shape. Values of fields named like a secret, and passwords in URLs, are replaced.
"""

from __future__ import annotations

import logging
import re
import sys
from collections.abc import Callable
from typing import Literal, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from ostinato.clock import SystemClock
from ostinato.core.failure.text import escape_unseen, escape_unseen_in_json
from ostinato.core.instants import format_instant, to_datetime
from ostinato.core.schedule.misfire import LATE_US
from ostinato.core.url_text import without_passwords
from ostinato.observe import records as r
from ostinato.observe.records import Record, trace_id_of

#: Present in every line, in this order (design section 8), after the name of the event.
FIELDS = (
    "timestamp",
    "level",
    "service_name",
    "trace_id",
    "instance_id",
    "attempt",
    "retry_count",
    "error_code",
    "error_message",
)
REDACTED = "[redacted]"
#: What a person looks for first in a line of text, and what only machines need.
_TEXT_FIRST = ("task", "instance_id", "attempt")
_TEXT_HIDDEN = ("service_name", "trace_id", "namespace", "trigger_id")
_SECRET_NAME = re.compile(r"(password|passwd|secret|token|authorization|api_?key|credential|cookie)", re.I)

_LEVELS: dict[type[Record], int] = {
    r.LoopTurned: logging.DEBUG,
    r.GroupCommitted: logging.DEBUG,
    r.BacklogMeasured: logging.DEBUG,
    r.PressureMeasured: logging.DEBUG,
    r.SubmissionsHeldBack: logging.DEBUG,
    r.AttemptAssigned: logging.DEBUG,
    r.PartitionsLost: logging.WARNING,
    r.WritesRefused: logging.WARNING,
    r.NodeDeclaredDead: logging.WARNING,
    r.NodeRejoined: logging.WARNING,
    r.WorkerRefused: logging.WARNING,
    r.WorkerNameShared: logging.WARNING,
    r.TreeEndReported: logging.WARNING,
    r.TaskModuleFailed: logging.ERROR,
    r.OrphanFound: logging.ERROR,
    r.DatabaseFull: logging.ERROR,
    r.ClockJumped: logging.ERROR,
    r.NodeIdle: logging.WARNING,
    r.FireSkipped: logging.WARNING,
    r.ResultRefused: logging.WARNING,
    r.InvariantBroken: logging.CRITICAL,
}
#: Kinds whose level depends on what the record says.
_BY_CONTENT = frozenset({r.Fired, r.AttemptEnded, r.InstanceEnded, r.LoopFailed, r.PressureChanged})


class LogHook:
    """Writes each record as one line; the uneventful path (fired, succeeded) at `routine_level`."""

    def __init__(self, *, routine_level: int = logging.DEBUG) -> None:
        self._routine_level = routine_level
        self._logger = logging.getLogger("ostinato.events")
        self._structured = structlog.stdlib.get_logger("ostinato.events")

    def on(self, record: Record) -> None:
        level = self._level_of(record)
        if not self._logger.isEnabledFor(level):
            return
        fields = msgspec.structs.asdict(record)
        # ``event`` is the line's name; a record's own field may not replace it.
        self._structured.log(level, type(record).EVENT, **fields)

    def _level_of(self, record: Record) -> int:
        kind = type(record)
        if kind not in _BY_CONTENT:
            return _LEVELS.get(kind, logging.INFO)
        if isinstance(record, r.Fired):
            # Thousands may fire at one boundary: a line costs as much as the rest of a fire.
            return self._routine_level if record.lateness_us < LATE_US else logging.INFO
        if isinstance(record, r.AttemptEnded):
            return self._routine_level if record.outcome == "success" else logging.WARNING
        if isinstance(record, r.LoopFailed):
            return logging.DEBUG if record.is_repeated else logging.ERROR
        if isinstance(record, r.PressureChanged):
            return logging.INFO if record.level == "green" else logging.WARNING
        if isinstance(record, r.InstanceEnded):
            if record.state == "success":
                return self._routine_level
            return logging.ERROR if record.state == "failed" else logging.INFO
        return logging.INFO


def configure_logging(
    *,
    level: str,
    form: Literal["json", "text"],
    service_name: str,
    stream: TextIO | None = None,
    wall_us: Callable[[], int] | None = None,
) -> None:
    """Send structlog and stdlib logging of this process to `stream` (stderr) in one form; repeatable."""
    shared: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
    ]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    add_fields = _Fields(service_name, SystemClock().wall_us if wall_us is None else wall_us)
    handler = logging.StreamHandler(sys.stderr if stream is None else stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.ExtraAdder()],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.format_exc_info,
                lambda _logger, _method, event: redacted(add_fields.to(event)),
                lambda _logger, _method, event: _json_line(event) if form == "json" else _text_line(event),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level.upper())
    # Libraries that log each request or statement at INFO drown what ours say.
    for name in (
        *("uvicorn", "litestar", "httpx", "httpcore", "sqlalchemy.engine", "alembic", "grpc", "asyncio"),
        "watchfiles",
    ):
        logging.getLogger(name).setLevel(max(logging.WARNING, root.level))


class _Fields:
    """Puts the fields of design section 8 into every line, null where they do not apply."""

    def __init__(self, service_name: str, wall_us: Callable[[], int]) -> None:
        self._service_name = service_name
        self._wall_us = wall_us

    def to(self, event: EventDict) -> EventDict:
        instance_id = event.get("instance_id") or None
        line: EventDict = {
            "event": event.pop("event", ""),
            # Always three digits, so that lines sort as texts.
            "timestamp": to_datetime(self._wall_us())
            .isoformat(timespec="milliseconds")
            .replace("+00:00", "Z"),
            "level": event.pop("level", None),
            "service_name": self._service_name,
            "trace_id": None if instance_id is None else trace_id_of(str(instance_id)),
            **{name: event.pop(name, None) for name in FIELDS[4:]},
        }
        for name in ("instance_id", "error_code", "error_message"):
            line[name] = line[name] or None
        return {**line, **event}


def redacted(event: EventDict) -> EventDict:
    """`event` without values of fields named like a secret, and without passwords in URLs."""
    return {
        key: REDACTED if _SECRET_NAME.search(key) else _without_passwords(value)
        for key, value in event.items()
    }


def _without_passwords(value: object) -> object:
    return without_passwords(value, mask=REDACTED) if isinstance(value, str) else value


def _json_line(event: EventDict) -> str:
    try:
        return escape_unseen_in_json(msgspec.json.encode(event, enc_hook=repr).decode())
    except UnicodeEncodeError:  # a lone surrogate somewhere: show it, rather than lose the line
        shown = {key: escape_unseen(item) if isinstance(item, str) else item for key, item in event.items()}
        return msgspec.json.encode(shown, enc_hook=lambda value: escape_unseen(repr(value))).decode()


def _text_line(event: EventDict) -> str:
    traceback = str(event.pop("exception", "") or "")
    moment, level, name = event.pop("timestamp"), str(event.pop("level") or ""), event.pop("event")
    if str(event.get("logger", "")).startswith("ostinato."):
        del event["logger"]  # ours say enough by the name of their event
    ordered = {**{key: event[key] for key in _TEXT_FIRST if key in event}, **event}
    shown = " ".join(
        _text_field(key, value)
        for key, value in ordered.items()
        if key not in _TEXT_HIDDEN and value not in (None, "")
    )
    line = f"{moment} {level.upper():7} {escape_unseen(str(name))}" + (f"  {shown}" if shown else "")
    return "\n".join([line, *(escape_unseen(row) for row in traceback.splitlines())])


def _text_field(key: str, value: object) -> str:
    """``key=value``; a time is shown with a unit of its own, so its key loses the suffix of microseconds."""
    if key.endswith("_us") and isinstance(value, int):
        shown = format_instant(value) if key in ("fire_us", "due_us") else f"{value / 1000:.1f}ms"
        return f"{key.removesuffix('_us')}={shown}"
    text = escape_unseen(str(value))
    return f'{key}="{text}"' if " " in text else f"{key}={text}"
