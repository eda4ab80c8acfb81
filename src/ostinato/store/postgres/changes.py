"""LISTEN and NOTIFY: a hint that somebody has committed something, told to every process that waits.

A hint, never a fact: it is sent after the commit, one for many commits, and may be lost; the poll of whoever
waits is the safety net. So the transactions themselves need not queue for the server's one list of
notifications. A connection that has died without a word is found by asking it to notify itself.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Any

import asyncpg

from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.store.changes import ChangeSignal
from ostinato.store.hints import Hints, decode_hint
from ostinato.store.postgres.dialect import PostgresDialect
from ostinato.store.postgres.faults import fault_of
from ostinato.store.server.channel import CHANGE_CHANNEL

#: How often the listening connection is asked whether it still hears; half of it is the time for the answer,
#: so that one that does not is replaced well before 30 s (C113).
CHECK_US = 10 * SECOND
_CONNECT_US = 5 * SECOND
_RECONNECT_FIRST_US = 100 * MILLISECOND
_RECONNECT_LAST_US = 3 * SECOND
_ECHO = "echo:"


class Listener:
    """Tells `changes` of every hint that another process has sent; reconnects by itself."""

    def __init__(
        self,
        dialect: PostgresDialect,
        changes: ChangeSignal,
        *,
        name: str,
        clock: Clock,
        rng: Random,
        hints: Hints,
        check_us: int = CHECK_US,
    ) -> None:
        """`name` is that under which this process announces: it knows of its own commits already."""
        self._dialect = dialect
        self._changes = changes
        self._hints = hints
        self._name = name
        self._clock = clock
        self._rng = rng
        self._check_us = check_us
        self._task: asyncio.Task[None] | None = None
        self._heard = asyncio.Event()
        #: Set while a connection listens.
        self.is_listening = asyncio.Event()
        #: Connections that were lost and replaced; a metric reads it.
        self.losses = 0

    def start(self) -> None:
        """Listen from now on; again if it has ended."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._listen_for_ever())

    async def close(self) -> None:
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait((task,))

    async def _listen_for_ever(self) -> None:
        pause_us = _RECONNECT_FIRST_US
        while True:
            try:
                await self._listen()
            except Exception as error:
                if fault_of(error) is None:
                    raise
            if self.is_listening.is_set():
                self.is_listening.clear()
                self.losses += 1
                pause_us = _RECONNECT_FIRST_US
            await self._clock.sleep_until_us(self._clock.boot_us() + self._rng.randrange(pause_us))
            pause_us = min(2 * pause_us, _RECONNECT_LAST_US)

    async def _listen(self) -> None:
        """Returns when the connection no longer hears; raises what the driver raises."""
        async with asyncio.timeout(_CONNECT_US / SECOND):
            connection = await self._dialect.connect()
        try:
            ended = asyncio.Event()
            connection.add_termination_listener(lambda _: ended.set())
            async with asyncio.timeout(_CONNECT_US / SECOND):
                await connection.add_listener(CHANGE_CHANNEL, self._hear)
            self.is_listening.set()
            if self.losses:
                # What was announced while nobody listened.
                self._changes.notify()
            while await self._still_hears(connection, ended):
                pass
        finally:
            connection.terminate()

    async def _still_hears(self, connection: asyncpg.Connection[Any], ended: asyncio.Event) -> bool:
        try:
            async with asyncio.timeout(self._check_us / SECOND):
                await ended.wait()
                return False
        except TimeoutError:
            self._heard.clear()
        async with asyncio.timeout(self._check_us / 2 / SECOND):
            await connection.execute("SELECT pg_notify($1, $2)", CHANGE_CHANNEL, _ECHO + self._name)
            await self._heard.wait()
        return True

    def _hear(self, _connection: object, _process: int, _channel: str, payload: object) -> None:
        name, _, hint = str(payload).partition(" ")
        if name == _ECHO + self._name:
            self._heard.set()
        elif name != self._name and not name.startswith(_ECHO):
            if hint:
                self._hints.add(decode_hint(hint))
            self._changes.notify()
