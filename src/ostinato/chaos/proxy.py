"""A TCP proxy that does to connections what networks do: cuts, silence, refusal, delay, loss.

It runs in a thread of its own, so that whoever uses it needs no event loop and may block:

    with Proxy("127.0.0.1:8641") as proxy:
        …                    # give out proxy.address in place of the target
        proxy.blackhole()    # nothing passes any more, and nobody is told
        proxy.resume()

What each does to connections that are open, and to new ones:

* ``cut()``: open ones are reset on both sides; new ones pass. What a NAT does that has forgotten them.
* ``blackhole()``: nothing passes in either direction, not even the end of a connection, and nothing is reset.
  New ones are accepted and hear nothing. Bytes are held, not dropped: they arrive after ``resume()``, as lost
  packets do, which TCP sends again. Follow it with ``cut()`` for a network that never comes back.
* ``refuse()``: new ones are refused, open ones pass. The port stays reserved.
* ``resume()``: ends silence and refusal.

`delay_s` is added in each direction. A share `loss` of the chunks is held up for `retransmission_s` more,
with all that follows on the same connection: so does a lost packet look to whoever uses TCP.
"""

from __future__ import annotations

import asyncio
import socket
import struct
import threading
from collections.abc import Callable, Coroutine
from random import Random
from types import TracebackType
from typing import TypeVar

from ostinato.errors import ConflictError
from ostinato.settings_readers import Address

#: Chunks that wait in one direction of one connection before the proxy stops reading.
_WAITING_COUNT_MAX = 64
_CHUNK_BYTES = 65_536
#: `SO_LINGER` with no time to linger: closing resets the connection.
_RESET = struct.pack("ii", 1, 0)
#: Any free port.
_ANY_PORT = Address("127.0.0.1", 0)

Value = TypeVar("Value")


class Proxy:
    """Forwards connections to `target`, ``host:port``; listening from the beginning to `close`.

    Its methods may be called from any thread, and return when what they say is so.
    """

    def __init__(
        self,
        target: str,
        *,
        listen: Address = _ANY_PORT,
        delay_s: float = 0.0,
        loss: float = 0.0,
        retransmission_s: float = 0.2,
        seed: int = 0,
    ) -> None:
        """Raises ``PORT_IN_USE`` if somebody else listens at `listen`, whose port 0 is any free one."""
        host, _, port = target.rpartition(":")
        self._target = (host.strip("[]"), int(port))
        self.delay_s = delay_s
        self.loss = loss
        self.retransmission_s = retransmission_s
        self._rng = Random(seed)
        self._server: asyncio.Server | None = None
        self._connections: set[_Connection] = set()
        self._accepted_count = 0
        self._bytes_count = 0
        # Bound and never listening: the port remains ours while connections are refused.
        self._reservation = bound_socket(listen)
        self._listen_at = Address(listen.host, int(self._reservation.getsockname()[1]))
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="proxy", daemon=True)
        self._thread.start()
        self._call(self._listen)

    @property
    def address(self) -> str:
        """Where to connect in place of the target."""
        return str(self._listen_at)

    @property
    def accepted_count(self) -> int:
        """Connections accepted since the beginning."""
        return self._accepted_count

    @property
    def open_count(self) -> int:
        """Connections that neither side nor a cut has ended."""
        return len(self._connections)

    @property
    def bytes_count(self) -> int:
        """Bytes handed on since the beginning, both directions together."""
        return self._bytes_count

    def cut(self) -> None:
        """Reset every open connection on both sides."""
        self._call(self._cut)

    def blackhole(self) -> None:
        """Let nothing pass, and tell nobody."""
        self._call(self._fall_silent)

    def refuse(self) -> None:
        """Refuse new connections."""
        self._call(self._unlisten)

    def resume(self) -> None:
        """End what `blackhole` and `refuse` have begun."""
        self._call(self._resume)

    def close(self) -> None:
        """Reset everything and stop; idempotent."""
        if self._loop.is_closed():
            return
        self._call(self._unlisten)
        self._call(self._cut)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self._reservation.close()

    def __enter__(self) -> Proxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # ── on the proxy's own loop ───────────────────────────────────────────────────────────────────────

    def _call(self, act: Callable[[], Coroutine[None, None, Value]]) -> Value:
        return asyncio.run_coroutine_threadsafe(act(), self._loop).result()

    async def _listen(self) -> None:
        if self._server is None:
            self._server = await asyncio.start_server(self._accept, sock=bound_socket(self._listen_at))

    async def _unlisten(self) -> None:
        server, self._server = self._server, None
        if server is not None:
            server.close()

    async def _fall_silent(self) -> None:
        self._passing.clear()

    async def _resume(self) -> None:
        self._passing.set()
        await self._listen()

    async def _cut(self) -> None:
        connections = list(self._connections)
        for connection in connections:
            connection.task.cancel()
        if connections:
            await asyncio.wait([connection.task for connection in connections])

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        connection = _Connection(task, writer)
        self._accepted_count += 1
        self._connections.add(connection)
        try:
            await self._passing.wait()
            onward_reader, onward_writer = await asyncio.open_connection(*self._target)
            connection.writers.append(onward_writer)
            await _all([*self._direction(reader, onward_writer), *self._direction(onward_reader, writer)])
        except (OSError, asyncio.CancelledError):
            # Reset by one side, or cut by us: the other side hears of it in the same way.
            for open_writer in connection.writers:
                _reset(open_writer)
        finally:
            for open_writer in connection.writers:
                open_writer.close()
            self._connections.discard(connection)

    def _direction(
        self, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> list[Coroutine[None, None, None]]:
        """Hand on chunk after chunk, each as late as the network makes it, and the end after them."""
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(_WAITING_COUNT_MAX)
        return [self._take_in(source, waiting), self._give_out(waiting, sink)]

    async def _take_in(
        self, source: asyncio.StreamReader, waiting: asyncio.Queue[tuple[float, bytes]]
    ) -> None:
        chunk = b"more"
        while chunk:
            chunk = await source.read(_CHUNK_BYTES)
            await waiting.put((self._loop.time() + self.delay_s, chunk))

    async def _give_out(
        self, waiting: asyncio.Queue[tuple[float, bytes]], sink: asyncio.StreamWriter
    ) -> None:
        while True:
            due, chunk = await waiting.get()
            if self._rng.random() < self.loss:
                due += self.retransmission_s
            await self._until(due)
            await self._passing.wait()
            if not chunk:
                sink.write_eof()
                return
            self._bytes_count += len(chunk)
            sink.write(chunk)
            await sink.drain()

    async def _until(self, due: float) -> None:
        if due > self._loop.time():
            reached = asyncio.Event()
            self._loop.call_at(due, reached.set)
            await reached.wait()


async def _all(works: list[Coroutine[None, None, None]]) -> None:
    """Wait for all of them; the first that fails ends the others."""
    tasks = [asyncio.ensure_future(work) for work in works]
    try:
        await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)


class _Connection:
    """One accepted connection: the task that serves it, and what to close."""

    def __init__(self, task: asyncio.Task[None], writer: asyncio.StreamWriter) -> None:
        self.task = task
        self.writers = [writer]


def _reset(writer: asyncio.StreamWriter) -> None:
    connected: socket.socket = writer.get_extra_info("socket")
    if connected.fileno() < 0:
        return  # the side that reset it is closed already
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


def bound_socket(address: Address) -> socket.socket:
    """A socket that has the address and does not listen. Raises ``PORT_IN_USE``."""
    bound = socket.socket(socket.AF_INET6 if ":" in address.host else socket.AF_INET)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        bound.bind((address.host, address.port))
    except OSError as error:
        bound.close()
        raise ConflictError("PORT_IN_USE", f"{address} cannot be listened on: {error.strerror}") from None
    return bound
