"""Messages that no frame holds: sent in pieces, shortened or left out, never the end of the worker."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence

import pytest

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome, OutputChunk
from ostinato.errors import UserError
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.codec import decode_worker, encode_worker
from ostinato.wire.codec_checks import FRAME_BYTES_MAX
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import (
    Accepted,
    Draining,
    Hello,
    NodeMessage,
    Outcomes,
    Output,
    Progress,
    WorkerMessage,
)
from ostinato.wire.protocol import WorkerStream, WorkerTransport
from ostinato.worker.sending import send_what_fits
from tests.worker.scripted_node import assignment, cluster, spec, specs

HUGE = "x" * (FRAME_BYTES_MAX + 1)


class FramedStream:
    """A stream that encodes what it sends, as every transport between machines does."""

    def __init__(self, stream: WorkerStream | None = None) -> None:
        self._stream = stream
        self.sent: list[WorkerMessage] = []

    async def send(self, messages: Sequence[WorkerMessage]) -> None:
        for frame in encode_worker(messages):
            decoded = decode_worker(frame)
            self.sent.extend(decoded)
            if self._stream is not None:
                await self._stream.send(decoded)

    async def receive(self) -> list[NodeMessage]:
        assert self._stream is not None
        return await self._stream.receive()

    async def close(self) -> None:
        assert self._stream is not None
        await self._stream.close()


class FramedTransport:
    """Streams of another transport, encoded."""

    def __init__(self, transport: WorkerTransport) -> None:
        self._transport = transport

    async def connect(self, address: str) -> WorkerStream:
        return FramedStream(await self._transport.connect(address))

    async def close(self) -> None:
        await self._transport.close()


def outcome(attempt_id: str, *, failure: Failure | None = None, result: bytes | None = None) -> Outcome:
    return Outcome(
        instance_id="i",
        attempt=1,
        attempt_id=attempt_id,
        started_us=1,
        finished_us=2,
        result=result,
        failure=failure,
    )


def chunk(text: str) -> OutputChunk:
    return OutputChunk(
        instance_id="i", attempt=1, attempt_id="a", sequence=1, stream="stdout", text=text, at_us=1
    )


async def test_a_huge_failure_is_shortened_and_its_neighbours_are_sent_whole(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stream = FramedStream()
    failure = Failure("DISK", "resource", "full" * 1000, traceback=HUGE, retry_after_us=5)
    fine = outcome("fine", result=b"1")
    await send_what_fits(stream, [Outcomes([fine, outcome("huge", failure=failure), outcome("also")], {})])
    sent = {
        item.attempt_id: item
        for message in stream.sent
        if isinstance(message, Outcomes)
        for item in message.items
    }
    assert sent["fine"] == fine
    shortened = sent["huge"].failure
    assert shortened is not None
    assert (shortened.code, shortened.category, shortened.retry_after_us) == ("DISK", "resource", 5)
    assert sent.keys() == {"fine", "huge", "also"}
    assert "message_shortened" in [record.message for record in caplog.records]


async def test_a_huge_result_becomes_a_failure_that_says_so() -> None:
    stream = FramedStream()
    await send_what_fits(stream, [Outcomes([outcome("huge", result=HUGE.encode())], {"async": 3})])
    (sent,) = stream.sent
    assert isinstance(sent, Outcomes)
    assert sent.granted == {"async": 3}
    failure = sent.items[0].failure
    assert failure is not None
    assert failure.code == "BAD_RESULT"


async def test_output_progress_and_hello_lose_what_is_too_long() -> None:
    stream = FramedStream()
    hello = Hello(
        protocol=1,
        worker_id="w",
        worker_name="w",
        token="",
        labels={},
        capacity={},
        tasks=[TaskRef("default", "t")],
        executors=[],
        running=[],
        declarations=[HUGE.encode()],
    )
    await send_what_fits(
        stream, [hello, Output([chunk("small\n"), chunk(HUGE)]), Progress("i", "a", 0.5, HUGE)]
    )
    # A piece may come twice: nobody knows which frames had left before one failed.
    greeting, *_, small, large, progress = stream.sent
    assert isinstance(greeting, Hello)
    assert greeting.tasks == hello.tasks
    assert greeting.declarations == []
    assert "was not sent" in greeting.problems[0]
    assert isinstance(small, Output)
    assert small.chunks[0].text == "small\n"
    assert isinstance(large, Output)
    assert "output lost" in large.chunks[0].text
    assert progress == Progress("i", "a", 0.5, "")


async def test_what_cannot_be_shortened_is_dropped_with_a_log_line(caplog: pytest.LogCaptureFixture) -> None:
    stream = FramedStream()
    with pytest.raises(UserError) as refused:
        await stream.send([Draining(HUGE)])
    await send_what_fits(stream, [Draining(HUGE), Draining("short")])
    assert refused.value.code == "PAYLOAD_TOO_LARGE"
    assert stream.sent == [Draining("short")]
    dropped = [record for record in caplog.records if record.message == "message_dropped"]
    assert [record.levelno for record in dropped] == [logging.ERROR]


def test_a_worker_outlives_what_its_transport_cannot_carry(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = InProcessNetwork.worker_transport
    monkeypatch.setattr(InProcessNetwork, "worker_transport", lambda network: FramedTransport(plain(network)))

    async def play() -> None:
        may_end = asyncio.Event()

        async def wait() -> str:
            await may_end.wait()
            return "waited"

        async with cluster({"wait": wait}) as made:
            await made.node.send(specs(spec("wait")))
            await made.node.assign(assignment("wait", "a1"))
            await made.node.until(lambda: bool(made.node.all(Accepted)))
            made.worker.drain(HUGE)
            await made.pass_time(SECOND)
            assert made.worker.is_connected.is_set()
            may_end.set()
            assert (await made.node.outcome_of("a1")).result == b'"waited"'

    run_virtual(play())
