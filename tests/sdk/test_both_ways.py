"""A real node, asked over HTTP and straight in its database: the same answers and the same errors."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack
from pathlib import Path

import httpx
import pytest
from support.rest import Rest, running_rest
from support.scripted_http import Answer, ScriptedHttp, Seen

from ostinato import App, ConflictError, InstanceFailed, OstinatoError, State, Submission
from ostinato.store.batches import InstanceFilter

WAYS = ("database", "http")


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


@pytest.fixture
def apps(rest: Rest, tmp_path: Path) -> Iterator[dict[str, App]]:
    """One app by each way, both to the same node."""
    host, port = rest.address
    urls = {"database": f"sqlite:///{tmp_path / 'rest.db'}", "http": f"http://{host}:{port}"}
    with ExitStack() as stack:
        made = {way: App("shop", url) for way, url in urls.items()}
        for app in made.values():
            stack.callback(app.close)
        yield made


@pytest.mark.parametrize("way", WAYS)
async def test_what_is_submitted_runs_and_its_result_comes_back(apps: dict[str, App], way: str) -> None:
    app = apps[way]
    handle = await app.submit_async("add", {"first": 2}, key="k")
    assert await handle.result_async(timeout="20s") == 3
    assert await handle.status_async() is State.SUCCESS
    again = await app.submit_async("add", {"first": 2}, key="k")
    assert (again.id, handle.created, again.created) == (handle.id, True, False)
    with pytest.raises(ConflictError) as caught:
        await app.submit_async("add", {"first": 3}, key="k")
    assert (caught.value.code, caught.value.field, caught.value.subject) == ("KEY_CONFLICT", "key", handle.id)


async def test_a_story_is_the_same_by_either_way(apps: dict[str, App], rest: Rest) -> None:
    for task, options in (
        ("add", Submission({"first": 1}, key="story", priority=9)),
        ("closed", Submission({})),
        ("endless", Submission({})),
        ("backup", Submission({}, delay="1h")),
    ):
        (handle,) = await apps["http"].submit_many_async(task, [options])
        if task in ("add", "closed"):
            with pytest.raises(InstanceFailed) if task == "closed" else ExitStack():
                await handle.result_async(timeout="20s")
        elif task == "endless":
            await rest.in_state(handle.id, "running")
            await handle.cancel_async("not needed")
        stories = [await apps[way].handle(handle.id).story_async() for way in WAYS]
        assert stories[0].task == task
        assert stories[1] == stories[0]


@pytest.mark.parametrize("way", WAYS)
async def test_a_failed_instance_raises_its_failure(apps: dict[str, App], way: str) -> None:
    handle = await apps[way].submit_async("closed")
    with pytest.raises(InstanceFailed, match="is failed: CLOSED: the account is closed") as caught:
        await handle.result_async(timeout="20s")
    failure = caught.value.failure
    assert failure is not None
    assert (failure.code, failure.category, failure.message) == (
        "CLOSED",
        "permanent",
        "the account is closed",
    )
    assert (caught.value.state, caught.value.code) == (State.FAILED, "INSTANCE_FAILED")
    with pytest.raises(ConflictError) as ended:
        await handle.cancel_async()
    assert (ended.value.code, ended.value.subject) == ("INSTANCE_TERMINAL", handle.id)


@pytest.mark.parametrize("way", WAYS)
async def test_a_cancel_is_told_with_the_apps_name(apps: dict[str, App], way: str) -> None:
    handle = await apps[way].submit_async("add", delay="1h")
    await handle.cancel_async("not needed")
    await handle.cancel_async("again")
    story = await handle.story_async()
    assert story.state is State.CANCELLED
    assert {event.by for event in story.events if event.by} == {"shop"}
    assert not (await (await apps[way].submit_async("add", delay="1h")).story_async()).reason


async def test_c141_what_was_accepted_but_never_answered_exists_once(
    rest: Rest, apps: dict[str, App]
) -> None:
    host, port = rest.address

    def carried_out(request: Seen) -> Answer:
        answer = httpx.request(
            request.method,
            f"http://{host}:{port}{request.path}",
            content=request.body,
            headers={"content-type": "application/json"},
        )
        return Answer(answer.content, answer.status_code, answer.headers["content-type"])

    def carried_out_and_lost(request: Seen) -> Answer:
        assert carried_out(request).status == 201
        return Answer(raw=b"", closes=True)

    for key in (None, "once"):
        with ScriptedHttp(carried_out_and_lost, carried_out, carried_out_and_lost, carried_out) as between:
            app = App("shop", between.url)
            single = await app.submit_async("add", {"first": 7}, key=key, delay="1h")
            many = await app.submit_many_async(
                "add", [Submission({"first": n}, key=key and f"{key}-{n}", delay="1h") for n in range(3)]
            )
            app.close()
        assert single.created
        assert all(handle.created for handle in many)
        assert len({single.id, *(handle.id for handle in many)}) == 4
    page = await rest.store.list_instances(InstanceFilter(task="add"), cursor=None, limit=100)
    assert len(page.instances) == 8


MISTAKES = {
    "unknown task": lambda app: app.submit_async("ad"),
    "unknown argument": lambda app: app.submit_async("add", {"frist": 1}),
    "too large": lambda app: app.submit_async("add", {"first": "x" * 300_000}),
    "one of many": lambda app: app.submit_many_async("add", [{"first": 1}, {"frist": 1}]),
    "unknown task, many": lambda app: app.submit_many_async("ad", [{}, {}]),
    "unknown instance": lambda app: app.handle("01jd0000000000000000000000").status_async(),
    "no id": lambda app: app.handle("a/b").status_async(),
    "cancel of nothing": lambda app: app.handle("01jd0000000000000000000000").cancel_async(),
    "bad reason": lambda app: app.handle("01jd0000000000000000000000").cancel_async("\0"),
    "not ready": lambda app: app.handle("01jd0000000000000000000000").result_async(timeout=0),
}


@pytest.mark.parametrize("mistake", MISTAKES)
async def test_a_mistake_is_the_same_error_by_either_way(apps: dict[str, App], mistake: str) -> None:
    errors: list[OstinatoError] = []
    for way in WAYS:
        with pytest.raises(OstinatoError) as caught:
            await MISTAKES[mistake](apps[way])
        errors.append(caught.value)
    first, second = (
        (type(error), error.code, error.message, error.field, error.hint, error.subject) for error in errors
    )
    assert second == first


async def test_an_app_registers_its_tasks_as_its_own_by_either_way(apps: dict[str, App], rest: Rest) -> None:
    for app in apps.values():

        @app.task(every="1h", timeout="5m", payload={"day": 1})
        def report(day: int, force: bool = False) -> dict[int, str]:
            return {}

        app.shell("copy", ["cp", "a", "b"], env={"A": "b"})
        app.http("ping", "POST", url="https://example.com", headers={"A": "b"})
    outcomes = {way: [receipt.outcome for receipt in await apps[way].apply_async()] for way in WAYS}
    assert outcomes == {"database": ["created"] * 3, "http": ["unchanged"] * 3}

    @apps["http"].task
    def another(day: int) -> None: ...

    assert [(str(receipt.ref), receipt.version) for receipt in await apps["http"].apply_async()] == [
        ("default/report", 1),
        ("default/copy", 1),
        ("default/ping", 1),
        ("default/another", 1),
    ]
    rows = await rest.store.list_tasks("default", after=None, limit=100)
    assert {row.ref.name: row.origin for row in rows}["another"] == "app"
