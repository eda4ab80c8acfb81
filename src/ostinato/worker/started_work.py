"""What an attempt of the loop process has started beside its coroutine: tasks, threads and child processes.

The end of a coroutine ends none of them, and a retry must not run beside them (I1). So the end of an attempt
is told when its child processes are gone, its work in threads is over and, unless it was a success, its tasks
are: of a success these stay, as what keeps a connection alive for those that follow. Work that a thread has
in hand cannot be ended from here; it is waited for, and the supervisor kills the whole process if that takes
longer than the grace of a stop.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar, TypeVarTuple, Unpack, cast
from weakref import WeakSet

from ostinato.worker.own_loop import event_loop_class
from ostinato.worker.process_tree import find_descendants, signal_process

_T = TypeVar("_T")
_Ts = TypeVarTuple("_Ts")


class _ProcessTransport(Protocol):
    """What asyncio's transports of child processes and uvloop's have in common."""

    def get_pid(self) -> int: ...
    def get_returncode(self) -> int | None: ...
    def kill(self) -> None: ...
    def _wait(self) -> Coroutine[Any, Any, int]: ...


class StartedWork:
    """Of one attempt, what it has started and what may still run."""

    def __init__(self) -> None:
        self._futures: set[Future[Any]] = set()
        self._transports: list[_ProcessTransport] = []
        self._tasks: WeakSet[asyncio.Task[Any]] = WeakSet()

    def add_future(self, future: Future[Any]) -> None:
        """Follow work of an executor."""
        self._futures.add(future)
        future.add_done_callback(self._futures.discard)

    def add_process(self, transport: _ProcessTransport) -> None:
        """Follow a child process."""
        self._transports = [known for known in self._transports if known.get_returncode() is None]
        self._transports.append(transport)

    def add_task(self, task: asyncio.Task[Any]) -> None:
        """Follow a subtask."""
        self._tasks.add(task)

    def drop_queued(self) -> None:
        """Work that no thread has begun yet does not begin."""
        for future in list(self._futures):
            future.cancel()

    async def end(self, *, with_tasks: bool) -> None:
        """Kill the child processes, cancel tasks, and return when these and the work in threads are over."""
        loop = asyncio.get_running_loop()
        while True:
            alive = [transport for transport in self._transports if transport.get_returncode() is None]
            futures = list(self._futures)
            tasks = [task for task in self._tasks if not task.done()] if with_tasks else []
            if not alive and not futures and not tasks:
                return
            for task in tasks:
                task.cancel()
            for transport in alive:
                await loop.run_in_executor(None, _kill_descendants, transport.get_pid())
                with suppress(ProcessLookupError):
                    transport.kill()
                # Public only by way of asyncio.subprocess.Process, which the task may not have asked for.
                await transport._wait()
            for future in futures:
                await _until_done(future)
            if tasks:
                await asyncio.wait(tasks)


#: Of the attempt that the running code belongs to; None where it belongs to none.
current_work: ContextVar[Callable[[], StartedWork] | None] = ContextVar("ostinato_work", default=None)


class FollowingLoop(asyncio.AbstractEventLoop):
    """What makes an event loop note for each attempt what that starts."""

    _threads: Executor | None = None

    def create_task(self, coro: Any, **options: Any) -> asyncio.Task[Any]:
        task = super().create_task(coro, **options)
        context = options.get("context")
        work = current_work.get() if context is None else context.get(current_work)
        if work is not None:
            work().add_task(task)
        return task

    def set_default_executor(self, executor: Executor) -> None:
        super().set_default_executor(executor)
        self._threads = executor

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[Unpack[_Ts]], _T], *args: *_Ts
    ) -> asyncio.Future[_T]:
        work = current_work.get()
        if work is None:
            return super().run_in_executor(executor, func, *args)
        if executor is None:
            if self._threads is None:
                self.set_default_executor(ThreadPoolExecutor(thread_name_prefix="asyncio"))
            executor = self._threads
            assert executor is not None
        # Not the future that asyncio makes of it: that one is done when it is cancelled, the work is not.
        future = executor.submit(func, *args)
        work().add_future(future)
        return asyncio.wrap_future(future, loop=self)

    async def subprocess_exec(self, *args: Any, **kwargs: Any) -> Any:
        return _noted(await super().subprocess_exec(*args, **kwargs))

    async def subprocess_shell(self, *args: Any, **kwargs: Any) -> Any:
        return _noted(await super().subprocess_shell(*args, **kwargs))


def new_following_loop() -> asyncio.AbstractEventLoop:
    """An event loop for many attempts, on uvloop where there is one."""
    loop: asyncio.AbstractEventLoop = type("FollowingLoop", (FollowingLoop, event_loop_class()), {})()
    return loop


def _noted(made: tuple[asyncio.SubprocessTransport, Any]) -> tuple[asyncio.SubprocessTransport, Any]:
    work = current_work.get()
    if work is not None:
        work().add_process(cast(_ProcessTransport, made[0]))
    return made


async def _until_done(future: Future[Any]) -> None:
    loop = asyncio.get_running_loop()
    done = loop.create_future()
    future.add_done_callback(lambda _: loop.call_soon_threadsafe(done.set_result, None))
    await done


def _kill_descendants(pid: int) -> None:
    """What a shell has started would outlive it; the child itself is its transport's business."""
    for process in find_descendants(pid):
        signal_process(process, signal.SIGKILL)
