"""The requests of http tasks, and what the answers mean; the one part of the executor that needs httpx."""

from __future__ import annotations

from collections.abc import Sequence
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx
import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import HttpSpec
from ostinato.core.failure.failure import Failure
from ostinato.core.failure.text import safe_text
from ostinato.core.payload import RESULT_BYTES_MAX
from ostinato.worker.executors.http_body import BODY_BYTES_MAX, Body, decoded_body, text_of
from ostinato.worker.executors.http_failures import Secrets, request_failure, status_failure
from ostinato.worker.executors.protocol import AttemptStart

_METHODS_WITH_BODY = frozenset({"POST", "PUT", "PATCH"})
_EMPTY_PAYLOADS = (b"", b"{}", b"null")


class HttpExchanges:
    """Sends requests over connections that they share."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._client: httpx.AsyncClient | None = None

    async def close(self) -> None:
        """Give the connections back; idempotent."""
        if self._client is not None:
            await self._client.aclose()
            self._client = None

    async def exchange(self, start: AttemptStart, spec: HttpSpec) -> tuple[bytes | None, Failure | None]:
        """Send the request of an attempt: its result, or its failure."""
        secrets = Secrets(spec)
        timeout = httpx.Timeout(
            None,
            connect=spec.connect_timeout_us / 1e6,
            read=spec.read_timeout_us / 1e6,
            write=spec.read_timeout_us / 1e6,
        )
        headers, content = _request_parts(start, spec)
        try:
            async with self._http().stream(
                spec.method,
                spec.url,
                headers=headers,
                content=content,
                timeout=timeout,
                follow_redirects=spec.follow_redirects,
            ) as response:
                body = await _read_body(response)
        except (httpx.HTTPError, httpx.InvalidURL, httpx.CookieConflict, OSError, ValueError) as error:
            return None, request_failure(spec, error, secrets=secrets)
        text = safe_text(text_of(body.content, content_type=response.headers.get("Content-Type", "")))
        if not is_success(response.status_code, spec.success_status):
            now_us = self._clock.wall_us()
            shown = text if body.problem is None else f"[{body.problem}]"
            return None, status_failure(spec, response, body=shown, now_us=now_us, secrets=secrets)
        return _result(response, body, text=text), None

    def _http(self) -> httpx.AsyncClient:
        if self._client is None:
            # Made on first use, as loading the certificates takes time. Cookies are refused: one attempt's
            # session must not become the next one's.
            self._client = httpx.AsyncClient(
                limits=httpx.Limits(max_connections=None, max_keepalive_connections=100),
                cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            )
        return self._client


def is_success(status: int, rules: Sequence[str]) -> bool:
    """Whether a status is on a list of ``200``, ``2xx`` and ``200-204``."""
    return any(_rule_allows(rule.strip().lower(), status) for rule in rules)


def _rule_allows(rule: str, status: int) -> bool:
    first, separator, last = rule.partition("-")
    if separator:
        return first.isdecimal() and last.isdecimal() and int(first) <= status <= int(last)
    if rule.endswith("xx"):
        return rule[:-2] == str(status // 100)
    return rule == str(status)


def _request_parts(start: AttemptStart, spec: HttpSpec) -> tuple[dict[str, str], bytes | None]:
    assignment = start.assignment
    headers = {
        "User-Agent": "Ostinato",
        "Accept-Encoding": "identity",
        "Ostinato-Instance": assignment.instance_id,
        "Ostinato-Attempt": str(assignment.attempt),
        "Ostinato-Attempt-Id": assignment.attempt_id,
        "Idempotency-Key": f"{assignment.instance_id}-{assignment.generation}",
    }
    body: bytes | None = spec.body.encode("utf-8", "surrogatepass") if spec.body else None
    if body is None and spec.method.upper() in _METHODS_WITH_BODY:
        if assignment.payload not in _EMPTY_PAYLOADS:
            body = assignment.payload
            headers["Content-Type"] = "application/json"
        else:
            body = b""
    own = {name.lower() for name in spec.headers}
    return {name: value for name, value in headers.items() if name.lower() not in own} | spec.headers, body


async def _read_body(response: httpx.Response) -> Body:
    parts: list[bytes] = []
    size_bytes = 0
    # Raw: httpx would decompress a part whole, whatever that makes of it.
    async for part in response.aiter_raw():
        parts.append(part)
        size_bytes += len(part)
        if size_bytes > BODY_BYTES_MAX:
            break
    encodings = response.headers.get_list("Content-Encoding", split_commas=True)
    return decoded_body(b"".join(parts), encodings=encodings)


def _result(response: httpx.Response, body: Body, *, text: str) -> bytes:
    status = response.status_code
    media_type = response.headers.get("Content-Type", "").partition(";")[0].strip().lower()
    if body.is_whole and (media_type == "application/json" or media_type.endswith("+json")):
        encoded = _result_of_json(status, body.content)
        if encoded is not None:
            return encoded
    is_whole = body.is_whole
    while True:
        shown: dict[str, object] = {"status": status, "body": text}
        if body.problem is not None:
            shown["undecoded"] = body.problem
        elif not is_whole:
            shown["truncated"] = True
        encoded = msgspec.json.encode(shown)
        if len(encoded) <= RESULT_BYTES_MAX:
            return encoded
        # Escapes make JSON of a text longer than the text.
        text, is_whole = text[: len(text) * 3 // 4], False


def _result_of_json(status: int, content: bytes) -> bytes | None:
    """The body as JSON, or None if it is not valid JSON or too large with what stands around it."""
    try:
        msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    encoded = msgspec.json.encode({"status": status, "body": msgspec.Raw(content)})
    return encoded if len(encoded) <= RESULT_BYTES_MAX else None
