"""Stories that users test: retries over hours, fires over weeks, windows, time-outs, cancels, replays."""

from __future__ import annotations

import asyncio
import time
import traceback
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest

from ostinato import (
    App,
    Context,
    InstanceFailed,
    OstinatoError,
    ResultNotReady,
    Retry,
    RetryLater,
    UserError,
    every,
)
from ostinato.testing import Cluster, MakeCluster, NotEnded

BERLIN = ZoneInfo("Europe/Berlin")


def test_a_day_of_hourly_retries_takes_less_than_a_second(app: App) -> None:
    """The whole body of the test, cluster included; counted is the time of this process."""
    began = time.process_time()

    @app.task(retry=Retry.fixed("1h", max_retry=24))
    def settle(context: Context) -> int:
        if context.attempt <= 24:
            raise ConnectionError("the bank is closed")
        return context.attempt

    with Cluster(app) as cluster:
        handle = settle.submit()
        assert handle.result() == 25
        instance = cluster.instance(handle)
        assert instance.delays == ["1h"] * 24
        assert instance.finished == instance.created + timedelta(hours=24)
    assert time.process_time() - began < 1


def test_a_cron_task_fires_thirty_times_in_thirty_days_in_less_than_a_second(app: App) -> None:
    seen: list[datetime | None] = []

    @app.task(cron="0 2 * * *", timezone="Europe/Berlin")
    def nightly(context: Context) -> None:
        seen.append(context.scheduled)

    began = time.process_time()
    with Cluster(app, start=datetime(2026, 3, 10, tzinfo=BERLIN)) as cluster:
        cluster.advance("30d")
        fires = [instance.fire for instance in cluster.instances(nightly)]
    took = time.process_time() - began
    assert len(fires) == 30
    assert fires == seen
    hours = {fire.astimezone(BERLIN).hour for fire in seen if fire is not None}
    # In the night of 29 March there is no two o'clock: it runs right after the gap.
    assert hours == {2, 3}
    assert took < 1


def test_what_is_due_at_the_last_instant_has_happened(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(cron="0 6 * * *")
    def report() -> None: ...

    cluster = ostinato_cluster(app, start=datetime(2026, 5, 1, 5, 59, 59, tzinfo=UTC))
    assert cluster.instances() == []
    cluster.advance("1s")
    assert [instance.state for instance in cluster.instances()] == ["success"]
    assert cluster.now == datetime(2026, 5, 1, 6, tzinfo=UTC)
    cluster.advance_to(datetime(2026, 5, 2, 8, tzinfo=BERLIN))
    assert len(cluster.instances(report)) == 2
    with pytest.raises(UserError, match="is past"):
        cluster.advance_to(datetime(2026, 5, 1, tzinfo=UTC))


def test_a_timeout_ends_an_attempt_at_its_time_and_is_retried(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task(timeout="90s", retry=Retry.fixed("10s", max_retry=1))
    async def slow() -> str:
        await asyncio.sleep(3600)
        return "late"

    cluster = ostinato_cluster(app)
    instance = cluster.finish(slow.submit())
    assert instance.state == "failed"
    assert [(attempt.code, attempt.duration) for attempt in instance.attempts] == [
        ("TIMEOUT", timedelta(seconds=90))
    ] * 2
    assert instance.delays == ["10s"]
    assert cluster.now - instance.created == timedelta(seconds=190)


def test_a_window_ends_retrying_with_the_reason_in_words(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(retry=Retry.exponential("10m", max_retry=50, window="1h"))
    def push() -> None:
        raise ConnectionError("no route")

    cluster = ostinato_cluster(app)
    instance = cluster.finish(push.submit())
    assert instance.delays == ["10m", "20m"]
    assert "would pass the window" in instance.reason


def test_a_paused_task_lets_its_window_pass(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(retry=Retry.fixed("10m", max_retry=5, window="1h"))
    def push() -> None:
        raise ConnectionError("no route")

    cluster = ostinato_cluster(app)
    handle = push.submit()
    cluster.advance("1m")
    cluster.pause(push)
    instance = cluster.finish(handle)
    assert instance.state == "failed"
    assert "window" in instance.reason
    assert "paused" in instance.reason
    assert len(instance.attempts) == 1


def test_a_waiting_and_a_running_instance_can_be_cancelled(ostinato_cluster: MakeCluster, app: App) -> None:
    ended: list[str] = []

    @app.task
    async def work(name: str) -> None:
        try:
            await asyncio.sleep(3600)
        finally:
            ended.append(name)

    cluster = ostinato_cluster(app)
    waiting = work.options(delay="1h").submit("waiting")
    running = work.submit("running")
    cluster.advance("1m")
    assert running.status() == "running"
    for handle in (waiting, running):
        handle.cancel("not needed")
        assert cluster.finish(handle, within="1s").state == "cancelled"
    assert ended == ["running"]


def test_a_replay_is_a_new_generation_with_fresh_retries(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(retry=Retry.fixed("1m", max_retry=1))
    def push() -> str:
        return "pushed"

    cluster = ostinato_cluster(app)
    cluster.fail(push, OSError, attempts=(1, 2, 3))
    handle = push.submit()
    assert cluster.finish(handle).state == "failed"
    cluster.replay(handle)
    instance = cluster.finish(handle)
    assert instance.result == "pushed"
    assert [(attempt.number, attempt.generation) for attempt in instance.attempts] == [
        (1, 1),
        (2, 1),
        (3, 2),
        (4, 2),
    ]
    with pytest.raises(OstinatoError, match="ended in success"):
        cluster.replay(handle)
    cluster.replay(handle, force=True)
    assert cluster.finish(handle).attempts[-1].number == 5


def test_a_key_is_one_instance_and_another_payload_a_conflict(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    calls: list[int] = []

    @app.task
    def charge(order: int) -> int:
        calls.append(order)
        return order

    cluster = ostinato_cluster(app)
    first = charge.options(key="order-17").submit(17)
    again = charge.options(key="order-17").submit(17)
    assert (first.created, again.created) == (True, False)
    with pytest.raises(OstinatoError) as conflict:
        charge.options(key="order-17").submit(18)
    assert conflict.value.code == "KEY_CONFLICT"
    cluster.finish()
    assert calls == [17]


def test_overlap_holds_back_fires_of_a_task_that_hangs(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(triggers=[every("10m")], timeout="25m", retry=Retry.none())
    def poll() -> None: ...

    cluster = ostinato_cluster(app)
    cluster.hang(poll, attempts=(1,))
    cluster.advance("31m")
    states = [instance.state for instance in cluster.instances(poll)]
    assert states == ["running", "skipped", "skipped"]
    cluster.heal(poll)
    cluster.advance("10m")
    assert [instance.state for instance in cluster.instances(poll)] == [
        "failed",
        "skipped",
        "skipped",
        "success",
    ]


def test_a_queue_timeout_fails_what_waits(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(queue_timeout="5m")
    def work() -> None: ...

    cluster = ostinato_cluster(app)
    cluster.pause("work")
    instance = cluster.finish(work.submit())
    assert (instance.state, instance.failure and instance.failure.code) == ("failed", "QUEUE_TIMEOUT")
    # Exactly at the end it could still start.
    assert cluster.now - instance.created == timedelta(minutes=5, microseconds=1)


def test_a_task_that_asks_to_wait_is_run_when_it_asked(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def fetch(context: Context) -> int:
        if context.attempt == 1:
            raise RetryLater("busy", after="17m")
        return context.retry_count

    cluster = ostinato_cluster(app)
    instance = cluster.finish(fetch.submit())
    assert instance.result == 1
    assert instance.retries[0].delay >= timedelta(minutes=17)
    assert "asks to wait 17m" in instance.retries[0].reason


def test_a_result_has_its_declared_type_and_a_deadline_is_virtual(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task
    def when() -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC)

    cluster = ostinato_cluster(app)
    late = when.options(delay="2h").submit()
    with pytest.raises(ResultNotReady):
        late.result(timeout="1h")
    assert cluster.now - cluster.instance(late).created == timedelta(hours=1)
    assert late.result(timeout="1h") == datetime(2026, 1, 1, tzinfo=UTC)
    assert when.options(delay="300d").submit().result(timeout="301d") == datetime(2026, 1, 1, tzinfo=UTC)
    assert cluster.instance(late).result == datetime(2026, 1, 1, tzinfo=UTC)


def test_what_never_ends_is_told_with_its_story(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def work() -> None: ...

    cluster = ostinato_cluster(app)
    cluster.pause(work)
    handle = work.submit()
    with pytest.raises(NotEnded, match=r"(?s)pending.*has not ended within 2d.*task default/work is paused"):
        cluster.finish(handle, within="2d")
    with pytest.raises(NotEnded, match="has not ended within 30d"):
        cluster.finish()
    with pytest.raises(NotEnded, match="30d"):
        handle.result()


def test_tasks_that_are_declared_later_run_too(ostinato_cluster: MakeCluster, app: App) -> None:
    cluster = ostinato_cluster(app)

    @app.task(labels={"zone": "a"})
    def first() -> str:
        return "first"

    assert first.submit().result() == "first"

    @app.task(triggers=[every("1h")], labels={"zone": "b"})
    def second() -> str:
        return "second"

    cluster.advance("1h")
    assert [instance.result for instance in cluster.instances(second)] == ["second"]


def test_one_seed_gives_one_story_and_another_seed_another(app: App) -> None:
    @app.task(retry=Retry.exponential("10s", jitter="full", max_retry=5))
    def push(number: int) -> None:
        order.append(number)
        raise ConnectionError("no route")

    def story(seed: int) -> tuple[list[int], list[str]]:
        order.clear()
        with Cluster(app, seed=seed) as cluster:
            app.submit_many(push, [{"number": number} for number in range(10)])
            return list(order), [instance.story for instance in cluster.finish()]

    order: list[int] = []
    assert story(1) == story(1)
    assert story(1) != story(2)


def test_an_app_goes_where_it_went_once_the_cluster_is_closed(app: App) -> None:
    @app.task
    def work() -> str:
        return "done"

    with Cluster(app):
        with Cluster(app) as inner:
            handle = work.submit()
            assert len(inner.instances()) == 1
        assert work.submit().result() == "done"
    inner.close()
    with pytest.raises(UserError, match="closed"):
        handle.result()
    with pytest.raises(OstinatoError) as unreachable:
        work.submit()
    assert unreachable.value.code == "SCHEDULER_UNREACHABLE"
    app.close()


def test_several_apps_share_a_cluster_and_its_time(ostinato_cluster: MakeCluster, app: App) -> None:
    other = App("other", "http://127.0.0.1:9", namespace="billing")

    @app.task
    def order() -> str:
        return bill.submit().id

    @other.task
    def bill() -> str:
        return "billed"

    cluster = ostinato_cluster(app, other)
    cluster.finish(order.submit())
    cluster.finish()
    assert [(instance.namespace, instance.task) for instance in cluster.instances()] == [
        ("default", "order"),
        ("billing", "bill"),
    ]


def test_a_failure_is_raised_again_from_the_users_own_line(ostinato_cluster: MakeCluster, app: App) -> None:
    def divide(amount: int) -> float:
        return amount / 0

    @app.task(retry=Retry.none())
    def share(amount: int) -> float:
        return divide(amount)

    cluster = ostinato_cluster(app)
    handle = share.submit(5)
    with pytest.raises(InstanceFailed, match="PYTHON_ERROR") as failed:
        handle.result()
    instance = cluster.instance(handle)
    with pytest.raises(ZeroDivisionError) as again:
        instance.raise_failure()
    for cause in (failed.value.__cause__, again.value):
        assert cause is not None
        functions = [frame.name for frame in traceback.extract_tb(cause.__traceback__)]
        assert functions[-2:] == ["share", "divide"]
    assert repr(instance).startswith(f"<instance {handle.id} of default/share: failed: PYTHON_ERROR: Zero")


def test_what_is_no_app_task_or_instance_is_refused_with_what_to_give(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task
    def sync() -> None: ...

    other = App("other", "http://127.0.0.1:9")

    @other.task
    def elsewhere() -> None: ...

    with pytest.raises(UserError, match=r"apps: 'x:app' is no App \(import the app"):
        ostinato_cluster("x:app")  # type: ignore[arg-type]  # a name as on the command line
    cluster = ostinato_cluster(app)
    with pytest.raises(
        UserError, match=r"instance: <Task default/sync> is no instance \(.*finish\(sync.submit"
    ):
        cluster.finish(sync)  # type: ignore[call-overload]  # the task, not its instance
    with pytest.raises(UserError, match=r"task: <function .* is no task"):
        cluster.fail(lambda: None, OSError)  # type: ignore[arg-type]  # no task at all
    with pytest.raises(
        UserError, match=r"default/elsewhere does not exist \(this cluster runs shop; give it"
    ):
        cluster.fail(elsewhere, OSError)
    done = cluster.finish(sync.submit())
    assert cluster.instance(done).state == "success"


def test_an_instance_of_another_cluster_is_told_as_that(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def work() -> None: ...

    with Cluster(app, seed=7) as before:
        handle = work.submit()
        before.finish(handle)
    cluster = ostinato_cluster(app)
    for ask in (
        lambda: cluster.instance(handle),
        lambda: cluster.finish(handle),
        lambda: cluster.replay(handle),
        app.handle("unknown").status,
    ):
        with pytest.raises(OstinatoError, match="this cluster has made no such instance"):
            ask()


def test_time_goes_on_and_not_beyond_a_century_at_once(ostinato_cluster: MakeCluster, app: App) -> None:
    cluster = ostinato_cluster(app)
    with pytest.raises(UserError, match="is past; it is 2026-01-01"):
        cluster.advance_to(datetime(2020, 1, 1, tzinfo=UTC))
    with pytest.raises(UserError, match="more than 100 years away"):
        cluster.advance_to(datetime(2200, 1, 1, tzinfo=UTC))
    assert cluster.now == datetime(2026, 1, 1, tzinfo=UTC)
    cluster.advance_to(datetime(2026, 3, 1, tzinfo=UTC))
    assert cluster.now == datetime(2026, 3, 1, tzinfo=UTC)


def test_retries_without_a_delay_and_without_end_fail_the_test(app: App) -> None:
    @app.task(retry=Retry.fixed("0s", max_retry=1_000_000), timeout="1m")
    def storm() -> None:
        raise ConnectionError("again")

    with (
        pytest.raises(UserError, match="task default/storm was retried 1000 times at one instant"),
        Cluster(app) as cluster,
    ):
        cluster.finish(storm.submit(), within="1h")


def test_a_test_finds_the_instance_of_a_shard(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task(every="1h", shards=3)
    def reindex(context: Context) -> int:
        if context.shard == 1:
            raise ValueError("customer 7")
        return context.shard

    with ostinato_cluster(app) as cluster:
        cluster.advance("1h")
        made = sorted(cluster.instances(reindex), key=lambda instance: instance.shard)
        assert [(instance.shard, instance.shard_total) for instance in made] == [(0, 3), (1, 3), (2, 3)]
        assert [instance.result for instance in made] == [0, None, 2]
        assert ", shard 1 of 3" in made[1].story
