"""Documents over REST: apply and export."""

from __future__ import annotations

from typing import Any

import pytest
from support.rest import Rest


def document(*tasks: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A document of tasks in ``shop``."""
    return {"version": 1, "namespace": "shop", "tasks": [*tasks], **more}


def command(name: str, **more: Any) -> dict[str, Any]:
    """An entry of a document."""
    return {"name": name, "shell": {"command": "true"}, **more}


async def test_apply_does_what_its_dry_run_has_shown(rest: Rest) -> None:
    body = document(command("a"), command("b", timeout="5m"))
    shown = await rest.post("/apply?dry_run=true", body)
    assert [change["action"] for change in shown.json()["changes"]] == ["create", "create"]
    assert (await rest.get("/namespaces/shop/tasks/a")).status_code == 404
    done = await rest.post("/apply", body)
    assert [(change["name"], change["version"]) for change in done.json()["changes"]] == [("a", 1), ("b", 1)]
    again = await rest.post("/apply", body)
    assert [change["action"] for change in again.json()["changes"]] == ["unchanged", "unchanged"]


async def test_prune_deletes_what_an_apply_has_made_and_nothing_of_an_app(rest: Rest) -> None:
    await rest.post("/apply", document(command("a"), command("b")))
    await rest.post("/apply?origin=app", document(command("declared")))
    answer = await rest.post("/apply?prune=true", document(command("a")))
    assert [(change["name"], change["action"]) for change in answer.json()["changes"]] == [
        ("a", "unchanged"),
        ("b", "delete"),
    ]
    names = [task["name"] for task in (await rest.get("/namespaces/shop/tasks")).json()["items"]]
    assert names == ["a", "declared"]


async def test_export_is_a_document_that_changes_nothing(rest: Rest) -> None:
    await rest.post("/apply", document(command("a", timeout="5m"), command("b")))
    exported = (await rest.get("/namespaces/shop/export")).json()
    assert exported == document(command("a", timeout="5m"), command("b"))
    answer = await rest.post("/apply", exported)
    assert {change["action"] for change in answer.json()["changes"]} == {"unchanged"}
    assert (await rest.get("/namespaces/shop/export?origin=app")).json()["tasks"] == []


async def test_every_fault_of_a_document_is_listed_and_nothing_is_written(rest: Rest) -> None:
    body = document(command("a", timout="5m"), command("b", retry={"interval": "soon"}), command("c"))
    answer = await rest.post("/apply", body)
    assert answer.status_code == 400
    assert [fault["field"] for fault in answer.json()["errors"]] == [
        "tasks[0].timout",
        "tasks[1].retry.interval",
    ]
    assert answer.json()["field"] == "tasks[0].timout"
    assert (await rest.get("/namespaces/shop/tasks")).json()["items"] == []


async def test_what_is_no_document_is_refused(rest: Rest) -> None:
    for body in ({}, {"version": 2, "tasks": []}, {"version": 1, "taks": []}, {"version": 1, "tasks": 5}):
        answer = await rest.post("/apply", body)
        assert (answer.status_code, bool(answer.json()["field"])) == (400, True), answer.text
    bad_flag = await rest.post("/apply?dry_run=perhaps", document())
    assert (bad_flag.status_code, bad_flag.json()["field"]) == (400, "dry_run")
    pruned_app = await rest.post("/apply?origin=app&prune=true", document())
    assert (pruned_app.status_code, pruned_app.json()["field"]) == (400, "prune")


async def test_c193_document_does_not_change_a_task_of_an_app(rest: Rest) -> None:
    await rest.post("/apply?origin=app", document(command("declared")))
    exported = (await rest.get("/namespaces/shop/export")).json()
    assert (await rest.post("/apply", exported)).json()["changes"][0]["action"] == "unchanged"
    changed = document(command("new"), command("declared", timeout="5m"))
    for answer in (
        await rest.post("/apply", changed),
        await rest.post("/apply?dry_run=true", changed),
        await rest.put("/namespaces/shop/tasks/declared", {"shell": {"command": "false"}}),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (409, "TASK_OF_APP")
        assert problem["subject"] == "shop/declared"
        assert "declare it in the app" in problem["hint"]
    tasks = (await rest.get("/namespaces/shop/tasks")).json()["items"]
    assert [(task["name"], task["version"], task["origin"]) for task in tasks] == [("declared", 1, "app")]
    # The app itself goes on, and takes over what a document has made.
    await rest.post("/apply", document(command("new")))
    again = await rest.post("/apply?origin=app", document(command("new"), command("declared", timeout="5m")))
    assert [change["version"] for change in again.json()["changes"]] == [1, 2]
    tasks = (await rest.get("/namespaces/shop/tasks")).json()["items"]
    assert {task["origin"] for task in tasks} == {"app"}


YAML = """\
version: 1
namespace: shop
tasks:
  - name: a  # a remark
    shell: {command: "true"}
---
version: 1
tasks:
  - {name: b, shell: {command: "true"}}
"""


@pytest.mark.parametrize("media_type", ["application/yaml", "text/yaml; charset=utf-8", "application/x-yaml"])
async def test_apply_takes_a_file_of_yaml_as_it_is(rest: Rest, media_type: str) -> None:
    headers = {"content-type": media_type}
    answer = await rest.client.post("/api/v1/apply", content=YAML.encode(), headers=headers)
    assert [(each["namespace"], each["name"]) for each in answer.json()["changes"]] == [
        ("shop", "a"),
        ("default", "b"),
    ]
    wrong = YAML.replace("command:", "comand:", 1).replace("name: b", "nam: b")
    refused = await rest.client.post("/api/v1/apply", content=wrong.encode(), headers=headers)
    assert refused.status_code == 400
    assert refused.json()["place"] == refused.json()["errors"][0]["place"]
    assert [fault["place"] for fault in refused.json()["errors"]] == [
        "body:5:5",
        "body:5:13",
        "body:9:5",
        "body:9:6",
    ]


@pytest.mark.parametrize(
    "body",
    [b" ", b"a: [", b"\xff", b"a: &a [*a]", b"[" * 100_000],
    ids=["blank", "open", "bytes", "endless", "deep"],
)
async def test_yaml_that_is_none_is_refused_with_its_place(rest: Rest, body: bytes) -> None:
    headers = {"content-type": "application/yaml"}
    answer = await rest.client.post("/api/v1/apply", content=body, headers=headers)
    assert (answer.status_code, answer.json()["code"]) == (400, "INVALID_DOCUMENT"), answer.text
    assert answer.json()["place"].startswith("body:")


async def test_yaml_is_for_documents_alone(rest: Rest) -> None:
    headers = {"content-type": "application/yaml"}
    for path in ("/instances/retry", "/namespaces/default/tasks/add/instances"):
        answer = await rest.client.post(f"/api/v1{path}", content=b"ids: []", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (415, "MEDIA_TYPE")
    gzipped = {**headers, "content-encoding": "gzip"}
    answer = await rest.client.post("/api/v1/apply", content=b"x", headers=gzipped)
    assert answer.status_code == 415
