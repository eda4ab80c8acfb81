"""The proxy of the tests: what it does to connections is what it says."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator

import pytest
from support.leaks import no_leaks
from support.proxy import Proxy

#: Nothing here takes long; what does hangs.
PATIENCE_S = 10.0


class Echo:
    """Answers every connection with what it has sent."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    def _accept(self) -> None:
        while True:
            try:
                connected, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=_echo, args=(connected,))
            self._threads.append(thread)
            thread.start()

    def stop_listening(self) -> None:
        if self._listener.fileno() != -1:
            self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()

    def close(self) -> None:
        self.stop_listening()
        for thread in self._threads:
            thread.join(PATIENCE_S)


def _echo(connected: socket.socket) -> None:
    with connected:
        try:
            while data := connected.recv(65_536):
                connected.sendall(data)
        except ConnectionError:
            return  # a cut reaches the target too


@pytest.fixture
def echo() -> Iterator[Echo]:
    with no_leaks():
        started = Echo()
        yield started
        started.close()


@pytest.fixture
def proxy(echo: Echo) -> Iterator[Proxy]:
    with Proxy(echo.address) as started:
        yield started


def _connect(proxy: Proxy) -> socket.socket:
    host, _, port = proxy.address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=PATIENCE_S)


def _said_back(connected: socket.socket, data: bytes) -> bytes:
    connected.sendall(data)
    return _received(connected, len(data))


def _received(connected: socket.socket, count: int) -> bytes:
    received = b""
    while len(received) < count:
        part = connected.recv(65_536)
        assert part, "the connection has ended"
        received += part
    return received


def _until_open(proxy: Proxy, count: int) -> None:
    end = time.monotonic() + PATIENCE_S
    while proxy.open_count != count:
        assert time.monotonic() < end, f"{proxy.open_count} connections are open"


def test_bytes_pass_in_order_and_the_end_after_them(proxy: Proxy) -> None:
    data = bytes(range(256)) * 4_000
    with _connect(proxy) as connected:
        sending = threading.Thread(target=connected.sendall, args=(data,))
        sending.start()
        assert _received(connected, len(data)) == data
        sending.join()
        connected.shutdown(socket.SHUT_WR)
        assert connected.recv(1) == b""
    _until_open(proxy, 0)
    assert proxy.bytes_count == 2 * len(data)


def test_a_cut_resets_what_is_open_and_new_connections_pass(proxy: Proxy) -> None:
    with _connect(proxy) as connected, _connect(proxy) as later:
        assert _said_back(connected, b"before") == b"before"
        assert _said_back(later, b"before") == b"before"
        proxy.cut()
        assert proxy.open_count == 0
        for end in (connected, later):
            with pytest.raises(ConnectionResetError):
                end.recv(1)
    with _connect(proxy) as connected:
        assert _said_back(connected, b"after") == b"after"
    assert proxy.accepted_count == 3


def test_a_blackhole_is_silence_without_a_reset_and_what_was_sent_arrives_after_it(proxy: Proxy) -> None:
    with _connect(proxy) as connected, _connect(proxy) as ended:
        assert _said_back(connected, b"before") == b"before"
        assert _said_back(ended, b"before") == b"before"
        proxy.blackhole()
        with _connect(proxy) as new:
            for end in (connected, new):
                end.settimeout(0.1)
                end.sendall(b"during")
                with pytest.raises(TimeoutError):
                    end.recv(1)
                end.settimeout(PATIENCE_S)
            ended.shutdown(socket.SHUT_WR)
            assert proxy.open_count == 3
            proxy.resume()
            for end in (connected, new):
                assert _received(end, 6) == b"during"
            assert ended.recv(1) == b""


def test_a_cut_in_a_blackhole_resets_and_what_was_held_is_gone(proxy: Proxy) -> None:
    with _connect(proxy) as connected:
        assert _said_back(connected, b"before") == b"before"
        handed_on_count = proxy.bytes_count
        proxy.blackhole()
        connected.sendall(b"during")
        proxy.cut()
        with pytest.raises(ConnectionResetError):
            connected.recv(1)
    proxy.resume()
    assert proxy.bytes_count == handed_on_count
    with _connect(proxy) as connected:
        assert _said_back(connected, b"after") == b"after"


def test_new_connections_are_refused_until_it_resumes_and_open_ones_pass(proxy: Proxy) -> None:
    with _connect(proxy) as connected:
        assert _said_back(connected, b"before") == b"before"
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            _connect(proxy)
        assert _said_back(connected, b"during") == b"during"
    proxy.resume()
    with _connect(proxy) as connected:
        assert _said_back(connected, b"after") == b"after"


def test_a_target_that_is_gone_resets_the_connection(proxy: Proxy, echo: Echo) -> None:
    echo.stop_listening()
    with pytest.raises(ConnectionResetError), _connect(proxy) as connected:
        connected.recv(1)


def test_delay_is_added_each_way_and_does_not_add_up(echo: Echo) -> None:
    with Proxy(echo.address, delay_s=0.1) as proxy, _connect(proxy) as connected:
        begin = time.monotonic()
        for _ in range(10):
            connected.sendall(b"one after the other")
        _received(connected, 190)
        assert 0.2 <= time.monotonic() - begin < 1.0


def test_what_is_lost_comes_later_and_nothing_overtakes_it(echo: Echo) -> None:
    with Proxy(echo.address, loss=1.0, retransmission_s=0.1) as proxy, _connect(proxy) as connected:
        begin = time.monotonic()
        assert _said_back(connected, b"lost once each way") == b"lost once each way"
        assert time.monotonic() - begin >= 0.2
