"""A thread with one connection, to which whole transactions are sent.

Why not aiosqlite: it hops to its thread and back for every statement. A transaction is one function here, so
it costs one hop, and nothing else can come between its statements. While a statement runs the thread does
not hold Python's interpreter lock, but it must win it back after every *row*, and against a busy event loop
that takes up to 5 ms. So the hot statements carry a hundred rows each, and hot reads return one row of JSON.
"""

from __future__ import annotations

import asyncio
import os
import sqlite3
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import Generic, TypeVar

from ostinato.errors import UnavailableError
from ostinato.store.sqlite.failures import DATA_ERRORS, refused, timed_out, translate, unusable

Result = TypeVar("Result")


class _Call(Generic[Result]):
    """One transaction on its way through a lane."""

    def __init__(
        self,
        work: Callable[[sqlite3.Connection], Result],
        operation: str,
        *,
        loop: asyncio.AbstractEventLoop,
    ) -> None:
        self.work = work
        self.operation = operation
        self.loop = loop
        self.future: asyncio.Future[Result] = loop.create_future()
        self.abandoned = False

    def settle(self, result: Result) -> None:
        if not self.future.done():
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not self.future.done():
            self.future.set_exception(error)


class Lane:
    """Runs transactions one after the other on a connection of its own."""

    def __init__(self, path: str, connect: Callable[[], sqlite3.Connection], *, deadline_us: int) -> None:
        """`connect` is called once, in the thread; each call ends within `deadline_us`, waiting included."""
        self._path = path
        self._connect = connect
        self._deadline_us = deadline_us
        # Any result may pass; each call's own future keeps its type.
        self._calls: SimpleQueue[_Call[object] | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._current: _Call[object] | None = None
        self._connection: sqlite3.Connection | None = None
        self._pending_count = 0
        self._thread: threading.Thread | None = None
        self._pid = 0

    @property
    def is_idle(self) -> bool:
        return self._pending_count == 0

    async def run(self, operation: str, work: Callable[[sqlite3.Connection], Result]) -> Result:
        """Result of `work` on the lane's connection, as one unit; the thread starts with the first call.

        Raises ``DATABASE_UNAVAILABLE`` at the deadline: a call that has not begun never will, one that has
        is interrupted, and whether it was written is unknown.
        """
        self._start()
        loop = asyncio.get_running_loop()
        call: _Call[Result] = _Call(work, operation, loop=loop)
        alarm = loop.call_later(self._deadline_us / 1e6, self._time_out, call)
        self._pending_count += 1
        self._calls.put(call)  # type: ignore[arg-type] # the queue does not look at results
        try:
            return await call.future
        finally:
            alarm.cancel()
            call.abandoned = True
            self._pending_count -= 1

    def _start(self) -> None:
        if self._thread is None:
            self._pid = os.getpid()
            self._thread = threading.Thread(target=self._main, name="ostinato-sqlite", daemon=True)
            self._thread.start()
        elif self._pid != os.getpid():
            raise unusable(
                self._path,
                "the store was opened before this process was forked",
                hint="open a store of its own in each process",
            )

    def _time_out(self, call: _Call[Result]) -> None:
        with self._lock:
            if self._current is call and self._connection is not None:
                self._connection.interrupt()
        call.abandoned = True
        call.fail(timed_out(self._path, call.operation, deadline_us=self._deadline_us))

    async def close(self) -> None:
        """End the thread after the calls before this one; returns at the deadline even if it does not end."""
        thread, self._thread = self._thread, None
        if thread is None or self._pid != os.getpid():
            return
        self._calls.put(None)
        await asyncio.get_running_loop().run_in_executor(None, thread.join, self._deadline_us / 1e6)

    # ── in the thread ────────────────────────────────────────────────────────────────────────────────

    def _main(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                break
            if call.abandoned:
                continue
            with self._lock:
                self._current = call
            self._run_call(call)
            # Not a moment longer than needed: results may be large, and the next call may be far away.
            del call
        if self._connection is not None:
            self._connection.close()

    def _run_call(self, call: _Call[object]) -> None:
        try:
            if self._connection is None:
                self._connection = self._connect()
            result = call.work(self._connection)
        except DATA_ERRORS as error:
            self._report(call, refused(error, path=self._path, operation=call.operation))
        except sqlite3.Error as error:
            self._report(call, translate(error, path=self._path, operation=call.operation))
        except BaseException as error:  # noqa: BLE001 - not hidden: it is raised where the call is awaited
            self._report(call, error)
        else:
            self._leave()
            self._post(call, call.settle, value=result)

    def _report(self, call: _Call[object], error: BaseException) -> None:
        if self._connection is not None and self._connection.in_transaction:
            try:
                self._connection.rollback()
            except sqlite3.Error as failure:
                error.add_note(f"and the rollback failed: {failure}")
        self._leave()
        self._post(call, call.fail, value=error)

    def _leave(self) -> None:
        with self._lock:
            self._current = None

    def _post(self, call: _Call[object], deliver: Callable[..., None], *, value: object) -> None:
        if not call.loop.is_closed():
            call.loop.call_soon_threadsafe(deliver, value)


def require_open(lane: Lane | None, path: str) -> Lane:
    """The lane of a store that is open. Raises ``DATABASE_UNAVAILABLE`` for one that is not."""
    if lane is None:
        raise UnavailableError("DATABASE_UNAVAILABLE", "the store is not open", subject=path)
    return lane
