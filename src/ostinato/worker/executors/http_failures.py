"""What can go wrong with an HTTP task, as failures without secrets."""

from __future__ import annotations

import re
from collections.abc import Iterator

import httpx

from ostinato.core.definition import HttpSpec
from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.failure.retry_after import parse_retry_after
from ostinato.core.instants import format_duration
from ostinato.core.url_text import without_passwords

#: Headers whose values never appear in a message.
_SECRET_HEADER = re.compile(
    r"authorization|cookie|token|secret|key|password|signature|credential", re.IGNORECASE
)
#: Shorter values are not looked for in texts, as they would match anything.
_SECRET_LENGTH_MIN = 4
_MASK = "***"
#: How much of an error's body is kept as detail.
_DETAIL_CHARACTERS = 2_000
_USER_INFO = re.compile(r"(?<=://)[^/?#\s]*@")


class Secrets:
    """Removes what is secret in a request from any text about it (C163)."""

    def __init__(self, spec: HttpSpec) -> None:
        values = {value for name, value in spec.headers.items() if _SECRET_HEADER.search(name)}
        # "Bearer abc" is often echoed without its scheme.
        values |= {word for value in values for word in value.split()}
        user_info = _USER_INFO.search(spec.url)
        if user_info is not None:
            values |= {user_info[0].removesuffix("@"), *user_info[0].removesuffix("@").split(":", 1)[1:]}
        self._values = sorted((v for v in values if len(v) >= _SECRET_LENGTH_MIN), key=len, reverse=True)

    def mask(self, text: str) -> str:
        """`text` with user information of URLs and every secret value replaced."""
        for value in self._values:
            text = text.replace(value, _MASK)
        return without_passwords(_USER_INFO.sub(f"{_MASK}@", text))


def status_failure(
    spec: HttpSpec, response: httpx.Response, *, body: str, now_us: int, secrets: Secrets
) -> Failure:
    """Failure of a status that is none of the task's successes; carries the server's ``Retry-After``."""
    values = response.headers.get_list("Retry-After")
    # Two headers contradict each other, so neither counts (C063).
    retry_after_us = parse_retry_after(values[0], now_us) if len(values) == 1 else None
    phrase = f" {response.reason_phrase}" if response.reason_phrase else ""
    wanted = ", ".join(spec.success_status)
    message = f"{spec.method} {spec.url} answered {response.status_code}{phrase}; a success would be {wanted}"
    return safe_failure(
        f"HTTP_{response.status_code}",
        secrets.mask(message),
        retry_after_us=retry_after_us,
        detail=secrets.mask(body[:_DETAIL_CHARACTERS]),
    )


def request_failure(spec: HttpSpec, error: Exception, *, secrets: Secrets) -> Failure:
    """Failure of a request that got no answer."""
    code, category, words = _meaning(spec, error)
    inner = failure_from_exception(error)
    return safe_failure(
        code,
        secrets.mask(f"{spec.method} {spec.url}: {words}"),
        category=category,
        classes=inner.classes,
        detail=secrets.mask(str(error)),
    )


def _meaning(spec: HttpSpec, error: Exception) -> tuple[str, str | None, str]:
    """Code, category (None: the code's own) and words of a request's error."""
    if isinstance(error, httpx.ConnectTimeout):
        limit = format_duration(spec.connect_timeout_us)
        return "CONNECT_TIMEOUT", "transient", f"no connection within {limit}"
    if isinstance(error, httpx.ReadTimeout):
        limit = format_duration(spec.read_timeout_us)
        return "READ_TIMEOUT", "transient", f"nothing was received for {limit}"
    if isinstance(error, httpx.WriteTimeout):
        return "WRITE_TIMEOUT", "transient", "the server took no more of the request"
    if isinstance(error, httpx.TooManyRedirects):
        return "REDIRECT_LIMIT", None, "the server redirected too often"
    if isinstance(error, httpx.InvalidURL | httpx.UnsupportedProtocol):
        return "INVALID_URL", "permanent", "this is not an http or https URL"
    if isinstance(error, httpx.LocalProtocolError | httpx.DecodingError | UnicodeError | ValueError):
        permanent = not isinstance(error, httpx.DecodingError)
        return "HTTP_PROTOCOL", "permanent" if permanent else None, f"the exchange is not valid HTTP: {error}"
    below = _known_code_below(error)
    if below is not None:
        return below[0], None, below[1]
    if isinstance(error, httpx.RemoteProtocolError) and "without" not in str(error):
        return "HTTP_PROTOCOL", None, f"the answer is not valid HTTP: {error}"
    if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError | httpx.WriteError | httpx.CloseError):
        return "CONNECTION_RESET", None, "the server closed the connection midway"
    return "EXECUTOR_ERROR", None, f"{type(error).__name__}: {error}"


def _known_code_below(error: BaseException) -> tuple[str, str] | None:
    for below in _below(error):
        if isinstance(below, OSError):
            failure = failure_from_exception(below)
            if failure.code == "ECONNRESET":
                return "CONNECTION_RESET", "the server closed the connection midway"
            if failure.code != "PYTHON_ERROR":
                return failure.code, str(below)
    return None


def _below(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        current = waiting.pop()
        if current is None or id(current) in seen:
            continue
        seen.add(id(current))
        yield current
        if isinstance(current, BaseExceptionGroup):
            waiting.extend(reversed(current.exceptions))
        waiting.append(current.__cause__ or current.__context__)
