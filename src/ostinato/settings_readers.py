"""Readers of settings: what a flag, a variable or a key says, as a value of the right type.

They raise ``INVALID_SETTING`` without a field; whoever knows the source adds it. A name and a duration are
refused with the code that they have everywhere.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from ipaddress import IPv6Address, ip_address
from pathlib import Path
from typing import NamedTuple, NoReturn

from ostinato.core.instants import format_duration, parse_duration
from ostinato.core.names import NAME_LENGTH_MAX, validate_name
from ostinato.core.url_text import shown_url
from ostinato.errors import UserError

_PORT_MAX = 65_535
_SQLITE = "sqlite:///"

_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]")
#: What no host name holds, and what an address of another kind would.
_NO_HOST = re.compile(r"[\s/\\@?#\[\],:]")


class Address(NamedTuple):
    """Where to listen or connect: ``HOST:PORT``, an IPv6 host in brackets. Port 0 listens on a free one."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def _refuse(message: str, *, hint: str = "", code: str = "INVALID_SETTING") -> NoReturn:
    raise UserError(code, message, hint=hint)


def read_text(value: object) -> str:
    """A text on one line, without the white space around it."""
    if not isinstance(value, str):
        _refuse(f"{value!r} is not a text")
    if _CONTROL.search(value) is not None:
        _refuse(f"{value!a} holds control characters")
    return value.strip()


def read_required_text(value: object) -> str:
    """A text that says something."""
    return read_text(value) or _refuse("is empty")


def read_name(value: object) -> str:
    """A name, as namespaces and labels have it. Raises ``INVALID_NAME``."""
    if not isinstance(value, str):
        _refuse(f"{value!r} is not a text")
    name = value.strip(" \t")
    validate_name(name, field="")
    return name


def read_label_value(value: object) -> str:
    """Value of a label; may be empty."""
    text = read_text(value)
    if len(text) > NAME_LENGTH_MAX:
        _refuse(f"has {len(text)} characters, at most {NAME_LENGTH_MAX}")
    return text


def read_worker_name(value: object) -> str:
    """Stored and shown with every attempt."""
    return read_label_value(read_required_text(value))


def read_apps(value: object) -> str:
    """One app or several with commas between them; empty: none."""
    text = read_text(value)
    parts = [part.strip() for part in text.split(",")]
    if text and not all(parts):
        _refuse(f"{text!r} has a comma without an app", hint="write module:attribute[,path/file.py…]")
    return ",".join(parts)


def read_choice(*allowed: str) -> Callable[[object], str]:
    """Reader of one of some words, in upper or lower case."""

    def read(value: object) -> str:
        text = read_text(value).lower()
        return text if text in allowed else _refuse(f"{value!r} is none of {', '.join(allowed)}")

    return read


def read_whole_number(minimum: int, maximum: int) -> Callable[[object], int]:
    """Reader of a number between bounds that are allowed too."""

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


def read_duration(minimum_us: int, maximum_us: int) -> Callable[[object], int]:
    """Reader of a duration as a text with units; gives microseconds."""

    def read(value: object) -> int:
        if not isinstance(value, str):
            _refuse(
                f"{value!r} is not a duration",
                hint="write a number and a unit, such as 30s",
                code="INVALID_DURATION",
            )
        duration_us = parse_duration(value, field="")
        if duration_us < minimum_us:
            _refuse(f"{value} is below the minimum of {format_duration(minimum_us)}", code="INVALID_DURATION")
        if duration_us > maximum_us:
            _refuse(f"{value} is above the maximum of {format_duration(maximum_us)}", code="INVALID_DURATION")
        return duration_us

    return read


def read_address(value: object) -> Address:
    """``HOST:PORT``, an IPv6 host in brackets."""
    text = read_text(value)
    if "://" in text:
        _refuse(
            f"{shown_url(text)!r} is a URL, not an address",
            hint=f"write HOST:PORT, without {text.partition('://')[0]}://",
        )
    host, colon, port = text.rpartition(":")
    is_bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if is_bracketed else host
    is_host = _is_ipv6(host) if is_bracketed else bool(host) and _NO_HOST.search(host) is None
    if not colon or not is_host or not (port.isascii() and port.isdigit()) or len(port) > 5:
        _refuse(
            f"{shown_url(text)!r} is not an address",
            hint="write HOST:PORT, such as 127.0.0.1:8640 or [::1]:8640",
        )
    if int(port) > _PORT_MAX:
        _refuse(f"{port} is no port", hint=f"ports go from 0 to {_PORT_MAX}")
    return Address(host, int(port))


def read_reachable(value: object) -> Address:
    """An address that others can connect to: no wildcard, and a port."""
    address = read_address(value)
    if address.port == 0 or is_wildcard(address.host):
        _refuse(
            f"nobody can connect to {address}", hint="write the name or address of this machine, and the port"
        )
    return address


def is_wildcard(host: str) -> bool:
    """Whether a host means every address of this machine, however it is written."""
    if host in ("*", "0"):
        return True
    try:
        address = ip_address(host)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, IPv6Address) else None
    return (mapped or address).is_unspecified


def _is_ipv6(host: str) -> bool:
    try:
        return ip_address(host).version == 6
    except ValueError:
        return False


def read_loopback(value: object) -> Address:
    """An address that this machine alone reaches."""
    address = read_address(value)
    if not is_loopback(address.host):
        _refuse(
            f"{address} can be reached from other machines, and this address has neither TLS nor tokens",
            hint="bind 127.0.0.1 and let a reverse proxy or tunnel with access control stand before it",
        )
    return address


def read_addresses(value: object) -> tuple[Address, ...]:
    """Addresses to connect to, with commas between them, or as a list."""
    items = value.split(",") if isinstance(value, str) else value
    if not isinstance(items, Sequence) or not items:
        _refuse(f"{value!r} is not a list of addresses", hint="write HOST:PORT[,HOST:PORT…]")
    addresses = tuple(read_address(item) for item in items)
    for address in addresses:
        if address.port == 0:
            _refuse(f"{address} has no port to connect to")
    return addresses


def read_labels(value: object) -> dict[str, str]:
    """A table, a text ``key=value,…``, or a list of such texts."""
    if isinstance(value, Mapping):
        return {read_name(key): read_label_value(item) for key, item in value.items()}
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, Sequence):
        _refuse(f"{value!r} is not a table of labels")
    labels: dict[str, str] = {}
    for part in (part for text in texts for part in read_text(text).split(",") if part.strip()):
        key, equals, label = (piece.strip() for piece in part.partition("="))
        if not equals or not key:
            _refuse(f"{part!r} is not a label", hint="write KEY=VALUE")
        if key in labels:
            _refuse(f"label {key!r} is given twice")
        labels[read_name(key)] = read_label_value(label)
    return labels


def read_path(value: object) -> Path:
    """A path, as it stands."""
    return Path(read_required_text(str(value) if isinstance(value, Path) else value))


def read_optional_path(value: object) -> Path | None:
    """Path to a file, or None for ``none``."""
    return None if value == "none" else read_path(value)


def sqlite_path(url: str) -> str | None:
    """Path of the file that a database's URL names, as it stands there; None for other kinds of database.

    What makes the URL unfit to be opened (parameters, for one) is refused by whoever opens it.
    """
    return url.removeprefix(_SQLITE).partition("?")[0] if url.startswith(_SQLITE) else None


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches `host`; a name other than ``localhost`` is not trusted to be."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False
