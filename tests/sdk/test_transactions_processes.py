"""What is committed runs; what a killed program has not committed never was."""

from __future__ import annotations

import asyncio
import signal
import sqlite3
import sys
from pathlib import Path

import pytest
from support.rest import running_rest
from support.transaction_databases import Database
from support.transaction_ways import FIRST_WAYS, Way

from ostinato import App, State

#: Submits, says so, and waits to be killed before it commits.
_PROGRAM = """
import sys
from ostinato import App

app = App("shop", "http://127.0.0.1:9")
{connect}
handle = app.submit("notify", {{"customer": 17}}, key="order-17", connection=connection)
print(handle.id, flush=True)
sys.stdin.read()
connection.commit()
"""
_CONNECT = {
    "postgresql": "import psycopg\n"
    "connection = psycopg.connect(host={host!r}, port={port}, user={user!r}, dbname={database!r})",
    "mysql": "import pymysql\n"
    "connection = pymysql.connect(host={host!r}, port={port}, user={user!r}, database={database!r})",
    "sqlite": "import sqlite3\nconnection = sqlite3.connect({database!r})",
}


@pytest.mark.parametrize("way", FIRST_WAYS, ids=repr)
async def test_a_program_that_is_killed_before_its_commit_has_submitted_nothing(
    way: Way, database: Database, shop: App
) -> None:
    url = database.url
    connect = _CONNECT[way.kind].format(
        host=url.host, port=url.port, user=url.username, database=url.database
    )
    program = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        _PROGRAM.format(connect=connect),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
    )
    assert program.stdout is not None
    submitted = (await program.stdout.readline()).decode().strip()
    assert len(submitted) == 26
    program.kill()
    assert await program.wait() == -signal.SIGKILL
    async with way.open(database) as opened:
        # Waits for the end of the killed one's transaction, and finds its key free.
        handle = await opened.submit(shop, "notify", {"customer": 18}, key="order-17")
        await opened.commit()
    assert handle.created
    assert database.instance_ids() == [handle.id] != [submitted]


async def test_what_is_committed_runs_on_the_node_that_has_the_database(tmp_path: Path) -> None:
    async with running_rest(tmp_path) as rest:
        host, port = rest.address
        app = App("shop", f"http://{host}:{port}")
        connection = sqlite3.connect(tmp_path / "rest.db")
        try:
            lost = app.submit("add", {"first": 1}, connection=connection)
            connection.rollback()
            handle = app.submit("add", {"first": 2}, key="k", connection=connection)
            connection.commit()
            assert await handle.result_async(timeout="20s") == 3
            assert await handle.status_async() is State.SUCCESS
            again = await app.submit_async("add", {"first": 2}, key="k")
            assert (again.id, again.created) == (handle.id, False)
            assert (await rest.get(f"/instances/{lost.id}")).status_code == 404
        finally:
            connection.close()
            app.close()
