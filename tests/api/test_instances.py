"""Instances over REST: submit, list, count, show, cancel, retry, output."""

from __future__ import annotations

from typing import Any

import pytest
from support.rest import Rest

from ostinato.api.routes.output import PAGE_BYTES_MAX
from ostinato.core.model import OutputChunk

ADD = "/namespaces/default/tasks/add/instances"


async def write_output(rest: Rest, instance_id: str, *, texts: list[str], attempt: int = 1) -> None:
    """What an attempt has written, a piece a text."""
    await rest.store.append_output(
        [
            OutputChunk(
                instance_id=instance_id,
                attempt=attempt,
                attempt_id=f"{attempt:016x}",
                sequence=sequence,
                at_us=rest.clock.wall_us(),
                stream="stdout",
                text=text,
            )
            for sequence, text in enumerate(texts)
        ]
    )


# ── submit ────────────────────────────────────────────────────────────────────────────────────────────


async def test_submitted_instance_runs_and_tells_its_result(rest: Rest) -> None:
    story = await rest.in_state(await rest.submit("add", payload={"first": 2}), "success")
    assert (story["payload"], story["result"]) == ({"second": 1, "first": 2}, 3)
    assert story["attempts"][0]["outcome"] == "success"
    assert story["created"].endswith("Z")


async def test_submission_without_a_body_takes_the_tasks_own_payload(rest: Rest) -> None:
    answer = await rest.post(ADD)
    assert (answer.status_code, answer.json()["created"]) == (201, True)


async def test_same_key_makes_one_instance_and_another_payload_is_a_conflict(rest: Rest) -> None:
    first = await rest.post(ADD, {"payload": {"first": 1}}, headers={"idempotency-key": "order-ü1".encode()})
    again = await rest.post(ADD, {"payload": {"first": 1}, "key": "order-ü1"})
    other = await rest.post(ADD, {"payload": {"first": 2}, "key": "order-ü1"})
    assert (first.status_code, first.json()["created"]) == (201, True)
    assert (again.status_code, again.json()["created"]) == (200, False)
    assert again.json()["instance_id"] == first.json()["instance_id"]
    assert (other.status_code, other.json()["code"], other.json()["field"]) == (409, "KEY_CONFLICT", "key")


async def test_header_and_body_may_not_name_different_keys(rest: Rest) -> None:
    same = await rest.post(ADD, {"key": "a"}, headers={"idempotency-key": "a"})
    different = await rest.post(ADD, {"key": "a"}, headers={"idempotency-key": "b"})
    assert same.status_code == 201
    assert (different.status_code, different.json()["code"]) == (400, "INVALID_VALUE")


async def test_c141_a_repeated_id_is_the_same_submission_and_anothers_id_is_a_conflict(rest: Rest) -> None:
    own = "01kq5zv3e8" + "a" * 16
    first = await rest.post(ADD, {"payload": {"first": 1}, "id": own, "delay": "1h"})
    again = await rest.post(ADD, {"payload": {"first": 1}, "id": own, "delay": "1h"})
    for answer in (first, again):
        assert (answer.status_code, answer.json()) == (201, {"instance_id": own, "created": True})
    other = await rest.post(ADD, {"payload": {"first": 2}, "id": own})
    assert (other.status_code, other.json()["code"], other.json()["field"]) == (409, "KEY_CONFLICT", "id")
    assert [item["id"] for item in (await rest.get("/instances")).json()["items"]] == [own]


@pytest.mark.parametrize("wrong", ["", "mine", "8" + "0" * 25, "0" * 25 + "U"])
async def test_what_is_no_id_is_refused_by_field(rest: Rest, wrong: str) -> None:
    one = await rest.post(ADD, {"id": wrong})
    many = await rest.post("/namespaces/default/instances", {"submissions": [{"task": "add", "id": wrong}]})
    assert (one.status_code, one.json()["code"], one.json()["field"]) == (400, "INVALID_VALUE", "id")
    assert (many.status_code, many.json()["field"]) == (400, "submissions[0].id")


async def test_an_id_given_twice_in_one_request_is_a_conflict_and_nothing_is_written(rest: Rest) -> None:
    own = {"task": "add", "id": "01kq5zv3e8" + "a" * 16}
    answer = await rest.post("/namespaces/default/instances", {"submissions": [own, own]})
    assert (answer.status_code, answer.json()["code"]) == (409, "KEY_CONFLICT")
    assert answer.json()["field"] == "submissions[1].id"
    assert (await rest.get("/instances")).json()["items"] == []


async def test_delay_and_instant_move_the_due_time(rest: Rest) -> None:
    later = (await rest.get(f"/instances/{await rest.submit(delay='1h')}")).json()
    then = (await rest.get(f"/instances/{await rest.submit(at='2090-01-01T01:00:00+01:00')}")).json()
    assert later["due"] > later["created"]
    assert then["due"] == "2090-01-01T00:00:00Z"


async def test_who_asked_stands_on_the_instance(rest: Rest) -> None:
    answer = await rest.post(ADD, {"delay": "1h"}, headers={"x-ostinato-by": "Änne".encode()})
    story = (await rest.get(f"/instances/{answer.json()['instance_id']}")).json()
    assert story["reason"] == "started by Änne"


async def test_many_submissions_are_accepted_all_or_none(rest: Rest) -> None:
    path = "/namespaces/default/instances"
    good = await rest.post(path, {"submissions": [{"task": "add"}, {"task": "closed", "payload": {"a": 1}}]})
    assert (good.status_code, len(good.json()["items"])) == (201, 2)
    bad = await rest.post(path, {"submissions": [{"task": "add"}, {"task": "add", "priority": 11}]})
    assert (bad.status_code, bad.json()["field"]) == (400, "submissions[1].priority")
    unknown = await rest.post(path, {"submissions": [{"task": "add"}, {"task": "nothing"}]})
    assert (unknown.status_code, unknown.json()["code"]) == (404, "TASK_NOT_FOUND")
    too_many = await rest.post(path, {"submissions": [{"task": "add"}] * 10_001})
    assert (too_many.status_code, too_many.json()["field"]) == (400, "submissions")
    assert len((await rest.get("/instances")).json()["items"]) == 2


# ── list, count, show ─────────────────────────────────────────────────────────────────────────────────


async def test_pages_continue_until_the_end_newest_first(rest: Rest) -> None:
    submitted = [await rest.submit("add", delay="1h") for _ in range(5)]
    found: list[str] = []
    params: dict[str, Any] = {"limit": 2}
    while True:
        page = (await rest.get("/instances", params=params)).json()
        found += [item["id"] for item in page["items"]]
        if page["cursor"] is None:
            break
        params["cursor"] = page["cursor"]
    assert sorted(found) == sorted(submitted)
    assert found == sorted(found, reverse=True)


async def test_filters_choose_instances_and_counts_count_the_same(rest: Rest) -> None:
    waiting = await rest.submit("add", delay="1h", key="k1")
    failed = await rest.submit("closed")
    await rest.in_state(failed, "failed")
    for query, expected in (
        ("state=failed", [failed]),
        ("state=failed&state=pending", [failed, waiting]),
        ("task=add", [waiting]),
        ("key=k1&task=add&namespace=default", [waiting]),
        ("code=CLOSED", [failed]),
        ("namespace=other", []),
        ("created_before=2001-01-01T00:00:00Z", []),
        ("created_from=2001-01-01T00:00:00Z", [failed, waiting]),
    ):
        page = (await rest.get(f"/instances?{query}")).json()
        assert {item["id"] for item in page["items"]} == set(expected), query
        counts = (await rest.get(f"/instances/counts?{query}")).json()
        assert sum(counts["by_state"].values()) == len(expected), query
        assert counts["exact"] is True


async def test_failed_instance_tells_what_was_decided_and_why(rest: Rest) -> None:
    story = await rest.in_state(await rest.submit("closed"), "failed")
    (attempt,) = story["attempts"]
    assert (attempt["outcome"], attempt["code"]) == ("failed", "CLOSED")
    assert attempt["decision"]
    assert story["failure"]["message"] == "the account is closed"
    assert [row["kind"] for row in story["history"]] == ["gave_up"]


@pytest.mark.parametrize("path", ["", "/output", "/output.txt"])
@pytest.mark.parametrize("identity", ["nothing", "%00", "a%20b", "x" * 300, "%F0%9F%98%80"])
async def test_unknown_instance_is_not_found(rest: Rest, identity: str, path: str) -> None:
    answer = await rest.get(f"/instances/{identity}{path}")
    assert (answer.status_code, answer.json()["code"]) == (404, "INSTANCE_NOT_FOUND")


# ── cancel and retry ──────────────────────────────────────────────────────────────────────────────────


async def test_cancel_ends_what_waits_and_is_refused_for_what_has_ended(rest: Rest) -> None:
    waiting = await rest.submit("add", delay="1h")
    answer = await rest.post(
        f"/instances/{waiting}/cancel", {"reason": "not needed"}, headers={"x-ostinato-by": "ann"}
    )
    assert (answer.status_code, answer.json()["code"]) == (200, "OK")
    story = await rest.in_state(waiting, "cancelled")
    assert {row["by"] for row in story["history"]} == {"ann"}
    ended = await rest.submit("closed")
    await rest.in_state(ended, "failed")
    refused = await rest.post(f"/instances/{ended}/cancel")
    assert (refused.status_code, refused.json()["code"]) == (409, "INSTANCE_TERMINAL")
    assert (await rest.post("/instances/nothing/cancel")).status_code == 404


async def test_cancel_asks_a_running_attempt_to_end(rest: Rest) -> None:
    running = await rest.submit("endless")
    await rest.in_state(running, "running")
    assert (await rest.post(f"/instances/{running}/cancel")).status_code == 200
    story = (await rest.get(f"/instances/{running}")).json()
    assert story["cancel_requested"] is not None


async def test_retry_runs_an_ended_instance_again_and_refuses_another(rest: Rest) -> None:
    ended = await rest.submit("closed")
    await rest.in_state(ended, "failed")
    answer = await rest.post(f"/instances/{ended}/retry", {"latest": True, "payload": {"a": 1}})
    assert (answer.status_code, answer.json()["code"]) == (200, "OK")

    async def again() -> dict[str, Any] | None:
        story: dict[str, Any] = (await rest.get(f"/instances/{ended}")).json()
        return story if (story["generation"], story["state"]) == (2, "failed") else None

    assert (await rest.until(again))["payload"] == {"a": 1}
    waiting = await rest.submit("add", delay="1h")
    refused = await rest.post(f"/instances/{waiting}/retry")
    assert (refused.status_code, refused.json()["code"]) == (409, "INSTANCE_NOT_TERMINAL")


async def test_c193_retry_that_names_the_generation_runs_once_however_often_it_is_sent(rest: Rest) -> None:
    ended = await rest.submit("closed")
    await rest.in_state(ended, "failed")
    assert (await rest.post(f"/instances/{ended}/retry", {"generation": 1})).status_code == 200

    async def again() -> dict[str, Any] | None:
        story: dict[str, Any] = (await rest.get(f"/instances/{ended}")).json()
        return story if (story["generation"], story["state"]) == (2, "failed") else None

    assert (await rest.until(again))["failure_count"] == 1
    refused = await rest.post(f"/instances/{ended}/retry", {"generation": 1})
    assert (refused.status_code, refused.json()["code"]) == (409, "VERSION_CONFLICT")
    assert "replayed meanwhile" in refused.json()["detail"]
    many = await rest.post("/instances/retry", {"ids": [ended], "generation": 2})
    assert (many.status_code, many.json()["field"]) == (400, "generation")
    assert (await rest.get(f"/instances/{ended}")).json()["generation"] == 2


async def test_retry_of_a_success_needs_force(rest: Rest) -> None:
    ended = await rest.submit("add")
    await rest.in_state(ended, "success")
    for answer in (
        await rest.post(f"/instances/{ended}/retry"),
        await rest.post("/instances/retry", {"ids": [ended]}),
        await rest.post("/instances/retry", {"filter": {"task": "add", "state": ["success"]}}),
    ):
        assert (answer.status_code, answer.json()["code"]) == (409, "INSTANCE_SUCCEEDED")
        assert '"force": true' in answer.json()["hint"]
    assert (await rest.get(f"/instances/{ended}")).json()["generation"] == 1
    assert (await rest.post(f"/instances/{ended}/retry", {"force": True})).status_code == 200


async def test_many_are_cancelled_by_id_and_each_is_answered(rest: Rest) -> None:
    waiting, ended = await rest.submit("add", delay="1h"), await rest.submit("closed")
    await rest.in_state(ended, "failed")
    answer = await rest.post("/instances/cancel", {"ids": [waiting, ended, waiting]})
    assert [(item["instance_id"], item["code"]) for item in answer.json()["items"]] == [
        (waiting, "OK"),
        (ended, "INSTANCE_TERMINAL"),
    ]
    for act, ids in (("cancel", [waiting, "nothing", ended]), ("retry", ["nothing", ended])):
        answer = await rest.post(f"/instances/{act}", {"ids": ids})
        said = {item["instance_id"]: item["code"] for item in answer.json()["items"]}
        assert (answer.status_code, said["nothing"]) == (200, "INSTANCE_NOT_FOUND")
        assert said[ended] == ("OK" if act == "retry" else "INSTANCE_TERMINAL")
    assert (await rest.post("/instances/cancel", {"ids": ["nothing"]})).status_code == 404


async def test_those_that_a_filter_matches_run_again(rest: Rest) -> None:
    failed = [await rest.submit("closed") for _ in range(3)]
    for identity in failed:
        await rest.in_state(identity, "failed")
    body = {"filter": {"task": "closed", "state": ["failed"]}, "limit": 2, "reason": "fixed"}
    answer = await rest.post("/instances/retry", body)
    assert [item["code"] for item in answer.json()["items"]] == ["OK", "OK"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "ids"),
        ({"filter": {}}, "filter"),
        ({"filter": {"state": ["runing"]}}, "filter.state"),
        ({"filter": {"created_from": "x"}}, "filter.created_from"),
        ({"filter": {"task": "a b"}}, "filter.task"),
        ({"filter": {"tsk": "a"}}, "filter.tsk"),
        ({"filter": {"task": "a"}, "limit": 0}, "limit"),
        ({"filter": {"task": "a"}, "limit": 1001}, "limit"),
        ({"ids": [], "filter": {"task": "a"}}, "filter"),
        ({"ids": [], "limit": 5}, "limit"),
        ({"ids": ["x"] * 501}, "ids"),
        ({"ids": "x"}, "ids"),
        ({"ids": ["x"], "reason": "\x00"}, "reason"),
    ],
)
@pytest.mark.parametrize("verb", ["cancel", "retry"])
async def test_act_on_many_says_what_is_wrong(
    rest: Rest, verb: str, body: dict[str, Any], field: str
) -> None:
    answer = await rest.post(f"/instances/{verb}", body)
    assert (answer.status_code, answer.json()["field"]) == (400, field), answer.text


# ── output ────────────────────────────────────────────────────────────────────────────────────────────


async def test_output_comes_in_pages_by_attempt_and_sequence(rest: Rest) -> None:
    identity = await rest.submit("add", delay="1h")
    await write_output(rest, identity, texts=["a\n", "b\n", "c\n"])
    await write_output(rest, identity, texts=["d\n"], attempt=2)
    path = f"/instances/{identity}/output"
    first = (await rest.get(f"{path}?limit=2")).json()
    assert ([item["text"] for item in first["items"]], first["cursor"]) == (["a\n", "b\n"], "1.1")
    more = (await rest.get(f"{path}?after={first['cursor']}")).json()
    assert ([item["text"] for item in more["items"]], more["cursor"]) == (["c\n", "d\n"], None)
    second = (await rest.get(f"{path}?attempt=2")).json()
    assert [item["text"] for item in second["items"]] == ["d\n"]
    assert (await rest.get(f"{path}.txt")).text == "a\nb\nc\nd\n"
    assert (await rest.get(f"{path}.txt?attempt=1")).text == "a\nb\nc\n"


async def test_page_of_output_ends_before_it_grows_large(rest: Rest) -> None:
    identity = await rest.submit("add", delay="1h")
    await write_output(rest, identity, texts=["x" * 65_536] * 40)
    page = (await rest.get(f"/instances/{identity}/output?limit=1000")).json()
    assert PAGE_BYTES_MAX <= sum(len(item["text"]) for item in page["items"]) <= PAGE_BYTES_MAX + 65_536
    assert page["cursor"] is not None
    assert len((await rest.get(f"/instances/{identity}/output.txt")).content) == 40 * 65_536


async def test_downloaded_output_is_text_and_nothing_else_c187(rest: Rest) -> None:
    hostile = "<script>alert(1)</script>\x1b[31m\u202e<svg onload=alert(1)>\n"
    identity = await rest.submit("add", delay="1h")
    await write_output(rest, identity, texts=[hostile])
    answer = await rest.get(f"/instances/{identity}/output.txt")
    assert answer.text == hostile
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["content-disposition"] == f'attachment; filename="{identity}.txt"'
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    page = await rest.get(f"/instances/{identity}/output")
    assert page.headers["content-type"] == "application/json"
    assert page.json()["items"][0]["text"] == hostile


@pytest.mark.parametrize(
    ("query", "field"),
    [
        ("attempt=0", "attempt"),
        ("attempt=null", "attempt"),
        ("attempt=99999999999", "attempt"),
        ("after=1", "after"),
        ("after=99999999999.1", "after"),
        ("after=x.y", "after"),
        ("limit=0", "limit"),
    ],
)
async def test_bad_place_in_the_output_is_named(rest: Rest, query: str, field: str) -> None:
    answer = await rest.get(f"/instances/{await rest.submit(delay='1h')}/output?{query}")
    assert (answer.status_code, answer.json()["field"]) == (400, field)
