"""Declaring tasks, and submitting them to a store."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from support.app_store import all_of, only

from ostinato import (
    App,
    ConflictError,
    Context,
    Permanent,
    Retry,
    State,
    Submission,
    UserError,
    at,
    cron,
    every,
)
from ostinato.core.definition import HttpSpec, PythonSpec, ShellSpec, TaskRef
from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.retry.policy import DEFAULT_POLICY
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger
from ostinato.store.memory import MemoryStore


def test_a_task_says_everything_that_its_options_do(app: App) -> None:
    @app.task(
        cron="0 2 * * *",
        timezone="Europe/Berlin",
        every="5m",
        at=datetime(2026, 1, 1, tzinfo=UTC),
        triggers=[cron("0 3 * * *", spread="1m")],
        retry=Retry.fixed(30),
        timeout=None,
        grace=timedelta(seconds=5),
        overlap="queue",
        queue_bound=7,
        shards=4,
        priority=0,
        labels={"zone": "a"},
        payload={"day": "2026-03-14"},
        queue_timeout="1h",
        heartbeat_timeout=30,
        exclusive="relaxed",
        description="what it is for",
    )
    async def report(day: str) -> int:
        return 1

    definition = report.definition
    assert definition is app.definitions()[0]
    assert definition.triggers == (
        CronTrigger(cron="0 2 * * *", timezone="Europe/Berlin"),
        IntervalTrigger(every_us=5 * MINUTE),
        DateTrigger(at_us=1767225600 * SECOND),
        CronTrigger(cron="0 3 * * *", spread_us=MINUTE),
    )
    assert definition.retry == Retry.fixed(30)
    assert (definition.timeout_us, definition.grace_us) == (None, 5 * SECOND)
    assert (definition.overlap, definition.queue_bound, definition.priority) == ("queue", 7, 0)
    assert definition.shards == 4
    assert definition.labels == {"zone": "a"}
    assert bytes(definition.payload) == b'{"day":"2026-03-14"}'
    assert (definition.queue_timeout_us, definition.heartbeat_timeout_us) == (HOUR, 30 * SECOND)
    assert (definition.exclusive, definition.description) == ("relaxed", "what it is for")
    assert isinstance(definition.executor, PythonSpec)
    assert definition.executor.is_async
    assert definition.pool == "async"
    assert app.registered == {TaskRef("default", "report"): report}


def test_a_bare_task_has_the_defaults_and_its_functions_name(app: App) -> None:
    @app.task
    def clean(day: str = "today") -> str:
        """Clean up."""
        return day

    assert (clean.name, clean.__doc__, clean.function("x")) == ("clean", "Clean up.", "x")
    assert clean.definition.retry == DEFAULT_POLICY
    assert clean.definition.timeout_us == HOUR
    assert clean() == "today"
    assert clean.definition.pool == "process"


def test_shell_and_http_tasks_are_declared_by_name(app: App) -> None:
    backup = app.shell("backup", ["pg_dump", "shop"], env={"A": "b"}, timeout="10m")
    ping = app.http("ping", "post", url="https://example.com", read_timeout="1s", every="1m")
    assert backup.definition.executor == ShellSpec(("pg_dump", "shop"), env={"A": "b"})
    assert ping.definition.executor == HttpSpec("POST", "https://example.com", read_timeout_us=SECOND)
    assert [definition.name for definition in app.definitions()] == ["backup", "ping"]
    assert app.registered == {}


WRONG_OPTIONS: list[tuple[dict[str, object], str]] = [
    ({"timeuot": "1m"}, "timeuot"),
    ({"timeout": "1 minute"}, "timeout"),
    ({"timeout": []}, "timeout"),
    ({"timeout": 0}, "timeout"),
    ({"priority": 10}, "priority"),
    ({"priority": "5"}, "priority"),
    ({"overlap": "sometimes"}, "overlap"),
    ({"retry": None}, "retry"),
    ({"retry": 3}, "retry"),
    ({"cron": "61 * * * *"}, "cron"),
    ({"timezone": "Europe/Berlin"}, "timezone"),
    ({"cron": "0 2 * * *", "timezone": "Europe/Berln"}, "timezone"),
    ({"every": "1ms"}, "every"),
    ({"at": datetime(2026, 1, 1)}, "at"),  # noqa: DTZ001 - a naive one is what is refused
    ({"triggers": ["0 2 * * *"]}, "triggers[0]"),
    ({"labels": {"zone": 1}}, "labels"),
    ({"payload": {"dya": 1}}, "payload.dya"),
    ({"payload": {"day": "x"}}, "payload.day"),
    ({"every": "5m"}, "payload.day"),
    ({"name": "a b"}, "name"),
]


@pytest.mark.parametrize(("options", "field"), WRONG_OPTIONS, ids=[str(entry[0]) for entry in WRONG_OPTIONS])
def test_a_wrong_option_is_refused_where_it_is_written(
    app: App, options: dict[str, object], field: str
) -> None:
    def task(day: int) -> None: ...

    with pytest.raises(UserError) as caught:
        app.task(**options)(task)  # type: ignore[call-overload]  # wrong ones are the point
    assert caught.value.field == field
    assert app.definitions() == []


def test_two_tasks_of_one_name_are_refused_and_a_module_that_is_loaded_again_is_not(app: App) -> None:
    def declare() -> object:
        @app.task
        def report() -> None: ...

        return report

    declare()
    again = declare()
    assert app.registered[TaskRef("default", "report")] is again
    with pytest.raises(UserError, match="given twice"):
        app.task(name="report")(lambda: None)
    with pytest.raises(UserError, match="given twice"):
        app.shell("report", "true")


# ── calling directly ──────────────────────────────────────────────────────────────────────────────────


async def test_a_task_called_directly_is_the_function(app: App) -> None:
    @app.task
    def double(amount: int) -> int:
        if amount < 0:
            raise Permanent("never below zero")
        return 2 * amount

    @app.task
    async def double_async(amount: int) -> int:
        return 2 * amount

    assert (double(2), double(amount=3), await double_async(4)) == (4, 6, 8)
    with pytest.raises(Permanent):
        double(-1)


def test_a_direct_call_gets_a_context_without_a_worker(app: App, caplog: pytest.LogCaptureFixture) -> None:
    @app.task
    def first(context: Context, day: int) -> str:
        context.progress(0.5, "half")
        context.heartbeat()
        context.raise_if_cancelled()
        context.logger.info("day %d", day, rows="5%")
        return f"{context.task} {day}"

    @app.task
    def last(day: int, *, context: Context) -> str:
        return f"{context.task} {day}"

    assert first(7) == first(day=7) == "first 7"
    assert last(7) == last(day=7) == "last 7"  # type: ignore[call-arg]  # checkers know a leading one only
    assert first.function(Context(instance_id="i", task="mine"), 7) == "mine 7"
    record = caplog.records[0]
    assert record.getMessage() == "day 7 rows='5%'"
    assert (record.instance_id, record.attempt) == ("local", 1)  # type: ignore[attr-defined]  # set as extra
    assert record.funcName == "first"


# ── submitting ────────────────────────────────────────────────────────────────────────────────────────


class Refused(Exception):
    """A failure of the task's own."""


def test_the_first_submission_registers_the_tasks_and_a_later_task_is_added(
    app: App, store: MemoryStore
) -> None:
    @app.task
    def report(day: str) -> int:
        return 1

    handle = report.submit("2026-03-14")
    assert handle.created
    assert handle.status() == "pending"
    assert only(store, app).payload == b'{"day":"2026-03-14"}'

    @app.task
    def later() -> None: ...

    assert later.submit().status() is State.PENDING
    assert [(receipt.ref.name, receipt.outcome) for receipt in app.apply()] == [
        ("report", "unchanged"),
        ("later", "unchanged"),
    ]


async def test_everything_works_from_a_running_loop_too(app: App, store: MemoryStore) -> None:
    @app.task
    async def report(day: str) -> int:
        return 1

    assert [receipt.version for receipt in await app.apply_async()] == [1]
    handle = await report.submit_async("a")
    assert await handle.status_async() == "pending"
    await report.options(delay=1).submit_async(day="b")
    await app.submit_async("report", {"day": "c"})
    handles = await app.submit_many_async(report, [{"day": "d"}, Submission({"day": "e"}, priority=9)])
    assert len({handle.id for handle in handles}) == 2
    payloads = [instance.payload for instance in all_of(store, app)]
    assert sorted(payloads) == [b'{"day":"%s"}' % day for day in (b"a", b"b", b"c", b"d", b"e")]


def test_options_set_due_time_priority_and_key(app: App, store: MemoryStore) -> None:
    @app.task
    def report(day: int) -> None: ...

    moment = datetime(2126, 3, 14, tzinfo=UTC)
    report.options(at=moment, priority=9).submit(1)
    assert only(store, app).due_us == round(moment.timestamp()) * SECOND
    assert only(store, app).priority == 9
    report.options(delay="5m").submit(2)
    instance = only(store, app)
    assert instance.due_us == instance.created_us + 5 * MINUTE

    first, again = (report.options(key="k").submit(3) for _ in range(2))
    assert (again.id, first.created, again.created) == (first.id, True, False)
    with pytest.raises(ConflictError) as caught:
        report.options(key="k").submit(4)
    assert caught.value.code == "KEY_CONFLICT"


def test_tasks_are_submitted_by_name_and_shell_tasks_like_functions(app: App, store: MemoryStore) -> None:
    backup = app.shell("backup", "pg_dump $DATABASE", payload={"database": "shop"})
    backup.submit(database="other")
    assert only(store, app).payload == b'{"database":"other"}'
    backup.options(priority=9).submit()
    assert (only(store, app).priority, only(store, app).payload) == (9, b'{"database":"shop"}')
    app.submit("backup", {"full": True}, delay=timedelta(hours=1))
    assert msgspec.json.decode(only(store, app).payload) == {"database": "shop", "full": True}


def test_a_tasks_own_payload_fills_what_a_submission_leaves_out(app: App, store: MemoryStore) -> None:
    @app.task(payload={"day": 1}, every="1h")
    def report(day: int, force: bool = False) -> None: ...

    report.submit(force=True)  # type: ignore[call-arg]  # checkers do not know the task's own payload
    assert msgspec.json.decode(only(store, app).payload) == {"day": 1, "force": True}
    app.submit(report)
    assert only(store, app).payload == b'{"day":1}'


@pytest.mark.parametrize(
    ("submit", "code", "field"),
    [
        (lambda app: app.submit("report", {"day": "x"}), "INVALID_PAYLOAD", "payload.day"),
        (lambda app: app.submit("reprot", {}), "TASK_NOT_FOUND", ""),
        (lambda app: app.submit("report", {"day": 1}, key=""), "INVALID_NAME", "key"),
        (lambda app: app.submit("report", {"day": 1}, delay=-1), "INVALID_DURATION", "delay"),
        (lambda app: app.submit("report", {"day": 1}, priority=10), "INVALID_VALUE", "priority"),
        (lambda app: app.submit("report", {1: 1}), "INVALID_PAYLOAD", "payload"),
        (lambda app: app.submit("report", [1]), "INVALID_PAYLOAD", "payload"),
        (
            lambda app: app.submit_many("report", [{"day": 1}, {"day": "x"}]),
            "INVALID_PAYLOAD",
            "submissions[1].payload.day",
        ),
        (
            lambda app: app.submit_many("report", [{"day": 1}, Submission({"day": 1}, priority=-1)]),
            "INVALID_VALUE",
            "submissions[1].priority",
        ),
    ],
)
def test_a_wrong_submission_is_refused_by_field_and_nothing_is_written(
    app: App, store: MemoryStore, submit: object, code: str, field: str
) -> None:
    @app.task
    def report(day: int) -> None: ...

    with pytest.raises(UserError) as caught:
        submit(app)  # type: ignore[operator]  # one of the calls above
    assert (caught.value.code, caught.value.field) == (code, field)
    assert all_of(store, app) == []


def test_many_are_submitted_in_one_call(app: App, store: MemoryStore) -> None:
    @app.task
    def report(day: int) -> None: ...

    handles = app.submit_many(report, [{"day": day} for day in range(5_000)])
    assert len({handle.id for handle in handles}) == 5_000
    assert app.submit_many(report, []) == []


def test_triggers_and_policies_are_refused_where_they_are_made() -> None:
    for make, field in (
        (lambda: cron("* * * * *", "Mars/Olympus"), "timezone"),
        (lambda: every("50ms"), "every"),
        (lambda: at(datetime(2026, 1, 1)), "at"),  # noqa: DTZ001 - a naive one is what is refused
        (lambda: Retry.exponential(5, multiplier=0.5), "retry.multiplier"),
        (lambda: Retry.fixed(-1), "retry.interval"),
        (lambda: Retry.fixed(5, jitter="some"), "retry.jitter"),  # type: ignore[arg-type]  # wrong on purpose
        (lambda: Retry.delays(), "retry.delays"),
    ):
        with pytest.raises(UserError) as caught:
            make()
        assert caught.value.field == field


def test_policies_say_what_the_calls_say() -> None:
    assert Retry.exponential(5) == Retry.exponential()
    linear = Retry.linear("10s", max_retry=0, max_lost=0, jitter=0.1, max_interval="1m", window="1h")
    assert (linear.backoff, linear.interval_us, linear.max_retry, linear.max_lost) == (
        "linear",
        10 * SECOND,
        0,
        0,
    )
    assert (linear.jitter, linear.jitter_factor) == ("proportional", 0.1)
    assert (linear.max_interval_us, linear.window_us) == (MINUTE, HOUR)
    assert Retry.delays([1, "10s"]) == Retry.delays(1, timedelta(seconds=10))
    assert Retry.delays(1, 2).max_retry == 2
    named = Retry.fixed(1, retry_on=["HTTP_5*", OSError], no_retry_on=[Refused])
    assert named.retry_on == ("HTTP_5*", "OSError")
    assert named.no_retry_on[0].endswith("Refused")
    assert Retry.fixed(1, window=None, max_interval=None) == Retry.fixed(1)
    assert Retry.none().max_retry == 0
