"""What a test must not leave behind: child processes, threads and open files."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

import psutil

#: How long what a test has ended may take to disappear.
SETTLE_SECONDS = 3.0

#: Threads that libraries keep for the life of the process, by the start of their name.
LASTING_THREADS = (
    "asyncio_",  # default executor of an event loop, joined when its loop closes
    "pytest_timeout",
    "grpc_",  # grpc's own poller, one for the process
)


#: Child processes of the interpreter itself that live as long as it does, by a part of their command line.
LASTING_CHILDREN = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")


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
            command = " ".join(child.cmdline())
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
        if not target.startswith(("/dev/", "anon_inode:[eventpoll]", f"/proc/{os.getpid()}/")):
            found[int(entry)] = target
    return found


def held() -> Held:
    """What this process has now."""
    return Held(children=_children(), threads=_threads(), files=_files())


@contextmanager
def no_leaks(settle_seconds: float = SETTLE_SECONDS) -> Iterator[None]:
    """Fail with ``AssertionError`` if the block leaves a child process, a thread or an open file behind.

    Waits up to `settle_seconds` for what is already ending.
    """
    before = held()
    yield
    deadline = time.monotonic() + settle_seconds
    leaked = held().beyond(before)
    while leaked and time.monotonic() < deadline:
        time.sleep(0.02)
        leaked = held().beyond(before)
    assert not leaked, "left behind:\n  " + "\n  ".join(leaked)
