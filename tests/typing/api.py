"""What type checkers must accept: the public names, as users write them."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, assert_type

from ostinato import (
    App,
    AsyncTask,
    Context,
    FencingToken,
    Handle,
    InstanceFailed,
    OstinatoError,
    Permanent,
    Retry,
    RetryLater,
    RetryPolicy,
    State,
    Submission,
    Task,
    TaskError,
    at,
    cron,
    current_context,
    every,
)
from ostinato.sdk.results import HttpResult

app = App("shop", url="sqlite:///shop.db", namespace="default")


@app.task
def bare(day: str, amount: int = 1) -> float:
    return float(amount)


@app.task(
    name="nightly.report",
    cron="0 2 * * *",
    timezone="Europe/Berlin",
    retry=Retry.exponential(5, multiplier=2, max_interval="10m", jitter=0.1, max_retry=4),
    timeout=timedelta(minutes=2),
    overlap="queue",
    labels={"zone": "a"},
)
def optioned(day: str) -> dict[str, int]:
    return {day: 1}


@app.task(triggers=[cron("@daily"), every("5m"), at(datetime(2026, 1, 1, tzinfo=UTC))], timeout=None)
async def asynchronous(day: str) -> list[int]:
    return [len(day)]


@app.task
def with_context(context: Context, day: str) -> str:
    context.progress(0.5, "half")
    context.logger.info("day %s", day, rows=17)
    return f"{context.fencing_token}{context.attempt}{context.deadline}{context.cancelled}"


@app.task(isolation="process", memory_limit="512MiB", cpu_limit=0.5)
def isolated(context: Context, day: str) -> str:
    return str(assert_type(context.scratch_directory, Path) / day)


@app.task(priority=9)
async def asynchronous_with_context(context: Context, day: str) -> int:
    if current_context().retry_count:
        raise RetryLater("busy", after="30s")
    raise Permanent("gone", code="GONE")


assert_type(bare("today", amount=2), float)
assert_type(bare.submit("today"), Handle[float])
assert_type(bare.submit("today").result(timeout="5m"), float)
assert_type(bare.submit("today").status(), State)
assert_type(optioned.options(key="k", delay="5m", priority=1).submit(day="x"), Handle[dict[str, int]])
assert_type(isolated.submit("today"), Handle[str])
assert_type(app.shell("limited", "true", memory_limit=64 * 1024 * 1024, cpu_limit=2).name, str)
assert_type(with_context("today"), str)
assert_type(with_context.submit("today"), Handle[str])
assert_type(asynchronous.submit("today").result(), list[int])
assert_type(asynchronous_with_context.submit("today"), Handle[int])
assert_type(app.submit("by.name", {"day": 1}, at=datetime(2026, 1, 1, tzinfo=UTC)), Handle[Any])
assert_type(app.submit_many(bare, [{"day": "a"}, Submission({"day": "b"}, key="k")]), list[Handle[Any]])
assert_type(
    app.shell("backup", ["pg_dump"], env={"A": "b"}, grace="10s").submit(database="x").result()["exit_code"],
    int,
)
assert_type(bare.options(connection=object()).submit("today"), Handle[float])
assert_type(app.submit("bare", {"day": "a"}, connection=object()), Handle[Any])
assert_type(app.http("poke", "GET", url="https://example.com").options(delay=1).submit(), Handle[HttpResult])
assert_type(app.http("ping", "POST", url="https://example.com", read_timeout=1).name, str)
assert_type(Retry.delays([1, "10s"], retry_on=[OSError, "HTTP_5*"]), RetryPolicy)


async def awaited() -> None:
    assert_type(await asynchronous("today"), list[int])
    handle = await asynchronous.submit_async("today")
    assert_type(await handle.result_async(30), list[int])
    assert_type(await handle.status_async(), State)
    await handle.cancel_async("not needed")
    assert_type(await bare.options(delay=5).submit_async("today"), Handle[float])
    await app.apply_async()


def caught(handle: Handle[int], token: FencingToken) -> int | None:
    try:
        return handle.result(timeout=5)
    except InstanceFailed as error:
        raise TaskError(error.message, code="UPSTREAM") from error
    except OstinatoError as error:
        print(error.code, error.hint, token.attempt)
        return None


def as_arguments(one: Task[[str], str], other: AsyncTask[[str], list[int]]) -> None:
    one.submit("x")
    other.submit("x")


as_arguments(with_context, asynchronous)
