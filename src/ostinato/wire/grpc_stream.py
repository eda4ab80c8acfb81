"""One end of a gRPC stream: what server and client have in common.

A call of gRPC costs about 100 µs whatever it carries, so neither side waits for one. `send` puts frames into
a bounded queue, from which a writer task takes all there are at each turn and writes them joined as one. A
reader task fills a second bounded queue; when that is full nobody reads, and HTTP/2 holds the sender back.
That the tasks alone touch the call has a second reason: gRPC cancels the whole call when a read or write is
cancelled, and a caller that gives up waiting must not lose its stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Generic, Protocol, TypeVar

from ostinato.core.instants import SECOND
from ostinato.errors import UnavailableError
from ostinato.wire.bounded_queue import BoundedQueue, QueueClosedError
from ostinato.wire.codec_checks import FRAME_BYTES_MAX, FRAME_BYTES_TARGET
from ostinato.wire.grpc_library import grpc
from ostinato.wire.streams import CLOSED_HERE, connection_closed

METHOD = "/ostinato.v1.WorkerService/Session"
SERVICE, METHOD_NAME = METHOD.strip("/").split("/")

#: First metadata of an accepted stream: tells an Ostinato node from anything else that speaks gRPC.
ACCEPTED_METADATA = ("ostinato-protocol", "1")

#: Bytes that wait in one direction on one side before whoever adds to them waits.
QUEUE_BYTES_MAX = 8 * 1024 * 1024
#: How long a closing stream tries to deliver what was sent before.
FLUSH_TIMEOUT_US = 1 * SECOND

#: A silent peer is noticed after 15 s, although its connection may look alive for hours (C113).
CHANNEL_OPTIONS: list[tuple[str, int]] = [
    ("grpc.max_send_message_length", FRAME_BYTES_MAX),
    ("grpc.max_receive_message_length", FRAME_BYTES_MAX),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    # Newer releases wait for the answer by this one, and by default a minute.
    ("grpc.http2.ping_timeout_ms", 5_000),
    ("grpc.http2.max_pings_without_data", 0),
]

#: What gRPC raises when a call is over. A cancelled task is not among them.
CALL_ERRORS = (grpc.RpcError, grpc.aio.BaseError, asyncio.InvalidStateError)

Sent = TypeVar("Sent")
Received = TypeVar("Received")


class Call(Protocol):
    """The calls of gRPC that a stream needs; client calls and server contexts both have them."""

    def read(self) -> Awaitable[object]:
        """Next message, or ``grpc.aio.EOF``."""
        ...

    def write(self, message: bytes, /) -> Awaitable[None]:
        """Send one message."""
        ...


class GrpcStream(Generic[Sent, Received]):
    """See ``ostinato.wire.protocol``; must be made inside the running loop."""

    def __init__(
        self,
        call: Call,
        *,
        peer: str,
        encode: Callable[[Sequence[Sent]], Iterator[bytes]],
        decode: Callable[[bytes], list[Received]],
    ) -> None:
        self._call = call
        self._peer = peer
        self._encode = encode
        self._decode = decode
        self._outgoing: BoundedQueue[bytes] = BoundedQueue(QUEUE_BYTES_MAX)
        self._incoming: BoundedQueue[bytes] = BoundedQueue(QUEUE_BYTES_MAX)
        self._reason = ""
        self._closing: asyncio.Task[None] | None = None
        loop = asyncio.get_running_loop()
        self._reader = loop.create_task(self._read_frames())
        self._writer = loop.create_task(self._write_frames())

    @property
    def peer(self) -> str:
        return self._peer

    async def send(self, messages: Sequence[Sent]) -> None:
        """Queue `messages`. An item that cannot be sent raises, and those before it go out."""
        try:
            for frame in self._encode(messages):
                await self._outgoing.put(frame, weight=len(frame))
        except QueueClosedError:
            raise self._ended() from None

    async def receive(self) -> list[Received]:
        """Messages of the frames that wait. Raises ``PROTOCOL_MISMATCH`` for one that makes no sense."""
        messages: list[Received] = []
        while not messages:
            try:
                frames = await self._incoming.take(weight_max=FRAME_BYTES_TARGET)
            except QueueClosedError:
                raise self._ended() from None
            # Empty when all messages are of kinds that this version does not know.
            messages = [message for frame in frames for message in self._decode(frame)]
        return messages

    async def close(self) -> None:
        if self._closing is None:
            self._closing = asyncio.get_running_loop().create_task(self._close())
        # A caller that gives up must not leave half a stream behind.
        await asyncio.shield(self._closing)

    def abort(self, reason: str) -> None:
        """The call is gone: nothing can be sent, what has arrived can still be received."""
        self._end(reason)
        self._reader.cancel()
        self._writer.cancel()

    async def wait_ended(self) -> None:
        """Return when the call will not be used any more, from either side's doing."""
        await asyncio.wait({self._reader, self._writer})

    async def _half_close(self) -> None:
        """Tell the other side that nothing more follows, where the call has a way to say so."""

    async def _release(self) -> None:
        """Give back what the call holds."""

    async def _close(self) -> None:
        self._reason = self._reason or CLOSED_HERE
        self._incoming.discard()
        self._outgoing.close()
        await asyncio.wait({self._writer}, timeout=FLUSH_TIMEOUT_US / SECOND)
        await self._release()
        self.abort(CLOSED_HERE)
        await self.wait_ended()

    async def _read_frames(self) -> None:
        reason = "the call was cancelled"
        try:
            while True:
                frame = await self._call.read()
                if not isinstance(frame, bytes):
                    reason = "the other side closed it"
                    return
                await self._keep(frame)
        except CALL_ERRORS as error:
            reason = _reason_of(error)
        finally:
            self._end(reason)

    async def _keep(self, frame: bytes) -> None:
        try:
            await self._incoming.put(frame, weight=len(frame))
        except QueueClosedError:
            # Closed on this side: read on to the other side's end, which says that it has read all of ours.
            return

    async def _write_frames(self) -> None:
        try:
            while True:
                frames = await self._outgoing.take(weight_max=FRAME_BYTES_TARGET)
                await self._call.write(frames[0] if len(frames) == 1 else b"".join(frames))
        except QueueClosedError:
            await self._half_close()
        except CALL_ERRORS as error:
            self._end(_reason_of(error))

    def _end(self, reason: str) -> None:
        self._reason = self._reason or reason
        self._incoming.close()
        self._outgoing.discard()

    def _ended(self) -> UnavailableError:
        return connection_closed(self._reason, peer=self._peer)


def _reason_of(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name}: {error.details()}"
    return str(error) or type(error).__name__
