"""The HTTP place of a node: health, metrics and the API, served inside the node's own event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import json
import socket
from collections.abc import Callable, Generator, Mapping

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from ostinato.api.asgi import Api, Message, Receive, Send, answer, answer_problem, header
from ostinato.api.connection import KEEP_ALIVE_SECONDS_MAX, Connection, connections_max
from ostinato.api.problem import problem_of
from ostinato.api.senders import require_own_host
from ostinato.errors import ConflictError, UserError
from ostinato.settings import Address

#: Longest wait for answers under way when the server stops.
STOP_SECONDS_MAX = 2
_API_PREFIX = "/api/"

#: Health of a node: ``ready`` says whether it takes part; the rest is for people.
Readiness = Callable[[], Mapping[str, object]]


class NodeApp:
    """ASGI: ``/healthz`` (the loop turns), ``/readyz`` (the node does its work), ``/metrics``, ``/api/…``."""

    def __init__(self, readiness: Readiness, registry: CollectorRegistry, *, api: Api | None = None) -> None:
        self._readiness = readiness
        self._registry = registry
        self._api = api

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        path = str(scope["path"])
        if self._api is not None and path.startswith(_API_PREFIX):
            await self._api.answer(scope, receive, send=send)
            return
        try:
            status, content_type, body = self._answer(scope, path=path)
        except UserError as error:
            allowed = {"allow": "GET, HEAD"} if error.code == "METHOD_NOT_ALLOWED" else {}
            await answer_problem(scope, send, problem=problem_of(error), headers=allowed)
            return
        await answer(scope, send, status=status, body=body, content_type=content_type)

    def _answer(self, scope: Message, *, path: str) -> tuple[int, str, bytes]:
        require_own_host(scope)
        if path not in ("/healthz", "/readyz", "/metrics"):
            raise UserError("ADDRESS_NOT_FOUND", f"there is nothing at {path[:200]!a}")
        if scope["method"] not in ("GET", "HEAD"):
            raise UserError("METHOD_NOT_ALLOWED", "only GET and HEAD are answered here")
        if path == "/metrics":
            encode, content_type = choose_encoder(",".join(header(scope, b"accept")))
            return 200, content_type, encode(self._registry)
        if path == "/healthz":
            return 200, "application/json", b'{"status":"ok"}'
        state = dict(self._readiness())
        return 200 if state.get("ready") else 503, "application/json", json.dumps(state, default=str).encode()


class _Server(uvicorn.Server):
    """Uvicorn without its signal handlers (the process has its own), that says when it listens."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()


class ApiServer:
    """Serves a node's ``NodeApp`` on `bind` from `start` to `stop`."""

    def __init__(
        self, bind: Address, *, readiness: Readiness, registry: CollectorRegistry, api: Api | None = None
    ) -> None:
        """`api` answers what lies below ``/api/``; without it there is nothing there."""
        self._bind = bind
        self._app = NodeApp(readiness, registry, api=api)
        self._server: _Server | None = None
        self._serving: asyncio.Task[None] | None = None

    async def start(self) -> Address:
        """Listen; returns the address, with the port that port 0 became. Raises ``PORT_IN_USE``."""
        listener = listen(self._bind, field="--bind")
        config = uvicorn.Config(
            self._app,
            http=type("_Bounded", (Connection,), {"connections_max": connections_max()}),
            lifespan="off",
            ws="none",
            loop="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_keep_alive=KEEP_ALIVE_SECONDS_MAX,
            timeout_graceful_shutdown=STOP_SECONDS_MAX,
        )
        self._server = _Server(config)
        self._serving = asyncio.create_task(self._server.serve([listener]), name="api")
        listening = asyncio.create_task(self._server.listening.wait())
        await asyncio.wait({self._serving, listening}, return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            listener.close()
            await self._serving  # raises what went wrong
        return Address(self._bind.host, listener.getsockname()[1])

    async def stop(self) -> None:
        """Answer what is under way, then close; idempotent."""
        if self._server is None or self._serving is None:
            return
        self._server.should_exit = True
        await self._serving
        self._server = self._serving = None


def listen(address: Address, *, field: str) -> socket.socket:
    """A listening socket. Raises ``PORT_IN_USE``, ``INVALID_SETTING`` for a host that is not ours."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except OSError as error:
        raise UserError(
            "INVALID_SETTING", f"cannot listen on {address}: {error.strerror}", field=field
        ) from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(target)
        # Here rather than in the loop: only now does the system say that another process listens.
        listener.listen(128)
        listener.setblocking(False)
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise ConflictError(
                "PORT_IN_USE",
                f"another process listens on {address}",
                subject=str(address),
                field=field,
                hint="end it, or choose another port; port 0 takes a free one",
            ) from None
        raise UserError(
            "INVALID_SETTING", f"cannot listen on {address}: {error.strerror}", field=field
        ) from None
    return listener
