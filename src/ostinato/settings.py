"""Settings of a process, with one precedence: flag > ``OSTINATO_*`` > ``ostinato.toml`` > default.

Each value knows where it came from, so that an error names the flag, the variable or the file and key that
is wrong. ``SETTINGS`` is the one table of them: names of flags, variables and keys follow from it.
"""

from __future__ import annotations

import difflib
import os
import socket
import tomllib
from collections.abc import Callable, Mapping, Sequence
from ipaddress import ip_address
from pathlib import Path
from typing import Literal, NamedTuple, NoReturn, TypeVar

import msgspec

from ostinato.core.instants import DAY, HOUR, SECOND, format_duration, parse_duration
from ostinato.core.routing import STRATEGIES, Strategy
from ostinato.core.secret import Secret
from ostinato.errors import OstinatoError, UserError

FILE_NAME = "ostinato.toml"

#: Shortest worker lease whose renewal, margins and kill still fit (design section 3, Leases).
WORKER_LEASE_US_MIN = 6 * SECOND
WORKER_LEASE_US_MAX = HOUR
SLOTS_MAX = 1_000
ASYNC_SLOTS_MAX = 100_000

#: ``auto``: text on a terminal, JSON lines otherwise.
LogFormat = Literal["auto", "json", "text"]
_LOG_LEVELS = ("debug", "info", "warning", "error")
_LOG_FORMATS: tuple[LogFormat, ...] = ("auto", "json", "text")
_V = TypeVar("_V")


class Address(NamedTuple):
    """Where to listen or connect: ``HOST:PORT``, an IPv6 host in brackets. Port 0 listens on a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a process can be told. Durations are microseconds."""

    database: str = "sqlite:///ostinato.db"
    bind: Address = Address("127.0.0.1", 8640)
    worker_bind: Address = Address("127.0.0.1", 8641)
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
    worker_lease_us: int = 60 * SECOND
    drain_timeout_us: int = 25 * SECOND
    retention_success_us: int = 7 * DAY
    retention_other_us: int = 30 * DAY
    routing: Strategy = "least_loaded"
    log_level: str = "info"
    log_format: LogFormat = "auto"
    #: By name of each setting that was given: its flag, its variable, or file and key.
    sources: dict[str, str] = {}

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


# ── readers: raise UserError without a field; the caller adds the source ──────────────────────────────


def _refuse(message: str, *, hint: str = "") -> NoReturn:
    raise UserError("INVALID_SETTING", message, hint=hint)


def _text(value: object) -> str:
    if not isinstance(value, str):
        _refuse(f"{value!r} is not a text")
    if any(ord(character) < 32 for character in value):
        _refuse(f"{value!r} holds control characters")
    return value.strip()


def _required_text(value: object) -> str:
    return _text(value) or _refuse("is empty")


def _choice(*allowed: str) -> Callable[[object], str]:
    def read(value: object) -> str:
        text = _text(value).lower()
        return text if text in allowed else _refuse(f"{value!r} is none of {', '.join(allowed)}")

    return read


def _whole_number(minimum: int, maximum: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        text = str(value).strip() if isinstance(value, str) else value
        if isinstance(text, str):
            if not (text.isascii() and text.removeprefix("-").isdigit() and len(text) < 12):
                _refuse(f"{value!r} is not a whole number")
            text = int(text)
        if isinstance(text, bool) or not isinstance(text, int):
            _refuse(f"{value!r} is not a whole number")
        return text if minimum <= text <= maximum else _refuse(f"{text} is not in {minimum} to {maximum}")

    return read


def _duration(minimum_us: int, maximum_us: int) -> Callable[[object], int]:
    def read(value: object) -> int:
        if not isinstance(value, str):
            _refuse(f"{value!r} is not a duration", hint="write a number and a unit, such as 30s")
        duration_us = parse_duration(value, field="")
        if duration_us < minimum_us:
            _refuse(f"{value} is below the minimum of {format_duration(minimum_us)}")
        if duration_us > maximum_us:
            _refuse(f"{value} is above the maximum of {format_duration(maximum_us)}")
        return duration_us

    return read


def _address(value: object) -> Address:
    host, colon, port = _text(value).rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port[:6]) > 65535:
        _refuse(f"{value!r} is not an address", hint="write HOST:PORT, such as 127.0.0.1:8640")
    return Address(host, int(port))


def _loopback(value: object) -> Address:
    address = _address(value)
    if not is_loopback(address.host):
        _refuse(
            f"{address} can be reached from other machines, and this address has neither TLS nor tokens",
            hint="bind 127.0.0.1 and let a reverse proxy or tunnel with access control stand before it",
        )
    return address


def _addresses(value: object) -> tuple[Address, ...]:
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not items:
        _refuse(f"{value!r} is not a list of addresses", hint="write HOST:PORT[,HOST:PORT…]")
    addresses = tuple(_address(item) for item in items)
    for address in addresses:
        if address.port == 0:
            _refuse(f"{address} has no port to connect to")
    return addresses


def _labels(value: object) -> dict[str, str]:
    """A table, a text ``key=value,…``, or a list of such texts."""
    if isinstance(value, Mapping):
        return {_required_text(key): _text(item) for key, item in value.items()}
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        _refuse(f"{value!r} is not a table of labels")
    labels: dict[str, str] = {}
    for part in (part for text in texts for part in _text(text).split(",") if part.strip()):
        key, equals, label = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            _refuse(f"{part!r} is not a label", hint="write KEY=VALUE")
        if key in labels:
            _refuse(f"label {key!r} is given twice")
        labels[key] = label
    return labels


def _path(value: object) -> Path:
    return Path(_required_text(str(value) if isinstance(value, Path) else value))


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than ``localhost`` is not trusted to be."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


SETTINGS: tuple[Setting, ...] = (
    Setting("database", _required_text, "URL of the database"),
    Setting("bind", _loopback, "address of health, metrics and API"),
    Setting("worker_bind", _address, "address that workers connect to"),
    Setting("scheduler", _addresses, "scheduler nodes that the worker connects to"),
    Setting("join_token_file", _path, "file with the token that workers show and the scheduler asks for"),
    Setting("tls_certificate", _path, "certificate of the scheduler, with its chain (PEM)"),
    Setting("tls_key", _path, "its private key (PEM)"),
    Setting(
        "tls_ca", _path, "what the scheduler's certificate must be or be signed by (PEM): TLS for a worker"
    ),
    Setting("tls_server_name", _required_text, "name in the scheduler's certificate, if not its host"),
    Setting("data_dir", _path, "directory for what this process keeps on disk"),
    Setting("app", _text, "the app: module:attribute or a file"),
    Setting("namespace", _required_text, "namespace of tasks and instances"),
    Setting("slots", _whole_number(0, SLOTS_MAX), "tasks that run at once in processes of their own"),
    Setting("async_slots", _whole_number(0, ASYNC_SLOTS_MAX), "async tasks that run at once"),
    Setting("worker_name", _required_text, "stable name of the worker"),
    Setting("labels", _labels, "labels of the worker", singular="label"),
    Setting(
        "worker_lease",
        _duration(WORKER_LEASE_US_MIN, WORKER_LEASE_US_MAX),
        "how long a worker goes on without hearing from a scheduler",
    ),
    Setting("drain_timeout", _duration(0, DAY), "how long a clean stop waits for running tasks"),
    Setting("retention_success", _duration(0, 36_500 * DAY), "how long a success is kept"),
    Setting("retention_other", _duration(0, 36_500 * DAY), "how long any other ended instance is kept"),
    Setting("routing", _choice(*STRATEGIES), "which free worker is taken: least_loaded or round_robin"),
    Setting("log_level", _choice(*_LOG_LEVELS), "least level that is logged"),
    Setting("log_format", _choice(*_LOG_FORMATS), "auto, json or text"),
)
_BY_NAME = {setting.name: setting for setting in SETTINGS}


def load_settings(flags: Mapping[str, object], environ: Mapping[str, str], *, cwd: Path) -> Settings:
    """Settings from all sources. `flags` maps setting names to values; None means that it was not given.

    Raises ``INVALID_SETTING`` whose field is the flag, the variable, or the file and key.
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
        raise UserError("INVALID_SETTING", message, field="--slots")
    _check_tls(settings)
    return settings


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
        raise UserError("INVALID_SETTING", error.message, field=source, hint=error.hint) from None


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
