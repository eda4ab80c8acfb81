"""Connections that ask for nothing: they are bounded in number and time, and never take what others need."""

from __future__ import annotations

import asyncio
import resource
from collections.abc import AsyncIterator, Iterator

import httpx
import pytest
from prometheus_client import CollectorRegistry

from ostinato.api.connection import CONNECTIONS_MAX, Connection, connections_max
from ostinato.api.server import ApiServer
from ostinato.settings import Address

HALF_A_HEAD = b"GET /healthz HTTP/1.1\r\nHost: loc"


@pytest.fixture
async def address(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Address]:
    monkeypatch.setattr("ostinato.api.server.connections_max", lambda: 4)
    monkeypatch.setattr(Connection, "look_seconds", 0.05)
    server = ApiServer(
        Address("127.0.0.1", 0),
        readiness=lambda: {"ready": True, "text": "x" * 20_000_000},
        registry=CollectorRegistry(),
    )
    yield await server.start()
    await server.stop()


async def _open(address: Address, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(sent)
    await writer.drain()
    return reader, writer


async def _rest(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionResetError:
        return b""


async def test_connections_beyond_the_limit_are_refused_and_those_within_are_kept(address: Address) -> None:
    kept = [await _open(address, b"") for _ in range(4)]
    # Nothing is sent on it: what is not read when a connection closes would reset it, and its answer with it.
    reader, beyond = await _open(address, b"")
    answered = await _rest(reader)
    assert answered.startswith(b"HTTP/1.1 503 ")
    assert b'"code":"OVERLOADED"' in answered
    beyond.close()
    for reader, writer in kept:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        assert (await _rest(reader)).startswith(b"HTTP/1.1 200 ")
        writer.close()


async def test_one_that_keeps_its_head_to_itself_makes_room_for_one_that_asks(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ostinato.api.connection._YIELD_SECONDS_MIN", 0)
    slow = [await _open(address, HALF_A_HEAD) for _ in range(20)]
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        assert (await client.get("/healthz")).status_code == 200
    assert sum([await _rest(reader) == b"" for reader, _ in slow[:16]]) == 16
    for _, writer in slow:
        writer.close()


async def test_head_that_does_not_end_is_cut_off(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Connection, "head_seconds_max", 0.2)
    for sent in (b"", HALF_A_HEAD):
        reader, writer = await _open(address, sent)
        assert await _rest(reader) == b""
        writer.close()
    # Nor does a first request buy time for the head of a second one.
    reader, writer = await _open(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n" + HALF_A_HEAD)
    assert (await _rest(reader)).count(b"HTTP/1.1 ") == 1
    writer.close()


async def test_answer_that_nobody_takes_is_given_up(
    address: Address, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Connection, "stall_seconds_max", 0.2)
    gone = asyncio.Event()
    lost = Connection.connection_lost

    def connection_lost(self: Connection, exc: Exception | None) -> None:
        lost(self, exc)
        gone.set()

    monkeypatch.setattr(Connection, "connection_lost", connection_lost)
    _, writer = await _open(address, b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert await asyncio.wait_for(gone.wait(), 10)
    writer.close()


@pytest.fixture
def hard_limit() -> Iterator[int]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize(("descriptors", "expected"), [(4_096, CONNECTIONS_MAX), (512, 128)])
def test_limit_leaves_most_descriptors_to_the_rest_of_the_process(
    hard_limit: int, descriptors: int, expected: int
) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, hard_limit))
    assert connections_max() == expected
