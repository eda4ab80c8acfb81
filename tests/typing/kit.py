"""What type checkers must accept of the testing kit, as users write it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from ostinato import App, State
from ostinato.testing import Attempt, Cluster, Instance, MakeCluster, NotEnded, RetryDecision

app = App("shop")


@app.task
def fetch(supplier: str) -> int:
    return len(supplier)


backup = app.shell("backup", "pg_dump")


def test_it(ostinato_cluster: MakeCluster) -> None:
    cluster = assert_type(ostinato_cluster(app, start=datetime(2026, 1, 1, tzinfo=UTC), seed=3), Cluster)
    cluster.fail(fetch, ConnectionError("no"), attempts=(1, 2))
    cluster.fail("fetch", TimeoutError, attempts=range(3, 5))
    cluster.fail(backup, 503, retry_after=timedelta(seconds=5))
    cluster.hang(backup, attempts={1})
    cluster.heal(backup)
    cluster.stub(backup, {"exit_code": 0})
    cluster.stub(fetch, lambda supplier: len(supplier))
    cluster.advance("3h")
    cluster.advance_to(datetime(2026, 1, 2, tzinfo=UTC))
    instance = assert_type(cluster.finish(fetch.submit("acme"), within="1d"), Instance)
    assert_type(cluster.finish(), list[Instance])
    assert_type(cluster.instance(instance.id), Instance)
    assert_type(cluster.instances(fetch), list[Instance])
    assert_type(instance.state, State)
    assert_type(instance.delays, list[str])
    assert_type(instance.attempts, list[Attempt])
    assert_type(instance.retries, list[RetryDecision])
    assert_type(instance.attempts[0].duration, timedelta | None)
    assert_type(instance.fire, datetime | None)
    assert_type(instance.payload, dict[str, Any])
    assert_type(cluster.now, datetime)
    cluster.replay(instance.id, latest=True, force=True)
    cluster.pause(fetch)
    cluster.resume("fetch")


async def test_async(ostinato_cluster: MakeCluster) -> None:
    cluster = ostinato_cluster(app)
    handle = await fetch.submit_async("acme")
    await cluster.advance_async(5)
    await cluster.advance_to_async(datetime(2026, 1, 2, tzinfo=UTC))
    assert_type(await cluster.finish_async(handle), Instance)
    assert_type(await cluster.finish_async(within="1d"), list[Instance])


def test_alone() -> None:
    with Cluster(app) as cluster:
        try:
            assert_type(cluster, Cluster).finish()
        except NotEnded as error:
            print(error)
