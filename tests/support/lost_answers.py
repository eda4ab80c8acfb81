"""A way to a database server on which the answer to a COMMIT is lost at will: it is done, and nobody hears.

async with losing_way(database) as way:
    store = open_store_from_url(way.url, clock=clock)
    way.lose(lambda: True)   # from now on of every COMMIT; the connection breaks in place of the answer
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from support.mysql_proxy import Act, MysqlProxy
from support.postgres_wire import StatementProxy
from support.servers import TestDatabase

#: Asked at each COMMIT, in whatever thread.
Chooser = Callable[[], bool]


class LosingWay:
    """Its URL leads through the proxy."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.lost_count = 0
        self._chooser: Chooser = _never

    def lose(self, chooser: Chooser) -> None:
        """Lose the answers that `chooser` says yes to."""
        self._chooser = chooser

    def lose_next(self) -> None:
        """Lose the next answer alone."""
        before = self.lost_count
        self.lose(lambda: self.lost_count == before)

    def pass_all(self) -> None:
        self.lose(_never)

    def is_lost(self, statement: str) -> bool:
        if not statement.startswith("COMMIT") or not self._chooser():
            return False
        self.lost_count += 1
        return True


def _never() -> bool:
    return False


@asynccontextmanager
async def losing_way(database: TestDatabase) -> AsyncIterator[LosingWay]:
    """A proxy before the server of `database`."""
    url = database.server_url
    login = f"{url.user}:{url.password or ''}@127.0.0.1"
    if database.kind == "postgresql":
        with StatementProxy(f"{url.host}:{url.port}") as proxy:
            way = LosingWay(f"postgresql://{login}:{proxy.port}/{url.database}?sslmode=disable")
            proxy.lose_when(way.is_lost, answer=True)
            yield way
        return

    async def kill(session: int) -> None:
        raise AssertionError(session)

    async with MysqlProxy((url.host, url.port), kill=kill) as mysql_proxy:
        way = LosingWay(f"mysql://{login}:{mysql_proxy.port}/{url.database}")

        def strike(statement: str) -> Act:
            return "cut" if way.is_lost(statement) else "pass"

        mysql_proxy.strike = strike
        yield way
