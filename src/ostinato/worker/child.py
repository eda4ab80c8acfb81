"""A child process of the supervisor: watched without a thread, killed with all that came from it."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol

from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.worker.process_tree import Family, Tree, TreeProcess, find_trees, kill_trees, open_handle


class Keeper(Protocol):
    """Who started a child, and is its parent."""

    def family(self) -> Family:
        """All trees under the same subreaper."""
        ...

    def release(self, pid: int) -> None:
        """The tree of an exited child is gone; its pid may be given to somebody else."""
        ...


class ChildProcess:
    """A started child, the leader of a session of its own."""

    def __init__(self, tree: Tree, *, keeper: Keeper) -> None:
        self._loop = asyncio.get_running_loop()
        self.tree = tree
        self._keeper = keeper
        self._is_released = False
        #: Its return code: the exit status, or minus the signal that ended it.
        self.exited: asyncio.Future[int] = self._loop.create_future()
        #: It has ended, and nothing of its tree was left then.
        self.is_alone = False
        #: What its end means where its return code does not tell: it was ended by the worker's own doing.
        self.fate: Failure | None = None

    @property
    def pid(self) -> int:
        return self.tree.root.pid

    def signal_group(self, number: signal.Signals) -> None:
        """Signal the child's process group, unless the child has been released."""
        if not self._is_released:
            # Not reaped, so the pid is still its own and the group's.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, number)

    async def kill_tree(self) -> None:
        """Kill the child and everything that came from it, and return when all of it is gone; idempotent."""
        if not self.is_alone:
            await self._loop.run_in_executor(None, kill_trees, [self.tree], self._keeper.family())
        await asyncio.shield(self.exited)
        if not self._is_released:
            self._is_released = True
            self._keeper.release(self.pid)

    async def members(self) -> list[TreeProcess]:
        """What lives of the child's tree."""
        return await self._loop.run_in_executor(None, find_trees, [self.tree], self._keeper.family())

    def failure_of_exit(self, return_code: int, *, what: str) -> Failure:
        """What its end means to an attempt in it, unless the attempt was to be ended."""
        if self.fate is not None:
            return self.fate
        return exit_failure(return_code, what=what)

    async def wait_for_one(self, members: Sequence[TreeProcess]) -> None:
        """Return once one of `members` has ended."""
        ended: asyncio.Future[None] = self._loop.create_future()
        handles: list[int] = []
        try:
            for member in members:
                handle = open_handle(member)
                if handle is None:
                    return
                handles.append(handle)
                self._loop.add_reader(handle, _set_once, ended)
            await ended
        finally:
            for handle in handles:
                self._loop.remove_reader(handle)
                os.close(handle)


def _set_once(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class PipeReader:
    """Reads what a child writes to one pipe, in the event loop, at most `size_bytes` at a time."""

    def __init__(self, sink: Callable[[bytes], None], *, size_bytes: int) -> None:
        self._loop = asyncio.get_running_loop()
        self._sink = sink
        self._size_bytes = size_bytes
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._loop.add_reader(self._read_end, self._on_readable)

    def child_started(self) -> None:
        """The child has its own copy of the writing end, so ours is closed."""
        os.close(self.write_end)
        self.write_end = -1

    def drain(self) -> None:
        """Read what stands in the pipe now; at most a few pipes full, in case somebody writes on."""
        for _ in range(64):
            if not self._on_readable():
                return

    def close(self) -> None:
        """Stop reading; whoever still writes gets SIGPIPE. Idempotent."""
        if self._read_end >= 0:
            self._loop.remove_reader(self._read_end)
            os.close(self._read_end)
            self._read_end = -1
        if self.write_end >= 0:
            self.child_started()

    def _on_readable(self) -> bool:
        if self._read_end < 0:
            return False
        try:
            data = os.read(self._read_end, self._size_bytes)
        except BlockingIOError:
            return False
        if not data:
            self._loop.remove_reader(self._read_end)
            return False
        self._sink(data)
        return True


def exit_failure(return_code: int, *, what: str) -> Failure:
    """Failure of a child that ended with an exit status, or by a signal that we did not send."""
    if return_code >= 0:
        return safe_failure(f"EXIT_{return_code}", f"{what} ended with exit status {return_code}")
    number = -return_code
    try:
        name = f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        name = f"signal {number}"
    hint = "; the kernel does that when memory runs out" if number == signal.SIGKILL else ""
    return safe_failure(
        f"SIGNAL_{number}", f"{what} was killed by {name} from outside, not by the worker{hint}"
    )
