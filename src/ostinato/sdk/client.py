"""The way from user code to a scheduler: one event loop in a thread of its own, and a connection on it.

Both are made on first use, once per process: after a fork the child makes its own and never touches its
parent's (C081). Synchronous calls wait for the loop's answer, asynchronous ones await it, so one connection
serves both, whatever loop the caller runs.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import Awaitable, Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, Generic, ParamSpec, Protocol, TypeAlias, TypeVar
from weakref import WeakSet

from ostinato.clock import Clock, SystemClock

P = ParamSpec("P")
T = TypeVar("T")


class Closable(Protocol):
    """What a client opens, calls and closes: a gateway."""

    async def close(self) -> None: ...


C = TypeVar("C", bound=Closable)
#: Makes an open connection on the running loop. The clock is the one that its waits are told in.
Open: TypeAlias = Callable[[Clock], Awaitable[C]]


class Client(Generic[C]):
    """Calls of what `opening` makes, from any thread and any event loop."""

    def __init__(self, opening: Open[C], *, clock: Clock | None = None) -> None:
        """`clock` is the machine's unless a test gives its own."""
        self.clock: Clock = SystemClock() if clock is None else clock
        self._open = opening
        self._lock = threading.Lock()
        self._session: _Session[C] | None = None
        _clients.add(self)

    def call(self, verb: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        """Run `verb` on the connection and return what it returns; blocks the calling thread."""
        future = self._start(verb)
        try:
            return future.result()
        except BaseException:
            # An interrupt ends the wait, and with it the work that nobody waits for any more.
            future.cancel()
            raise

    async def call_async(self, verb: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        """Run `verb` on the connection and return what it returns; the caller's loop goes on meanwhile."""
        return await asyncio.wrap_future(self._start(verb))

    async def pause(self, until_us: int, *, deadline_us: int | None) -> None:
        """Wait between two looks at something: until `until_us` (boot time), never beyond `deadline_us`."""
        await self.clock.sleep_until_us(until_us if deadline_us is None else min(until_us, deadline_us))

    def close(self) -> None:
        """Close the connection and end the thread; idempotent. A later call opens both anew."""
        with self._lock:
            session, self._session = self._session, None
        if session is not None and session.pid == os.getpid():
            session.close()

    def _start(self, verb: Callable[[C], Coroutine[Any, Any, T]]) -> Future[T]:
        with self._lock:
            if self._session is None:
                self._session = _Session(partial(self._open, self.clock))
            return self._session.start(verb)

    def forget_parent(self) -> None:
        """In a forked child: leave everything that belongs to the parent alone."""
        self._lock = threading.Lock()
        if self._session is not None:
            # Closing would send the child's goodbye on the parent's connection, and so would collecting it.
            _of_parents.append(self._session)
            self._session = None


class _Session(Generic[C]):
    """One loop thread and the connection on it, in one process."""

    def __init__(self, opening: Callable[[], Awaitable[C]]) -> None:
        self.pid = os.getpid()
        self._open = opening
        self._opening: asyncio.Task[C] | None = None
        self._loop = asyncio.new_event_loop()
        self._loop.set_default_executor(_ThreadPerCall())
        self._thread = threading.Thread(target=self._run, name="ostinato-client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self._loop.run_forever()
        finally:
            self._loop.close()

    def start(self, verb: Callable[[C], Coroutine[Any, Any, T]]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(self._with_connection(verb), self._loop)

    async def _with_connection(self, verb: Callable[[C], Coroutine[Any, Any, T]]) -> T:
        return await verb(await self._connection())

    async def _connection(self) -> C:
        if self._opening is None:
            self._opening = asyncio.ensure_future(self._opened())
        opening = self._opening
        try:
            # Whoever gives up waiting does not take the connection away from the others.
            return await asyncio.shield(opening)
        except BaseException:
            if self._opening is opening and opening.done():
                self._opening = None
            raise

    async def _opened(self) -> C:
        return await self._open()

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(self._shut_down(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    async def _shut_down(self) -> None:
        """End what is under way, then close the connection."""
        others = [task for task in asyncio.all_tasks() if task not in (asyncio.current_task(), self._opening)]
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        if self._opening is not None:
            opened = (await asyncio.gather(self._opening, return_exceptions=True))[0]
            if not isinstance(opened, BaseException):
                await opened.close()


class _ThreadPerCall(ThreadPoolExecutor):
    """Runs each call in a thread of its own.

    A pool refuses work once the interpreter has begun to end, which is just when an adapter that joins its
    threads in an executor is to be closed.
    """

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        future: Future[T] = Future()

        def run() -> None:
            if not future.set_running_or_notify_cancel():
                return
            try:
                result = fn(*args, **kwargs)
            except BaseException as error:  # noqa: BLE001 - not hidden: raised where the call is awaited
                future.set_exception(error)
            else:
                future.set_result(result)

        threading.Thread(target=run, name="ostinato-client-call", daemon=True).start()
        return future


_clients: WeakSet[Client[Any]] = WeakSet()
_of_parents: list[_Session[Any]] = []


def _after_fork() -> None:
    for client in list(_clients):
        client.forget_parent()


def _at_exit() -> None:
    for client in list(_clients):
        client.close()


os.register_at_fork(after_in_child=_after_fork)
atexit.register(_at_exit)
