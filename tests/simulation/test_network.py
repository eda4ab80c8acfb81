"""What befalls the simulated network: delay, silence, broken and half-open streams, lost machines."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UnavailableError
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.history import History
from ostinato.simulation.network import Delay, Network
from ostinato.simulation.process import Process
from ostinato.wire.messages import Drain, Draining
from ostinato.wire.protocol import NodeStream, WorkerStream


class Wire:
    """A node and a worker, each on a machine of its own, and a stream between them."""

    def __init__(self, seed: int = 1, *, delay: Delay | None = None) -> None:
        self.loop = SimulatedLoop(seed)
        self.network = Network(
            self.loop, History(lambda: self.loop.true_us), rng=self.loop.random_for("network"), delay=delay
        )
        self.node = self.loop.process("n")
        self.worker = self.loop.process("w")
        self.node_ends: list[NodeStream] = []
        self.heard: list[tuple[str, str]] = []

    async def listen(self) -> None:
        transport = self.network.node_transport(self.node, "n:1")

        async def handle(stream: NodeStream) -> None:
            self.node_ends.append(stream)
            number = len(self.node_ends)
            try:
                while True:
                    for message in await stream.receive():
                        assert isinstance(message, Draining)
                        self.heard.append((f"{number}", message.reason))
            finally:
                self.heard.append((f"{number}", "end"))

        await self.node.spawn(transport.start(handle))

    async def connect(self) -> WorkerStream:
        return await self.worker.spawn(self.network.worker_transport(self.worker).connect("n:1"))

    async def up(self, stream: WorkerStream, *texts: str) -> None:
        for text in texts:
            await self.worker.spawn(stream.send([Draining(text)]))

    async def sleep(self, duration_us: int) -> None:
        clock = self.loop.true_clock
        await clock.sleep_until_us(clock.boot_us() + duration_us)

    def run(self, story: Callable[[], Awaitable[None]]) -> None:
        async def main() -> None:
            await self.listen()
            await story()

        try:
            self.loop.run(main())
        finally:
            self.loop.close()
        assert self.loop.unhandled == []


def texts(count: int) -> list[str]:
    return [str(number) for number in range(count)]


async def closed(call: Awaitable[object]) -> str:
    with pytest.raises(UnavailableError) as caught:
        await call
    assert caught.value.code == "CONNECTION_CLOSED"
    return caught.value.message


def test_a_stream_keeps_its_order_whatever_its_delays() -> None:
    wire = Wire(delay=Delay(us_min=0, us_max=SECOND, spike_share=0.3, spike_us_max=9 * SECOND))

    async def story() -> None:
        stream = await wire.connect()
        await wire.up(stream, *texts(100))
        await wire.sleep(30 * SECOND)
        assert wire.heard == [("1", text) for text in texts(100)]

    wire.run(story)


def test_a_silent_link_carries_again_what_waited_and_the_other_way_goes_on() -> None:
    wire = Wire()

    async def story() -> None:
        stream = await wire.connect()
        wire.network.silence("w", "n")
        await wire.up(stream, *texts(5))
        await wire.node.spawn(wire.node_ends[0].send([Drain("down")]))
        await wire.sleep(3 * SECOND)
        assert await wire.worker.spawn(stream.receive()) == [Drain("down")]
        assert wire.heard == []
        wire.network.mend("w", "n")
        await wire.up(stream, "after")
        await wire.sleep(SECOND)
        assert wire.heard == [("1", text) for text in [*texts(5), "after"]]

    wire.run(story)


def test_a_silence_longer_than_the_keepalive_ends_the_stream_for_both() -> None:
    wire = Wire()

    async def story() -> None:
        stream = await wire.connect()
        waiting = wire.worker.spawn(stream.receive())
        wire.network.silence("n", "w")
        await wire.sleep(14 * SECOND)
        assert not waiting.done()
        assert wire.heard == []
        await wire.sleep(3 * SECOND)
        assert "no sign of life" in await closed(waiting)
        assert wire.heard == [("1", "end")]

    wire.run(story)


def test_a_dial_across_a_silent_link_is_answered_when_it_carries_again() -> None:
    wire = Wire()

    async def story() -> None:
        wire.network.silence("n", "w")
        dialling = asyncio.create_task(wire.connect())
        await wire.sleep(SECOND)
        assert not dialling.done()
        wire.network.mend_all()
        await wire.up(await dialling, "hello")
        await wire.sleep(SECOND)
        assert wire.heard == [("1", "hello")]

    wire.run(story)


def test_a_dial_is_refused_where_nobody_listens_or_it_is_to_be() -> None:
    wire = Wire()

    async def refused() -> None:
        with pytest.raises(UnavailableError) as caught:
            await wire.connect()
        assert caught.value.code == "SCHEDULER_UNREACHABLE"

    async def story() -> None:
        wire.network.refuse("n:1")
        await refused()
        wire.network.accept("n:1")
        await wire.connect()
        wire.node.crash()
        await refused()

    wire.run(story)


def test_of_a_broken_stream_a_first_part_of_what_was_on_its_way_arrives() -> None:
    arrived: set[int] = set()
    for seed in range(20):
        wire = Wire(seed, delay=Delay(us_min=100 * MILLISECOND, us_max=200 * MILLISECOND))

        async def story(wire: Wire = wire) -> None:
            stream = await wire.connect()
            await wire.up(stream, *texts(10))
            assert wire.network.break_streams("n", "w", half_open_us_max=2 * SECOND) == 1
            await wire.sleep(5 * SECOND)
            await closed(wire.worker.spawn(stream.receive()))
            heard = [text for _, text in wire.heard[:-1]]
            assert heard == texts(10)[: len(heard)]
            assert wire.heard[-1] == ("1", "end")
            arrived.add(len(heard))

        wire.run(story)
    assert {0} < arrived
    assert max(arrived) > 5


def test_an_old_stream_s_messages_may_arrive_after_a_new_one_was_opened() -> None:
    """So duplicates and reordering come about: the worker repeats itself on the new stream."""
    orders: set[str] = set()
    for seed in range(40):
        wire = Wire(seed, delay=Delay(us_min=MILLISECOND, us_max=800 * MILLISECOND))

        async def story(wire: Wire = wire) -> None:
            old = await wire.connect()
            await wire.up(old, "a")
            wire.network.break_streams("n", "w", half_open_us_max=10 * SECOND)
            new = await wire.connect()
            await wire.up(new, "a")
            await wire.sleep(20 * SECOND)
            orders.add("".join(number for number, text in wire.heard if text == "a"))

        wire.run(story)
    assert {"2", "12", "21"} <= orders


def test_half_open_one_end_goes_on_for_a_while_and_sends_into_the_void() -> None:
    seen: set[tuple[bool, bool]] = set()
    for seed in range(10):
        wire = Wire(seed)

        async def story(wire: Wire = wire) -> None:
            stream = await wire.connect()
            waiting = wire.worker.spawn(stream.receive())
            wire.network.break_streams("n", "w", half_open_us_max=60 * SECOND)
            await wire.sleep(100 * MILLISECOND)
            seen.add((waiting.done(), wire.heard == [("1", "end")]))
            if not waiting.done():
                await wire.up(stream, "void")
            await wire.sleep(70 * SECOND)
            await closed(waiting)
            assert wire.heard == [("1", "end")]

        wire.run(story)
    assert {(True, False), (False, True)} <= seen


def test_a_killed_process_s_streams_are_closed_by_its_kernel() -> None:
    wire = Wire()

    async def story() -> None:
        stream = await wire.connect()
        await wire.up(stream, "last words")
        wire.worker.crash()
        await wire.sleep(SECOND)
        assert wire.heard == [("1", "last words"), ("1", "end")]

    wire.run(story)


def test_of_a_lost_machine_nobody_is_told_until_the_keepalive() -> None:
    wire = Wire()

    async def story() -> None:
        stream = await wire.connect()
        waiting = wire.worker.spawn(stream.receive())
        wire.network.lose_machine("n")
        wire.node.crash()
        dialling = asyncio.create_task(wire.connect())
        await wire.sleep(9 * SECOND)
        assert not waiting.done()
        await wire.sleep(7 * SECOND)
        assert "no sign of life" in await closed(waiting)
        assert not dialling.done()
        wire.network.return_machine("n")
        with pytest.raises(UnavailableError, match="no scheduler answers"):
            await wire.connect()
        dialling.cancel()

    wire.run(story)


def test_a_process_that_stands_still_too_long_loses_its_streams() -> None:
    wire = Wire()

    async def story() -> None:
        stream = await wire.connect()
        waiting = wire.worker.spawn(stream.receive())
        for pause_us in (10 * SECOND, 10 * SECOND):
            wire.node.pause()
            await wire.sleep(pause_us)
            wire.node.resume()
            await wire.sleep(SECOND)
        assert not waiting.done()
        wire.node.pause()
        await wire.up(stream, "waits in its buffer")
        await wire.sleep(17 * SECOND)
        await closed(waiting)
        assert wire.heard == []
        wire.node.resume()
        await wire.sleep(SECOND)
        assert wire.heard == [("1", "waits in its buffer"), ("1", "end")]

    wire.run(story)


def test_a_dial_to_a_process_that_stands_still_is_accepted_when_it_goes_on() -> None:
    wire = Wire()

    async def story() -> None:
        wire.node.pause()
        dialling = asyncio.create_task(wire.connect())
        given_up = asyncio.create_task(wire.connect())
        await wire.sleep(SECOND)
        assert not dialling.done()
        given_up.cancel()
        await asyncio.wait([given_up])
        wire.node.resume()
        await wire.up(await dialling, "hello")
        await wire.sleep(SECOND)
        assert sorted(text for _, text in wire.heard) == ["end", "hello"]

    wire.run(story)


def test_a_node_that_listens_twice_is_refused_until_the_first_is_gone() -> None:
    wire = Wire()

    async def story() -> None:
        other: Process = wire.loop.process("n2", machine="n")
        transport = wire.network.node_transport(other, "n:1")

        async def nothing(_: NodeStream) -> None:
            """Ends at once."""

        with pytest.raises(Exception, match="already listens"):
            await other.spawn(transport.start(nothing))
        wire.node.crash()
        await other.spawn(transport.start(nothing))

    wire.run(story)
