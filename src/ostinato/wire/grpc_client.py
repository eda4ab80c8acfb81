"""A worker's gRPC transport: dials nodes."""

from __future__ import annotations

import asyncio

from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError, UserError
from ostinato.wire.codec import decode_node, encode_worker
from ostinato.wire.grpc_library import grpc
from ostinato.wire.grpc_stream import (
    ACCEPTED_METADATA,
    CALL_ERRORS,
    CHANNEL_OPTIONS,
    FLUSH_TIMEOUT_US,
    METHOD,
    GrpcStream,
)
from ostinato.wire.messages import NodeMessage, WorkerMessage
from ostinato.wire.protocol import WorkerStream
from ostinato.wire.tls import WorkerTls

CONNECT_TIMEOUT_US = 5 * SECOND

_CLIENT_OPTIONS: list[tuple[str, int | str]] = [
    *CHANNEL_OPTIONS,
    # Channels otherwise share connections with their back-off of up to two minutes; when to dial again is
    # the supervisor's decision (design section 3, Leases: at most WL/6).
    ("grpc.use_local_subchannel_pool", 1),
]
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class GrpcWorkerTransport:
    """Opens streams, each on a connection of its own; to loopback never by the environment's proxy.

    With `tls` they are encrypted, and only to a node with the expected certificate.
    """

    def __init__(self, *, tls: WorkerTls | None = None, connect_timeout_us: int = CONNECT_TIMEOUT_US) -> None:
        """`connect_timeout_us` bounds the time until the node has accepted the stream."""
        self._tls = tls
        self._connect_timeout_us = connect_timeout_us
        self._streams: set[_ClientStream] = set()

    async def connect(self, address: str) -> WorkerStream:
        """Open a stream to ``host:port``.

        Raises ``SCHEDULER_UNREACHABLE``, also when what answers is no Ostinato node, or not the one whose
        certificate is expected.
        """
        channel = self._channel(address)
        call: _Call = channel.stream_stream(METHOD, bytes, bytes)(None)
        accepted = False
        try:
            async with asyncio.timeout(self._connect_timeout_us / SECOND):
                await _wait_accepted(call, address, tls=self._tls)
            accepted = True
        except TimeoutError:
            raise _unreachable(address, f"no answer within {self._connect_timeout_us / SECOND:g} s") from None
        finally:
            if not accepted:
                call.cancel()
                await channel.close(None)
        stream = _ClientStream(call, channel=channel, address=address, transport=self)
        self._streams.add(stream)
        return stream

    def _channel(self, address: str) -> grpc.aio.Channel:
        options = list(_CLIENT_OPTIONS)
        if address.rpartition(":")[0] in _LOOPBACK_HOSTS:
            options.append(("grpc.enable_http_proxy", 0))
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=options)
        if self._tls.server_name:
            options.append(("grpc.ssl_target_name_override", self._tls.server_name))
        try:
            credentials = self._tls.credentials()
        except UserError as error:
            # The file was usable at the start: whoever is replacing it may be half-way.
            raise _unreachable(address, str(error)) from error
        return grpc.aio.secure_channel(address, credentials, options=options)

    async def close(self) -> None:
        await asyncio.gather(*(stream.close() for stream in self._streams))

    def forget(self, stream: _ClientStream) -> None:
        """`stream` has given back its connection."""
        self._streams.discard(stream)


_Call = grpc.aio.StreamStreamCall[bytes, bytes]


class _ClientStream(GrpcStream[WorkerMessage, NodeMessage]):
    """A stream that owns its channel."""

    def __init__(
        self, call: _Call, *, channel: grpc.aio.Channel, address: str, transport: GrpcWorkerTransport
    ) -> None:
        super().__init__(call, peer=address, encode=encode_worker, decode=decode_node)
        self._client_call = call
        self._channel = channel
        self._transport = transport

    async def _half_close(self) -> None:
        try:
            await self._client_call.done_writing()
        except CALL_ERRORS:
            return  # the call has ended already, which says the same

    async def _release(self) -> None:
        # The node ends the call once it has read to our end; cancelling earlier would drop what is under way.
        await asyncio.wait({self._reader}, timeout=FLUSH_TIMEOUT_US / SECOND)
        self._client_call.cancel()
        await self._channel.close(None)
        self._transport.forget(self)


async def _wait_accepted(call: _Call, address: str, *, tls: WorkerTls | None) -> None:
    """Return when an Ostinato node has accepted the call."""
    metadata = await call.initial_metadata()
    if any(key == ACCEPTED_METADATA[0] for key, _ in metadata):
        return
    code = await call.code()
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK):
        raise _unreachable(address, "what answers there is no Ostinato scheduler")
    details = await call.details() or ""
    reason, hint = _diagnosis(details, tls=tls)
    raise _unreachable(address, reason or f"{code.name}: {details}", hint=hint)


def _diagnosis(details: str, *, tls: WorkerTls | None) -> tuple[str, str]:
    """What gRPC's words about a failed handshake mean, and what to do; empty where they mean none."""
    if tls is None:
        if "Socket closed" in details:
            return (
                "it ended the connection before it had said anything",
                "if that scheduler was started with --tls-certificate, give --tls-ca",
            )
        return "", ""
    if "WRONG_VERSION_NUMBER" in details:
        return (
            "it does not speak TLS",
            "start the scheduler with --tls-certificate and --tls-key, or the worker without --tls-ca",
        )
    if "certificate has expired" in details:
        return "its certificate has expired", "renew the certificate of the scheduler"
    if "CERTIFICATE_VERIFY_FAILED" in details:
        why = details.partition("CERTIFICATE_VERIFY_FAILED: ")[2].removesuffix(": OK")
        return (
            f"its certificate is not the expected one ({why})",
            "--tls-ca must hold the scheduler's own certificate, or that of the authority that signed it",
        )
    if "Hostname Verification" in details:
        name = tls.server_name or "that host"
        return (
            f"its certificate is not for {name}",
            "its subjectAltName must name that; --tls-server-name says which name is expected instead",
        )
    return "", ""


def _unreachable(address: str, reason: str, *, hint: str = "") -> UnavailableError:
    return UnavailableError(
        "SCHEDULER_UNREACHABLE",
        f"no scheduler answers at {address}: {reason}",
        subject=address,
        hint=hint or "check that the scheduler runs and that this is its --worker-bind address",
    )
