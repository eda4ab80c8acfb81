"""How a container is, as an engine tells it; Docker and Podman do not use all words alike."""

from __future__ import annotations

from typing import Any

import msgspec

#: Nothing of it runs any more, and its exit status is known.
_OVER = frozenset({"exited", "stopped", "dead"})
#: What ``StartedAt`` begins with before there was a start.
_NEVER = "0001-"


class ContainerState(msgspec.Struct, frozen=True):
    """Of one moment."""

    is_over: bool
    was_started: bool
    exit_code: int = 0
    is_oom_killed: bool = False
    #: What the engine says went wrong; empty: nothing.
    error: str = ""
    #: Of its first process on the engine's machine; 0: there is none.
    pid: int = 0


def read_state(inspected: Any) -> ContainerState:
    """State in an answer to ``GET /containers/{id}/json``. Raises ``ValueError`` for what is no such."""
    state = inspected.get("State") if isinstance(inspected, dict) else None
    if not isinstance(state, dict):
        raise ValueError("the engine's answer has no State")
    started = state.get("StartedAt")
    was_started = isinstance(started, str) and started != "" and not started.startswith(_NEVER)
    status = state.get("Status") or ""
    # Podman says of a paused or stopping one that it is not running; old releases leave Status empty.
    is_alive = any(state.get(name) for name in ("Running", "Paused", "Restarting"))
    is_over = not is_alive and (status in _OVER if status else was_started)
    return ContainerState(
        is_over=is_over,
        was_started=was_started,
        exit_code=_whole(state.get("ExitCode")),
        is_oom_killed=bool(state.get("OOMKilled")),
        error=str(state.get("Error") or ""),
        pid=_whole(state.get("Pid")),
    )


def _whole(value: object) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0
