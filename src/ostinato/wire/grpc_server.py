"""A node's gRPC transport: accepts one stream per worker."""

from __future__ import annotations

import asyncio
import errno
import resource
import socket
from urllib.parse import unquote

from ostinato.core.instants import SECOND
from ostinato.errors import ConflictError, OstinatoError, UserError
from ostinato.wire.codec import decode_worker, encode_node
from ostinato.wire.grpc_library import grpc
from ostinato.wire.grpc_stream import (
    ACCEPTED_METADATA,
    CHANNEL_OPTIONS,
    FLUSH_TIMEOUT_US,
    METHOD_NAME,
    SERVICE,
    GrpcStream,
)
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.protocol import StreamHandler
from ostinato.wire.streams import run_handler
from ostinato.wire.tls import NodeTls

_SERVER_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS,
    # Without it Linux lets a second node share the port, and each would get half of the workers.
    ("grpc.so_reuseport", 0),
    # Workers ping every 10 s; the default calls that abuse and ends the connection.
    ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
    ("grpc.http2.max_ping_strikes", 0),
    # What connects and says nothing is let go; the default is two minutes.
    ("grpc.server_handshake_timeout_ms", 10_000),
    # As is one without a stream, which a worker always has.
    ("grpc.max_connection_idle_ms", 60_000),
]

#: What calls get to end by themselves when the transport stops; longer than a stream's own flush.
_STOP_GRACE_US = FLUSH_TIMEOUT_US + 1 * SECOND

_PORT_MAX = 65_535
#: Workers of one node, and as many again that redial.
_CONNECTIONS_MAX = 20_000
#: Which setting names the address.
_SETTING = "worker_bind"


class GrpcNodeTransport:
    """Listens on `bind`, ``host:port`` or ``[v6]:port``; port 0 takes a free one. `tls`: speak TLS alone."""

    def __init__(self, bind: str, *, tls: NodeTls | None = None) -> None:
        self._bind = bind
        self._tls = tls
        self._server: grpc.aio.Server | None = None
        self._handler: StreamHandler | None = None
        self._streams: set[GrpcStream[NodeMessage, WorkerMessage]] = set()
        self._handlers: set[asyncio.Task[None]] = set()

    async def start(self, handler: StreamHandler) -> str:
        """Listen and return the address with its actual port.

        Raises ``PORT_IN_USE``, and ``INVALID_SETTING`` for an address that this machine cannot listen on.
        """
        # First by ourselves: gRPC only says that it failed, and writes to stderr as it does.
        if (refusal := _bind_refusal(self._bind)) is not None:
            raise refusal
        bound = ("grpc.max_allowed_incoming_connections", _connections_max())
        server = grpc.aio.server(options=[*_SERVER_OPTIONS, bound])
        server.add_generic_rpc_handlers(
            (
                grpc.method_handlers_generic_handler(
                    SERVICE, {METHOD_NAME: grpc.stream_stream_rpc_method_handler(self._session)}
                ),
            )
        )
        try:
            if self._tls is None:
                port = server.add_insecure_port(self._bind)
            else:
                port = server.add_secure_port(self._bind, self._tls.credentials())
        except RuntimeError:
            await server.stop(None)
            raise _bind_refusal(self._bind) or _port_in_use(self._bind) from None
        # Before the start: a worker may be quicker than we are.
        self._handler, self._server = handler, server
        await server.start()
        return f"{self._bind.rpartition(':')[0]}:{port}"

    async def stop(self) -> None:
        server, self._server = self._server, None
        if server is None:
            return
        # Refuses new streams at once; the streams end while it waits for the calls.
        stopping = asyncio.get_running_loop().create_task(server.stop(_STOP_GRACE_US / SECOND))
        while self._streams or self._handlers:
            await asyncio.gather(*(stream.close() for stream in self._streams))
            if self._handlers:
                await asyncio.wait(self._handlers)
        await stopping

    async def _session(self, _requests: object, context: grpc.aio.ServicerContext[bytes, bytes]) -> None:
        """The call of one stream. It ends with the stream, though the handler may have more to tidy up."""
        handler = self._handler
        if self._server is None or handler is None:
            await context.abort(grpc.StatusCode.UNAVAILABLE, "the node is stopping")
            return
        await context.send_initial_metadata((ACCEPTED_METADATA,))
        stream: GrpcStream[NodeMessage, WorkerMessage] = GrpcStream(
            context, peer=_readable_peer(context.peer()), encode=encode_node, decode=decode_worker
        )
        task = asyncio.get_running_loop().create_task(run_handler(handler, stream))
        self._streams.add(stream)
        self._handlers.add(task)

        def forget(ended: asyncio.Task[None]) -> None:
            self._streams.discard(stream)
            self._handlers.discard(ended)

        task.add_done_callback(forget)
        try:
            await stream.wait_ended()
        except asyncio.CancelledError:
            stream.abort("the connection to the worker broke")
            raise


def _connections_max() -> int:
    """Half of the descriptors of this process: a flood leaves the database and the API the rest."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _CONNECTIONS_MAX if soft < 0 else max(1, min(_CONNECTIONS_MAX, soft // 2))


def _readable_peer(peer: str) -> str:
    """``127.0.0.1:5000`` of gRPC's ``ipv4:127.0.0.1:5000``, and the same for IPv6 with its escapes."""
    _, found, address = peer.partition(":")
    return unquote(address) if found else peer


def _bind_refusal(bind: str) -> OstinatoError | None:
    """Why `bind` cannot be listened on, None if it can at this moment."""
    host, _, port = bind.rpartition(":")
    # The resolver would take 99999 for 34463.
    if not (port.isascii() and port.isdigit() and int(port) <= _PORT_MAX):
        return _not_an_address(bind, f"the port must be a number from 0 to {_PORT_MAX}")
    try:
        family, kind, _, _, address = socket.getaddrinfo(
            host.strip("[]") or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        with socket.socket(family, kind) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            return _port_in_use(bind)
        return _not_an_address(bind, error.strerror or str(error))
    except UnicodeError:
        return _not_an_address(bind, "that is no host name")
    return None


def _port_in_use(bind: str) -> ConflictError:
    return ConflictError(
        "PORT_IN_USE",
        f"something already listens on {bind}",
        subject=bind,
        field=_SETTING,
        hint="stop it, or choose another port",
    )


def _not_an_address(bind: str, reason: str) -> UserError:
    return UserError(
        "INVALID_SETTING",
        f"cannot listen on {bind!r}: {reason}",
        subject=bind,
        field=_SETTING,
        hint="give an address of this machine, as host:port",
    )
