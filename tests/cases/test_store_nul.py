"""C157 on every store: NUL in what is run is kept or shown alike; in what names something it is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.real_stores import STORE_KINDS, Place, place_of
from support.rest import Rest, running_rest

from ostinato.core.failure.failure import Failure
from ostinato.core.model import OutputChunk
from ostinato.wire.messages import Assignment

ENDLESS = "/namespaces/default/tasks/endless/instances"
NUL = {"first": "a\0b", "second\0": "\0"}


@pytest.fixture(scope="module", params=STORE_KINDS)
def module_place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.fixture
def place(module_place: Place) -> Place:
    module_place.clean()
    return module_place


async def _running(rest: Rest) -> tuple[str, Assignment]:
    answer = await rest.post(ENDLESS, {"payload": NUL})
    assert answer.status_code == 201, answer.text
    identity = str(answer.json()["instance_id"])

    async def look() -> Assignment | None:
        return next(iter(rest.worker.running.values()), None)

    return identity, await rest.until(look)


def _chunk(item: Assignment, text: str) -> OutputChunk:
    return OutputChunk(
        instance_id=item.instance_id,
        attempt=item.attempt,
        attempt_id=item.attempt_id,
        sequence=0,
        at_us=0,
        stream="stdout",
        text=text,
    )


async def test_c157_payload_result_error_and_output_with_nul_are_stored_alike(
    place: Place, tmp_path: Path
) -> None:
    async with running_rest(tmp_path, database=place.url) as rest:
        good, item = await _running(rest)
        assert json.loads(item.payload)["first"] == "a\0b"
        await rest.worker.finish(item, json.dumps({"said\0": "a\0b"}).encode())
        done = await rest.in_state(good, "success")
        bad, item = await _running(rest)
        # As a worker in another language may send it.
        rest.node.output.add([_chunk(item, "a\0b\n")])
        await rest.node.output.flush()
        (kept,) = await rest.store.output(bad, after=(0, -1), limit=9)
        failure = Failure(
            code="BROKEN",
            category="permanent",
            message="x\0y",
            traceback='File "a\0b", line 1\nValueError: x\0y',
        )
        await rest.worker.finish(item, failure)
        failed = await rest.in_state(bad, "failed")
    assert kept.text == "a\u2400b\n"
    assert (done["payload"], done["result"]) == (NUL, {"said\0": "a\0b"})
    assert failed["payload"] == NUL
    shown = json.dumps(failed, ensure_ascii=False)
    assert "\\u0000" not in json.dumps({name: each for name, each in failed.items() if name != "payload"})
    assert "x\u2400y" in shown
    assert "a\u2400b" in shown


#: Path, body, and the field that the refusal names.
REFUSED: list[tuple[str, dict[str, Any], str]] = [
    (ENDLESS, {"key": "a\0b"}, "key"),
    (ENDLESS, {"reason": "a\0b"}, "reason"),
    ("/namespaces/default/instances", {"submissions": [{"task": "a\0b"}]}, "submissions[0].task"),
    ("/instances/cancel", {"filter": {"task": "a\0b"}}, "filter.task"),
    ("/apply", {"version": 1, "tasks": [{"name": "a\0b", "shell": {"command": "x"}}]}, "tasks[0].name"),
    (
        "/apply",
        {"version": 1, "tasks": [{"name": "a", "shell": {"command": "x"}, "labels": {"a\0": "b"}}]},
        "tasks[0].labels",
    ),
]


async def test_c157_names_labels_and_keys_with_nul_are_refused_with_their_field(
    place: Place, tmp_path: Path
) -> None:
    async with running_rest(tmp_path, database=place.url, with_node=False) as rest:
        for path, body, field in REFUSED:
            answer = await rest.post(path, body)
            assert answer.status_code in (400, 422), answer.text
            assert field in answer.text
        assert (await rest.get("/instances")).json()["items"] == []


async def test_c157_a_search_for_nul_finds_nothing_or_is_refused(place: Place, tmp_path: Path) -> None:
    async with running_rest(tmp_path, database=place.url, with_node=False) as rest:
        await rest.submit("add", delay="1h")
        for query in ("task=a%00b", "key=a%00b", "code=a%00b", "namespace=%00", "cursor=%00"):
            answer = await rest.get(f"/instances?{query}")
            assert answer.status_code in (200, 400), (query, answer.text)
            assert answer.status_code == 400 or answer.json()["items"] == []
        answer = await rest.get("/namespaces/default/tasks?search=%00")
        assert answer.status_code == 400 or answer.json()["items"] == []
