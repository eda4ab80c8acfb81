"""Requests to the API: kept-alive connections, repeated requests, and answers understood or named.

Everything that is sent here may be sent twice: questions change nothing, an apply of equal definitions makes
no new version, a submission carries the ids of its instances (C141), and a second cancel is answered as the
first.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from email.utils import parsedate_to_datetime
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx
import msgspec

from ostinato.clock import Clock
from ostinato.core.instants import SECOND, format_duration, from_datetime
from ostinato.errors import UnavailableError, UserError
from ostinato.sdk.gateway.address import SaidUrl, base_url, is_on_this_machine
from ostinato.sdk.gateway.problems import error_of, read_problem

#: A request is sent at most so often.
TRIES = 3
#: Longest ``Retry-After`` that is waited for; a longer one is for the caller to decide on.
RETRY_AFTER_US_MAX = 5 * SECOND
#: The ``Date`` of an answer has whole seconds, so that less than this is no difference of clocks.
_SKEW_US_MIN = 2 * SECOND
#: Less than the five seconds after which an idle connection is closed at the other end (uvicorn).
_KEEPALIVE_SECONDS = 4
_CONNECTIONS_MAX = 20
_SHOWN_LENGTH_MAX = 200
_CERTIFICATE_VARIABLES = ("SSL_CERT_FILE", "SSL_CERT_DIR")
_JSON = "application/json"
_PROBLEM_JSON = "application/problem+json"


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How long is waited, in microseconds."""

    connect_us: int = 5 * SECOND
    #: For the next piece of an answer; a cancel is answered within ten seconds.
    read_us: int = 30 * SECOND
    #: For an answer whole.
    whole_us: int = 120 * SECOND


class _Request(msgspec.Struct, frozen=True):
    method: str
    url: str
    content: bytes | None = None
    headers: dict[str, str] = {}
    lost: str = ""
    is_recorded: bool = False


class Transport:
    """One HTTP client on the running loop. Raises ``SCHEDULER_UNREACHABLE`` and what answers refuse with."""

    def __init__(self, said: SaidUrl, *, clock: Clock, patience: Patience | None = None) -> None:
        self._said = said
        self._base = base_url(said)
        self._clock = clock
        self._patience = Patience() if patience is None else patience
        self._skew_us = 0
        self._client = httpx.AsyncClient(
            timeout=httpx.Timeout(
                self._patience.read_us / SECOND, connect=self._patience.connect_us / SECOND, pool=None
            ),
            limits=httpx.Limits(
                max_connections=_CONNECTIONS_MAX,
                max_keepalive_connections=_CONNECTIONS_MAX,
                keepalive_expiry=_KEEPALIVE_SECONDS,
            ),
            # A proxy of the environment is for other machines; its certificates (SSL_CERT_FILE) are for all.
            trust_env=not is_on_this_machine(self._base),
            verify=_trusted(self._base),
            follow_redirects=False,
            cookies=CookieJar(DefaultCookiePolicy(allowed_domains=[])),
            headers={"accept": f"{_JSON}, {_PROBLEM_JSON}", "user-agent": "ostinato-sdk"},
        )

    def now_us(self) -> int:
        """The other side's time, as far as its answers have told it."""
        return self._clock.wall_us() + self._skew_us

    async def close(self) -> None:
        """Close the connections."""
        await self._client.aclose()

    async def get(self, path: str) -> bytes:
        """JSON at `path`, which starts with a slash and is quoted."""
        return await self._ask(_Request("GET", self._base + path))

    async def post(self, path: str, body: object, *, lost: str = "", asked_by: str | None = None) -> bytes:
        """Answer to `body`. `lost` says what is not known where no answer came.

        `asked_by` is who asks an owner for something. Such a request is recorded before it is answered, so
        that a refusal for the moment (503) does not call for a second one.
        """
        headers = {"content-type": _JSON} | ({} if asked_by is None else {"x-ostinato-by": asked_by})
        content = msgspec.json.encode(body)
        request = _Request(
            "POST", self._base + path, content, headers=headers, lost=lost, is_recorded=asked_by is not None
        )
        return await self._ask(request)

    async def _ask(self, request: _Request) -> bytes:
        tries_left = TRIES
        was_sent = False
        while True:
            tries_left -= 1
            try:
                response = await self._send(request)
            except (httpx.ConnectError, httpx.ConnectTimeout, httpx.ProxyError) as error:
                raise self._unreachable(error, request.lost if was_sent else "") from None
            except httpx.TimeoutException:
                raise self._silent(self._patience.read_us, request.lost) from None
            except TimeoutError:
                raise self._silent(self._patience.whole_us, request.lost) from None
            except (httpx.NetworkError, httpx.RemoteProtocolError) as error:
                # Most often a connection that had been idle too long. What it carried may have arrived.
                was_sent = True
                if not tries_left:
                    raise self._unreachable(error, request.lost) from None
                continue
            except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError) as error:
                raise self._foreign(f"cannot be asked: {_reason(error)}") from None
            self._note_time(response)
            wait_us = None if request.is_recorded else _retry_after_us(response)
            if not tries_left or wait_us is None:
                return self._read(response)
            await self._clock.sleep_until_us(self._clock.boot_us() + wait_us)

    async def _send(self, request: _Request) -> httpx.Response:
        async with asyncio.timeout(self._patience.whole_us / SECOND):
            return await self._client.request(
                request.method, request.url, content=request.content, headers=request.headers
            )

    def _read(self, response: httpx.Response) -> bytes:
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        status = response.status_code
        if kind == _PROBLEM_JSON and (problem := read_problem(response.content)) is not None:
            raise error_of(problem, status=status)
        if status in (200, 201) and kind == _JSON:
            return response.content
        if response.is_redirect:
            raise self._foreign(f"answers with a redirect ({status}) to {_shown(_target(response))}")
        what = _shown(f"{status} {response.reason_phrase}".strip())
        if status >= 500:
            raise self._unavailable(
                f"{self._base} answers {what}, not as Ostinato does", "it may be starting"
            )
        raise self._foreign(
            f"answers {what} ({_shown(kind) or 'no content type'}), not as Ostinato's API does"
        )

    def unreadable(self, why: object) -> UserError:
        """The error for an answer that is JSON, but not what was asked for."""
        return self._foreign(f"answers what cannot be understood: {_shown(str(why))}")

    def _foreign(self, what: str) -> UserError:
        hint = "give the address of your scheduler (--bind), or the URL of its database"
        return UserError(
            "INVALID_SETTING",
            f"{self._base} {what}",
            subject=self._base,
            field=self._said.source,
            hint=hint,
        )

    def _unreachable(self, error: Exception, lost: str) -> UnavailableError:
        return self._unavailable(f"no scheduler answers at {self._base}: {_reason(error)}", lost)

    def _silent(self, waited_us: int, lost: str) -> UnavailableError:
        waited = format_duration(waited_us)
        return self._unavailable(f"the scheduler at {self._base} has not answered within {waited}", lost)

    def _unavailable(self, message: str, lost: str) -> UnavailableError:
        if self._said.source:
            hint = f"start it there, or correct {self._said.source}"
        else:
            hint = (
                "start `ostinato dev` or `ostinato scheduler`, or set OSTINATO_URL (or `url=` of the app) to "
                "your scheduler's address or its database's URL"
            )
        return UnavailableError(
            "SCHEDULER_UNREACHABLE",
            message,
            subject=self._base,
            field=self._said.source,
            hint="; ".join(part for part in (lost, hint) if part),
        )

    def _note_time(self, response: httpx.Response) -> None:
        try:
            told_us = from_datetime(parsedate_to_datetime(response.headers["date"]))
        except (KeyError, ValueError, TypeError, UserError):
            return
        skew_us = told_us + SECOND // 2 - self._clock.wall_us()
        self._skew_us = skew_us if abs(skew_us) >= _SKEW_US_MIN else 0


def _trusted(base: str) -> ssl.SSLContext:
    """Certificates that an address is checked with. Raises ``INVALID_SETTING`` if they cannot be read."""
    if not base.startswith("https:"):
        # Nothing to check, and so nothing to load: this trusts nobody.
        return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    try:
        return httpx.create_ssl_context()
    except OSError as error:
        raise UserError(
            "INVALID_SETTING",
            f"the certificates that {base} is to be checked with cannot be read: {_reason(error)}",
            field=next((name for name in _CERTIFICATE_VARIABLES if os.environ.get(name)), ""),
        ) from None


def _retry_after_us(response: httpx.Response) -> int | None:
    """How long to wait before the request is repeated; None: not at all."""
    if response.status_code not in (429, 503):
        return None
    seconds = response.headers.get("retry-after", "")
    if not (seconds.isascii() and seconds.isdigit() and len(seconds) < 5):
        return None
    wait_us = int(seconds) * SECOND
    return wait_us if wait_us <= RETRY_AFTER_US_MAX else None


def _reason(error: BaseException) -> str:
    """What the system said, which the library wraps in layers of its own."""
    deepest: BaseException | None = error
    while deepest is not None:
        if isinstance(deepest, ConnectionError) and deepest.errno:
            # By number, as asyncio puts words of its own there.
            return os.strerror(deepest.errno).lower()
        if isinstance(deepest, OSError) and deepest.strerror:
            return _shown(deepest.strerror)
        deepest = deepest.__cause__ or deepest.__context__
    return _shown(str(error)) or type(error).__name__


def _target(response: httpx.Response) -> str:
    """Where a redirect leads, without what may be secret in it."""
    try:
        parts = urlsplit(response.headers.get("location", ""))
    except ValueError:
        return "nowhere"
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" if host else parts.path or "nowhere"


def _shown(text: str) -> str:
    """A foreign text, short and on one line."""
    safe = "".join(character if character.isprintable() else " " for character in text)
    return safe if len(safe) <= _SHOWN_LENGTH_MAX else safe[:_SHOWN_LENGTH_MAX] + "…"
