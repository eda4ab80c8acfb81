"""A socket on the event loop that carries messages to and from a guardian, and descriptors to it."""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable, Sequence

from ostinato.worker.framing import FrameSplitter
from ostinato.worker.guardian_messages import FromGuardian, from_guardian


class GuardianChannel:
    """The supervisor's end. `on_message` gets what comes, `on_end` is called once the other end is gone."""

    def __init__(
        self, own: socket.socket, *, on_message: Callable[[FromGuardian], None], on_end: Callable[[], None]
    ) -> None:
        own.setblocking(False)
        self._loop = asyncio.get_running_loop()
        self._socket = own
        self._on_message = on_message
        self._on_end = on_end
        self._splitter = FrameSplitter()
        #: What did not fit yet; descriptors are duplicates, and go with the first byte of theirs.
        self._waiting: deque[tuple[bytes, list[int]]] = deque()
        self._loop.add_reader(own, self._on_readable)

    def send(self, data: bytes, descriptors: Sequence[int] = ()) -> None:
        """Send now or as soon as there is room; the caller may close `descriptors` at once."""
        if self._socket.fileno() < 0:
            return
        self._waiting.append((data, [os.dup(descriptor) for descriptor in descriptors]))
        if len(self._waiting) == 1:
            self._flush()

    def close(self) -> None:
        """Idempotent."""
        if self._socket.fileno() >= 0:
            self._loop.remove_reader(self._socket)
            self._loop.remove_writer(self._socket)
            self._socket.close()
        self._drop_waiting()

    def _drop_waiting(self) -> None:
        for _, descriptors in self._waiting:
            _close_all(descriptors)
        self._waiting.clear()

    def _flush(self) -> None:
        try:
            while self._waiting:
                data, descriptors = self._waiting[0]
                sent = socket.send_fds(self._socket, [data], descriptors)
                _close_all(descriptors)
                if sent < len(data):
                    self._waiting[0] = data[sent:], []
                else:
                    self._waiting.popleft()
        except BlockingIOError:
            self._loop.add_writer(self._socket, self._flush)
            return
        except OSError:
            # The other side is gone, which the reader tells.
            self._drop_waiting()
        self._loop.remove_writer(self._socket)

    def _on_readable(self) -> None:
        try:
            data = self._socket.recv(256 * 1024)
        except BlockingIOError:
            return
        except ConnectionResetError:
            data = b""
        if not data:
            self._loop.remove_reader(self._socket)
            self._on_end()
            return
        for body in self._splitter.feed(data):
            self._on_message(from_guardian.decode(body))


def _close_all(descriptors: Sequence[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
