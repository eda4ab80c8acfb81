"""What every transport must do; the test class of an adapter inherits it and gives the fixture `links`."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.core.definition import TaskRef
from ostinato.errors import ConflictError, UnavailableError
from ostinato.testing.contracts.transport_harness import (
    Links,
    assert_node_closed,
    assert_raises_closed,
    assert_worker_closed,
    collect,
    harness,
    settled,
)
from ostinato.testing.contracts.transport_messages import assignments, outcomes
from ostinato.wire.messages import (
    Accepted,
    Assignment,
    Assignments,
    Cancel,
    Drain,
    Draining,
    GuardianHello,
    Heartbeat,
    HeartbeatAcknowledged,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Progress,
    Rejected,
    RunningReport,
    TreeEnded,
    TreeEndedRecorded,
    WorkerMessage,
)
from ostinato.wire.protocol import NodeStream, WorkerStream

KIBIBYTE = 1024


def _heartbeat(sequence: int) -> Heartbeat:
    return Heartbeat(sequence, 1_000 * sequence, {"process": sequence})


class DeliveryContract:
    """What is sent arrives: whole, once, in order."""

    @pytest.fixture
    def links(self) -> Links:
        """Given by the adapter's test class."""
        raise NotImplementedError

    async def test_messages_arrive_in_order_in_both_directions_at_once(self, links: Links) -> None:
        count = 500
        async with harness(links) as made:
            worker_end, node_end = await made.stream()

            async def send_up() -> None:
                for sequence in range(count):
                    await worker_end.send([_heartbeat(sequence)])

            async def send_down() -> None:
                for sequence in range(count):
                    await node_end.send([HeartbeatAcknowledged(sequence, sequence, [1, 2])])

            _, _, up, down = await asyncio.gather(
                send_up(), send_down(), collect(node_end, count), collect(worker_end, count)
            )
        assert up == [_heartbeat(sequence) for sequence in range(count)]
        assert down == [HeartbeatAcknowledged(sequence, sequence, [1, 2]) for sequence in range(count)]

    async def test_a_batch_of_several_kinds_keeps_its_order(self, links: Links) -> None:
        batch: list[WorkerMessage] = [
            Hello(protocol=1, worker_id="w-1", worker_name="worker", tasks=[TaskRef("default", "report")]),
            _heartbeat(1),
            Accepted(["attempt-1"]),
            outcomes(2),
            Progress("instance-1", "attempt-1", 0.5, "half"),
            _heartbeat(2),
        ]
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await worker_end.send(batch)
            assert await collect(node_end, len(batch)) == batch

    async def test_a_guardian_s_stream_carries_its_report_and_the_answer(self, links: Links) -> None:
        said: list[WorkerMessage] = [
            GuardianHello(protocol=1, worker_id="w-1", worker_name="worker", token="t"),
            outcomes(2),
            TreeEnded(41, "the lease has ended"),
            TreeEnded(None, "the supervisor is gone"),
        ]
        answers: list[NodeMessage] = [
            OutcomesAcknowledged(["attempt-0", "attempt-1"]),
            TreeEndedRecorded(),
            TreeEndedRecorded(),
        ]
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await worker_end.send(said)
            assert await collect(node_end, len(said)) == said
            await node_end.send(answers)
            assert await collect(worker_end, len(answers)) == answers
            await worker_end.close()
            await assert_node_closed(node_end)

    async def test_10_000_assignments_in_one_batch_arrive_in_order(self, links: Links) -> None:
        sent = assignments(10_000)
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            sending = asyncio.create_task(node_end.send([sent]))
            received: list[Assignment] = []
            while len(received) < len(sent.items):
                for message in await worker_end.receive():
                    assert isinstance(message, Assignments)
                    assert message.heartbeat_sequence == sent.heartbeat_sequence
                    received += message.items
            await sending
        assert received == sent.items

    async def test_payloads_of_256_kib_and_results_of_1_mib_arrive_whole(self, links: Links) -> None:
        payload = bytes(range(256)) * KIBIBYTE
        result = b'"' + b"x" * (KIBIBYTE * KIBIBYTE - 2) + b'"'
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            down = asyncio.create_task(node_end.send([assignments(20, payload=payload)]))
            up = asyncio.create_task(worker_end.send([outcomes(12, result=result)]))
            payloads: list[bytes] = []
            while len(payloads) < 20:
                for order in await worker_end.receive():
                    assert isinstance(order, Assignments)
                    payloads += [item.payload for item in order.items]
            results: list[bytes | None] = []
            while len(results) < 12:
                for report in await node_end.receive():
                    assert isinstance(report, Outcomes)
                    assert report.granted == {"process": 12}
                    results += [item.result for item in report.items]
            await asyncio.gather(down, up)
        assert payloads == [payload] * 20
        assert results == [result] * 12

    async def test_binary_payloads_and_any_text_arrive_unchanged(self, links: Links) -> None:
        """C157: NUL, every byte, and characters from beyond the BMP."""
        payload = b'{"text": "a\x00b"}' + bytes(range(256))
        text = "nul \0, line \n, ünïcode, 漢字, \U0001f600, \u202e"
        batch: list[NodeMessage] = [
            assignments(1, payload=payload),
            Cancel("i", "a", text, is_timeout=True),
            Drain(text),
        ]
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await node_end.send(batch)
            assert await collect(worker_end, 3) == batch
            await worker_end.send([Progress("i", "a", -1.0, text)])
            assert await collect(node_end, 1) == [Progress("i", "a", -1.0, text)]

    async def test_an_empty_batch_is_nothing(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await worker_end.send([])
            await worker_end.send([_heartbeat(1)])
            assert await node_end.receive() == [_heartbeat(1)]

    async def test_a_sender_waits_while_nobody_receives(self, links: Links) -> None:
        """Memory is bounded: a worker that has stopped reading holds the node back."""
        result = b"x" * (KIBIBYTE * KIBIBYTE)
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            sent = 0

            async def send_for_ever() -> None:
                nonlocal sent
                while True:
                    await worker_end.send([outcomes(1, result=result), *[_heartbeat(1)] * 16])
                    sent += 1

            sending = asyncio.create_task(send_for_ever())
            seen = -1
            while seen != sent:
                seen = sent
                await settled(lambda: False)
            assert seen < 100
            while sent == seen:
                await node_end.receive()
            sending.cancel()
            await asyncio.wait({sending})

    async def test_a_receive_that_is_given_up_loses_nothing(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            waiting = asyncio.create_task(node_end.receive())
            await settled(waiting.done)
            waiting.cancel()
            await asyncio.wait({waiting})
            await worker_end.send([_heartbeat(1)])
            assert await node_end.receive() == [_heartbeat(1)]

    async def test_many_streams_do_not_mix(self, links: Links) -> None:
        async with harness(links) as made:
            streams = [await made.stream() for _ in range(20)]

            async def talk(number: int, ends: tuple[WorkerStream, NodeStream]) -> None:
                worker_end, node_end = ends
                for sequence in range(20):
                    await worker_end.send([Heartbeat(sequence, number, {})])
                    assert await node_end.receive() == [Heartbeat(sequence, number, {})]
                    await node_end.send([HeartbeatAcknowledged(sequence, number, [])])
                    assert await worker_end.receive() == [HeartbeatAcknowledged(sequence, number, [])]

            await asyncio.gather(*(talk(number, ends) for number, ends in enumerate(streams)))
            peers = {node_end.peer for _, node_end in streams}
        assert len(peers) == 20
        assert all(peers)


class EndingContract:
    """A stream ends for both sides, whoever ends it, and nothing hangs."""

    @pytest.fixture
    def links(self) -> Links:
        """Given by the adapter's test class."""
        raise NotImplementedError

    async def test_closing_by_the_worker_unblocks_both_sides(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            waiting = [asyncio.create_task(worker_end.receive()), asyncio.create_task(node_end.receive())]
            await settled(waiting[0].done)
            await worker_end.close()
            for call in waiting:
                await assert_raises_closed(call)
            await assert_worker_closed(worker_end)
            await assert_node_closed(node_end)

    async def test_closing_by_the_node_unblocks_both_sides(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            waiting = [asyncio.create_task(worker_end.receive()), asyncio.create_task(node_end.receive())]
            await settled(waiting[0].done)
            await node_end.close()
            for call in waiting:
                await assert_raises_closed(call)
            await assert_worker_closed(worker_end)
            await assert_node_closed(node_end)

    async def test_closing_unblocks_a_sender_that_waits(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()

            async def send_for_ever() -> None:
                while True:
                    await worker_end.send([outcomes(1, result=b"x" * KIBIBYTE * KIBIBYTE)] * 16)

            sending = asyncio.create_task(send_for_ever())
            await settled(sending.done)
            await node_end.close()
            await assert_raises_closed(sending)

    async def test_what_was_sent_before_a_close_arrives(self, links: Links) -> None:
        """A node that refuses a worker says why, then closes."""
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await node_end.send([Rejected("PROTOCOL_MISMATCH", "worker is too old")])
            await node_end.close()
            assert await worker_end.receive() == [Rejected("PROTOCOL_MISMATCH", "worker is too old")]
            await assert_worker_closed(worker_end)

            worker_end, node_end = await made.stream()
            await worker_end.send([outcomes(3), Draining("stopping")])
            await worker_end.close()
            assert await collect(node_end, 2) == [outcomes(3), Draining("stopping")]
            await assert_node_closed(node_end)

    async def test_closing_twice_and_from_both_sides_at_once_is_harmless(self, links: Links) -> None:
        async with harness(links) as made:
            worker_end, node_end = await made.stream()
            await asyncio.gather(worker_end.close(), node_end.close(), worker_end.close(), node_end.close())
            await worker_end.close()
            await assert_worker_closed(worker_end)
            await assert_node_closed(node_end)

    async def test_a_handler_that_returns_closes_its_stream(self, links: Links) -> None:
        node = links.node_transport()
        worker = links.worker_transport()

        async def refuse(stream: NodeStream) -> None:
            await stream.send([Rejected("PROTOCOL_MISMATCH", "no")])

        worker_end = await worker.connect(await node.start(refuse))
        assert await worker_end.receive() == [Rejected("PROTOCOL_MISMATCH", "no")]
        await assert_worker_closed(worker_end)
        await worker.close()
        await node.stop()

    async def test_a_handler_that_fails_ends_its_stream_alone_and_is_reported(self, links: Links) -> None:
        node = links.node_transport()
        worker = links.worker_transport()
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda _, context: reported.append(context.get("exception"))
        )
        failure = ValueError("a bug of the handler")

        async def fail_or_echo(stream: NodeStream) -> None:
            for message in await stream.receive():
                if message == _heartbeat(13):
                    raise failure
                await stream.send([OutcomesAcknowledged(["fine"])])
            await stream.receive()

        address = await node.start(fail_or_echo)
        healthy, failing = await worker.connect(address), await worker.connect(address)
        await failing.send([_heartbeat(13)])
        await assert_worker_closed(failing)
        await healthy.send([_heartbeat(1)])
        assert await healthy.receive() == [OutcomesAcknowledged(["fine"])]
        await worker.close()
        await node.stop()
        assert reported == [failure]

    async def test_stopping_the_node_ends_every_stream_and_waits_for_the_handlers(self, links: Links) -> None:
        node = links.node_transport()
        worker = links.worker_transport()
        finished: list[str] = []

        async def handle(stream: NodeStream) -> None:
            try:
                await stream.receive()
            finally:
                await settled(lambda: False)
                finished.append(stream.peer)

        address = await node.start(handle)
        ends = [await worker.connect(address) for _ in range(3)]
        await node.stop()
        assert len(finished) == 3
        for end in ends:
            await assert_worker_closed(end)
        await node.stop()
        await worker.close()

    async def test_closing_the_workers_transport_closes_its_streams(self, links: Links) -> None:
        async with harness(links) as made:
            streams = [await made.stream() for _ in range(3)]
            await made.worker.close()
            for worker_end, node_end in streams:
                await assert_worker_closed(worker_end)
                await assert_node_closed(node_end)


class ConnectingContract:
    """Addresses: taken, dead, and used again."""

    @pytest.fixture
    def links(self) -> Links:
        """Given by the adapter's test class."""
        raise NotImplementedError

    async def test_a_second_node_on_the_same_address_is_refused(self, links: Links) -> None:
        async with harness(links) as made:
            second = links.node_transport(made.address)
            with pytest.raises(ConflictError) as caught:
                await second.start(made.handle)
            assert caught.value.code == "PORT_IN_USE"
            assert made.address in caught.value.message
            await second.stop()
            worker_end, node_end = await made.stream()
            await worker_end.send([_heartbeat(1)])
            assert await node_end.receive() == [_heartbeat(1)]

    async def test_an_address_where_nobody_listens_is_unreachable(self, links: Links) -> None:
        worker = links.worker_transport()
        address = links.dead_address()
        for _ in range(2):
            with pytest.raises(UnavailableError) as caught:
                await worker.connect(address)
            assert caught.value.code == "SCHEDULER_UNREACHABLE"
            assert address in caught.value.message
            assert caught.value.hint
        await worker.close()

    async def test_a_worker_reconnects_after_its_node_has_come_back(self, links: Links) -> None:
        """Also at once after a refusal: when to dial again is not the transport's decision."""
        async with harness(links) as made:
            worker_end, _ = await made.stream()
            await made.stop_node()
            await assert_worker_closed(worker_end)
            with pytest.raises(UnavailableError):
                await made.worker.connect(made.address)

            returned = links.node_transport(made.address)
            greeted: asyncio.Queue[list[WorkerMessage]] = asyncio.Queue()

            async def greet(stream: NodeStream) -> None:
                greeted.put_nowait(await stream.receive())

            assert await returned.start(greet) == made.address
            again = await made.worker.connect(made.address)
            hello = Hello(
                protocol=1,
                worker_id="w-1",
                worker_name="worker",
                running=[RunningReport("instance-1", 2, "attempt-2")],
            )
            await again.send([hello])
            assert await greeted.get() == [hello]
            await again.close()
            await returned.stop()

    async def test_a_stopped_node_can_be_started_again(self, links: Links) -> None:
        async with harness(links) as made:
            await made.stop_node()
            again = links.node_transport(made.address)
            assert await again.start(made.handle) == made.address
            await again.stop()

    async def test_a_stream_that_was_closed_leaves_others_alone(self, links: Links) -> None:
        async with harness(links) as made:
            first, _ = await made.stream()
            second, node_end = await made.stream()
            await first.close()
            await second.send([_heartbeat(1)])
            assert await node_end.receive() == [_heartbeat(1)]


class TransportContract(DeliveryContract, EndingContract, ConnectingContract):
    """All of it."""
