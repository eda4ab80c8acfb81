"""What a command, a function or a request of a task must look like so that it can run as written."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from urllib.parse import urlsplit

from ostinato.control.checks import (
    VARIABLE_NAME,
    Check,
    invalid,
    pair_checks,
    refuse_nul,
    refusing,
    validate_command,
)
from ostinato.control.container_checks import container_checks
from ostinato.control.names import validate_text
from ostinato.core.definition import ContainerSpec, ExecutorSpec, HttpSpec, Parameter, PythonSpec, ShellSpec
from ostinato.core.instants import DURATION_MAX_US, MILLISECOND, validate_duration
from ostinato.core.url_text import shown_url

_METHOD = re.compile(r"[A-Z]{1,20}", re.ASCII)
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", re.ASCII)
#: Set from the body: a second opinion would make the server wait for more, or take the rest as a request.
_FRAMING_HEADERS = frozenset({"content-length", "transfer-encoding"})
_STATUS = re.compile(r"[1-9]xx|[1-9]\d\d(-[1-9]\d\d)?", re.ASCII)


def executor_checks(executor: ExecutorSpec) -> Iterator[Check]:
    """The checks of what runs; each raises ``INVALID_VALUE`` with the field as ``tasks.yaml`` names it."""
    if isinstance(executor, PythonSpec):
        return _python_checks(executor)
    if isinstance(executor, ContainerSpec):
        return container_checks(executor)
    return _shell_checks(executor) if isinstance(executor, ShellSpec) else _http_checks(executor)


def _python_checks(executor: PythonSpec) -> Iterator[Check]:
    if not executor.call:
        hint = "write it as package.module:function"
        yield refusing(invalid("a function is needed", "python.call", hint=hint))
    yield partial(validate_text, executor.call, field="python.call")
    yield partial(_validate_parameters, executor.parameters)


def _validate_parameters(parameters: Sequence[Parameter]) -> None:
    seen: set[str] = set()
    for parameter in parameters:
        if not parameter.name.isidentifier() or parameter.name in seen:
            raise invalid(f"{parameter.name!a} cannot be a parameter", "python.parameters")
        seen.add(parameter.name)


def _shell_checks(executor: ShellSpec) -> Iterator[Check]:
    yield partial(validate_command, executor.command, field="shell.command")
    yield from pair_checks(executor.env, "shell.env", names=VARIABLE_NAME)
    yield partial(refuse_nul, executor.directory, "shell.directory")


def _http_checks(executor: HttpSpec) -> Iterator[Check]:
    yield partial(_validate_method, executor.method)
    yield partial(_validate_address, executor.url)
    yield from _header_checks(executor.headers)
    yield partial(refuse_nul, executor.body, "http.body")
    yield partial(_validate_statuses, executor.success_status)
    for field, value_us in (
        ("http.connect_timeout", executor.connect_timeout_us),
        ("http.read_timeout", executor.read_timeout_us),
    ):
        yield partial(validate_duration, field, value_us, low_us=MILLISECOND, high_us=DURATION_MAX_US)


def _validate_method(method: str) -> None:
    if _METHOD.fullmatch(method) is None:
        raise invalid(f"{method!r} is not a method", "http.method", hint="write it as GET or POST")


def _validate_statuses(statuses: Sequence[str]) -> None:
    if not statuses:
        raise invalid("no status would ever be a success", "http.success_status")
    for status in statuses:
        if _STATUS.fullmatch(status) is None:
            raise invalid(f"{status!r} is no status", "http.success_status", hint="as 200, 2xx or 200-204")


def _validate_address(url: str) -> None:
    validate_text(url, field="http.url")
    if not url.startswith(("http://", "https://")) or any(map(str.isspace, url)):
        raise invalid(f"{shown_url(url)!r} is not an http:// or https:// address", "http.url")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise invalid(f"{shown_url(url)!r} is not an address{_why(error, url)}", "http.url") from None
    if not parts.hostname:
        raise invalid(f"{shown_url(url)!r} names no host", "http.url")
    if port == 0:
        raise invalid(f"{shown_url(url)!r} names port 0, which nobody can listen on", "http.url")


def _why(error: ValueError, url: str) -> str:
    """What the parser says; nothing where it quotes a part that may hold a password."""
    return "" if "@" in url else f": {error}"


def _header_checks(headers: Mapping[str, str]) -> Iterator[Check]:
    """Refuse headers that no request could be sent with."""
    yield from pair_checks(headers, "http.headers", names=_HEADER_NAME)
    for name, value in headers.items():
        yield partial(_validate_header, name, value)


def _validate_header(name: str, value: str) -> None:
    field = f"http.headers.{name}"
    if name.lower() in _FRAMING_HEADERS:
        raise invalid(
            "says where the request ends",
            field,
            hint="leave it out: it is made from the body that is sent",
        )
    if "\r" in value or "\n" in value:
        raise invalid("a header is one line", field)
    if not value.isascii():
        raise invalid("holds a character that is not ASCII", field, hint="encode it, as %C3%A9")
    if value != value.strip():
        raise invalid("begins or ends with white space", field)
