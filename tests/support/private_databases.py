"""Databases with our schema on servers of a test's own."""

from __future__ import annotations

from support.private_servers import PrivateServer
from support.servers import ServerKind, TestDatabase, create_schema


def with_schema(server: PrivateServer, name: str) -> TestDatabase:
    """A new database on a server that runs; closed by whoever asks for it."""
    kind: ServerKind = "postgresql" if server.url.startswith("postgres") else "mariadb"
    database = TestDatabase(kind, server.make_database(name))
    engine = database.engine()
    with engine.begin() as connection:
        create_schema(connection)
    engine.dispose()
    return database
