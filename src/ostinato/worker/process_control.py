"""What a process says about its place: who adopts its orphans, with whom it dies, who is killed first."""

from __future__ import annotations

import ctypes
import os
import signal
from contextlib import suppress

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36

#: Of -1000 to 1000; a worker's own is 0 unless a service manager says otherwise.
_OOM_SCORE = "500"

_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> bool:
    """Adopt the orphans among this process's descendants; False where the system knows no such thing."""
    return _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def die_with_parent(parent_pid: int) -> None:
    """Between fork and exec: be killed when the parent dies, also if that has just happened."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def be_killed_first() -> None:
    """Where memory runs out the kernel shall take a process of a task, not the worker's own."""
    with suppress(OSError), open("/proc/self/oom_score_adj", "w", encoding="ascii") as score:
        score.write(_OOM_SCORE)


def _prctl(option: int, value: int) -> bool:
    prctl = getattr(_libc, "prctl", None)
    return prctl is not None and prctl(option, value, 0, 0, 0) == 0
