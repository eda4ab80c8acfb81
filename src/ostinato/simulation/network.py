"""The simulated network: streams between the processes of machines, and all that befalls them.

Within one stream order and at-most-once hold, as ``wire/protocol.py`` says. What makes duplicates and
reordering is what makes them in life: a stream breaks, one end notices, dials again and repeats itself, while
the old stream's messages are still on their way to the end that has not noticed.

::

    send ──► way ──(delay of the link, in order)──► inbox ──► receive
              │                    │
              silence: held        break: a part is lost; each end notices at its own time

A *link* is a pair of machines in one direction. Who is on which machine stands in ``Process.machine``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random

import msgspec

from ostinato.core.instants import SECOND
from ostinato.errors import ConflictError, UnavailableError
from ostinato.simulation.event_loop import SimulatedLoop
from ostinato.simulation.history import History
from ostinato.simulation.process import Process
from ostinato.simulation.streams import NO_SIGN_OF_LIFE, NodeEnd, Stream, WorkerEnd
from ostinato.wire.protocol import NodeTransport, StreamHandler, WorkerStream, WorkerTransport
from ostinato.wire.streams import run_handler

#: Both sides of gRPC ask each other for signs of life, and give up after this much silence.
KEEPALIVE_US = 15 * SECOND


class Delay(msgspec.Struct, frozen=True, kw_only=True):
    """How long a batch is on its way: uniform, or sometimes much longer. `spike_share` is a probability."""

    us_min: int = 100
    us_max: int = 1_000
    spike_share: float = 0.0
    spike_us_max: int = 0

    def draw(self, rng: Random) -> int:
        """One batch's time, in microseconds."""
        if self.spike_share and rng.random() < self.spike_share:
            return self.us_min + int(rng.random() * self.spike_us_max)
        return self.us_min + int(rng.random() * (self.us_max - self.us_min))


class Link:
    """The way from one machine to another."""

    def __init__(self, delay: Delay) -> None:
        self.delay = delay
        #: When it fell silent (true time); None: it carries.
        self.silent_since_us: int | None = None
        #: What is to be done once it carries again, in order.
        self.held: list[Callable[[], None]] = []


class Network:
    """Every transport of one run. Faults come and go by its methods; all times are true time."""

    def __init__(
        self,
        loop: SimulatedLoop,
        history: History,
        *,
        rng: Random,
        delay: Delay | None = None,
        keepalive_us: int = KEEPALIVE_US,
    ) -> None:
        """`delay` is that of every link until another is set. `keepalive_us`: when a dead peer is noticed."""
        self.loop = loop
        self.history = history
        self.rng = rng
        self.keepalive_us = keepalive_us
        self._delay = delay if delay is not None else Delay()
        self._links: dict[tuple[str, str], Link] = {}
        self._listening: dict[str, _NodeTransport] = {}
        #: Where whoever listens at an address does so, or last did.
        self._machine_of: dict[str, str] = {}
        self._refusing: set[str] = set()
        self._gone: set[str] = set()
        self._streams: dict[int, Stream] = {}
        self._stream_count = 0
        loop.pause_listeners.append(self._paused)

    def node_transport(self, process: Process, address: str) -> NodeTransport:
        """The transport of a node that will listen at `address`, any text."""
        return _NodeTransport(self, process, address=address)

    def worker_transport(self, process: Process) -> WorkerTransport:
        """The transport of a supervisor, or of a guardian."""
        return _WorkerTransport(self, process)

    def link(self, sender: str, receiver: str) -> Link:
        """The way from one machine to another; what stays on a machine has one too."""
        found = self._links.get((sender, receiver))
        if found is None:
            found = self._links[sender, receiver] = Link(self._delay)
        return found

    # ── faults ────────────────────────────────────────────────────────────────────────────────────────

    def set_delay(self, delay: Delay, *, sender: str = "", receiver: str = "") -> None:
        """Another delay, from now on: of one link, of all from or to a machine, or (both empty) of all."""
        if not sender and not receiver:
            self._delay = delay
        if sender and receiver:
            self.link(sender, receiver)
        for (known_sender, known_receiver), link in self._links.items():
            if sender in ("", known_sender) and receiver in ("", known_receiver):
                link.delay = delay

    def silence(self, sender: str, receiver: str) -> None:
        """Nothing arrives from one machine at the other until `mend`; the other way goes on. Idempotent.

        What is sent waits, as TCP repeats it. A stream that crosses a silence longer than the keepalive
        breaks, and both ends notice.
        """
        link = self.link(sender, receiver)
        if link.silent_since_us is not None:
            return
        link.silent_since_us = since_us = self.loop.true_us
        at_us = since_us + self.keepalive_us
        self.loop.run_in_world(self.loop.call_at_us, at_us, self._still_silent, sender, receiver, since_us)

    def mend(self, sender: str, receiver: str) -> None:
        """The link carries again, what waited first. Idempotent."""
        link = self.link(sender, receiver)
        if link.silent_since_us is None:
            return
        link.silent_since_us = None
        held, link.held = link.held, []
        for release in held:
            release()

    def mend_all(self) -> None:
        """Every link carries, every address may be dialled; delays stay as they are."""
        for sender, receiver in list(self._links):
            self.mend(sender, receiver)
        self._refusing.clear()

    def refuse(self, address: str) -> None:
        """Whoever dials `address` is refused, until `accept`."""
        self._refusing.add(address)

    def accept(self, address: str) -> None:
        self._refusing.discard(address)

    def break_streams(self, machine: str, other: str, *, half_open_us_max: int = 0) -> int:
        """Break every stream between two machines; returns how many there were.

        A part of what is on its way is lost. One end notices at once, the other up to `half_open_us_max`
        later, which of them is drawn; until then it hears what was on its way, and sends into the void.
        """
        broken = [stream for stream in self._streams.values() if stream.is_between(machine, other)]
        for stream in broken:
            self.break_stream(stream, half_open_us_max=half_open_us_max)
        return len(broken)

    def break_stream(self, stream: Stream, *, half_open_us_max: int = 0) -> None:
        """Break one stream, as `break_streams`."""
        later_us = int(self.rng.random() * half_open_us_max)
        worker_first = self.rng.random() < 0.5
        stream.cut(self.rng)
        stream.worker.end("the connection was reset", in_us=0 if worker_first else later_us)
        stream.node.end("the connection was reset", in_us=later_us if worker_first else 0)

    def lose_machine(self, machine: str) -> None:
        """A machine is switched off: it answers nothing, and nobody is told. Its processes die elsewhere."""
        self._gone.add(machine)
        for stream in self._streams.values():
            if machine in stream.machines:
                stream.lose(machine, within_us=self.keepalive_us, rng=self.rng)

    def return_machine(self, machine: str) -> None:
        """It is switched on again: whoever dials it is answered. Idempotent."""
        self._gone.discard(machine)

    def _still_silent(self, sender: str, receiver: str, since_us: int) -> None:
        if self.link(sender, receiver).silent_since_us != since_us:
            return
        for stream in [known for known in self._streams.values() if known.is_between(sender, receiver)]:
            stream.cut(self.rng)
            stream.worker.end(NO_SIGN_OF_LIFE, in_us=int(self.rng.random() * SECOND))
            stream.node.end(NO_SIGN_OF_LIFE, in_us=int(self.rng.random() * SECOND))

    def _paused(self, process: Process) -> None:
        at_us = self.loop.true_us + self.keepalive_us
        self.loop.call_at_us(at_us, self._still_paused, process, process.pause_count)

    def _still_paused(self, process: Process, pause_count: int) -> None:
        """A process that stands still answers nobody who asks for a sign of life."""
        if not process.is_paused or process.pause_count != pause_count:
            return
        for stream in [known for known in self._streams.values() if known.is_of(process)]:
            stream.cut(self.rng)
            stream.worker.end(NO_SIGN_OF_LIFE, in_us=int(self.rng.random() * SECOND))
            stream.node.end(NO_SIGN_OF_LIFE, in_us=int(self.rng.random() * SECOND))

    # ── dialling ──────────────────────────────────────────────────────────────────────────────────────

    def listen(self, transport: _NodeTransport) -> None:
        """A node begins to listen. Raises ``PORT_IN_USE``."""
        if transport.address in self._listening:
            raise ConflictError(
                "PORT_IN_USE",
                f"another node already listens on {transport.address}",
                subject=transport.address,
                hint="stop it, or choose another address",
            )
        self._listening[transport.address] = transport
        self._machine_of[transport.address] = transport.process.machine

    def forget(self, transport: _NodeTransport) -> None:
        """It listens no more. Idempotent."""
        if self._listening.get(transport.address) is transport:
            del self._listening[transport.address]

    def dial(self, process: Process, address: str) -> asyncio.Future[WorkerEnd]:
        """A stream to `address`, some time later; never if nobody can be reached there at all."""
        answer: asyncio.Future[WorkerEnd] = self.loop.create_future()
        machine = self._machine_of.get(address, "")
        call = _Call(self, process, address=address, machine=machine, answer=answer)
        self.loop.run_in_world(self.carry, process.machine, machine, deliver=call.arrive)
        return answer

    def carry(self, sender: str, receiver: str, *, deliver: Callable[[], None]) -> None:
        """Call `deliver` after the link's delay; while the link is silent that waits."""
        link = self.link(sender, receiver)
        at_us = self.loop.true_us + link.delay.draw(self.rng)

        def arrive() -> None:
            if link.silent_since_us is not None:
                link.held.append(deliver)
            else:
                deliver()

        self.loop.call_at_us(at_us, arrive)

    def listener(self, address: str) -> _NodeTransport | None:
        """Who takes a call at `address`; None: it is refused."""
        return None if address in self._refusing else self._listening.get(address)

    def answers(self, machine: str) -> bool:
        """Whether a machine is switched on."""
        return machine not in self._gone

    def open_stream(self, worker: Process, node: Process, *, address: str) -> Stream:
        """A new stream between two processes, which ends with either of them."""
        self._stream_count += 1
        number = self._stream_count
        stream = Stream(self, number, worker=worker, node=node, address=address)
        self._streams[number] = stream
        return stream

    def drop(self, stream: Stream) -> None:
        """Both ends of a stream know that it has ended."""
        self._streams.pop(stream.number, None)


class _Call:
    """A worker dials a node: there, accepted by the node's process, and back."""

    def __init__(
        self,
        network: Network,
        caller: Process,
        *,
        address: str,
        machine: str,
        answer: asyncio.Future[WorkerEnd],
    ) -> None:
        self._network = network
        self._caller = caller
        self._address = address
        self._machine = machine
        self._answer = answer

    def arrive(self) -> None:
        if self._machine and not self._network.answers(self._machine):
            # Nobody says no: the caller waits as long as it likes.
            return
        listener = self._network.listener(self._address)
        if listener is None:
            self._network.carry(self._machine, self._caller.machine, deliver=self._refused)
            return
        # A process that stands still accepts when it goes on.
        listener.process.call_soon(self._accept, listener)

    def _accept(self, listener: _NodeTransport) -> None:
        if not self._caller.is_alive:
            return
        if not listener.is_listening:
            self._network.loop.run_in_world(
                self._network.carry, self._machine, self._caller.machine, deliver=self._refused
            )
            return
        stream = self._network.open_stream(self._caller, listener.process, address=self._address)
        listener.serve(stream.node)

        def accepted() -> None:
            if self._caller.is_alive:
                self._caller.call_soon(self._take, stream.worker)
            else:
                stream.worker.vanish()

        self._network.loop.run_in_world(
            self._network.carry, listener.process.machine, self._caller.machine, deliver=accepted
        )

    def _take(self, end: WorkerEnd) -> None:
        if self._answer.done():
            # The caller has given up meanwhile.
            end.shut("the other side closed it")
        else:
            self._answer.set_result(end)

    def _refused(self) -> None:
        def refuse() -> None:
            if not self._answer.done():
                self._answer.set_exception(
                    UnavailableError(
                        "SCHEDULER_UNREACHABLE",
                        f"no scheduler answers at {self._address}",
                        subject=self._address,
                        hint="check that the scheduler runs and that the address is its own",
                    )
                )

        self._caller.call_soon(refuse)


class _NodeTransport:
    def __init__(self, network: Network, process: Process, *, address: str) -> None:
        self.process = process
        self.address = address
        self.is_listening = False
        self._network = network
        self._handler: StreamHandler | None = None
        self._ends: dict[NodeEnd, asyncio.Task[None]] = {}

    async def start(self, handler: StreamHandler) -> str:
        self._network.listen(self)
        self._handler = handler
        self.is_listening = True
        self.process.on_crash(self._die)
        return self.address

    def _die(self) -> None:
        self.is_listening = False
        self._network.forget(self)

    async def stop(self) -> None:
        self._die()
        self.process.forget(self._die)
        for end in list(self._ends):
            await end.close()
        while self._ends:
            await asyncio.wait(list(self._ends.values()))

    def serve(self, end: NodeEnd) -> None:
        """Hand a new stream to the handler; called by the node's own process."""
        assert self._handler is not None, "it listens"
        task = asyncio.get_running_loop().create_task(run_handler(self._handler, end))
        self._ends[end] = task
        task.add_done_callback(lambda _: self._ends.pop(end))


class _WorkerTransport:
    def __init__(self, network: Network, process: Process) -> None:
        self._network = network
        self._process = process
        self._ends: dict[WorkerEnd, None] = {}

    async def connect(self, address: str) -> WorkerStream:
        end = await self._network.dial(self._process, address)
        self._ends = {known: None for known in self._ends if not known.is_closed_here}
        self._ends[end] = None
        return end

    async def close(self) -> None:
        for end in self._ends:
            await end.close()
        self._ends = {}
