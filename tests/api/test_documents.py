"""Documents over REST: apply and export."""

from __future__ import annotations

from typing import Any

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
