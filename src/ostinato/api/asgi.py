"""The few words of ASGI that are spoken here."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Protocol, TypeAlias

from ostinato.api.problem import PROBLEM_TYPE, Problem, encode_problem, headers_of

Message: TypeAlias = MutableMapping[str, Any]  # as ASGI has it
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
Asgi: TypeAlias = Callable[[Any, Any, Any], Awaitable[None]]


class Api(Protocol):
    """What answers requests below ``/api/``."""

    async def answer(self, scope: Message, receive: Receive, *, send: Send) -> None:
        """Answer one request, whatever it holds."""
        ...


#: Headers of every answer: nothing is kept, nothing is guessed, nothing of it runs in a browser.
SAFE_HEADERS = (
    (b"cache-control", b"no-store"),
    (b"x-content-type-options", b"nosniff"),
    (b"content-security-policy", b"default-src 'none'"),
)


def header(scope: Message, name: bytes) -> list[str]:
    """Values of a header, each line by itself."""
    return [value.decode("latin-1") for key, value in scope["headers"] if key == name]


async def answer(
    scope: Message,
    send: Send,
    *,
    status: int,
    body: bytes,
    content_type: str,
    headers: Mapping[str, str] | None = None,
) -> None:
    """Send a whole answer; of a HEAD request only its headers."""
    lines = [*SAFE_HEADERS]
    if content_type:
        lines.append((b"content-type", content_type.encode()))
    if status != 204:
        lines.append((b"content-length", str(len(body)).encode()))
    lines += [(name.encode(), value.encode()) for name, value in (headers or {}).items()]
    await send({"type": "http.response.start", "status": status, "headers": lines})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})


async def answer_problem(
    scope: Message, send: Send, *, problem: Problem, headers: Mapping[str, str] | None = None
) -> None:
    """Send a problem."""
    await answer(
        scope,
        send,
        status=problem.status,
        body=encode_problem(problem),
        content_type=PROBLEM_TYPE,
        headers={**headers_of(problem), **(headers or {})},
    )
