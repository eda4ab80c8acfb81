"""What the exceptions of HTTP client libraries say, read by name: none of the libraries is imported.

``raise_for_status()`` and the like become ``HTTP_<status>`` with the answer's ``Retry-After``; a broken or
slow connection becomes the code that Ostinato's own http executor would give, where no errno in the chain
says more.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from ostinato.core.failure.foreign import is_a, plain_int, plain_str
from ostinato.core.failure.foreign import read_attribute as _read
from ostinato.core.failure.retry_after import parse_retry_after
from ostinato.core.instants import parse_instant

#: Classes that carry an answer, and the attribute that is it; "" means the exception itself.
_ANSWER_OF = {
    "httpx.HTTPStatusError": "response",
    "requests.exceptions.HTTPError": "response",
    "aiohttp.client_exceptions.ClientResponseError": "",
    "urllib.error.HTTPError": "",
}
_STATUS_ATTRIBUTES = ("status_code", "status", "code")

#: Classes of failed connections. Some of them hide the socket's own error (``raise … from None``).
_CONNECTION_CODES = {
    "httpx.ConnectTimeout": "CONNECT_TIMEOUT",
    "httpx.PoolTimeout": "CONNECT_TIMEOUT",
    "httpx.ReadTimeout": "READ_TIMEOUT",
    "httpx.WriteTimeout": "WRITE_TIMEOUT",
    "httpx.ConnectError": "ECONNREFUSED",
    "httpx.NetworkError": "CONNECTION_RESET",
    "httpx.RemoteProtocolError": "CONNECTION_RESET",
    "requests.exceptions.ConnectTimeout": "CONNECT_TIMEOUT",
    "requests.exceptions.ReadTimeout": "READ_TIMEOUT",
    "requests.exceptions.ConnectionError": "CONNECTION_RESET",
    "requests.exceptions.ChunkedEncodingError": "CONNECTION_RESET",
    "aiohttp.client_exceptions.ServerTimeoutError": "READ_TIMEOUT",
    "aiohttp.client_exceptions.ServerDisconnectedError": "CONNECTION_RESET",
    "aiohttp.client_exceptions.ClientPayloadError": "CONNECTION_RESET",
    "urllib3.exceptions.ConnectTimeoutError": "CONNECT_TIMEOUT",
    "urllib3.exceptions.ReadTimeoutError": "READ_TIMEOUT",
    "urllib3.exceptions.ProtocolError": "CONNECTION_RESET",
}

#: A date is read as the time from here, since an exception does not say when "now" was; an earlier one is as
#: much in the past as this one.
_DATES_FROM_US = parse_instant("2026-01-01T00:00:00Z")


class HttpAnswer(NamedTuple):
    """An answer whose status was an error to the task."""

    code: str
    #: As in ``Failure``: a delay, or an instant; at most one of them.
    retry_after_us: int | None = None
    retry_at_us: int | None = None


def http_answer(error: BaseException, names: Sequence[str]) -> HttpAnswer | None:
    """The answer that `error` carries; `names` are the qualified names of its class and ancestors."""
    attribute = next((_ANSWER_OF[name] for name in names if name in _ANSWER_OF), None)
    if attribute is None:
        return None
    answer = _read(error, attribute) if attribute else error
    numbers = (plain_int(_read(answer, name)) for name in _STATUS_ATTRIBUTES)
    status = next((number for number in numbers if number is not None), None)
    if status is None or not 100 <= status <= 599:
        return None
    asked = _header(_read(answer, "headers"))
    if asked is None:
        return HttpAnswer(f"HTTP_{status}")
    value_us = parse_retry_after(asked, now_us=_DATES_FROM_US)
    if value_us is None or asked.strip().isdigit():
        return HttpAnswer(f"HTTP_{status}", retry_after_us=value_us)
    return HttpAnswer(f"HTTP_{status}", retry_at_us=_DATES_FROM_US + value_us)


def hidden_reason(error: BaseException, names: Sequence[str]) -> BaseException | None:
    """The socket's own error where a library keeps it in an attribute rather than as a cause."""
    reason = _read(error, "reason") if "urllib.error.URLError" in names else None
    return reason if is_a(reason, BaseException) else None


def connection_code(names: Sequence[str]) -> str | None:
    """Code of a failed connection, by the names of an exception's class and ancestors."""
    return next((_CONNECTION_CODES[name] for name in names if name in _CONNECTION_CODES), None)


def _header(headers: object) -> str | None:
    get = _read(headers, "get")
    if not callable(get):
        return None
    try:
        value = get("Retry-After")
    except BaseException:  # noqa: BLE001 - somebody else's mapping may raise anything; then it says nothing
        return None
    return plain_str(value)
