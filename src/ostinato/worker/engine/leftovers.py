"""Containers that a dead worker has left: found by label, ended and removed by a later one.

A worker process that makes containers says so in its own directory first. Whoever takes over what it has left
(``spool.py``: its lock is free, so supervisor and guardian are gone) ends those that carry its id. Nothing is
reported: what has become of their attempts is the scheduler's to say, once the worker is told as ended, and
that waits for this.
"""

from __future__ import annotations

import json
import logging
from pathlib import Path
from urllib.parse import quote

from ostinato.worker.engine.blocking import Answer, call_engine
from ostinato.worker.engine.request import WORKER_ID_LABEL
from ostinato.worker.engine.version import negotiated

_log = logging.getLogger("ostinato.worker")

#: In a worker's own directory: the socket of the engine at which it has made containers.
MARKER = "engine"
_CALL_S = 10.0
#: A container that is ended has no grace any more, but what its engine does takes time.
_REMOVE_S = 30.0


def mark(directory: Path, socket: str) -> None:
    """Say in a worker's own directory that there may be containers of it. Raises ``OSError``."""
    directory.mkdir(parents=True, exist_ok=True, mode=0o700)
    (directory / MARKER).write_text(socket, encoding="utf-8", errors="surrogateescape")


def unmark(directory: Path) -> None:
    """There are none any more."""
    (directory / MARKER).unlink(missing_ok=True)


def may_have_containers(directory: Path) -> bool:
    """Whether a worker has said so."""
    return (directory / MARKER).exists()


def end_containers(directory: Path, worker_id: str) -> str:
    """End and remove the containers of a worker that is gone; why some may run on, or empty. Blocks."""
    try:
        socket = (directory / MARKER).read_text(encoding="utf-8", errors="surrogateescape")
    except (FileNotFoundError, NotADirectoryError):
        return ""
    try:
        count = remove_labelled(socket, worker_id)
    except OSError as error:
        return f"its containers may run on: {socket}: {error}"
    if count:
        told = {"left_by": worker_id, "socket": socket, "container_count": count}
        _log.info("containers_ended", extra=told)
    return ""


def remove_labelled(socket: str, worker_id: str) -> int:
    """Kill and remove all containers that carry a worker's id; how many. Raises ``OSError``."""
    ping = call_engine(socket, "GET", target="/_ping", timeout_s=_CALL_S)
    base = f"/v{negotiated(ping.version)}/containers"
    filters = quote(json.dumps({"label": [f"{WORKER_ID_LABEL}={worker_id}"]}))
    target = f"{base}/json?all=1&filters={filters}"
    listed = call_engine(socket, "GET", target=target, timeout_s=_CALL_S)
    containers = _decoded(listed)
    for container in containers:
        target = f"{base}/{container}?force=1&v=1"
        answer = call_engine(socket, "DELETE", target=target, timeout_s=_REMOVE_S)
        if answer.status not in (200, 204, 404):
            raise OSError(f"{container} was not removed: {_shown(answer)}")
    return len(containers)


def _decoded(answer: Answer) -> list[str]:
    if answer.status != 200:
        raise OSError(f"containers cannot be listed: {_shown(answer)}")
    try:
        return [str(container["Id"]) for container in json.loads(answer.body)]
    except (ValueError, TypeError, KeyError) as error:
        raise OSError(f"the engine's list of containers cannot be read: {error}") from error


def _shown(answer: Answer) -> str:
    return f"{answer.status} {answer.body[:200].decode('utf-8', 'replace').strip()}"
