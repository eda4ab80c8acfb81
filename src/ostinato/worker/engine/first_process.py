"""A container's first process, where this machine's kernel shows it: by it an end is seen without the engine.

An engine that has died may leave its containers running. As long as one does, its attempt has not ended (I1),
and no answer will say so. Its first process will: with that the kernel ends all others of the container.
"""

from __future__ import annotations

import os
import select
import signal
from contextlib import suppress


class FirstProcess:
    """Held by a descriptor, which stays its own whoever gets its number later."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def is_gone(self) -> bool:
        """Whether it has ended."""
        return bool(select.select([self._descriptor], [], [], 0)[0])

    def kill(self) -> None:
        """Kill it, where this user may."""
        with suppress(ProcessLookupError, PermissionError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Give the descriptor back; idempotent."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def find_first_process(pid: int, *, container: str, attempt_id: str) -> FirstProcess | None:
    """The process that an engine names, if it is one of this container for certain.

    A worker in a container of its own sees other processes under the engine's numbers: so the process must
    be in the container's control group, or have the attempt's id in its environment.
    """
    if pid <= 0:
        return None
    try:
        # Before it is looked at: what is found then is what is held.
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return None
    process = FirstProcess(descriptor)
    is_it = container.encode() in _read(pid, "cgroup") or (
        f"OSTINATO_ATTEMPT_ID={attempt_id}".encode() in _read(pid, "environ").split(b"\0")
    )
    if not is_it or process.is_gone():
        process.close()
        return None
    return process


def _read(pid: int, name: str) -> bytes:
    try:
        with open(f"/proc/{pid}/{name}", "rb") as file:
            return file.read()
    except OSError:
        return b""
