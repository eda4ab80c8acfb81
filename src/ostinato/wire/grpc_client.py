"""A worker's gRPC transport: dials nodes."""

from __future__ import annotations

import asyncio

import grpc
import grpc.aio

from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError
from ostinato.wire.codec import decode_node, encode_worker
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

CONNECT_TIMEOUT_US = 5 * SECOND

_CLIENT_OPTIONS: list[tuple[str, int]] = [
    *CHANNEL_OPTIONS,
    # Channels otherwise share connections with their back-off of up to two minutes; when to dial again is
    # the supervisor's decision (design section 3, Leases: at most WL/6).
    ("grpc.use_local_subchannel_pool", 1),
]
_LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "[::1]"})


class GrpcWorkerTransport:
    """Opens streams, each on a connection of its own; to loopback never by the environment's proxy."""

    def __init__(self, *, connect_timeout_us: int = CONNECT_TIMEOUT_US) -> None:
        """`connect_timeout_us` bounds the time until the node has accepted the stream."""
        self._connect_timeout_us = connect_timeout_us
        self._streams: set[_ClientStream] = set()

    async def connect(self, address: str) -> WorkerStream:
        """Open a stream to ``host:port``.

        Raises ``SCHEDULER_UNREACHABLE``, also when what answers is no Ostinato node.
        """
        options = list(_CLIENT_OPTIONS)
        if address.rpartition(":")[0] in _LOOPBACK_HOSTS:
            options.append(("grpc.enable_http_proxy", 0))
        channel = grpc.aio.insecure_channel(address, options=options)
        call: _Call = channel.stream_stream(METHOD, bytes, bytes)(None)
        accepted = False
        try:
            async with asyncio.timeout(self._connect_timeout_us / SECOND):
                await _wait_accepted(call, address)
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


async def _wait_accepted(call: _Call, address: str) -> None:
    """Return when an Ostinato node has accepted the call."""
    metadata = await call.initial_metadata()
    if any(key == ACCEPTED_METADATA[0] for key, _ in metadata):
        return
    code = await call.code()
    if code in (grpc.StatusCode.UNIMPLEMENTED, grpc.StatusCode.OK):
        raise _unreachable(address, "what answers there is no Ostinato scheduler")
    raise _unreachable(address, f"{code.name}: {await call.details()}")


def _unreachable(address: str, reason: str) -> UnavailableError:
    return UnavailableError(
        "SCHEDULER_UNREACHABLE",
        f"no scheduler answers at {address}: {reason}",
        subject=address,
        hint="check that the scheduler runs and that this is its --worker-bind address",
    )
