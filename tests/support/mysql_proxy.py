"""A proxy in front of MySQL or MariaDB that understands enough of the protocol to strike at one statement.

    async with MysqlProxy("127.0.0.1", 3306) as proxy:
        url = …@127.0.0.1:{proxy.port}/…
        proxy.strike = kill_before(3)

It sees each statement before the server does. What strikes may end the session on the server first, keep the
answer back and cut the connection, or let it pass. Statements are counted per `strike`, over all connections.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import Literal, Self, TypeAlias

#: ``pass`` it on; ``kill`` the session, then pass it on; ``cut`` the connection instead of the answer.
Act: TypeAlias = Literal["pass", "kill", "cut"]
#: Asked of each statement; gets its text.
Strike: TypeAlias = Callable[[str], Act]

_QUERY = 3
_FOUND_ROWS = 2


def passing(_: str) -> Act:
    """Lets everything pass."""
    return "pass"


def nth(number: int, act: Act, *, counts: Callable[[str], bool] = lambda _: True) -> Strike:
    """Does `act` to the statement of this number, from 1, of those that count; then passes all."""
    seen = 0

    def strike(text: str) -> Act:
        nonlocal seen
        seen += counts(text)
        if seen == number and counts(text):
            seen += 1
            return act
        return "pass"

    return strike


class MysqlProxy:
    """Listens on a port of its own, on the loop of the test."""

    def __init__(
        self,
        target: tuple[str, int],
        *,
        kill: Callable[[int], Awaitable[None]],
        hides_found_rows: bool = False,
    ) -> None:
        """`kill` ends a session of the server; `hides_found_rows` takes that flag out of greetings."""
        self._target = target
        self._kill = kill
        self._hides_found_rows = hides_found_rows
        self.strike: Strike = passing
        #: How often something else than passing was done.
        self.struck = 0
        self.port = 0
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            server_reader, server_writer = await asyncio.open_connection(*self._target)
        except OSError:
            writer.close()
            return
        session = _Session(self, (reader, writer), (server_reader, server_writer))
        try:
            await session.run()
        except (OSError, asyncio.IncompleteReadError):
            pass  # one side has closed its connection, and so does the other
        finally:
            writer.close()
            server_writer.close()


class _Session:
    """One connection of a client: requests and answers in turn, as the protocol has them."""

    def __init__(
        self,
        proxy: MysqlProxy,
        client: tuple[asyncio.StreamReader, asyncio.StreamWriter],
        server: tuple[asyncio.StreamReader, asyncio.StreamWriter],
    ) -> None:
        self._proxy = proxy
        self._client = client
        self._server = server
        self._is_silent = False

    async def run(self) -> None:
        greeting = await _packet(self._server[0])
        # Protocol version, version of the server, ended by NUL, number of the session.
        end = greeting.index(0, 5)
        self._number = int.from_bytes(greeting[end + 1 : end + 5], "little")
        self._client[1].write(greeting)
        response = bytearray(await _packet(self._client[0]))
        if self._proxy._hides_found_rows:
            response[4] &= ~_FOUND_ROWS
        self._server[1].write(response)
        answers = asyncio.ensure_future(self._answers())
        try:
            await self._requests()
        finally:
            answers.cancel()
            await asyncio.gather(answers, return_exceptions=True)

    async def _requests(self) -> None:
        while True:
            packet = await _packet(self._client[0])
            act: Act = "pass"
            if packet[4] == _QUERY and packet[3] == 0:
                act = self._proxy.strike(packet[5:].decode("utf-8", "replace"))
            if act != "pass":
                self._proxy.struck += 1
            if act == "kill":
                await self._proxy._kill(self._number)
            if act == "cut":
                self._is_silent = True
                self._answered = asyncio.Event()
            self._server[1].write(packet)
            await self._server[1].drain()
            if act == "cut":
                await self._answered.wait()
                return

    async def _answers(self) -> None:
        while data := await self._server[0].read(65_536):
            if self._is_silent:
                self._answered.set()
                continue
            self._client[1].write(data)
            await self._client[1].drain()
        # The server has ended the session: so hears the client.
        self._client[1].close()


async def _packet(reader: asyncio.StreamReader) -> bytes:
    header = await reader.readexactly(4)
    return header + await reader.readexactly(int.from_bytes(header[:3], "little"))
