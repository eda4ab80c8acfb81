"""C183, C185, C113, C123: the API under floods, with clients that leave, and over databases that fail."""

from __future__ import annotations

import asyncio
import os
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import httpx
import pytest
from support.rest import Rest, running_rest
from support.small_disk import small_disk
from typer.testing import CliRunner

from ostinato.cli.main import app as command_line

ADD = "/namespaces/default/tasks/add/instances"
FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
FLOOD_COUNT = 1_500 if FULL else 600
#: More than the API answers at once.
AT_ONCE_COUNT = 150
LEAVING_COUNT = 400


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


async def command(*arguments: str) -> tuple[int, str]:
    result = await asyncio.to_thread(CliRunner().invoke, command_line, [*arguments], prog_name="ostinato")
    return result.exit_code, result.stderr


def open_files() -> int:
    return len(os.listdir("/proc/self/fd"))


async def test_c183_flood_is_accepted_or_told_to_come_back_and_nothing_accepted_is_missing(
    rest: Rest,
) -> None:
    limits = httpx.Limits(max_connections=AT_ONCE_COUNT, max_keepalive_connections=0)
    turn = asyncio.Semaphore(AT_ONCE_COUNT)
    accepted: set[str] = set()
    told: Counter[tuple[int, str]] = Counter()

    async with httpx.AsyncClient(base_url=rest.client.base_url, timeout=60, limits=limits) as client:

        async def submit() -> None:
            async with turn:
                answer = await client.post(f"/api/v1{ADD}", json={"delay": "1h"})
            told[answer.status_code, answer.json().get("code", "")] += 1
            if answer.status_code == 201:
                accepted.add(answer.json()["instance_id"])
            else:
                assert int(answer.headers["retry-after"]) >= 1

        await asyncio.gather(*(submit() for _ in range(FLOOD_COUNT)))
    assert set(told) <= {(201, ""), (503, "OVERLOADED")}, told
    assert accepted
    counts = (await rest.get("/instances/counts", params={"task": "add"})).json()
    assert counts["by_state"]["pending"] == len(accepted)
    assert (await rest.client.get("/readyz")).status_code == 200


async def test_c185_clients_that_err_or_leave_take_no_connection_with_them(rest: Rest) -> None:
    await rest.submit("add", delay="1h")
    before = open_files()
    host, port = rest.address

    async def leave(number: int) -> None:
        """A client goes away in the middle of the body, before the answer, or in the middle of the head."""
        reader, writer = await asyncio.open_connection(host, port)
        head = f"POST /api/v1{ADD} HTTP/1.1\r\nhost: {host}:{port}\r\ncontent-type: application/json\r\n"
        texts = (f"{head}content-length: 100\r\n\r\n{{", f"{head}content-length: 2\r\n\r\n{{}}", head)
        writer.write(texts[number % 3].encode())
        with suppress(ConnectionError):
            await writer.drain()
        writer.transport.abort()
        del reader

    async def err() -> None:
        answer = await rest.post(ADD, {"priority": 99})
        assert answer.status_code in (400, 503)

    for start in range(0, LEAVING_COUNT, 20):
        await asyncio.gather(*(leave(start + number) for number in range(20)), *(err() for _ in range(20)))

    async def few() -> bool | None:
        # A client keeps some connections of its own, each with two ends in this process.
        return True if open_files() <= before + 2 * 25 else None

    await rest.until(few)
    assert (await rest.get("/instances?limit=1")).status_code == 200
    assert (await rest.post(ADD, {"delay": "1h"})).status_code == 201


async def test_c113_database_that_is_held_by_another_program_is_told_in_time_and_all_goes_on_after(
    tmp_path: Path,
) -> None:
    async with running_rest(tmp_path, with_node=False) as rest:
        holder = sqlite3.connect(tmp_path / "rest.db", isolation_level=None)
        holder.execute("BEGIN IMMEDIATE")
        try:
            answer = await rest.post(ADD, {"key": "k"})
            status, words = await command(
                "task", "trigger", "add", "--database", f"sqlite:///{tmp_path}/rest.db"
            )
            read = await rest.get("/instances")
        finally:
            holder.rollback()
            holder.close()
        assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_UNAVAILABLE")
        assert "retry-after" in answer.headers
        assert (status, "DATABASE_UNAVAILABLE" in words, "Traceback" in words) == (3, True, False), words
        assert read.status_code == 200
        assert (await rest.post(ADD, {"key": "k"})).status_code == 201
        assert len((await rest.get("/instances")).json()["items"]) == 1


async def test_c123_full_disk_is_told_with_what_to_do_reads_go_on_and_so_do_writes_once_there_is_room(
    tmp_path: Path,
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        async with running_rest(disk.path, with_node=False) as rest:
            assert (await rest.post(ADD, {"key": "before"})).status_code == 201
            disk.fill()
            answer = await rest.post(ADD, {"key": "during", "payload": {"first": "x" * 200_000}})
            put = await rest.put("/namespaces/default/tasks/new", {"shell": {"command": "x" * 100_000}})
            status, words = await command(
                *("task", "trigger", "add", "--payload", '{"first": "' + "x" * 100_000 + '"}'),
                *("--database", f"sqlite:///{disk.path}/rest.db"),
            )
            assert (await rest.get("/instances")).json()["items"][0]["key"] == "before"
            disk.free()
            assert (answer.status_code, answer.json()["code"]) == (503, "DATABASE_FULL")
            assert answer.json()["hint"] == "free space on the disk of the database"
            assert (put.status_code, put.json()["code"]) == (503, "DATABASE_FULL")
            assert (status, "DATABASE_FULL" in words) == (3, True), words
            assert (await rest.post(ADD, {"key": "during"})).status_code == 201
            assert len((await rest.get("/instances")).json()["items"]) == 2
