"""Tasks over REST: list, show, put, delete, pause and its kin."""

from __future__ import annotations

import pytest
from support.rest import Rest

from ostinato.control.plan import Plan, write
from ostinato.store.batches import ApplyReceipt
from ostinato.store.protocol import Store

_PUT_PATH = "/namespaces/default/tasks/contested"
COMMAND = {"shell": {"command": "true"}}


async def test_tasks_are_listed_in_pages_that_continue(rest: Rest) -> None:
    first = (await rest.get("/namespaces/default/tasks?limit=3")).json()
    assert [task["name"] for task in first["items"]] == ["add", "backup", "closed"]
    rest_of = (await rest.get("/namespaces/default/tasks", params={"cursor": first["cursor"]})).json()
    assert ([task["name"] for task in rest_of["items"]], rest_of["cursor"]) == (["endless"], None)


async def test_search_is_a_part_of_the_name(rest: Rest) -> None:
    found = (await rest.get("/namespaces/default/tasks?search=CLO")).json()
    assert [task["name"] for task in found["items"]] == ["closed"]


async def test_namespace_without_tasks_is_an_empty_list(rest: Rest) -> None:
    assert (await rest.get("/namespaces/nobody/tasks")).json() == {"items": [], "cursor": None}


async def test_namespaces_are_those_with_tasks(rest: Rest) -> None:
    assert (await rest.get("/namespaces")).json() == {"items": ["default", "other"]}


async def test_task_shows_its_effective_policy_and_its_version_as_tag(rest: Rest) -> None:
    answer = await rest.get("/namespaces/default/tasks/closed")
    assert answer.headers["etag"] == '"1"'
    task = answer.json()
    assert (task["name"], task["version"], task["origin"]) == ("closed", 1, "app")
    assert task["retry"]["max_retry"] == 0
    assert task["created"].endswith("Z")


async def test_unknown_task_comes_with_the_closest_name(rest: Rest) -> None:
    answer = await rest.get("/namespaces/default/tasks/clsed")
    assert (answer.status_code, answer.json()["code"]) == (404, "TASK_NOT_FOUND")
    assert answer.json()["hint"] == "did you mean closed?"


async def test_put_creates_then_changes_then_does_nothing(rest: Rest) -> None:
    created = await rest.put("/namespaces/default/tasks/job", COMMAND)
    assert (created.status_code, created.json()["version"]) == (201, 1)
    assert created.json()["origin"] == "document"
    changed = await rest.put("/namespaces/default/tasks/job", {**COMMAND, "timeout": "5m", "name": "job"})
    assert (changed.status_code, changed.headers["etag"]) == (200, '"2"')
    same = await rest.put("/namespaces/default/tasks/job", {**COMMAND, "timeout": "5m"})
    assert (same.status_code, same.headers["etag"]) == (200, '"2"')


async def test_put_of_an_old_version_is_a_conflict_and_writes_nothing_c193(rest: Rest) -> None:
    path = "/namespaces/default/tasks/job"
    await rest.put(path, COMMAND, headers={"if-none-match": "*"})
    await rest.put(path, {**COMMAND, "timeout": "5m"}, headers={"if-match": '"1"'})
    stale = await rest.put(path, {**COMMAND, "timeout": "6m"}, headers={"if-match": '"1"'})
    assert (stale.status_code, stale.json()["code"]) == (409, "VERSION_CONFLICT")
    assert "version 2, not version 1" in stale.json()["detail"]
    again = await rest.put(path, COMMAND, headers={"if-none-match": "*"})
    assert (again.status_code, again.json()["field"]) == (409, "If-None-Match")
    missing = await rest.put("/namespaces/default/tasks/new", COMMAND, headers={"if-match": '"1"'})
    assert missing.status_code == 409
    assert (await rest.get(path)).json()["version"] == 2


async def test_put_refuses_what_could_not_run_and_names_the_field(rest: Rest) -> None:
    path = "/namespaces/default/tasks/job"
    for body, field in (
        ({"shell": {"comand": "true"}}, "shell.comand"),
        ({**COMMAND, "name": "other"}, "name"),
        ({**COMMAND, "retry": {"interval": "soon"}}, "retry.interval"),
        ({**COMMAND, "triggers": [{"cron": "0 2 * *"}]}, "triggers[0].cron"),
        ({**COMMAND, "timout": "5m"}, "timout"),
    ):
        answer = await rest.put(path, body)
        assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text
    for headers in ({"if-match": "1"}, {"if-match": '"x"'}, {"if-none-match": '"1"'}):
        answer = await rest.put(path, COMMAND, headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_VALUE")
    assert (await rest.get(path)).status_code == 404


async def test_all_faults_of_a_task_are_listed(rest: Rest) -> None:
    body = {"shell": {"command": "true"}, "timeout": "soon", "priority": 77}
    problem = (await rest.put("/namespaces/default/tasks/job", body)).json()
    assert {fault["field"] for fault in problem["errors"]} == {"timeout", "priority"}


async def test_deleted_task_is_gone(rest: Rest) -> None:
    path = "/namespaces/default/tasks/backup"
    deleted = await rest.client.delete(f"/api/v1{path}")
    assert (deleted.status_code, deleted.content) == (204, b"")
    assert (await rest.get(path)).status_code == 404
    assert (await rest.client.delete(f"/api/v1{path}")).status_code == 404


async def test_pause_and_its_kin_are_done_when_they_are_answered(rest: Rest) -> None:
    path = "/namespaces/default/tasks/add"
    for verb, flag, value in (
        ("pause", "paused", True),
        ("resume", "paused", False),
        ("disable", "disabled", True),
        ("enable", "disabled", False),
    ):
        answer = await rest.post(f"{path}/{verb}")
        assert answer.json() == {"namespace": "default", "task": "add", "done": verb}
        assert (await rest.get(path)).json()[flag] is value
        assert (await rest.post(f"/namespaces/default/tasks/nothing/{verb}")).status_code == 404


async def test_disabled_task_takes_no_submissions(rest: Rest) -> None:
    await rest.post("/namespaces/default/tasks/add/disable")
    answer = await rest.post("/namespaces/default/tasks/add/instances", {})
    assert (answer.status_code, answer.json()["code"]) == (409, "TASK_DISABLED")


async def test_task_that_others_delete_at_the_same_moment_is_made_or_a_conflict(
    rest: Rest, monkeypatch: pytest.MonkeyPatch
) -> None:
    deletions_left = 2

    async def write_then_delete(store: Store, plan: Plan, *, now_us: int) -> list[ApplyReceipt]:
        nonlocal deletions_left
        receipts = await write(store, plan, now_us=now_us)
        if deletions_left:
            deletions_left -= 1
            assert (await rest.client.delete(f"/api/v1{_PUT_PATH}")).status_code == 204
        return receipts

    monkeypatch.setattr("ostinato.api.routes.task_put.write", write_then_delete)
    made = await rest.put(_PUT_PATH, COMMAND)
    assert (made.status_code, deletions_left) == (201, 0)
    deletions_left = 1
    tag = (await rest.get(_PUT_PATH)).headers["etag"]
    refused = await rest.put(_PUT_PATH, {"shell": {"command": "false"}}, headers={"if-match": tag})
    assert (refused.status_code, refused.json()["code"]) == (409, "VERSION_CONFLICT")
    deletions_left = 100
    refused = await rest.put(_PUT_PATH, COMMAND)
    assert (refused.status_code, refused.json()["code"]) == (409, "VERSION_CONFLICT")
