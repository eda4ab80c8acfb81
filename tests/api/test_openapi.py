"""The description of the API is true: schemathesis sends what it allows and what it does not."""

from __future__ import annotations

import asyncio
import os
import re
import sys
from pathlib import Path
from random import Random
from typing import Any

import jsonschema
import pytest
from litestar.routes import HTTPRoute
from support.rest import Rest, running_rest

from ostinato.api.app import build_litestar
from ostinato.api.reading import parameters_of
from ostinato.api.services import Services
from ostinato.clock import SystemClock
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock

METHODS = ("get", "put", "post", "delete")
GUIDE = Path(__file__).parents[2] / "docs" / "rest.md"
FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
#: Test cases of each operation, beside those that its description asks for by itself.
EXAMPLES_MAX = 10 if FULL else 3
#: Not asked: `positive_data_acceptance`, since a cron expression is more than its form says; the others are
#: about credentials and deleted things, of which there are none.
NOT_CHECKED = (
    "positive_data_acceptance",
    "ignored_auth",
    "object_level_authorization",
    "use_after_free",
    "ensure_resource_availability",
)


async def described(rest: Rest) -> dict[str, Any]:
    """The description as it is served."""
    document: dict[str, Any] = (await rest.get("/openapi.json")).json()
    return document


def operations(document: dict[str, Any]) -> dict[str, tuple[str, str, dict[str, Any]]]:
    """Method, path and description by operation id."""
    return {
        item[method]["operationId"]: (method.upper(), path, item[method])
        for path, item in document["paths"].items()
        for method in METHODS
        if method in item
    }


@pytest.mark.parametrize("seed", range(1, 11) if FULL else [1])
async def test_running_api_keeps_its_word_whatever_it_is_sent(tmp_path: Path, seed: int) -> None:
    async with running_rest(tmp_path) as rest:
        await rest.in_state(await rest.submit("closed"), "failed")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "schemathesis.cli", "run"),
            f"{str(rest.client.base_url).rstrip('/')}/api/v1/openapi.json",
            *("--seed", str(seed), "--max-examples", str(EXAMPLES_MAX)),
            *("--phases", "examples,coverage,fuzzing", "--checks", "all"),
            *("--exclude-checks", ",".join(NOT_CHECKED)),
            *("--suppress-health-check", "all", "--warnings", "off", "--continue-on-failure"),
            cwd=tmp_path,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        said, _ = await process.communicate()
        text = said.decode()
        assert process.returncode == 0, text[-10_000:]
        counted = re.search(r"Selected: (\d+)/(\d+)\s+Tested: (\d+)", text)
        assert counted is not None, text
        assert len(set(counted.groups())) == 1
        assert (await rest.client.get("/healthz")).status_code == 200


async def test_description_is_openapi_3_1_and_names_each_operation_in_our_words(rest: Rest) -> None:
    document = await described(rest)
    assert document["openapi"].startswith("3.1")
    found = operations(document)
    assert {"submit_instance", "list_tasks", "get_openapi", "drain_worker", "apply_document"} <= found.keys()
    for name, (_, _, said) in found.items():
        assert re.fullmatch(r"[a-z]+(_[a-z]+)+", name), name
        assert said["summary"], name


async def test_each_answer_has_a_schema_and_each_refusal_is_a_problem(rest: Rest) -> None:
    document = await described(rest)
    for name, (_, _, said) in operations(document).items():
        statuses = {int(status) for status in said["responses"]}
        assert {400, 403, 404, 500, 503} <= statuses, name
        for status, answer in said["responses"].items():
            if status == "204":
                continue
            expected = "application/problem+json" if int(status) >= 400 else None
            (kind,) = answer["content"]
            assert expected is None or kind == expected, (name, status)
            assert answer["content"][kind]["schema"], (name, status)


async def test_parameters_are_described_with_their_bounds(rest: Rest) -> None:
    for name, (_, _, said) in operations(await described(rest)).items():
        for parameter in said.get("parameters", []):
            schema = parameter["schema"]
            bounded = {"maxLength", "maximum", "enum", "pattern", "items"} & schema.keys()
            assert bounded or schema["type"] == "boolean", (name, parameter)
            assert parameter["description"], (name, parameter["name"])


async def test_every_reference_leads_to_a_schema_that_is_one(rest: Rest) -> None:
    document = await described(rest)
    schemas = document["components"]["schemas"]
    for name in set(
        re.findall(r'"\$ref":\s*"#/components/schemas/([^"]+)"', (await rest.get("/openapi.json")).text)
    ):
        assert name in schemas
    for schema in schemas.values():
        jsonschema.Draft202012Validator.check_schema(schema)


async def test_problem_on_the_wire_fits_its_schema(rest: Rest) -> None:
    document = await described(rest)
    schema = {"$ref": "#/components/schemas/Problem", "components": document["components"]}
    answer = await rest.post("/apply", {"version": 1, "tasks": [{"name": "a", "shel": 1}]})
    assert answer.json()["errors"]
    jsonschema.Draft202012Validator(schema).validate(answer.json())


def test_what_is_checked_of_a_request_is_what_is_described() -> None:
    clock = VirtualClock()
    app = build_litestar(Services(store=MemoryStore(clock), clock=SystemClock(), rng=Random(1)))
    found = operations(app.openapi_schema.to_schema())
    for route in app.routes:
        assert isinstance(route, HTTPRoute)
        for handler in route.route_handlers:
            if not handler.operation_id:
                continue
            known = parameters_of(handler, path_parameters=route.path_parameters.keys())
            _, _, said = found[str(handler.operation_id)]
            described = said.get("parameters", [])
            assert known.single | known.repeatable == {p["name"] for p in described if p["in"] == "query"}
            assert known.headers == {p["name"] for p in described if p["in"] == "header"}


async def test_guide_lists_every_route_and_no_other(rest: Rest) -> None:
    rows = re.findall(
        r"^\| `(GET|PUT|POST|DELETE) (/\S+)` \| `(\w+)` \|", GUIDE.read_text("utf-8"), re.MULTILINE
    )
    real = {(method, path, name) for name, (method, path, _) in operations(await described(rest)).items()}
    assert len(rows) == len(set(rows))
    assert set(rows) == real
