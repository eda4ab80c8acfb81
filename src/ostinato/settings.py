"""Settings of a process, with one precedence: flag > ``OSTINATO_*`` > ``ostinato.toml`` > default.

Each value knows where it came from, so that an error names the flag, the variable or the file and key that
is wrong. ``SETTINGS`` is the one table of them: names of flags, variables and keys follow from it.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

import msgspec

from ostinato.core.instants import DAY, HOUR, SECOND
from ostinato.core.pressure import Limits
from ostinato.core.routing import STRATEGIES, Strategy
from ostinato.core.secret import Secret
from ostinato.errors import OstinatoError, UserError
from ostinato.settings_readers import (
    Address,
    is_loopback,
    read_address,
    read_addresses,
    read_apps,
    read_choice,
    read_duration,
    read_labels,
    read_loopback,
    read_name,
    read_optional_path,
    read_path,
    read_reachable,
    read_required_text,
    read_whole_number,
    read_worker_name,
    sqlite_path,
)

__all__ = [
    "ASYNC_SLOTS_MAX",
    "FILE_NAME",
    "SETTINGS",
    "SLOTS_MAX",
    "WORKER_LEASE_US_MAX",
    "WORKER_LEASE_US_MIN",
    "Address",
    "LogFormat",
    "Setting",
    "Settings",
    "is_loopback",
    "load_settings",
    "naming_sources",
    "read_join_token",
    "sqlite_path",
]

FILE_NAME = "ostinato.toml"

#: Shortest worker lease whose renewal, margins and kill still fit (design section 3, Leases).
WORKER_LEASE_US_MIN = 6 * SECOND
WORKER_LEASE_US_MAX = HOUR
SLOTS_MAX = 1_000
ASYNC_SLOTS_MAX = 100_000
#: Of waiting instances, which are counted one by one.
PRESSURE_MAX = 1_000_000
#: ``auto``: text on a terminal, JSON lines otherwise.
LogFormat = Literal["auto", "json", "text"]
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS: tuple[LogFormat, ...] = ("auto", "json", "text")
_V = TypeVar("_V")


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process can be told. Durations are microseconds."""

    database: str = "sqlite:///ostinato.db"
    bind: Address = Address("127.0.0.1", 8640)
    worker_bind: Address = Address("127.0.0.1", 8641)
    #: Where workers reach this node, as all nodes tell all workers; None: at `worker_bind`.
    advertise: Address | None = None
    #: Addresses of scheduler nodes that a worker connects to.
    scheduler: tuple[Address, ...] = (Address("127.0.0.1", 8641),)
    #: File with the token that workers show and a scheduler asks for; None: none.
    join_token_file: Path | None = None
    #: What a scheduler proves itself with, both or neither, in PEM form.
    tls_certificate: Path | None = None
    tls_key: Path | None = None
    #: What the scheduler's certificate must be or be signed by; turns TLS on for a worker.
    tls_ca: Path | None = None
    #: Name in the scheduler's certificate, where it is not the host that the worker connects to.
    tls_server_name: str = ""
    data_dir: Path = Path(".ostinato")
    #: ``module:attribute`` or a file; empty: none.
    app: str = ""
    namespace: str = "default"
    #: Tasks that run at once in processes of their own; CPU count.
    slots: int = 1
    #: Tasks that share the event loop.
    async_slots: int = 100
    worker_name: str = ""
    labels: dict[str, str] = {}
    #: UNIX socket of the engine that a worker runs containers at; None: it runs none.
    engine_socket: Path | None = Path("/var/run/docker.sock")
    worker_lease_us: int = 60 * SECOND
    drain_timeout_us: int = 25 * SECOND
    retention_success_us: int = 7 * DAY
    retention_other_us: int = 30 * DAY
    routing: Strategy = "least_loaded"
    #: Waiting instances from which on submissions are slowed down, and refused; None: never.
    pressure_yellow: int | None = None
    pressure_red: int | None = None
    log_level: str = "info"
    log_format: LogFormat = "auto"
    #: By name of each setting that was given: its flag, its variable, or file and key.
    sources: dict[str, str] = {}

    @property
    def pressure(self) -> Limits:
        """When submissions are slowed down and refused."""
        return Limits(yellow=self.pressure_yellow, red=self.pressure_red)

    def source(self, name: str) -> str:
        """What an error about the setting `name` calls it: where it came from, or else its flag."""
        return self.sources.get(name, _BY_NAME[name].flag)


class Setting(NamedTuple):
    """One row of the table: how a value is read, and what it means in words."""

    name: str
    read: Callable[[object], object]
    meaning: str
    #: Of one of several values, where the name is a plural.
    singular: str = ""

    @property
    def flag(self) -> str:
        return "--" + (self.singular or self.name).replace("_", "-")

    @property
    def variable(self) -> str:
        return "OSTINATO_" + self.name.upper()


SETTINGS: tuple[Setting, ...] = (
    Setting("database", read_required_text, "URL of the database"),
    Setting("bind", read_loopback, "address of health, metrics and API"),
    Setting("worker_bind", read_address, "address that workers connect to"),
    Setting("advertise", read_reachable, "address at which workers reach this node, if not --worker-bind"),
    Setting("scheduler", read_addresses, "scheduler nodes that the worker connects to"),
    Setting("join_token_file", read_path, "file with the token that workers show and the scheduler asks for"),
    Setting("tls_certificate", read_path, "certificate of the scheduler, with its chain (PEM)"),
    Setting("tls_key", read_path, "its private key (PEM)"),
    Setting(
        "tls_ca",
        read_path,
        "what the scheduler's certificate must be or be signed by (PEM): TLS for a worker",
    ),
    Setting("tls_server_name", read_required_text, "name in the scheduler's certificate, if not its host"),
    Setting("data_dir", read_path, "directory for what this process keeps on disk"),
    Setting("app", read_apps, "the app: module:attribute or a file"),
    Setting("namespace", read_name, "namespace of tasks and instances"),
    Setting("slots", read_whole_number(0, SLOTS_MAX), "tasks that run at once in processes of their own"),
    Setting("async_slots", read_whole_number(0, ASYNC_SLOTS_MAX), "async tasks that run at once"),
    Setting("worker_name", read_worker_name, "stable name of the worker"),
    Setting("labels", read_labels, "labels of the worker", singular="label"),
    Setting(
        "engine_socket", read_optional_path, "UNIX socket of Docker or Podman, for container tasks, or none"
    ),
    Setting(
        "worker_lease",
        read_duration(WORKER_LEASE_US_MIN, WORKER_LEASE_US_MAX),
        "how long a worker goes on without hearing from a scheduler",
    ),
    Setting("drain_timeout", read_duration(0, DAY), "how long a clean stop waits for running tasks"),
    Setting("retention_success", read_duration(0, 36_500 * DAY), "how long a success is kept"),
    Setting("retention_other", read_duration(0, 36_500 * DAY), "how long any other ended instance is kept"),
    Setting("routing", read_choice(*STRATEGIES), "which free worker is taken: least_loaded or round_robin"),
    Setting(
        "pressure_yellow",
        read_whole_number(1, PRESSURE_MAX),
        "number of waiting instances from which on submissions are slowed down",
    ),
    Setting(
        "pressure_red",
        read_whole_number(1, PRESSURE_MAX),
        "number of waiting instances from which on submissions are refused",
    ),
    Setting("log_level", read_choice(*_LOG_LEVELS), "least level that is logged"),
    Setting("log_format", read_choice(*_LOG_FORMATS), "auto, json or text"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], *, cwd: Path) -> Settings:
    """Settings from all sources. `flags` maps setting names to values; None means that it was not given.

    Raises ``INVALID_NAME`` for what is no name, ``INVALID_DURATION`` for what is no duration, and otherwise
    ``INVALID_SETTING``; the field is the flag, the variable, or the file and key.
    """
    unknown = set(flags) - set(_BY_NAME)
    if unknown:
        raise KeyError(f"not settings: {sorted(unknown)}")
    from_file = _read_file(cwd / FILE_NAME)
    sources: dict[str, str] = {}
    values: dict[str, object] = {
        "slots": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "worker_name": socket.gethostname() or "worker",
    }
    for setting in SETTINGS:
        for source, raw in (
            (setting.flag, flags.get(setting.name)),
            (setting.variable, environ.get(setting.variable)),
            (f"{FILE_NAME}: {setting.name}", from_file.get(setting.name)),
        ):
            if raw is not None:
                values[_field_of(setting.name)] = _with_source(source, setting.read, raw=raw)
                sources[setting.name] = source
                break
    settings = msgspec.convert({**values, "sources": sources}, Settings)
    if settings.slots == 0 and settings.async_slots == 0:
        message = "slots and async_slots are both 0, so nothing could run"
        given = "slots" if "slots" in sources else "async_slots"
        raise UserError("INVALID_SETTING", message, field=settings.source(given))
    _check_tls(settings)
    with naming_sources(settings):
        settings.pressure.validate()
    return settings


def load_pressure(environ: Mapping[str, str]) -> Limits:
    """The limits of submissions of a program that has no other settings of ours.

    Raises ``INVALID_SETTING`` naming the variable.
    """
    given: dict[str, object] = {}
    for name in ("pressure_yellow", "pressure_red"):
        setting = _BY_NAME[name]
        if (raw := environ.get(setting.variable)) is not None:
            given[name] = _with_source(setting.variable, setting.read, raw=raw)
    settings = msgspec.convert(
        {**given, "sources": {name: _BY_NAME[name].variable for name in given}}, Settings
    )
    with naming_sources(settings):
        settings.pressure.validate()
    return settings.pressure


#: Which setting a failure is about that names no field itself.
_SETTING_OF_CODE = {
    "DATABASE_UNAVAILABLE": "database",
    "DATABASE_FULL": "database",
    "DATABASE_UNUSABLE": "database",
    "SCHEMA_VERSION": "database",
    "NODE_ALREADY_RUNNING": "database",
    "INVALID_APP": "app",
    "UNKNOWN_TOKEN": "join_token_file",
    "SCHEDULER_UNREACHABLE": "scheduler",
    "PROTOCOL_MISMATCH": "scheduler",
}
_HINT_OF_CODE = {"UNKNOWN_TOKEN": "give the scheduler's own token, in a file: --join-token-file FILE"}
#: Codes whose field, where they have one, is a setting under its own name.
_OWN_FIELD = frozenset({"INVALID_SETTING", "PORT_IN_USE", *_SETTING_OF_CODE})


@contextmanager
def naming_sources(settings: Settings, *, only: str = "") -> Generator[None, None, None]:
    """Errors of the block that are about a setting name where it came from: flag, variable, or file and key.

    `only` is the one setting that this may be, where others mean something else; empty: any.

    Whoever finds the fault (a store, a transport, a worker) knows the setting at most by its name. The error
    stays the same object; one that is about something else is left alone.
    """
    try:
        yield
    except OstinatoError as error:
        name = _setting_of(error)
        if name and only in ("", name):
            error.field = settings.source(name)
            error.hint = error.hint or _HINT_OF_CODE.get(error.code, "")
        raise


def _setting_of(error: OstinatoError) -> str:
    """Name of the setting that the error is about; empty: of none."""
    if not error.field:
        return _SETTING_OF_CODE.get(error.code, "")
    if error.code not in _OWN_FIELD:
        return ""
    if error.field == "capacity":
        return "slots"
    found = (row.name for row in SETTINGS if error.field in (row.name, row.flag, f"{row.name}_us"))
    return next(found, "")


def _check_tls(settings: Settings) -> None:
    """Raise ``INVALID_SETTING`` for half of a pair, and for an open door."""
    for given, other in (
        ("tls_certificate", "tls_key"),
        ("tls_key", "tls_certificate"),
        ("tls_server_name", "tls_ca"),
    ):
        if getattr(settings, given) and not getattr(settings, other):
            raise UserError(
                "INVALID_SETTING",
                f"is of no use without {other}",
                field=settings.source(given),
                hint=f"give {_BY_NAME[other].flag} too",
            )
    bind = settings.worker_bind
    needed = ("join_token_file", "tls_certificate", "tls_key")
    missing = [_BY_NAME[name].flag for name in needed if getattr(settings, name) is None]
    if missing and not is_loopback(bind.host):
        raise UserError(
            "INVALID_SETTING",
            f"{bind} can be reached from other machines, which is refused without TLS and a join token",
            field=settings.source("worker_bind"),
            hint=f"give {', '.join(missing)} too, or bind 127.0.0.1",
        )


def read_join_token(settings: Settings) -> Secret:
    """The token in the file, without the white space around it; empty where no file is set.

    Raises ``INVALID_SETTING`` whose field is where the file's name came from.
    """
    path, field = settings.join_token_file, settings.source("join_token_file")
    if path is None:
        return Secret()
    try:
        token = path.read_text(encoding="utf-8").strip()
    except UnicodeDecodeError:
        raise UserError("INVALID_SETTING", f"{path} is not a text file", field=field) from None
    except OSError as error:
        message = f"{path} cannot be read: {error.strerror or error}"
        raise UserError("INVALID_SETTING", message, field=field) from None
    if not token.isprintable() or not token:
        what = "is empty" if not token else "holds more than one line of text"
        raise UserError(
            "INVALID_SETTING",
            f"{path} {what}",
            field=field,
            hint=f"write a token into it, such as: openssl rand -hex 32 > {path}",
        )
    return Secret(token)


def _field_of(name: str) -> str:
    return name if name in Settings.__struct_fields__ else f"{name}_us"


def _with_source(source: str, read: Callable[[object], _V], *, raw: object) -> _V:
    try:
        return read(raw)
    except OstinatoError as error:
        raise UserError(error.code, error.message, field=source, hint=error.hint) from None


def _read_file(path: Path) -> dict[str, object]:
    """Keys of the file; an absent file has none. An unknown key is refused rather than ignored."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UserError("INVALID_SETTING", f"cannot be read: {error}", field=FILE_NAME) from None
    for key in content:
        if key not in _BY_NAME:
            near = difflib.get_close_matches(key.replace("-", "_"), _BY_NAME, n=1)
            raise UserError(
                "INVALID_SETTING",
                "is not a setting",
                field=f"{FILE_NAME}: {key}",
                hint=f"did you mean {near[0]}?" if near else f"settings are {', '.join(_BY_NAME)}",
            )
    return content
