"""An HTTP server that does to each request what a test says: answers, breaks, hangs."""

from __future__ import annotations

import contextlib
import json
import socket
import ssl
import struct
import threading
from collections.abc import Callable, Iterator
from types import TracebackType
from typing import Any, NamedTuple, TypeAlias

from support.certificates import Certificate


class Seen(NamedTuple):
    """One request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Answer(NamedTuple):
    """What is sent back; `raw` instead of all else."""

    body: bytes = b""
    status: int = 200
    kind: str = "application/json"
    headers: tuple[str, ...] = ()
    raw: bytes | None = None
    #: The connection is closed afterwards, without a word in the headers.
    closes: bool = False

    def encoded(self) -> bytes:
        if self.raw is not None:
            return self.raw
        lines = [
            f"HTTP/1.1 {self.status} Said",
            f"content-type: {self.kind}",
            f"content-length: {len(self.body)}",
            *self.headers,
        ]
        return "\r\n".join([*lines, "", ""]).encode() + self.body


class Reset:
    """The connection breaks after the request has been read."""


class Hang:
    """Nothing comes back until the server ends."""


Step: TypeAlias = Answer | Reset | Hang | Callable[[Seen], Answer]


class ScriptedHttp:
    """Listens on a free port and does the steps in turn, the last one for ever; a context manager."""

    def __init__(self, *steps: Step, certificate: Certificate | None = None) -> None:
        self._tls: ssl.SSLContext | None = None
        if certificate is not None:
            self._tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self._tls.load_cert_chain(certificate.certificate, certificate.key)
        self.requests: list[Seen] = []
        self.connections = 0
        self._steps = list(steps)
        self._ended = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0))
        scheme = "http" if certificate is None else "https"
        self.url = f"{scheme}://127.0.0.1:{self._listener.getsockname()[1]}"
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> ScriptedHttp:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join(10)

    def _accept(self) -> None:
        while not self._ended.is_set():
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            self._open.append(connection)
            thread = threading.Thread(target=self._serve, args=(connection,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            if self._tls is None:
                self._answer_all(connection)
            else:
                with self._tls.wrap_socket(connection, server_side=True) as secured:
                    self._answer_all(secured)

    def _answer_all(self, connection: socket.socket) -> None:
        for request in _requests(connection):
            step = self._next_step(request)
            if isinstance(step, Hang):
                self._ended.wait(30)
                return
            if isinstance(step, Reset):
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                return
            answer = step if isinstance(step, Answer) else step(request)
            connection.sendall(answer.encoded())
            if answer.closes:
                return

    def _next_step(self, request: Seen) -> Step:
        self.requests.append(request)
        return self._steps.pop(0) if len(self._steps) > 1 else self._steps[0]


def _requests(connection: socket.socket) -> Iterator[Seen]:
    with connection.makefile("rb") as stream:
        while line := stream.readline():
            method, path, _ = line.decode("latin-1").split()
            headers: dict[str, str] = {}
            while header := stream.readline().strip():
                name, _, value = header.decode("latin-1").partition(":")
                headers[name.lower()] = value.strip()
            yield Seen(method, path, headers, stream.read(int(headers.get("content-length", 0))))
