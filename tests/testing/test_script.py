"""What attempts can be made to do, how each counts, and what is refused."""

from __future__ import annotations

from collections.abc import Collection
from datetime import timedelta
from typing import Any

import pytest

from ostinato import App, InstanceFailed, OstinatoError, Permanent, Retry, TaskError
from ostinato.testing import MakeCluster


@pytest.fixture
def push(app: App) -> Any:
    @app.task(retry=Retry.exponential("5s", max_retry=3, max_lost=2), timeout="10m")
    def push(number: int = 1) -> str:
        return f"pushed {number}"

    return push


def test_attempts_1_and_2_fail_and_the_third_succeeds(
    ostinato_cluster: MakeCluster, app: App, push: Any
) -> None:
    cluster = ostinato_cluster(app)
    cluster.fail(push, ConnectionError("no route"), attempts=range(1, 3))
    instance = cluster.finish(push.submit(7))
    assert (instance.state, instance.result) == ("success", "pushed 7")
    assert instance.delays == ["5s", "10s"]
    assert [retry.attempt for retry in instance.retries] == [1, 2]
    assert [retry.due - instance.created for retry in instance.retries] == [
        timedelta(seconds=5),
        timedelta(seconds=15),
    ]
    assert all(
        "ConnectionError" in retry.reason or "PYTHON_ERROR" in retry.reason for retry in instance.retries
    )
    assert "retry 1 of 3" in instance.story
    instance.raise_failure()


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (OSError, "PYTHON_ERROR"),
        (Permanent("gone", code="GONE"), "GONE"),
        (TaskError("no", code="CARD_REFUSED"), "CARD_REFUSED"),
        ("CARD_REFUSED", "CARD_REFUSED"),
        ("EXIT_75", "EXIT_75"),
        (503, "HTTP_503"),
        ("TIMEOUT", "TIMEOUT"),
    ],
)
def test_each_kind_of_failure_has_its_code(
    ostinato_cluster: MakeCluster, app: App, push: Any, failure: Any, code: str
) -> None:
    cluster = ostinato_cluster(app)
    cluster.fail(push, failure)
    instance = cluster.finish(push.submit())
    assert {attempt.code for attempt in instance.attempts} == {code}
    assert len(instance.attempts) == (1 if code == "GONE" else 4)
    with pytest.raises(InstanceFailed if isinstance(failure, str | int) else Exception, match=r"^"):
        instance.raise_failure()


def test_lost_workers_count_apart_and_come_back_without_backoff(
    ostinato_cluster: MakeCluster, app: App, push: Any
) -> None:
    cluster = ostinato_cluster(app)
    cluster.fail(push, "WORKER_LOST", attempts=(1, 3))
    cluster.fail(push, OSError, attempts=(2,))
    instance = cluster.finish(push.submit())
    assert instance.delays == ["0s", "5s", "1s"]
    assert [attempt.ended for attempt in instance.attempts] == ["lost", "failed", "lost", "success"]
    cluster.fail(push, "WORKER_LOST")
    instance = cluster.finish(push.submit())
    assert (instance.state, len(instance.attempts)) == ("failed", 3)
    assert "max_lost allows 2" in instance.reason


def test_a_status_may_ask_to_wait(ostinato_cluster: MakeCluster, app: App, push: Any) -> None:
    cluster = ostinato_cluster(app)
    cluster.fail(push, 429, attempts=(1,), retry_after="42s")
    assert cluster.finish(push.submit()).delays == ["42s"]


def test_a_hanging_attempt_ends_at_its_timeout_or_by_a_missed_heartbeat(
    ostinato_cluster: MakeCluster, app: App, push: Any
) -> None:
    @app.task(heartbeat_timeout="30s", retry=Retry.none())
    async def beat() -> None: ...

    cluster = ostinato_cluster(app)
    cluster.hang(push, attempts=(1,))
    cluster.hang(beat)
    (first, second) = (cluster.finish(push.submit()), cluster.finish(beat.submit()))
    assert [(attempt.code, attempt.duration) for attempt in (first.attempts[0], second.attempts[0])] == [
        ("TIMEOUT", timedelta(minutes=10)),
        ("HEARTBEAT_TIMEOUT", timedelta(seconds=30)),
    ]


def test_the_newest_plan_counts_and_all_can_be_taken_back(
    ostinato_cluster: MakeCluster, app: App, push: Any
) -> None:
    cluster = ostinato_cluster(app)
    cluster.fail("push", 500)
    cluster.fail("push", "MINE", attempts=(2,))
    codes = [attempt.code for attempt in cluster.finish(push.submit()).attempts]
    assert codes == ["HTTP_500", "MINE", "HTTP_500", "HTTP_500"]
    cluster.heal(push)
    assert cluster.finish(push.submit()).result == "pushed 1"


def test_stubs_stand_for_functions_and_for_tasks_that_run_nowhere(
    ostinato_cluster: MakeCluster, app: App, push: Any
) -> None:
    backup = app.shell("backup", "pg_dump", payload={"database": "shop"})
    ping = app.http("ping", "POST", url="https://example.com")
    cluster = ostinato_cluster(app)
    cluster.stub(push, "stubbed")
    cluster.stub(backup, lambda database: {"exit_code": 0, "stdout_tail": database})
    assert push.submit().result() == "stubbed"
    assert backup.submit().result() == {"exit_code": 0, "stdout_tail": "shop"}
    ping.submit()
    with pytest.raises(OstinatoError, match=r"default/ping is no Python function(?s:.*)cluster\.stub"):
        cluster.finish()
    cluster.fail(ping, 404)
    assert cluster.finish(ping.submit()).failure is not None


@pytest.mark.parametrize(
    ("failure", "attempts", "match"),
    [
        (OSError, 2, r"write \(2,\) or range\(1, 3\)"),
        (OSError, (0,), "numbered from 1"),
        ("does not answer", None, "give an exception"),
        (7, None, "no HTTP status"),
        (True, None, "no HTTP status"),
        (int, None, "neither an exception"),
    ],
)
def test_a_plan_that_means_nothing_is_refused_with_a_hint(
    ostinato_cluster: MakeCluster,
    app: App,
    push: Any,
    failure: Any,
    attempts: Collection[int],
    match: str,
) -> None:
    cluster = ostinato_cluster(app)
    with pytest.raises(OstinatoError, match=match):
        cluster.fail(push, failure, attempts=attempts)
    with pytest.raises(OstinatoError, match="did you mean push"):
        cluster.fail("psuh", OSError)
    with pytest.raises(OstinatoError, match="RetryLater"):
        cluster.fail(push, OSError, retry_after="5s")
