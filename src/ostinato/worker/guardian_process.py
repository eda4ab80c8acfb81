"""One guardian process, from its start to its end: the keeper of the children that it has started."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress

from ostinato.core.failure.failure import safe_failure
from ostinato.worker.child import ChildProcess
from ostinato.worker.guardian_channel import GuardianChannel
from ostinato.worker.guardian_messages import (
    Configure,
    ContainersEnded,
    Exited,
    FromGuardian,
    LeaseEnded,
    NotSpawned,
    Ping,
    Pong,
    Release,
    Spawn,
    Spawned,
    ToGuardian,
    encode_message,
)
from ostinato.worker.process_limits import restore_descriptor_limit
from ostinato.worker.process_tree import MARKER_VARIABLE, Family, Tree, TreeProcess, kill_trees

_log = logging.getLogger("ostinato.worker")

GUARDIAN_MODULE = "ostinato.worker.guardian_main"

#: What befalls an attempt whose process a guardian has taken with it, or ended.
GUARDIAN_ENDED = safe_failure(
    "WORKER_LOST", "the worker's guardian has ended, and its processes with it", category="lost"
)
LEASE_ENDED = safe_failure(
    "LEASE_EXPIRED",
    "ended by the worker's guardian, because its lease was over and the supervisor did not act",
    category="lost",
)


class NotStartedError(Exception):
    """The process was not started, which is not to be blamed on what it would run."""


class GuardianProcess:
    """One guardian process, from its start to its end; the keeper of the children that it has started."""

    def __init__(self, configure: Configure, *, lock_descriptor: int) -> None:
        """Raises ``OSError``."""
        self._loop = asyncio.get_running_loop()
        ours, theirs = socket.socketpair()
        passed = [theirs.fileno(), *([lock_descriptor] if lock_descriptor >= 0 else [])]
        try:
            self._popen = subprocess.Popen(
                [sys.executable, "-m", GUARDIAN_MODULE, str(theirs.fileno()), str(lock_descriptor)],
                # Marked, so that it is not taken for an orphan of a task.
                env={**os.environ, MARKER_VARIABLE: "guardian"},
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=passed,
                start_new_session=True,
            )
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        self.pid = self._popen.pid
        # Before it is told to start anything.
        restore_descriptor_limit(self.pid)
        self._channel = GuardianChannel(ours, on_message=self._on_message, on_end=self._on_end)
        self._number = 0
        self._spawns: dict[int, tuple[Spawn, asyncio.Future[ChildProcess]]] = {}
        self._children: dict[int, ChildProcess] = {}
        self.silent_count = 0
        self.has_answered = False
        self.is_gone = asyncio.Event()
        #: Names of containers that the guardian has ended.
        self.ended_containers: set[str] = set()
        self.send(configure)

    def send(self, message: ToGuardian) -> None:
        """Tell the guardian; lost without notice if it is gone, which `is_gone` then shows."""
        self._channel.send(encode_message(message))

    def ask(self) -> None:
        """Ask for a sign of life."""
        self.silent_count += 1
        self.send(Ping(self.silent_count))

    def kill(self) -> None:
        """Kill the guardian itself."""
        self._popen.kill()

    async def spawn(self, spawn: Spawn, descriptors: Sequence[int]) -> ChildProcess:
        if self.is_gone.is_set():
            raise NotStartedError("the worker's guardian has ended")
        self._number += 1
        spawn.number = self._number
        child: asyncio.Future[ChildProcess] = self._loop.create_future()
        self._channel.send(encode_message(spawn), descriptors)
        self._spawns[spawn.number] = spawn, child
        return await child

    # ── Keeper ────────────────────────────────────────────────────────────────────────────────────────

    def family(self) -> Family:
        return Family(self.pid, [child.tree for child in self._children.values()])

    def release(self, pid: int) -> None:
        self._children.pop(pid, None)
        self.send(Release(pid))

    # ── what the guardian says ────────────────────────────────────────────────────────────────────────

    def _on_message(self, message: FromGuardian) -> None:
        if isinstance(message, Pong):
            self.silent_count = 0
            self.has_answered = True
        elif isinstance(message, Spawned):
            self._on_spawned(message)
        elif isinstance(message, Exited):
            child = self._children.get(message.pid)
            if child is not None and not child.exited.done():
                child.is_alone = message.is_alone
                child.exited.set_result(message.return_code)
        elif isinstance(message, NotSpawned):
            _, future = self._spawns.pop(message.number)
            if not future.done():
                future.set_exception(_refusal(message))
        elif isinstance(message, ContainersEnded):
            _log.warning("lease_ended_by_guardian", extra={"containers": message.names})
            self.ended_containers.update(message.names)
        elif isinstance(message, LeaseEnded):
            _log.warning("lease_ended_by_guardian", extra={"process_ids": message.pids})
            for pid in message.pids:
                # Told before the exit, which by itself looks like a kill from outside.
                if pid in self._children:
                    self._children[pid].fate = LEASE_ENDED

    def _on_spawned(self, message: Spawned) -> None:
        spawn, future = self._spawns.pop(message.number)
        tree = Tree(TreeProcess(message.pid, message.start_ticks), spawn.marker)
        child = ChildProcess(tree, keeper=self)
        self._children[child.pid] = child
        if future.done():
            # Whoever wanted it has given up.
            self._ending = self._loop.create_task(child.kill_tree())
        else:
            future.set_result(child)

    def _on_end(self) -> None:
        self.is_gone.set()

    async def bury(self, *, is_expected: bool) -> None:
        """Once it is gone: end what it has left behind, and tell of each child that it is lost."""
        self._channel.close()
        with suppress(ProcessLookupError):
            self._popen.kill()
        await self._loop.run_in_executor(None, self._popen.wait)
        for _, future in self._spawns.values():
            if not future.done():
                future.set_exception(NotStartedError("the worker's guardian has ended"))
        self._spawns.clear()
        left = [child for child in self._children.values() if not child.exited.done()]
        if left and not is_expected:
            for child in left:
                child.fate = child.fate or GUARDIAN_ENDED
        codes = await self._loop.run_in_executor(None, _end_orphans, [child.tree for child in left])
        for child, return_code in zip(left, codes, strict=True):
            # All trees went in one search of /proc; two hundred more, one a child, would take seconds.
            child.is_alone = True
            if not child.exited.done():
                child.exited.set_result(return_code)


def _end_orphans(trees: list[Tree]) -> list[int]:
    """Kill trees whose parent is gone and which this process has adopted; their return codes."""
    if not trees:
        return []
    oldest_ticks = min(tree.root.start_ticks for tree in trees)
    killed = kill_trees(trees, Family(os.getpid(), trees, oldest_ticks))
    codes = [_reap(tree.root.pid) for tree in trees]
    for process in killed:
        _reap(process.pid)
    return codes


def _reap(pid: int) -> int:
    try:
        _, status = os.waitpid(pid, os.WNOHANG)
    except ChildProcessError:
        # Somebody else has adopted it.
        return -9
    return os.waitstatus_to_exitcode(status)


def _refusal(message: NotSpawned) -> Exception:
    if message.is_lease_over:
        return NotStartedError(message.message)
    if message.error_number:
        return OSError(message.error_number, message.message, message.filename or None)
    return ValueError(message.message)
