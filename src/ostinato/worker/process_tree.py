"""Ending a whole tree of processes, with those that have moved to a session of their own.

Every root is a child subreaper: while it lives, whatever double-forks, calls setsid and clears its
environment stays below it. A tree is what descends from its root, what is in its process group, and what
carries an environment variable that every process of the tree inherits. When a root has ended its orphans
become children of the guardian, a subreaper too; one that carries no mark, a *stray*, can only be left of a
tree whose root has ended, so it is ended with the next tree that is.

A process is named by pid *and* start time and signalled through a handle of the kernel, so that a pid that
was given to somebody else in the meantime is never hit (C135). Where there is no ``/proc`` only the group is
ended.
"""

from __future__ import annotations

import errno
import os
import select
import signal
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

#: Variable that marks the processes of one tree.
MARKER_VARIABLE = "OSTINATO_TREE"
#: Longest wait for killed processes to vanish; microseconds, unless they are in a system call.
_VANISH_MS = 2_000
_ROUNDS_MAX = 20
_PORTION_COUNT = 64
#: Pause where there are no descriptors left.
_RETRY_MS = 100

_PROC = Path("/proc")


class TreeProcess(NamedTuple):
    """A process that cannot be mistaken for another: its pid, and its start in clock ticks since boot."""

    pid: int
    start_ticks: int


class Tree(NamedTuple):
    """A tree by its root and the value of `MARKER_VARIABLE` that the root was started with."""

    root: TreeProcess
    marker: str


class Family(NamedTuple):
    """The subreaper that adopts orphans, and all trees under it that are not ended yet.

    Of its children those that are older than `since_ticks` are not looked at.
    """

    subreaper_pid: int
    trees: Sequence[Tree]
    since_ticks: int = 0


class _Stat(NamedTuple):
    parent_pid: int
    group: int
    start_ticks: int
    is_zombie: bool


def start_ticks_of(pid: int) -> int:
    """Start time of a process, for `TreeProcess`; 0 if it cannot be read."""
    stat = _stat_of(pid)
    return 0 if stat is None else stat.start_ticks


def find_trees(trees: Sequence[Tree], family: Family | None = None) -> list[TreeProcess]:
    """Living processes of the trees, their roots included; reads ``/proc`` once."""
    stats = _all_stats()
    members = _marked(trees, stats)
    if family is not None:
        members |= _strays(trees, family, stats=stats)
    return _with_descendants(members, stats, not_before=min(tree.root.start_ticks for tree in trees))


def find_descendants(pid: int) -> list[TreeProcess]:
    """Living processes that descend from `pid`, without it; reads ``/proc`` once."""
    stats = _all_stats()
    children = {child for child, stat in stats.items() if stat.parent_pid == pid}
    return _with_descendants(children, stats, not_before=0)


def find_children(pid: int) -> dict[TreeProcess, bool]:
    """Children of `pid`, and whether each has ended and only waits to be waited for."""
    return {
        TreeProcess(child, stat.start_ticks): stat.is_zombie
        for child, stat in _all_stats().items()
        if stat.parent_pid == pid
    }


def kill_trees(trees: Sequence[Tree], family: Family | None = None) -> set[TreeProcess]:
    """Kill the trees until none of them is left; returns the processes that were killed.

    Blocks for as long as the kernel needs to end them, so call it from a thread. A root must not have been
    reaped while its group is signalled, or be named with the start time that it had.
    """
    if not _PROC.is_dir():
        for tree in trees:
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(tree.root.pid, signal.SIGKILL)
        return set()
    return _kill_until_none(lambda: find_trees(trees, family))


def kill_marked(prefix: str) -> set[TreeProcess]:
    """Kill every process whose mark begins with `prefix`; as `kill_trees`, for those whose roots are gone."""
    if not _PROC.is_dir():
        return set()
    return _kill_until_none(lambda: _find_marked(prefix))


def _kill_until_none(find: Callable[[], list[TreeProcess]]) -> set[TreeProcess]:
    killed: set[TreeProcess] = set()
    for _ in range(_ROUNDS_MAX):
        try:
            members = find()
            kill_and_wait(members)
        except OSError as error:
            if error.errno not in (errno.EMFILE, errno.ENFILE):
                raise
            # Somebody else gives descriptors back; until then nobody can be looked at.
            select.poll().poll(_RETRY_MS)
            continue
        if not members:
            break
        killed.update(members)
    return killed


def _find_marked(prefix: str) -> list[TreeProcess]:
    wanted = _MARKER_PREFIX + prefix.encode()
    own_pid = os.getpid()
    return [
        TreeProcess(pid, stat.start_ticks)
        for pid, stat in _all_stats().items()
        if pid != own_pid
        and not stat.is_zombie
        and any(entry.startswith(wanted) for entry in _environment_of(pid))
    ]


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


def kill_and_wait(members: Sequence[TreeProcess]) -> None:
    """Kill exactly these processes and return once they have ended, or will not for now."""
    # In portions: a handle each, and there may be more processes than descriptors.
    for start in range(0, len(members), _PORTION_COUNT):
        _kill_portion(members[start : start + _PORTION_COUNT])


def _kill_portion(members: Sequence[TreeProcess]) -> None:
    handles: list[int] = []
    poll = select.poll()
    try:
        for member in members:
            handle = open_handle(member)
            if handle is not None:
                handles.append(handle)
                with suppress(ProcessLookupError):
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
                poll.register(handle, select.POLLIN)
        left = set(handles)
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


def _marked(trees: Sequence[Tree], stats: dict[int, _Stat]) -> set[int]:
    """Roots, their groups, and what carries their mark."""
    oldest_ticks = min(tree.root.start_ticks for tree in trees)
    roots = {tree.root.pid: tree.root.start_ticks for tree in trees}
    markers = {f"{MARKER_VARIABLE}={tree.marker}".encode() for tree in trees}
    own_pid = os.getpid()
    members: set[int] = set()
    for pid, stat in stats.items():
        # Nothing that is older than a root belongs to it; this spares reading most environments.
        if stat.start_ticks < oldest_ticks or pid == own_pid:
            continue
        is_root = roots.get(pid) == stat.start_ticks
        if is_root or stat.group in roots or not markers.isdisjoint(_environment_of(pid)):
            members.add(pid)
    return members


def _strays(trees: Sequence[Tree], family: Family, *, stats: dict[int, _Stat]) -> set[int]:
    """Children of the subreaper that are no roots and carry no mark, which roots do from their birth on."""
    known = {tree.root.pid for tree in (*family.trees, *trees)}
    return {
        pid
        for pid, stat in stats.items()
        if stat.parent_pid == family.subreaper_pid
        and pid not in known
        and stat.start_ticks >= family.since_ticks
        and _is_unmarked(pid)
    }


def _is_unmarked(pid: int) -> bool:
    """Whether a process is past its exec and carries no mark.

    In the midst of its exec a new root shows neither environment nor command line, and the kernel sets the
    command line first. So that is looked at before the environment: the other way round a root whose exec
    ends between the two looks would be taken for a stray and killed. An empty environment is looked at twice,
    as the command line may have been set in the same moment.
    """
    if not _read(pid, "cmdline"):
        return False
    environment = _environment_of(pid)
    if environment == [b""]:
        environment = _environment_of(pid)
    return not any(entry.startswith(_MARKER_PREFIX) for entry in environment)


def _with_descendants(members: set[int], stats: dict[int, _Stat], *, not_before: int) -> list[TreeProcess]:
    children: dict[int, list[int]] = {}
    for pid, stat in stats.items():
        children.setdefault(stat.parent_pid, []).append(pid)
    found = set(members)
    waiting = list(members)
    while waiting:
        for child in children.get(waiting.pop(), ()):
            if child not in found and stats[child].start_ticks >= not_before:
                found.add(child)
                waiting.append(child)
    # Oldest first: a shell whose child is killed before it would begin with its next command.
    ordered = sorted(found, key=lambda pid: (stats[pid].start_ticks, pid))
    return [TreeProcess(pid, stats[pid].start_ticks) for pid in ordered if not stats[pid].is_zombie]


_MARKER_PREFIX = f"{MARKER_VARIABLE}=".encode()


def _all_stats() -> dict[int, _Stat]:
    stats: dict[int, _Stat] = {}
    for name in os.listdir(_PROC):
        if name.isdigit():
            stat = _stat_of(int(name))
            if stat is not None:
                stats[int(name)] = stat
    return stats


def _stat_of(pid: int) -> _Stat | None:
    text = _read(pid, "stat")
    if not text:
        return None
    # The name in brackets may hold spaces and brackets itself; what follows the last one is regular.
    fields = text[text.rindex(b")") + 2 :].split()
    # Its first thread may have ended and others not: such a process looks dead and is not.
    has_ended = fields[0] in (b"Z", b"X") and int(fields[17]) <= 1
    return _Stat(int(fields[1]), int(fields[2]), int(fields[19]), has_ended)


def _environment_of(pid: int) -> list[bytes]:
    return _read(pid, "environ").split(b"\0")


def _read(pid: int, name: str) -> bytes:
    """A file of a process; empty if it is gone, or somebody else's."""
    try:
        return (_PROC / str(pid) / name).read_bytes()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return b""
