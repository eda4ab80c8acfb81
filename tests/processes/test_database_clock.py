"""C165: the clock of a real database server jumps by years for 5 s under real processes, and comes back.

The machine's clock stays as it is: the database has a ``clock_timestamp`` of its own that goes before the
server's, and tells the time that a table says.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import psutil
import pytest
from support.servers import TestDatabase, connect, fresh_database
from support.services import Services

APP = """
from ostinato import cron

@app.task(triggers=[every("2s", misfire="fire_all")], overlap="allow")
async def tick(context: Context) -> None:
    witness(context, "start")


@app.task(triggers=[cron("0 0 * * *")])
async def daily(context: Context) -> None:
    witness(context, "start")
"""
TEN_YEARS_S = 3_652 * 86_400
#: From 2026 to beyond 2199.
TO_2200_S = 63_553 * 86_400
JUMPED_S = 5.0
RSS_BYTES_MAX = 50 << 20


class Clock:
    """What a database takes for the time."""

    def __init__(self, database: TestDatabase) -> None:
        self._database = database
        with closing(connect(database.server_url)) as session:
            session.autocommit = True
            for statement in (
                "CREATE SCHEMA clock",
                "CREATE TABLE clock.skew (seconds bigint NOT NULL)",
                "INSERT INTO clock.skew VALUES (0)",
                "CREATE FUNCTION clock.clock_timestamp() RETURNS timestamptz LANGUAGE sql VOLATILE AS $$"
                " SELECT pg_catalog.clock_timestamp() + seconds * interval '1 second' FROM clock.skew $$",
                f"ALTER DATABASE {database.server_url.database} SET search_path = clock, pg_catalog, public",
            ):
                session.execute(statement)

    def jump(self, seconds: int) -> None:
        """Be wrong for a while, which the server itself measures: this process may have to wait."""
        with closing(connect(self._database.server_url)) as session:
            session.autocommit = True
            session.execute(
                f"DO $$ BEGIN UPDATE clock.skew SET seconds = {seconds}; COMMIT;"
                f" PERFORM pg_sleep({JUMPED_S}); UPDATE clock.skew SET seconds = 0; COMMIT; END $$"
            )


@pytest.fixture
def database() -> Iterator[TestDatabase]:
    with fresh_database("postgresql") as database:
        yield database


@pytest.fixture
def services(tmp_path: Path, database: TestDatabase) -> Iterator[Services]:
    started = Services(tmp_path, APP, database=database.url)
    yield started
    started.kill_all()


def _says(services: Services, event: str) -> int:
    return services.logs().count(f'"event":"{event}"')


def test_c165_a_database_clock_that_jumps_by_years_for_5_s_makes_nothing_up_and_all_goes_on(
    services: Services, database: TestDatabase
) -> None:
    clock = Clock(database)
    services.start_scheduler()
    services.start_worker(slots=2)
    services.until(lambda: len(services.rows("select 1 from instance where state = 'success'")) >= 2)
    scheduler = psutil.Process(services.processes["scheduler"].pid)
    rss_bytes = scheduler.memory_info().rss
    for number, seconds in enumerate((TEN_YEARS_S, TO_2200_S), start=1):
        clock.jump(seconds)
        services.until(lambda count=number: _says(services, "clock_trusted") == count)
    assert scheduler.memory_info().rss - rss_bytes < RSS_BYTES_MAX
    assert _says(services, "clock_jumped") == 2
    ((before,),) = services.rows("select max(fire_us) from instance")
    services.until(
        lambda: services.rows("select 1 from instance where fire_us > ? and state = 'success'", before)
    )
    fires = [int(str(us)) for (us,) in services.rows("select fire_us from instance order by fire_us")]
    assert {later - earlier for earlier, later in pairwise(fires)} == {2_000_000}
    assert services.rows("select 1 from instance where task = 'daily'") == []
    assert (
        services.rows("select 1 from instance where attempt > 1 or created_us > ?", fires[-1] + 60_000_000)
        == []
    )
