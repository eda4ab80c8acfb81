"""What only the gRPC transport has: foreign peers, broken connections, joined frames, addresses."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import grpc
import grpc.aio
import pytest
from support.proxy import Proxy

from ostinato.errors import ConflictError, UnavailableError, UserError
from ostinato.testing.contracts.transport_harness import (
    Harness,
    assert_node_closed,
    assert_raises_closed,
    assert_worker_closed,
    collect,
    harness,
    settled,
)
from ostinato.wire import grpc_server
from ostinato.wire.codec import decode_node, decode_worker, encode_worker
from ostinato.wire.generated import worker_pb2 as pb
from ostinato.wire.grpc_client import GrpcWorkerTransport
from ostinato.wire.grpc_server import GrpcNodeTransport
from ostinato.wire.grpc_stream import METHOD, GrpcStream
from ostinato.wire.messages import Heartbeat, NodeMessage, Rejected, WorkerMessage
from ostinato.wire.protocol import NodeStream, NodeTransport, WorkerTransport


class Loopback:
    def node_transport(self, address: str | None = None) -> NodeTransport:
        return GrpcNodeTransport("127.0.0.1:0" if address is None else address)

    def worker_transport(self) -> WorkerTransport:
        return GrpcWorkerTransport()

    def dead_address(self) -> str:
        return "127.0.0.1:1"


@pytest.fixture
async def made() -> AsyncIterator[Harness]:
    async with harness(Loopback()) as started:
        yield started


class RecordingCall:
    """The two calls of gRPC that a stream uses; writes wait until `open`."""

    def __init__(self) -> None:
        self.open = asyncio.Event()
        self.frames: list[bytes] = []

    async def read(self) -> object:
        return await asyncio.get_running_loop().create_future()

    async def write(self, message: bytes, /) -> None:
        await self.open.wait()
        self.frames.append(message)


async def test_what_is_sent_during_a_write_leaves_as_one_frame() -> None:
    call = RecordingCall()
    stream: GrpcStream[WorkerMessage, NodeMessage] = GrpcStream(
        call, peer="nobody", encode=encode_worker, decode=decode_node
    )
    beats = [Heartbeat(sequence, 0, {}) for sequence in range(100)]
    await stream.send(beats[:1])
    await settled(lambda: False)
    for beat in beats[1:]:
        await stream.send([beat])
    call.open.set()
    await settled(lambda: len(call.frames) == 2)
    await stream.close()
    assert [len(decode_worker(frame)) for frame in call.frames] == [1, 99]
    assert [message for frame in call.frames for message in decode_worker(frame)] == beats


async def test_a_peer_is_named_by_its_address(made: Harness) -> None:
    _, node_end = await made.stream()
    host, _, port = node_end.peer.rpartition(":")
    assert host == "127.0.0.1"
    assert int(port) > 0


async def test_a_foreign_worker_that_sends_nonsense_is_refused_and_can_be_told(made: Harness) -> None:
    async with grpc.aio.insecure_channel(made.address) as channel:
        call = channel.stream_stream(METHOD, bytes, bytes)(None)
        bad = pb.WorkerMessage(hello=pb.Hello(worker_id="no protocol"))
        await call.write(pb.WorkerFrame(messages=[bad]).SerializeToString())
        node_end = await made.arrived()
        with pytest.raises(UserError) as caught:
            await node_end.receive()
        assert caught.value.code == "PROTOCOL_MISMATCH"
        await node_end.send([Rejected(caught.value.code, str(caught.value))])
        await node_end.close()
        frame = await call.read()
        assert isinstance(frame, bytes)
        [told] = decode_node(frame)
        assert isinstance(told, Rejected)
        assert "protocol" in told.message
        assert await call.code() == grpc.StatusCode.OK


async def test_a_frame_of_newer_kinds_alone_is_passed_over(made: Harness) -> None:
    async with grpc.aio.insecure_channel(made.address) as channel:
        call = channel.stream_stream(METHOD, bytes, bytes)(None)
        newer = pb.WorkerMessage.FromString(b"\xa2\x06\x02\x08\x01")
        await call.write(pb.WorkerFrame(messages=[newer]).SerializeToString())
        await call.write(next(encode_worker([Heartbeat(1, 2, {})])))
        node_end = await made.arrived()
        assert await node_end.receive() == [Heartbeat(1, 2, {})]
        call.cancel()


async def test_a_broken_connection_ends_the_stream_on_both_sides(made: Harness) -> None:
    """What had arrived before can still be received."""
    with Proxy(made.address) as proxy:
        worker_end = await made.worker.connect(proxy.address)
        node_end = await made.arrived()
        await worker_end.send([Heartbeat(1, 1, {})])
        assert await collect(node_end, 1) == [Heartbeat(1, 1, {})]
        waiting = asyncio.create_task(worker_end.receive())
        proxy.cut()
        await assert_raises_closed(waiting)
        await assert_worker_closed(worker_end)
        await assert_node_closed(node_end)


async def test_a_peer_that_falls_silent_is_noticed_on_both_sides_within_15_seconds(made: Harness) -> None:
    """C113: the connection stays open, nothing is reset, and nobody sends anything that could fail."""
    with Proxy(made.address) as proxy:
        worker_end = await made.worker.connect(proxy.address)
        node_end = await made.arrived()
        await worker_end.send([Heartbeat(1, 1, {})])
        assert await collect(node_end, 1) == [Heartbeat(1, 1, {})]
        proxy.blackhole()
        async with asyncio.timeout(15 + 3):
            await asyncio.gather(
                assert_raises_closed(worker_end.receive()), assert_raises_closed(node_end.receive())
            )
        proxy.resume()
        await made.worker.connect(proxy.address)
        await made.arrived()
    assert proxy.accepted_count == 2


async def test_a_node_that_does_not_answer_is_given_up_within_the_connect_time_out(made: Harness) -> None:
    with Proxy(made.address) as proxy:
        proxy.blackhole()
        worker = GrpcWorkerTransport(connect_timeout_us=50_000)
        with pytest.raises(UnavailableError, match=r"no answer within 0\.05 s"):
            await worker.connect(proxy.address)
        proxy.refuse()
        with pytest.raises(UnavailableError, match="refused"):
            await made.worker.connect(proxy.address)
        proxy.resume()
        await made.worker.connect(proxy.address)


async def test_a_worker_that_vanishes_leaves_what_it_sent(made: Harness) -> None:
    async with grpc.aio.insecure_channel(made.address) as channel:
        call = channel.stream_stream(METHOD, bytes, bytes)(None)
        await call.write(next(encode_worker([Heartbeat(1, 1, {})])))
        node_end = await made.arrived()
        first = await node_end.receive()
        call.cancel()
        await assert_node_closed(node_end)
    assert first == [Heartbeat(1, 1, {})]


async def test_something_else_that_speaks_grpc_is_not_a_scheduler() -> None:
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    worker = GrpcWorkerTransport()
    with pytest.raises(UnavailableError, match="no Ostinato scheduler") as caught:
        await worker.connect(f"127.0.0.1:{port}")
    assert caught.value.code == "SCHEDULER_UNREACHABLE"
    await server.stop(None)


async def test_something_that_accepts_and_stays_silent_is_given_up() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        worker = GrpcWorkerTransport(connect_timeout_us=50_000)
        with pytest.raises(UnavailableError, match=r"no answer within 0\.05 s") as caught:
            await worker.connect(address)
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        assert address in caught.value.message


async def test_a_host_that_does_not_exist_is_unreachable() -> None:
    with pytest.raises(UnavailableError, match=r"host\.invalid") as caught:
        await GrpcWorkerTransport().connect("host.invalid:8641")
    assert caught.value.code == "SCHEDULER_UNREACHABLE"


@pytest.mark.parametrize("bind", ["192.0.2.1:0", "no-port", "127.0.0.1:port", "127.0.0.1:99999", "..:80"])
async def test_an_address_that_cannot_be_listened_on_is_refused(bind: str) -> None:
    async def handle(_: NodeStream) -> None: ...

    with pytest.raises(UserError, match=bind) as caught:
        await GrpcNodeTransport(bind).start(handle)
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "worker_bind")


async def test_an_address_that_is_taken_names_the_setting() -> None:
    async def handle(_: NodeStream) -> None: ...

    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(ConflictError, match=address) as caught:
            await GrpcNodeTransport(address).start(handle)
    assert (caught.value.code, caught.value.field) == ("PORT_IN_USE", "worker_bind")


async def test_connections_that_say_nothing_are_bounded_and_make_room_for_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(grpc_server, "_connections_max", lambda: 4)
    short = [(name, 2_000 if "handshake" in name else value) for name, value in grpc_server._SERVER_OPTIONS]
    monkeypatch.setattr(grpc_server, "_SERVER_OPTIONS", short)
    met: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def handler(stream: NodeStream) -> None:
        met.set_result(stream.peer)

    node = GrpcNodeTransport("127.0.0.1:0")
    address = await node.start(handler)
    host, _, port = address.rpartition(":")
    silent = [await asyncio.open_connection(host, int(port)) for _ in range(20)]
    ends = [asyncio.create_task(_ended(reader)) for reader, _ in silent]
    done, kept = await asyncio.wait(ends, timeout=1)
    assert (len(done), len(kept)) == (16, 4)
    await asyncio.wait_for(asyncio.gather(*kept), 10)
    stream = await GrpcWorkerTransport().connect(address)
    assert (await asyncio.wait_for(met, 10)).startswith("127.0.0.1:")
    await stream.close()
    for _, writer in silent:
        writer.close()
    await node.stop()


async def _ended(reader: asyncio.StreamReader) -> bool:
    """Whether a connection ended by itself, however it did."""
    try:
        await reader.read()
    except ConnectionError:
        return False
    return True
