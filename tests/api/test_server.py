"""The HTTP place of a node, over real sockets."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from collections.abc import AsyncIterator

import httpx
import pytest
from prometheus_client import CollectorRegistry, Counter

from ostinato.api.server import ApiServer
from ostinato.errors import ConflictError, UserError
from ostinato.settings import Address


class _Node:
    """A node whose readiness the test decides."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {"ready": True, "partitions": 64}

    def ready(self) -> dict[str, object]:
        return self.state


@pytest.fixture
def node() -> _Node:
    return _Node()


@pytest.fixture
async def client(node: _Node) -> AsyncIterator[httpx.AsyncClient]:
    registry = CollectorRegistry()
    Counter("ostinato_example_total", "An example.", registry=registry).inc()
    server = ApiServer(Address("127.0.0.1", 0), readiness=node.ready, registry=registry)
    address = await server.start()
    async with httpx.AsyncClient(base_url=f"http://{address}") as client:
        yield client
    await server.stop()
    await server.stop()


async def test_health_is_ok_while_the_loop_turns(client: httpx.AsyncClient) -> None:
    answer = await client.get("/healthz")
    assert (answer.status_code, answer.json()) == (200, {"status": "ok"})


async def test_readiness_follows_the_node(client: httpx.AsyncClient, node: _Node) -> None:
    assert (await client.get("/readyz")).json() == {"ready": True, "partitions": 64}
    node.state = {"ready": False, "reason": "warming up"}
    answer = await client.get("/readyz")
    assert (answer.status_code, answer.json()["reason"]) == (503, "warming up")


async def test_metrics_are_those_of_the_registry(client: httpx.AsyncClient) -> None:
    answer = await client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "ostinato_example_total 1.0" in answer.text


@pytest.mark.parametrize("path", ["/", "/healthz/", "/api/v1/tasks", "/../etc/passwd"])
async def test_anything_else_is_a_problem_not_found(client: httpx.AsyncClient, path: str) -> None:
    answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.json()["code"] == "ADDRESS_NOT_FOUND"


async def test_only_get_and_head_are_answered(client: httpx.AsyncClient) -> None:
    refused = await client.post("/healthz", content=b"x" * 100_000)
    assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD")
    assert refused.json()["code"] == "METHOD_NOT_ALLOWED"
    head = await client.head("/healthz")
    assert (head.status_code, head.content) == (200, b"")


async def test_taken_port_is_a_conflict_that_names_the_address(client: httpx.AsyncClient) -> None:
    taken = Address("127.0.0.1", client.base_url.port or 0)
    second = ApiServer(taken, readiness=lambda: {}, registry=CollectorRegistry())
    with pytest.raises(ConflictError) as caught:
        await second.start()
    assert (caught.value.code, caught.value.field) == ("PORT_IN_USE", "--bind")
    assert str(taken) in caught.value.message


async def test_host_that_is_not_ours_is_refused_as_input() -> None:
    server = ApiServer(Address("192.0.2.1", 8640), readiness=lambda: {}, registry=CollectorRegistry())
    with pytest.raises(UserError, match=r"192\.0\.2\.1"):
        await server.start()


async def test_signal_handlers_of_the_process_are_left_alone(client: httpx.AsyncClient) -> None:
    assert (await client.get("/healthz")).status_code == 200
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_DFL
    assert "uvicorn" not in getattr(signal.getsignal(signal.SIGINT), "__module__", "")


async def test_what_is_no_http_is_a_problem_too(client: httpx.AsyncClient) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", client.base_url.port)
    writer.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nbad header\r\n\r\n")
    answered = await asyncio.wait_for(reader.read(), 10)
    writer.close()
    assert answered.startswith(b"HTTP/1.1 400 ")
    assert b"application/problem+json" in answered
    assert b'"code":"INVALID_VALUE"' in answered


async def test_nothing_of_an_answer_is_kept_or_guessed(client: httpx.AsyncClient) -> None:
    for path in ("/healthz", "/metrics", "/nothing"):
        headers = (await client.get(path)).headers
        assert headers["cache-control"] == "no-store"
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["content-security-policy"] == "default-src 'none'"


def test_neither_the_package_nor_the_composition_root_loads_litestar() -> None:
    code = "import sys, ostinato, ostinato.assembly, ostinato.cli.main; sys.exit('litestar' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0
