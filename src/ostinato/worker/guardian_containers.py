"""Ends containers from the guardian's process, which waits for nobody.

What the supervisor has asked an engine to run is ended as its processes are: when its lease is over, or when
the supervisor is gone. One request does it (``DELETE …?force=1`` kills and removes), small enough to be sent
without waiting; the answer is read when the poll says so. No answer, or one that says no, is followed by
another request: only "removed" and "no such container" say that nothing of it runs.

A container is told to the guardian before the engine hears of it, by a name that it does not have yet. So
there is none that the guardian does not know; one that is made after its end is the supervisor's to remove,
which looks at the lease once more before each start.
"""

from __future__ import annotations

import select
import socket
from collections.abc import Callable

from ostinato.worker.guardian_messages import Container

#: Between the end of a container that the supervisor has not ended, and that of its lease. It takes an engine
#: longer to end one than the kernel to end a process; a supervisor that moves ends it a second before.
CONTAINER_MARGIN_US = 2_250_000
#: An engine that has not answered by then is asked again.
_ANSWER_US = 5_000_000
#: Between an answer that says no, or no answer, and the next request.
_PAUSE_US = 250_000
_STATUS_BYTES = len(b"HTTP/1.1 204")
_ENDED = (b"204", b"200", b"404")


class _Ending:
    """A container that is being ended: a request that waits for its answer, or the pause before the next."""

    def __init__(self) -> None:
        self.connection: socket.socket | None = None
        self.received = b""
        #: When to ask again (boot time).
        self.again_us = 0


class GuardedContainers:
    """Containers that run for the supervisor. Registers its sockets with `poll`; all times are boot time."""

    def __init__(self, poll: select.poll) -> None:
        self._poll = poll
        self._known: dict[str, Container] = {}
        self._endings: dict[str, _Ending] = {}
        self._by_descriptor: dict[int, str] = {}
        #: Ended because of their lease, and not told yet.
        self._ended: list[str] = []

    def guard(self, container: Container) -> None:
        """One that may run until its lease ends; told again whenever that moves."""
        self._known[container.name] = container

    def forget(self, name: str) -> None:
        """It is gone, and will not come back."""
        self._known.pop(name, None)
        ending = self._endings.pop(name, None)
        if ending is not None:
            self._close(ending)

    def has_leased(self) -> bool:
        """Whether there are some that depend on a lease and have not been ended."""
        return any(container.lease_ends_us is not None for container in self._known.values())

    def next_us(self) -> int | None:
        """When to call `end_unleased` next; None: nothing depends on time."""
        ends = [
            container.lease_ends_us - CONTAINER_MARGIN_US
            for name, container in self._known.items()
            if container.lease_ends_us is not None and name not in self._endings
        ]
        return min([*ends, *(ending.again_us for ending in self._endings.values())], default=None)

    def end_unleased(self, now_us: int) -> list[str]:
        """End those whose lease is over; names of those that have been ended since the last call."""
        for name, container in self._known.items():
            ends_us = container.lease_ends_us
            if ends_us is not None and now_us >= ends_us - CONTAINER_MARGIN_US:
                self._endings.setdefault(name, _Ending())
        self._ask(now_us)
        ended, self._ended = self._ended, []
        return ended

    def end_all(self, *, now_us: Callable[[], int]) -> Callable[[int], bool]:
        """Begin to end all of them; returns what waits for that until a time, and tells if all are gone."""
        for name in self._known:
            self._endings.setdefault(name, _Ending())
        self._ask(now_us())

        def until(limit_us: int) -> bool:
            while self._known and now_us() < limit_us:
                poll = select.poll()
                for descriptor in self._by_descriptor:
                    poll.register(descriptor, select.POLLIN)
                for descriptor, _ in poll.poll(_PAUSE_US // 1000):
                    self.on_readable(descriptor, now_us())
                for name in self._ended:
                    self._known.pop(name, None)
                self._ask(now_us())
            return not self._known

        return until

    def owns(self, descriptor: int) -> bool:
        """Whether a descriptor that is ready is one of these."""
        return descriptor in self._by_descriptor

    def on_readable(self, descriptor: int, now_us: int) -> None:
        """Read what an engine answers, if there is anything."""
        name = self._by_descriptor[descriptor]
        ending = self._endings[name]
        assert ending.connection is not None, "its descriptor is known"
        try:
            data = ending.connection.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        ending.received += data
        if data and len(ending.received) < _STATUS_BYTES:
            return
        self._close(ending)
        if ending.received[_STATUS_BYTES - 3 : _STATUS_BYTES] in _ENDED:
            self._has_ended(name)
        else:
            ending.again_us = now_us + _PAUSE_US

    def _has_ended(self, name: str) -> None:
        del self._endings[name]
        container = self._known.get(name)
        if container is not None:
            # Kept until the supervisor says that it is gone: it may be made only now.
            container.lease_ends_us = None
        self._ended.append(name)

    def _ask(self, now_us: int) -> None:
        for name, ending in self._endings.items():
            if now_us >= ending.again_us and name in self._known:
                self._close(ending)
                ending.again_us = now_us + self._send(self._known[name], ending)

    def _send(self, container: Container, ending: _Ending) -> int:
        """Send the request; returns when to look again."""
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.setblocking(False)
        request = (
            f"DELETE /v{container.version}/containers/{container.name}?force=1&v=1 HTTP/1.1\r\n"
            "Host: engine\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
        ).encode()
        try:
            connection.connect(container.socket)
            connection.sendall(request)
        except OSError:
            # Nobody listens, or too many wait before us.
            connection.close()
            return _PAUSE_US
        ending.connection, ending.received = connection, b""
        self._by_descriptor[connection.fileno()] = container.name
        self._poll.register(connection, select.POLLIN)
        return _ANSWER_US

    def _close(self, ending: _Ending) -> None:
        if ending.connection is not None:
            self._poll.unregister(ending.connection)
            del self._by_descriptor[ending.connection.fileno()]
            ending.connection.close()
            ending.connection = None
