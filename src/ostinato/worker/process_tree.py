"""Ending a whole tree of processes, with those that have moved to a session of their own.

A tree is recognised by three marks: descent from its root, its process group, and an environment variable
that every process of the tree inherits. The last finds what has double-forked and called setsid; a process
that has also cleared its environment is found only while its parents live.

A process is named by pid *and* start time and signalled through a handle of the kernel where there is one, so
that a pid that was given to somebody else in the meantime is never hit (C135). Where there is no ``/proc``
only the group is ended.
"""

from __future__ import annotations

import os
import select
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Variable that marks the processes of one tree.
MARKER_VARIABLE = "OSTINATO_TREE"
#: Longest wait for killed processes to vanish; microseconds, unless they are in a system call.
_VANISH_MS = 2_000
_ROUNDS_MAX = 20

_PROC = Path("/proc")


class TreeProcess(NamedTuple):
    """A process that cannot be mistaken for another: its pid, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int


class _Stat(NamedTuple):
    parent_pid: int
    group: int
    start_ticks: int
    is_zombie: bool


def start_ticks_of(pid: int) -> int:
    """Start time of a process, for `find_tree`; 0 if it cannot be read."""
    stat = _stat_of(pid)
    return 0 if stat is None else stat.start_ticks


def find_tree(root: TreeProcess, marker: str) -> list[TreeProcess]:
    """Living processes of the tree, the root included; reads ``/proc`` once.

    `marker` is the value of `MARKER_VARIABLE` that the root was started with.
    """
    stats = _all_stats()
    wanted = f"{MARKER_VARIABLE}={marker}".encode()
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent_pid, []).append(pid)
    members: set[int] = set()
    own_pid = os.getpid()
    for pid, stat in stats.items():
        # Nothing that is older than the root belongs to it; this spares reading most environments.
        if stat.start_ticks < root.start_ticks or pid == own_pid:
            continue
        is_root = pid == root.pid and stat.start_ticks == root.start_ticks
        if is_root or stat.group == root.pid or wanted in _environment_of(pid):
            members.add(pid)
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in members and stats[child].start_ticks >= root.start_ticks:
                members.add(child)
                waiting.append(child)
    return [TreeProcess(pid, stats[pid].start_ticks) for pid in members if not stats[pid].is_zombie]


def signal_process(process: TreeProcess, number: signal.Signals) -> None:
    """Send a signal to exactly that process; nothing happens if it is gone."""
    handle = open_handle(process)
    if handle is None:
        return
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
    finally:
        os.close(handle)


def kill_tree(root: TreeProcess, marker: str) -> int:
    """Kill the tree until none of it is left; returns how many processes were killed.

    Blocks for as long as the kernel needs to end them, so call it from a thread. The root must not have been
    reaped while its group is signalled, or be named with the start time that it had.
    """
    if not _PROC.is_dir():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(root.pid, signal.SIGKILL)
        return 0
    killed: set[TreeProcess] = set()
    for _ in range(_ROUNDS_MAX):
        members = find_tree(root, marker)
        if not members:
            break
        killed.update(members)
        _kill_and_wait(members)
    return len(killed)


def _kill_and_wait(members: Iterable[TreeProcess]) -> None:
    handles = [handle for handle in map(open_handle, members) if handle is not None]
    poll = select.poll()
    for handle in handles:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, signal.SIGKILL)
        poll.register(handle, select.POLLIN)
    left = set(handles)
    try:
        while left:
            gone = poll.poll(_VANISH_MS)
            if not gone:
                return
            for handle, _ in gone:
                poll.unregister(handle)
                left.discard(handle)
    finally:
        for handle in handles:
            os.close(handle)


def open_handle(process: TreeProcess) -> int | None:
    """Kernel handle of exactly that process, to be closed by the caller; None if it is gone."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return None
    # Opened first, compared second: from here on the handle cannot come to mean another process.
    stat = _stat_of(process.pid)
    if stat is None or stat.start_ticks != process.start_ticks:
        os.close(handle)
        return None
    return handle


def _all_stats() -> dict[int, _Stat]:
    stats: dict[int, _Stat] = {}
    for name in os.listdir(_PROC):
        if name.isdigit():
            stat = _stat_of(int(name))
            if stat is not None:
                stats[int(name)] = stat
    return stats


def _stat_of(pid: int) -> _Stat | None:
    try:
        text = (_PROC / str(pid) / "stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
    # The name in brackets may hold spaces and brackets itself; what follows the last one is regular.
    fields = text[text.rindex(b")") + 2 :].split()
    return _Stat(int(fields[1]), int(fields[2]), int(fields[19]), fields[0] in (b"Z", b"X"))


def _environment_of(pid: int) -> list[bytes]:
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return []
