"""Exceptions of HTTP clients become the codes that the http executor gives."""

from __future__ import annotations

import email.message
import urllib.error

import httpx
import pytest

from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.instants import SECOND, parse_instant

REQUEST = httpx.Request("GET", "http://localhost/")


def status_error(status: int, **headers: str) -> httpx.HTTPStatusError:
    response = httpx.Response(status, headers=headers, request=REQUEST)
    with pytest.raises(httpx.HTTPStatusError) as caught:
        response.raise_for_status()
    return caught.value


@pytest.mark.parametrize(
    ("status", "category"), [(404, "permanent"), (429, "transient"), (500, "transient"), (503, "transient")]
)
def test_raise_for_status_gives_the_status_as_code(status: int, category: str) -> None:
    failure = failure_from_exception(status_error(status))
    assert (failure.code, failure.category) == (f"HTTP_{status}", category)


def test_a_retry_after_in_seconds_is_carried() -> None:
    failure = failure_from_exception(status_error(503, **{"Retry-After": "7"}))
    assert (failure.retry_after_us, failure.retry_at_us) == (7 * SECOND, None)


@pytest.mark.parametrize(
    "date", ["Wed, 21 Oct 2026 07:28:00 GMT", "Wednesday, 21-Oct-26 07:28:00 GMT", "Wed Oct 21 07:28:00 2026"]
)
def test_a_retry_after_as_a_date_is_carried_as_an_instant(date: str) -> None:
    failure = failure_from_exception(status_error(503, **{"Retry-After": date}))
    assert (failure.retry_after_us, failure.retry_at_us) == (None, parse_instant("2026-10-21T07:28:00Z"))


@pytest.mark.parametrize("junk", ["-5", "1.5", "abc", ""])
def test_c063_a_junk_retry_after_is_ignored(junk: str) -> None:
    failure = failure_from_exception(status_error(503, **{"Retry-After": junk}))
    assert (failure.retry_after_us, failure.retry_at_us) == (None, None)


def test_the_status_is_found_behind_an_explicit_cause() -> None:
    wrapped = RuntimeError("prices are not to be had")
    wrapped.__cause__ = status_error(410)
    assert failure_from_exception(wrapped).code == "HTTP_410"


def test_urllib_carries_its_status_too() -> None:
    headers = email.message.Message()
    headers["Retry-After"] = "3"
    failure = failure_from_exception(urllib.error.HTTPError("http://localhost", 503, "busy", headers, None))
    assert (failure.code, failure.retry_after_us) == ("HTTP_503", 3 * SECOND)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (httpx.ConnectTimeout("slow"), "CONNECT_TIMEOUT"),
        (httpx.ReadTimeout("slow"), "READ_TIMEOUT"),
        (httpx.ReadError(""), "CONNECTION_RESET"),
        (httpx.RemoteProtocolError("server disconnected"), "CONNECTION_RESET"),
        (httpx.ConnectError("refused"), "ECONNREFUSED"),
    ],
)
def test_a_broken_connection_has_a_code(error: httpx.TransportError, code: str) -> None:
    failure = failure_from_exception(error)
    assert (failure.code, failure.category) == (code, "transient")


def test_urllib_keeps_the_socket_s_error_as_its_reason() -> None:
    refused = urllib.error.URLError(ConnectionRefusedError(111, "Connection refused"))
    assert failure_from_exception(refused).code == "ECONNREFUSED"
    assert failure_from_exception(urllib.error.URLError("unknown url type: x")).code == "PYTHON_ERROR"


def test_an_errno_in_the_chain_says_more_than_the_library() -> None:
    error = httpx.ConnectError("unreachable")
    error.__cause__ = OSError(113, "No route to host")
    assert failure_from_exception(error).code == "EHOSTUNREACH"
