"""PostgreSQL that is killed, restarted, frozen and failed over: a store goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator

import pytest
from sqlalchemy import create_engine
from support.private_servers import PrivatePostgres
from support.servers import create_schema

from ostinato.clock import SystemClock
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import OstinatoError, UnavailableError
from ostinato.store.batches import NodeRow
from ostinato.store.postgres.store import PostgresStore
from ostinato.store.server.url import read_server_url
from ostinato.testing.contracts.store_kit import ALL, NODE, T0, make_submission

_READY_US = 5 * SECOND


class _Standby(PrivatePostgres):
    """Follows a primary until it is promoted."""

    def __init__(self, primary: PrivatePostgres) -> None:
        super().__init__()
        self._primary = primary

    def _make(self) -> None:
        self._run(
            [
                *("pg_basebackup", "--write-recovery-conf", "--checkpoint=fast", "--host=127.0.0.1"),
                *(f"--port={self._primary.port}", "--username=postgres", f"--pgdata={self.folder / 'data'}"),
            ]
        )


@pytest.fixture(scope="module")
def server() -> Iterator[PrivatePostgres]:
    with PrivatePostgres() as server:
        yield server


@pytest.fixture
def url(server: PrivatePostgres, request: pytest.FixtureRequest) -> str:
    return _new_database(server, f"jobs_{abs(hash(request.node.name))}")


def _new_database(server: PrivatePostgres, name: str) -> str:
    url = server.make_database(name)
    engine = create_engine(read_server_url(url).sqlalchemy_url().set(drivername="postgresql+psycopg"))
    with engine.begin() as connection:
        create_schema(connection)
    engine.dispose()
    return url


@pytest.fixture
async def store(url: str) -> AsyncIterator[PostgresStore]:
    store = PostgresStore(read_server_url(url), clock=SystemClock(), deadline_us=3 * SECOND)
    await store.open()
    yield store
    await store.close()


class _Submitter:
    """Submits one instance after the other, and knows which were accepted."""

    def __init__(self, store: PostgresStore, name: str) -> None:
        self._store = store
        self._name = name
        self.accepted: list[str] = []
        self.refused: list[str] = []
        self.others: list[OstinatoError] = []

    async def run(self) -> None:
        for number in range(10**9):
            wanted = make_submission(f"{self._name}-{number}")
            try:
                await self._store.submit([wanted])
                self.accepted.append(wanted.instance.id)
            except UnavailableError as error:
                self.refused.append(error.code)
            except OstinatoError as error:
                self.others.append(error)


async def test_c117_a_store_is_ready_again_soon_after_each_crash_of_the_server(
    store: PostgresStore, server: PrivatePostgres
) -> None:
    clock = SystemClock()
    await store.register_node(NodeRow(NODE, 0, "", T0))
    await store.take_partitions(NODE, ALL)
    identity = await store.identity()
    submitters = [_Submitter(store, f"s{number}") for number in range(4)]
    running = [asyncio.create_task(submitter.run()) for submitter in submitters]
    for number in range(4):
        count = len(submitters[0].accepted)
        while len(submitters[0].accepted) < count + 20:
            await clock.sleep_until_us(clock.boot_us() + 10 * MILLISECOND)
        await asyncio.to_thread(server.kill if number % 2 else server.stop)
        await asyncio.to_thread(server.start)
        began_us = clock.boot_us()
        count = len(submitters[0].accepted)
        while len(submitters[0].accepted) == count:
            assert clock.boot_us() - began_us < _READY_US
            await clock.sleep_until_us(clock.boot_us() + 10 * MILLISECOND)
        assert await store.renew_node(NODE)
        assert await store.identity() == identity
        await asyncio.wait_for(store.listener.is_listening.wait(), 5)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    accepted = [name for submitter in submitters for name in submitter.accepted]
    assert len(await store.get_instances(accepted)) == len(accepted)
    assert {code for submitter in submitters for code in submitter.refused} <= {"DATABASE_UNAVAILABLE"}
    assert [error for submitter in submitters for error in submitter.others] == []


async def test_calls_to_a_frozen_server_end_at_their_deadline_and_work_again_when_it_goes_on(
    store: PostgresStore, server: PrivatePostgres
) -> None:
    clock = SystemClock()
    await store.submit([make_submission(1)])
    server.freeze()
    began_us = clock.boot_us()
    try:
        answers = await asyncio.gather(
            store.submit([make_submission(2)]), store.nodes(), store.now_us(), return_exceptions=True
        )
    finally:
        server.thaw()
    assert clock.boot_us() - began_us < 5 * SECOND
    assert [getattr(answer, "code", "") for answer in answers] == ["DATABASE_UNAVAILABLE"] * 3
    assert (await store.submit([make_submission(3)]))[0].created


async def test_a_promoted_standby_is_another_server(store: PostgresStore, server: PrivatePostgres) -> None:
    """As a standby it is read-only and names no identity; promoted it has a timeline of its own."""
    await store.submit([make_submission(1)])
    with _Standby(server) as standby:
        name = store.database.subject.rpartition("/")[2]
        url = f"postgresql://postgres@127.0.0.1:{standby.port}/{name}"
        follower = PostgresStore(read_server_url(url), clock=SystemClock())
        try:
            await follower.open()
            assert list(await follower.get_instances(["i000001"])) == ["i000001"]
            with pytest.raises(UnavailableError, match="read-only, as after a failover"):
                await follower.submit([make_submission(2)])
            with pytest.raises(UnavailableError):
                await follower.identity()
            with standby.connect() as session:
                assert session.execute("SELECT pg_promote()").fetchone() == (True,)
            former, promoted = await store.identity(), await follower.identity()
            assert former.split(":")[0] == promoted.split(":")[0]
            assert former != promoted
            assert (await follower.submit([make_submission(2)]))[0].created
        finally:
            await follower.close()
