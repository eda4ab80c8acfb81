"""The door of the API: who may ask, how much, how long and how many at once, before and around each request.

Pure ASGI around the app, so that a refused request costs nothing beyond its headers:

* **Who.** There are no tokens yet, so only this machine is answered (see ``senders``).
* **How much.** A body is JSON, not compressed, within its limit and complete in time; it is read here, once.
* **How long.** A request that is not answered in time ends with 503; one whose client has gone ends at once.
* **How many.** The node's loop is the scheduler's: a bounded number of requests is under way at once.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable

import msgspec

from ostinato.api.addresses import Addresses
from ostinato.api.asgi import SAFE_HEADERS, Asgi, Message, Receive, Send, answer, answer_problem, header
from ostinato.api.problem import log_bug, problem_of
from ostinato.api.senders import require_own_sender
from ostinato.errors import OstinatoError, UnavailableError, UserError

MIB = 1_048_576
#: Documents, and many submissions at once.
_LARGE_BODIES = re.compile(r"/api/v1/(?:apply|namespaces/[^/]+/instances)", re.ASCII)
#: Longer than any address with names of the length that is allowed, percent-encoded or not.
_PATH_LENGTH_MAX = 4_096
_UTF8 = r"\s*(;\s*charset\s*=\s*\"?utf-8\"?\s*)?"
_JSON_TYPE = re.compile(rf"application/json{_UTF8}", re.ASCII | re.IGNORECASE)
_YAML_TYPE = re.compile(rf"(?:application|text)/(?:x-)?yaml{_UTF8}", re.ASCII | re.IGNORECASE)
#: Where a file of tasks may come as it is.
_YAML_PATH = "/api/v1/apply"
#: What is read and thrown away to keep a connection.
_UNREAD_BYTES_MAX = 65_536
_CLOSE = {"connection": "close"}
_WITH_BODY = frozenset({"POST", "PUT"})


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What one node gives to its API."""

    #: Longest body; of documents and of many submissions at once the larger.
    body_bytes_max: int = MIB
    large_body_bytes_max: int = 4 * MIB
    requests_at_once_max: int = 64
    #: From the headers to the end of the body.
    body_seconds_max: float = 10
    #: From there to the answer; an owner's answer is waited for 10 s, and a database call ends earlier.
    answer_seconds_max: float = 20
    #: Longest time in which a reader of a long answer may take nothing.
    stall_seconds_max: float = 30


class Guard:
    """`app` behind the door."""

    def __init__(self, app: Asgi, *, addresses: Addresses, limits: Limits) -> None:
        self._app = app
        self._addresses = addresses
        self._limits = limits
        self._under_way_count = 0

    async def answer(self, scope: Message, receive: Receive, *, send: Send) -> None:
        """Answer one request: with what the app says, or with why not."""
        try:
            require_own_sender(scope)
            allowed = self._methods(str(scope["path"]))
            if scope["method"] == "OPTIONS":
                await answer(
                    scope, send, status=204, body=b"", content_type="", headers={"allow": _allow(allowed)}
                )
                return
            if scope["method"] not in allowed:
                await self._refuse_method(scope, send, allowed=allowed)
                return
            await self._in_turn(scope, receive, send)
        except OstinatoError as error:
            await answer_problem(scope, send, problem=problem_of(error), headers=_after_refusal(scope))

    def _methods(self, path: str) -> frozenset[str]:
        if len(path) > _PATH_LENGTH_MAX:
            raise UserError("ADDRESS_NOT_FOUND", f"the address has {len(path)} characters, which none has")
        methods = self._addresses.find(path).methods
        return methods | {"OPTIONS"} | ({"HEAD"} if "GET" in methods else frozenset())

    async def _refuse_method(self, scope: Message, send: Send, *, allowed: frozenset[str]) -> None:
        error = UserError(
            "METHOD_NOT_ALLOWED",
            f"{str(scope['method'])[:20]!a} is not answered here",
            hint=f"allowed are {_allow(allowed)}",
        )
        headers = {**_after_refusal(scope), "allow": _allow(allowed)}
        await answer_problem(scope, send, problem=problem_of(error), headers=headers)

    async def _in_turn(self, scope: Message, receive: Receive, send: Send) -> None:
        if self._under_way_count >= self._limits.requests_at_once_max:
            raise UnavailableError(
                "OVERLOADED",
                f"{self._under_way_count} requests are under way, and no more are answered at once",
                hint="repeat it a little later",
            )
        self._under_way_count += 1
        try:
            try:
                body = await self._body(scope, receive)
            except UserError as error:
                await answer_problem(scope, send, problem=problem_of(error), headers=_CLOSE)
                return
            if body is not None:
                await self._answered(scope, body, receive, send=send)
        finally:
            self._under_way_count -= 1

    # ── the body ─────────────────────────────────────────────────────────────────────────────────────

    async def _body(self, scope: Message, receive: Receive) -> bytes | None:
        """The whole body; None if the client has gone. Raises ``MEDIA_TYPE``, ``BODY_TOO_LARGE`` and more."""
        if scope["method"] not in _WITH_BODY:
            return b""
        _require_plain(scope)
        if not (scope["path"] == _YAML_PATH and is_yaml(scope)):
            require_json(scope)
        limit_bytes = self._limits.body_bytes_max
        if _LARGE_BODIES.fullmatch(str(scope["path"])):
            limit_bytes = self._limits.large_body_bytes_max
        announced = header(scope, b"content-length")
        if announced and announced[0].isdigit() and int(announced[0][:20]) > limit_bytes:
            raise _too_large(limit_bytes)
        try:
            async with asyncio.timeout(self._limits.body_seconds_max):
                body = await _read(receive, limit_bytes=limit_bytes)
        except TimeoutError:
            raise UserError(
                "INVALID_DOCUMENT",
                f"the body was not complete within {self._limits.body_seconds_max:g} s",
            ) from None
        if body and not header(scope, b"content-type"):
            raise _media_type("the body has no type")
        return body

    # ── the answer ───────────────────────────────────────────────────────────────────────────────────

    async def _answered(self, scope: Message, body: bytes, receive: Receive, *, send: Send) -> None:
        """Let the app answer, until the client has gone or the time is over."""
        handling = asyncio.create_task(self._in_time(scope, body, send), name="api-request")
        leaving = asyncio.create_task(_until_gone(receive), name="api-client")
        try:
            await asyncio.wait({handling, leaving}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            abandoned = not handling.done()
            handling.cancel()
            leaving.cancel()
            await asyncio.wait({handling, leaving})
        if not abandoned:
            handling.result()

    async def _in_time(self, scope: Message, body: bytes, send: Send) -> None:
        started = False
        loop = asyncio.get_running_loop()

        async def send_on(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message = {**message, "headers": [*message["headers"], *SAFE_HEADERS]}
            elif scope["method"] == "HEAD":
                message = {**message, "body": b"", "more_body": False}
            time_limit.reschedule(loop.time() + self._limits.stall_seconds_max)
            await send(message)

        # Litestar knows no HEAD: it is a GET whose answer has no body.
        inner = {**scope, "method": "GET"} if scope["method"] == "HEAD" else scope
        try:
            async with asyncio.timeout(self._limits.answer_seconds_max) as time_limit:
                await self._app(inner, _replay(body), send_on)
        except TimeoutError:
            if started:
                return  # the server closes a connection whose answer is incomplete
            await answer_problem(scope, send, problem=problem_of(self._not_in_time()))
        except Exception as error:  # noqa: BLE001 - answered as a bug of ours, and said in the log
            log_bug(error, method=scope["method"], path=scope["path"])
            if not started:
                await answer_problem(scope, send, problem=problem_of(error))

    def _not_in_time(self) -> UnavailableError:
        return UnavailableError(
            "DATABASE_UNAVAILABLE",
            f"the database did not answer within {self._limits.answer_seconds_max:g} s",
            hint="whether something was written is not known; repeating with the same key is safe",
        )


# ── the body's type ──────────────────────────────────────────────────────────────────────────────────────


def is_yaml(scope: Message) -> bool:
    """Whether the body says that it is YAML; the browser asks before a foreign page may send that."""
    types = header(scope, b"content-type")
    return len(types) == 1 and _YAML_TYPE.fullmatch(types[0].strip()) is not None


def require_json(scope: Message) -> None:
    """Raise ``MEDIA_TYPE`` for a body that says it is not JSON."""
    types = header(scope, b"content-type")
    if len(types) > 1 or (types and _JSON_TYPE.fullmatch(types[0].strip()) is None):
        raise _media_type(f"the body is {', '.join(types)[:100]!a}")


def _require_plain(scope: Message) -> None:
    """Raise ``MEDIA_TYPE`` for a body that is compressed."""
    for coding in header(scope, b"content-encoding"):
        if coding.strip().lower() != "identity":
            raise _media_type(f"the body is encoded as {coding[:100]!a}", field="content-encoding")


async def _read(receive: Receive, *, limit_bytes: int) -> bytes | None:
    pieces: list[bytes] = []
    size_bytes = 0
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        piece: bytes = message.get("body", b"")
        size_bytes += len(piece)
        if size_bytes > limit_bytes:
            raise _too_large(limit_bytes)
        pieces.append(piece)
        if not message.get("more_body", False):
            return b"".join(pieces)


def _replay(body: bytes) -> Callable[[], asyncio.Future[Message]]:
    """A `receive` that gives the body once and then nothing, ever: the guard watches the connection."""
    loop = asyncio.get_running_loop()
    given = False

    def receive() -> asyncio.Future[Message]:
        nonlocal given
        future: asyncio.Future[Message] = loop.create_future()
        if not given:
            given = True
            future.set_result({"type": "http.request", "body": body, "more_body": False})
        return future

    return receive


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _after_refusal(scope: Message) -> dict[str, str]:
    """Close a connection on which a long body would follow that nobody wants."""
    lengths = header(scope, b"content-length")
    is_long = bool(lengths) and not (lengths[0].isdigit() and int(lengths[0][:20]) <= _UNREAD_BYTES_MAX)
    return _CLOSE if is_long or header(scope, b"transfer-encoding") else {}


def _allow(methods: frozenset[str]) -> str:
    return ", ".join(sorted(methods))


def _media_type(message: str, *, field: str = "content-type") -> UserError:
    return UserError("MEDIA_TYPE", message, field=field, hint="send JSON as application/json, in UTF-8")


def _too_large(limit_bytes: int) -> UserError:
    return UserError(
        "BODY_TOO_LARGE", f"the body is over {limit_bytes:,} bytes", hint="send it in several requests"
    )
