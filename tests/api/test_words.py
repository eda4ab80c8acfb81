"""What is wrong with a body or query is told in words of JSON, with what is meant."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio
from support.rest import Rest, running_rest

SUBMIT = "/namespaces/default/tasks/add/instances"

#: These requests change nothing, so they share one API.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path_factory.mktemp("rest")) as running:
        yield running


@pytest.mark.parametrize(
    ("path", "body", "detail"),
    [
        ("/instances/retry", {"ids": "x"}, "expected a list or null, not a text"),
        ("/instances/retry", {"ids": [5]}, "expected a text, not a number"),
        ("/instances/retry", {"latest": 1}, "expected true or false, not a number"),
        ("/instances/retry", {"filter": []}, "expected an object or null, not a list"),
        ("/instances/retry", {"filter": {"task": {}}}, "expected a text or null, not an object"),
        ("/instances/retry", {"generation": "1"}, "is not a whole number"),
        ("/cron/preview", {"expression": None}, "expected a text, not null"),
        ("/cron/preview", [], "the body is wrong: expected an object, not a list"),
        (SUBMIT, {"delay": 5}, "5 has no unit"),
    ],
)
async def test_wrong_type_is_told_in_words_of_json(rest: Rest, path: str, body: object, detail: str) -> None:
    answer = await rest.post(path, body)
    assert (answer.status_code, answer.json()["detail"]) == (400, detail)


async def test_delay_without_a_unit_comes_with_one(rest: Rest) -> None:
    assert (await rest.post(SUBMIT, {"delay": 5})).json()["hint"] == "write 5s for seconds"


@pytest.mark.parametrize(
    ("path", "hint"),
    [
        ("/instances?since=1h", "did you mean created_from?"),
        ("/instances?until=1h", "did you mean created_before?"),
        ("/instances?status=failed", "did you mean state?"),
        ("/instances?limt=5", "did you mean limit?"),
    ],
)
async def test_parameter_of_elsewhere_comes_with_ours(rest: Rest, path: str, hint: str) -> None:
    answer = await rest.get(path)
    assert (answer.status_code, answer.json()["hint"]) == (400, hint)


@pytest.mark.parametrize(
    ("path", "body", "hint"),
    [
        ("/cron/preview", {"expression": "@daily", "tz": "UTC"}, "did you mean timezone?"),
        ("/cron/preview", {"cron": "@daily"}, "did you mean expression?"),
        ("/instances/retry", {"filter": {"since": "1h"}}, "did you mean created_from?"),
        (SUBMIT, {"args": {}}, "did you mean payload?"),
    ],
)
async def test_member_of_elsewhere_comes_with_ours(rest: Rest, path: str, body: object, hint: str) -> None:
    answer = await rest.post(path, body)
    assert (answer.status_code, answer.json()["hint"]) == (400, hint)


async def test_an_argument_of_the_task_beside_the_payload_is_told_where_it_belongs(rest: Rest) -> None:
    answer = await rest.post(SUBMIT, {"supplier": "x"})
    assert (answer.status_code, answer.json()["field"]) == (400, "supplier")
    assert answer.json()["hint"] == "arguments of the task go into payload"
