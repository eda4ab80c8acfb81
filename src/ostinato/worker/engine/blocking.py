"""Calls to a container engine that wait for their answer, for whoever has a thread to spare."""

from __future__ import annotations

import socket
from http.client import HTTPConnection, HTTPException
from typing import NamedTuple

_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class Answer(NamedTuple):
    """Of one call."""

    status: int
    body: bytes
    #: Newest version of the API that the engine speaks; empty: it does not say.
    version: str


class _UnixConnection(HTTPConnection):
    """To a UNIX socket."""

    def __init__(self, path: str, *, timeout_s: float) -> None:
        super().__init__("engine", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def call_engine(path: str, method: str, *, target: str, timeout_s: float) -> Answer:
    """Ask the engine behind a socket. `timeout_s` bounds each wait for it. Raises ``OSError``."""
    connection = _UnixConnection(path, timeout_s=timeout_s)
    try:
        connection.request(method, target)
        response = connection.getresponse()
        body = response.read(_ANSWER_BYTES_MAX)
        return Answer(response.status, body, response.getheader("Api-Version", ""))
    except HTTPException as error:
        raise OSError(f"no valid answer: {error or type(error).__name__}") from error
    finally:
        connection.close()
