"""A proxy that understands PostgreSQL's messages: it loses a connection at a statement, or an answer.

    with StatementProxy("127.0.0.1:5432") as proxy:
        …                              # connect to proxy.port, with sslmode=disable
        proxy.lose_at(3)               # the third statement from now on never reaches the server
        proxy.lose_at(3, answer=True)  # it does, and its answer never comes back

Both sides of the connection are reset then; others, and new ones, pass. A statement is one message that makes
the server run something: a simple query, such as BEGIN and COMMIT, or an Execute.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from types import TracebackType
from typing import Any

import psycopg
from support.servers import TestDatabase, connect


@contextmanager
def outside(database: TestDatabase) -> Iterator[psycopg.Connection[Any]]:
    """A session of somebody else, each of whose statements is a transaction."""
    connection: psycopg.Connection[Any] = connect(database.server_url)
    try:
        connection.autocommit = True
        yield connection
    finally:
        connection.close()


class StatementProxy:
    """Its methods may be called from any thread."""

    def __init__(self, target: str, *, fakes_process_ids: bool = False) -> None:
        """`fakes_process_ids`: tells clients an id of its own for their process, as proxies that pool do."""
        host, _, port = target.rpartition(":")
        self._target = (host, int(port))
        self._fakes_process_ids = fakes_process_ids
        self._is_struck: Callable[[str], bool] = _never
        self._loses_answer = False
        #: Text of the statement that was lost; empty until then.
        self.lost = ""
        #: Names under which clients have prepared statements.
        self.named: set[bytes] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="statement-proxy", daemon=True)
        self._thread.start()
        self._server: asyncio.Server = asyncio.run_coroutine_threadsafe(self._listen(), self._loop).result()
        self.port = int(self._server.sockets[0].getsockname()[1])

    def lose_at(self, number: int, *, answer: bool = False) -> None:
        """Lose the connection that sends the `number`-th statement from now on, counted over all of them."""
        left = number

        def is_struck(_: str) -> bool:
            nonlocal left
            left -= 1
            return left == 0

        self.lose_when(is_struck, answer=answer)

    def lose_when(self, is_struck: Callable[[str], bool], *, answer: bool = False) -> None:
        """Lose every connection that sends such a statement; it is asked of each, in the proxy's thread."""
        self._is_struck, self._loses_answer, self.lost = is_struck, answer, ""

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._stop(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def __enter__(self) -> StatementProxy:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    async def _listen(self) -> asyncio.Server:
        return await asyncio.start_server(self._accept, "127.0.0.1", 0)

    async def _stop(self) -> None:
        self._server.close()
        tasks = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server_reader, server_writer = await asyncio.open_connection(*self._target)
        connection = _Connection(self, reader, writer, server_reader, server_writer)
        try:
            # Python 3.11 reports a handler that was cancelled as an error.
            with suppress(asyncio.CancelledError):
                await connection.pass_on()
        finally:
            for each in (writer, server_writer):
                each.transport.abort()

    def is_lost(self, statement: str) -> bool:
        """Whether a statement is one to lose."""
        if not self._is_struck(statement):
            return False
        self.lost = statement
        return True


def _never(_: str) -> bool:
    return False


class _Connection:
    def __init__(
        self,
        proxy: StatementProxy,
        client_reader: asyncio.StreamReader,
        client_writer: asyncio.StreamWriter,
        server_reader: asyncio.StreamReader,
        server_writer: asyncio.StreamWriter,
    ) -> None:
        self._proxy = proxy
        self._client = (client_reader, client_writer)
        self._server = (server_reader, server_writer)
        self._text = ""
        self._is_losing_answer = False

    async def pass_on(self) -> None:
        """Until either side ends, or the connection is to be lost."""
        directions = {asyncio.create_task(self._to_server()), asyncio.create_task(self._to_client())}
        _, rest = await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
        for direction in rest:
            direction.cancel()
        await asyncio.gather(*directions, return_exceptions=True)

    async def _to_server(self) -> None:
        reader, writer = self._client[0], self._server[1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            head = await reader.readexactly(4)
            writer.write(head + await reader.readexactly(struct.unpack("!i", head)[0] - 4))
            while True:
                kind, message = await _read_message(reader)
                if kind == b"P":
                    self._proxy.named |= {message[5 : message.index(b"\0", 5)]} - {b""}
                if kind in (b"Q", b"P"):
                    self._text = message[5:].strip(b"\0").decode(errors="replace").lstrip("\0")
                if kind in (b"Q", b"E") and self._proxy.is_lost(self._text):
                    if not self._proxy._loses_answer:
                        return
                    self._is_losing_answer = True
                writer.write(message)
                await writer.drain()

    async def _to_client(self) -> None:
        reader, writer = self._server[0], self._client[1]
        with suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                kind, message = await _read_message(reader)
                if self._is_losing_answer:
                    # "Ready for the next query": the server has done it.
                    if kind == b"Z":
                        return
                    continue
                if kind == b"K" and self._proxy._fakes_process_ids:
                    message = message[:5] + struct.pack("!i", 123_456_789) + message[9:]
                writer.write(message)
                await writer.drain()


async def _read_message(reader: asyncio.StreamReader) -> tuple[bytes, bytes]:
    head = await reader.readexactly(5)
    length = struct.unpack("!i", head[1:])[0]
    return head[:1], head + await reader.readexactly(length - 4)
