"""The Docker Engine API over its UNIX socket, as far as the executor needs it; Podman's socket answers too.

Every call has a deadline. Two things can go wrong: the engine is *away* (nobody listens, no answer in time,
an answer that breaks off), which says nothing about what it has done; or it *refuses*, in its own words.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar
from urllib.parse import quote

import httpx
import msgspec

from ostinato.clock import Clock
from ostinato.core.failure.text import safe_text
from ostinato.core.instants import SECOND
from ostinato.worker.engine.errors import EngineAway, EngineRefused, PullFailed
from ostinato.worker.engine.limits import EngineLimits
from ostinato.worker.engine.request import split_image
from ostinato.worker.engine.state import ContainerState, read_state
from ostinato.worker.engine.version import negotiated
from ostinato.worker.waiting import within

Value = TypeVar("Value")

#: Of a line of progress.
_LINE_BYTES_MAX = 64 * 1024
_MESSAGE_LENGTH_MAX = 2_000


class Engine:
    """One engine. `look` comes first: it learns the version that both speak."""

    def __init__(self, socket: str, *, clock: Clock, limits: EngineLimits) -> None:
        self.socket = socket
        self.version = negotiated("")
        self.limits = limits
        self._clock = clock
        self._client = httpx.AsyncClient(
            # A connection each: one that the engine has closed meanwhile would fail the next call.
            transport=httpx.AsyncHTTPTransport(
                uds=socket, limits=httpx.Limits(max_connections=None, max_keepalive_connections=0)
            ),
            base_url="http://engine",
            timeout=None,
            trust_env=False,
        )

    async def close(self) -> None:
        """Give the connections back."""
        await self._client.aclose()

    async def look(self, *, limit_us: int) -> None:
        """Ask for a sign of life. Raises ``EngineAway``, and ``EngineRefused`` for what is no engine."""
        response = await self._bounded(self._send("GET", "/_ping"), limit_us)
        _refuse(response)
        self.version = negotiated(response.headers.get("Api-Version", ""))

    # ── images ────────────────────────────────────────────────────────────────────────────────────────

    async def has_image(self, image: str) -> bool:
        try:
            await self._call("GET", f"/images/{quote(image, safe='/:@')}/json")
        except EngineRefused as error:
            if error.status == 404:
                return False
            raise
        return True

    async def pull(self, image: str) -> None:
        """Fetch an image. Raises ``PullFailed``: also an answer 200 may end with an error."""
        name, tag = split_image(image)
        pulling = self._stream("POST", "/images/create", params={"fromImage": name, "tag": tag})
        rest = b""
        try:
            while True:
                data = await self._bounded(_next(pulling), self.limits.pull_silence_us)
                lines = (rest + data).split(b"\n")
                rest = lines.pop()[-_LINE_BYTES_MAX:]
                for line in [*lines, *([] if data else [rest])]:
                    _raise_pull_error(line)
                if not data:
                    return
        except EngineRefused as error:
            raise PullFailed(error.message) from None
        finally:
            await pulling.aclose()

    # ── containers ────────────────────────────────────────────────────────────────────────────────────

    async def create(self, name: str, body: dict[str, Any]) -> str:
        """Make a container; its id."""
        answer = await self._call(
            "POST", "/containers/create", params={"name": name}, json=body, limit_us=self.limits.act_us
        )
        return str(_member(answer, "Id"))

    async def unpack(self, container: str, archive: bytes) -> None:
        """Put the files of a tar file into a container."""
        await self._call(
            "PUT",
            f"/containers/{container}/archive",
            params={"path": "/"},
            content=archive,
            limit_us=self.limits.act_us,
        )

    async def start(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/start", limit_us=self.limits.act_us)

    async def inspect(self, container: str) -> ContainerState:
        answer = await self._call("GET", f"/containers/{container}/json")
        try:
            return read_state(msgspec.json.decode(answer))
        except ValueError as error:
            raise EngineAway(f"its answer cannot be read: {error}") from error

    async def wait(self, container: str) -> None:
        """Return when it has ended, or earlier: whether it has, `inspect` tells. Raises as any call."""
        await self._call(
            "POST",
            f"/containers/{container}/wait",
            params={"condition": "not-running"},
            limit_us=self.limits.look_us,
        )

    def output(self, container: str) -> AsyncGenerator[bytes, None]:
        """All that it writes, from its start until it has ended, in frames."""
        return self._stream(
            "GET", f"/containers/{container}/logs", params={"follow": "1", "stdout": "1", "stderr": "1"}
        )

    async def stop(self, container: str, *, grace_s: int) -> None:
        """Send the image's stop signal, and SIGKILL after the grace; returns when it has ended."""
        await self._call(
            "POST",
            f"/containers/{container}/stop",
            params={"t": str(grace_s)},
            limit_us=self.limits.act_us + grace_s * SECOND,
        )

    async def kill(self, container: str) -> None:
        await self._call("POST", f"/containers/{container}/kill", limit_us=self.limits.act_us)

    async def remove(self, container: str) -> None:
        """Kill it if it runs, and remove it with its anonymous volumes. One that is gone is fine."""
        try:
            await self._call(
                "DELETE",
                f"/containers/{container}",
                params={"force": "1", "v": "1"},
                limit_us=self.limits.act_us,
            )
        except EngineRefused as error:
            if error.status != 404:
                raise

    # ── requests ──────────────────────────────────────────────────────────────────────────────────────

    async def _call(self, method: str, path: str, *, limit_us: int | None = None, **said: Any) -> bytes:
        response = await self._bounded(
            self._send(method, f"/v{self.version}{path}", **said),
            self.limits.call_us if limit_us is None else limit_us,
        )
        _refuse(response)
        return response.content

    async def _send(self, method: str, path: str, **said: Any) -> httpx.Response:
        return await self._client.request(method, path, **said)

    async def _stream(self, method: str, path: str, *, params: dict[str, str]) -> AsyncGenerator[bytes, None]:
        try:
            async with self._client.stream(method, f"/v{self.version}{path}", params=params) as response:
                if response.is_error:
                    await response.aread()
                    _refuse(response)
                async for data in response.aiter_raw():
                    yield data
        except (httpx.HTTPError, OSError) as error:
            raise EngineAway(_why(error)) from error

    async def _bounded(self, work: Coroutine[Any, Any, Value], limit_us: int) -> Value:
        try:
            return await within(self._clock, work, limit_us=limit_us)
        except TimeoutError:
            raise EngineAway(f"no answer in {limit_us / SECOND:g} s") from None
        except (httpx.HTTPError, OSError) as error:
            raise EngineAway(_why(error)) from error


async def _next(stream: AsyncGenerator[bytes, None]) -> bytes:
    """The next piece; empty at the end."""
    return await anext(stream, b"")


def _why(error: Exception) -> str:
    return str(error) or type(error).__name__


def _refuse(response: httpx.Response) -> None:
    """Raise ``EngineRefused`` if that is what it says; 304 says that it is so already."""
    if response.is_success or response.status_code == 304:
        return
    raise EngineRefused(response.status_code, _message(response.content) or response.reason_phrase)


def _message(content: bytes) -> str:
    try:
        said = msgspec.json.decode(content)
    except msgspec.DecodeError:
        return safe_text(content[:_MESSAGE_LENGTH_MAX].decode("utf-8", "replace")).strip()
    message = said.get("message") if isinstance(said, dict) else None
    return safe_text(str(message or ""))[:_MESSAGE_LENGTH_MAX].strip()


def _member(answer: bytes, name: str) -> object:
    try:
        said = msgspec.json.decode(answer)
    except msgspec.DecodeError as error:
        raise EngineAway(f"its answer cannot be read: {error}") from error
    if not isinstance(said, dict) or name not in said:
        raise EngineAway(f"its answer has no {name}")
    return said[name]


def _raise_pull_error(line: bytes) -> None:
    """Raise ``PullFailed`` if a line of the progress is its end in failure."""
    try:
        said = msgspec.json.decode(line.strip() or b"null")
    except msgspec.DecodeError:
        return  # progress is for people
    if not isinstance(said, dict):
        return
    detail = said.get("errorDetail")
    message = detail.get("message") if isinstance(detail, dict) else None
    if message or said.get("error"):
        raise PullFailed(safe_text(str(message or said["error"]))[:_MESSAGE_LENGTH_MAX])
