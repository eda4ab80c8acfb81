"""What a test must not leave behind: processes of any descent, threads and open files.

While a block is watched, this process is a *child subreaper*: whatever a test has started becomes a child of
it once its parents are gone, in a session of its own or with a cleared environment or not. So a process that
escaped from a worker is found by descent alone.
"""

from __future__ import annotations

import ctypes
import gc
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

#: How long what a test has ended may take to disappear.
SETTLE_SECONDS = 3.0

#: Threads that libraries keep for the life of the process, by the start of their name.
LASTING_THREADS = ("pytest_timeout",)

#: Child processes of the interpreter itself that live as long as it does, by a part of their command line.
LASTING_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")

#: Open on everything, and never the sign of a leak: what pytest and the interpreter themselves write to.
_LASTING_FILES = ("/dev/pts/", "/dev/tty", "anon_inode:[eventpoll]")

_PR_SET_CHILD_SUBREAPER = 36


@dataclass
class Held:
    """Resources of this process at one moment, by a name that a person can act on."""

    children: dict[tuple[int, float], str] = field(default_factory=dict)
    threads: dict[int, str] = field(default_factory=dict)
    files: dict[int, str] = field(default_factory=dict)

    def beyond(self, before: Held) -> list[str]:
        """Sentences for everything that is here and was not in `before`."""
        sentences = [
            f"child process: {name}" for key, name in self.children.items() if key not in before.children
        ]
        sentences += [f"thread: {name}" for key, name in self.threads.items() if key not in before.threads]
        # A number that is open on the same thing as before is the same file; another thing is a new one.
        sentences += [
            f"open file {number}: {name}"
            for number, name in self.files.items()
            if before.files.get(number) != name
        ]
        return sentences


def _children() -> dict[tuple[int, float], str]:
    found: dict[tuple[int, float], str] = {}
    for child in psutil.Process().children(recursive=True):
        try:
            command = " ".join(child.cmdline()) if child.status() != psutil.STATUS_ZOMBIE else child.name()
            if not any(part in command for part in LASTING_CHILDREN):
                # The start time tells a process from a later one with the same number.
                found[(child.pid, child.create_time())] = f"{child.pid} {child.status()} {command[:200]}"
        except psutil.Error:
            continue  # ended while we looked, so it is no leak
    return found


def _threads() -> dict[int, str]:
    return {
        thread.ident or 0: thread.name
        for thread in threading.enumerate()
        if not thread.name.startswith(LASTING_THREADS)
    }


def _files() -> dict[int, str]:
    found: dict[int, str] = {}
    folder = "/proc/self/fd"
    if not os.path.isdir(folder):
        return found
    for entry in os.listdir(folder):
        try:
            target = os.readlink(f"{folder}/{entry}")
        except OSError:
            continue  # the descriptor of this very listing
        if not target.startswith((*_LASTING_FILES, f"/proc/{os.getpid()}/")):
            found[int(entry)] = target
    return found


def held() -> Held:
    """What this process has now."""
    return Held(children=_children(), threads=_threads(), files=_files())


@contextmanager
def no_leaks(settle_seconds: float = SETTLE_SECONDS) -> Iterator[None]:
    """Fail with ``AssertionError`` if the block leaves a process, a thread or an open file behind.

    Waits up to `settle_seconds` for what is already ending. A process that has ended and that nobody has
    waited for is left behind as well, unless its own parent died first: then it is reaped here, as by init.
    """
    before = held()
    with _subreaper():
        yield
        deadline = time.monotonic() + settle_seconds
        leaked = _leaked(before)
        while leaked and time.monotonic() < deadline:
            time.sleep(0.02)
            leaked = _leaked(before)
        for child in psutil.Process().children(recursive=True):
            if leaked and child.pid not in {pid for pid, _ in before.children}:
                # What one test has left behind must not take the next one's time.
                child.kill()
    assert not leaked, "left behind:\n  " + "\n  ".join(leaked)


def _leaked(before: Held) -> list[str]:
    now = held()
    if now.children.keys() - before.children.keys():
        _reap_adopted({pid for pid, _ in before.children})
        now = held()
    return now.beyond(before)


def _reap_adopted(but_not: set[int]) -> None:
    """Wait for the ended children that somebody else has started; ours are their starter's to wait for."""
    zombies = {
        child.pid
        for child in psutil.Process().children()
        if child.pid not in but_not and _status(child) == psutil.STATUS_ZOMBIE
    }
    if zombies:
        for pid in zombies - _started_here():
            os.waitpid(pid, os.WNOHANG)


def _status(child: psutil.Process) -> str:
    try:
        return child.status()
    except psutil.NoSuchProcess:
        return ""


def _started_here() -> set[int]:
    """Processes that a ``Popen`` of this process has started and not waited for, forgotten ones included."""
    return {
        item.pid
        for item in gc.get_objects()
        if issubclass(type(item), subprocess.Popen) and getattr(item, "returncode", 0) is None
    }


@contextmanager
def _subreaper() -> Iterator[None]:
    if not os.path.isdir("/proc/self"):
        yield
        return
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)
