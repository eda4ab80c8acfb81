"""The tests' own database servers do what they say, since tests of failures rest on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any

import psutil
import pytest
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer


@pytest.fixture(scope="module", params=[PrivatePostgres, PrivateMariadb], ids=["postgresql", "mariadb"])
def server(request: pytest.FixtureRequest) -> Iterator[PrivateServer]:
    with request.param() as running:
        yield running


def _rows(server: PrivateServer, database: str, statement: str) -> list[tuple[Any, ...]]:
    with closing(server.connect(database)) as connection:
        cursor = connection.cursor()
        cursor.execute(statement)
        rows = list(cursor.fetchall()) if cursor.description else []
        connection.commit()
        return rows


def test_what_was_committed_is_there_after_a_kill_and_a_restart(server: PrivateServer) -> None:
    url = server.make_database("kept")
    assert url.endswith(f":{server.port}/kept")
    _rows(server, "kept", "CREATE TABLE fact (number INTEGER)")
    _rows(server, "kept", "INSERT INTO fact VALUES (7)")
    first = server.pid
    server.kill()
    assert not server.answers()
    server.start()
    assert server.pid != first
    assert _rows(server, "kept", "SELECT number FROM fact") == [(7,)]
    server.restart()
    assert _rows(server, "kept", "SELECT number FROM fact") == [(7,)]


def test_a_frozen_server_says_nothing_until_it_goes_on(server: PrivateServer) -> None:
    assert server.answers()
    with closing(server.connect()):
        _freeze_and_look(server)
    assert server.answers()


def _freeze_and_look(server: PrivateServer) -> None:
    """Of PostgreSQL each session is a process, which must not go on answering either."""
    server.freeze()
    try:
        assert not server.answers()
        every = [psutil.Process(server.pid), *psutil.Process(server.pid).children(recursive=True)]
        # A child that had just ended is buried by its parent once that goes on.
        assert {process.status() for process in every} - {psutil.STATUS_ZOMBIE} == {psutil.STATUS_STOPPED}
    finally:
        server.thaw()


def test_a_frozen_server_can_be_stopped_and_started(server: PrivateServer) -> None:
    server.freeze()
    server.restart()
    assert server.answers()
