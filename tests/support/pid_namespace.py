"""A process as the first of a PID namespace of its own, as in a container without an init."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import psutil
import pytest


def namespace_command(command: Sequence[str]) -> list[str]:
    """`command` as process 1 of a new namespace; it is killed with whoever runs what is returned."""
    privileges = [] if os.getuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *privileges, "--pid", "--fork", "--kill-child", "--mount-proc", *command]


@cache
def namespaces_work() -> bool:
    """Whether this user may make one."""
    done = subprocess.run(namespace_command(["true"]), check=False, capture_output=True)
    return done.returncode == 0


def require_namespaces() -> None:
    """Skip the test where the machine allows no PID namespaces."""
    if not namespaces_work():
        pytest.skip("PID namespaces cannot be made here")


def require_own_pid_limit() -> None:
    """Skip the test where ``kernel.pid_max`` is one for the whole machine."""
    require_namespaces()
    if tuple(int(part) for part in os.uname().release.split(".")[:2]) < (6, 14):
        pytest.skip("before Linux 6.14 kernel.pid_max is not one of the namespace")


def start_first(
    command: Sequence[str], *, folder: Path, environment: Mapping[str, str], log: Path
) -> subprocess.Popen[bytes]:
    """Start `command` as the first process of a namespace; the ``Popen`` is that of its parent outside."""
    with log.open("ab") as out:
        return subprocess.Popen(
            namespace_command(command),
            cwd=folder,
            env=dict(environment),
            stdout=out,
            stderr=subprocess.STDOUT,
        )


def first_of(parent: subprocess.Popen[bytes]) -> psutil.Process | None:
    """The first process of the namespace, as it is seen from outside; None while it does not exist."""
    children = psutil.Process(parent.pid).children()
    return children[0] if children else None


def kill_first(parent: subprocess.Popen[bytes]) -> None:
    """End a namespace with all that is in it; idempotent."""
    while parent.poll() is None:
        first = first_of(parent)
        if first is not None:
            first.kill()
            parent.wait(30)
