"""Check of the container engine that a worker of this machine would use."""

from __future__ import annotations

import errno
from collections.abc import Iterator

from ostinato.doctor.report import Status
from ostinato.settings import Settings
from ostinato.worker.engine.blocking import call_engine
from ostinato.worker.engine.version import negotiated

_SECONDS_MAX = 5.0


def check_engine(settings: Settings) -> Iterator[tuple[Status, str, str]]:
    """Whether the engine answers; that there is none is a fault only where its socket was named."""
    path, field = settings.engine_socket, settings.source("engine_socket")
    if path is None:
        yield "ok", "container tasks are turned off", ""
        return
    is_said = "engine_socket" in settings.sources
    try:
        answer = call_engine(str(path), "GET", target="/_ping", timeout_s=_SECONDS_MAX)
    except OSError as error:
        if not is_said and error.errno == errno.ENOENT:
            yield "ok", f"there is no container engine at {path}: a worker here runs no container tasks", ""
            return
        hint = (
            "let the worker's user use the socket; whoever can is as good as root"
            if error.errno == errno.EACCES
            else f"start the engine, or name another socket: {field}"
        )
        yield "fail" if is_said else "warn", f"{field}: no container engine answers at {path}: {error}", hint
        return
    if answer.status != 200:
        what = f"{field}: what answers at {path} is no container engine (status {answer.status})"
        yield "fail" if is_said else "warn", what, "name the socket of Docker or Podman"
        return
    yield "ok", f"the container engine at {path} answers, API {negotiated(answer.version)}", ""
