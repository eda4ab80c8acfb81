"""C159, C121, C157, C161: large and awkward output, bodies and batches through commands and REST."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.rest import Rest, running_rest
from support.services import Services

from ostinato.api.bodies import SUBMISSIONS_COUNT_MAX

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"
CHUNK = f"{'0123456789abcde' * 4096}\n"
OUTPUT_BYTES = 1_000_000_000 if FULL else 100_000_000
CHUNK_COUNT = OUTPUT_BYTES // len(CHUNK)
GROWTH_KIB_MAX = 50_000
ADD = "/namespaces/default/tasks/add/instances"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


# ── gigabytes of output ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Services, str]]:
    """A scheduler with an instance that has written `OUTPUT_BYTES` over many attempts, and its id."""
    services = Services(tmp_path_factory.mktemp("output"), 'app.shell("talker", "true")')
    services.start_scheduler()
    identity = services.run("app.apply(); print(app.submit('talker', delay='1h').id)")
    connection = sqlite3.connect(services.folder / "services.db", timeout=30)
    connection.executemany(
        "INSERT INTO output (instance_id, attempt, sequence, attempt_id, at_us, stream, text)"
        " VALUES (?, ?, ?, 'a', 1, 'stdout', ?)",
        ((identity, 1 + number // 160, number % 160, CHUNK) for number in range(CHUNK_COUNT)),
    )
    connection.commit()
    connection.close()
    yield services, identity
    services.close()


def _peak_kib(services: Services, *arguments: str) -> tuple[int, int]:
    """Highest resident memory of a command, and the bytes that it wrote."""
    process = subprocess.Popen(
        [sys.executable, "-m", "ostinato.cli", *arguments],
        cwd=services.folder,
        env=services.environment,
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    size_bytes = 0
    while piece := process.stdout.read(1_000_000):
        size_bytes += len(piece)
    process.stdout.close()
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return usage.ru_maxrss, size_bytes


@pytest.mark.parametrize("options", [[], ["--json"], ["--tail", "100"]], ids=["text", "json", "tail"])
def test_c159_logs_of_any_size_cost_the_command_no_memory(
    written: tuple[Services, str], options: list[str]
) -> None:
    services, identity = written
    least_kib, _ = _peak_kib(services, "instance", "logs", identity, "--attempt", "999999")
    peak_kib, size_bytes = _peak_kib(services, "instance", "logs", identity, *options)
    assert peak_kib - least_kib < GROWTH_KIB_MAX
    if options != ["--tail", "100"]:
        assert size_bytes >= CHUNK_COUNT * len(CHUNK)


def test_c159_download_of_any_size_costs_the_node_no_memory(written: tuple[Services, str]) -> None:
    services, identity = written
    address = f"http://127.0.0.1:{services.health_port}/api/v1/instances/{identity}"
    process_id = services.processes["scheduler"].pid
    with httpx.Client(timeout=60) as client:
        # The database's cache, of a size of its own, is filled once.
        assert _download(client, f"{address}/output.txt") == CHUNK_COUNT * len(CHUNK)
        Path(f"/proc/{process_id}/clear_refs").write_text("5")
        before_kib = _high_water_kib(process_id)
        assert _download(client, f"{address}/output.txt") == CHUNK_COUNT * len(CHUNK)
        page = client.get(f"{address}/output?limit=1000")
        assert len(page.content) < 3_000_000
        assert client.get(f"http://127.0.0.1:{services.health_port}/healthz").status_code == 200
    assert _high_water_kib(process_id) - before_kib < GROWTH_KIB_MAX


def _download(client: httpx.Client, address: str) -> int:
    """Bytes of an answer, none of them kept."""
    with client.stream("GET", address) as answer:
        return sum(map(len, answer.iter_raw()))


def _high_water_kib(process_id: int) -> int:
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{process_id}/status").read_text())
    assert found is not None
    return int(found[1])


# ── batches ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("count", [1, 999, 1_000, SUBMISSIONS_COUNT_MAX])
async def test_c121_batch_of_any_allowed_size_is_accepted_whole(rest: Rest, count: int) -> None:
    body = {"submissions": [{"task": "add", "delay": "1h", "priority": 1}] * count}
    answer = await rest.post("/namespaces/default/instances", body)
    assert (answer.status_code, len(answer.json()["items"])) == (201, count)
    counts = (await rest.get("/instances/counts", params={"task": "add"})).json()
    assert counts["by_state"]["pending"] == count


@pytest.mark.parametrize("count", [SUBMISSIONS_COUNT_MAX + 1, 32_767, 65_536])
async def test_c121_batch_beyond_the_limit_is_refused_whole_with_the_limit_named(
    rest: Rest, count: int
) -> None:
    answer = await rest.post("/namespaces/default/instances", {"submissions": [{"task": "add"}] * count})
    assert answer.status_code == 400
    assert re.search(rf"{SUBMISSIONS_COUNT_MAX:,}|{SUBMISSIONS_COUNT_MAX}", answer.json()["detail"])
    assert (await rest.get("/instances")).json()["items"] == []


async def test_c121_all_that_matches_is_cancelled_in_requests_of_the_largest_size(rest: Rest) -> None:
    body = {"submissions": [{"task": "add", "delay": "1h"}] * 2_500}
    assert (await rest.post("/namespaces/default/instances", body)).status_code == 201
    answered: list[str] = []
    while items := (await rest.post("/instances/cancel", {"filter": {"task": "add"}, "limit": 1_000})).json()[
        "items"
    ]:
        assert {item["code"] for item in items} == {"OK"}
        answered += [item["instance_id"] for item in items]
    assert len(set(answered)) == len(answered) == 2_500
    counts = (await rest.get("/instances/counts", params={"task": "add"})).json()
    assert {state: count for state, count in counts["by_state"].items() if count} == {"cancelled": 2_500}


# ── awkward values ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "literal",
    [
        "9007199254740993",
        "9223372036854775808",
        "18446744073709551615",
        "-9223372036854775808",
        "0.1",
        "1e300",
        '"a\\u202eb"',
    ],
)
async def test_c161_number_or_text_comes_back_as_it_was_sent(rest: Rest, literal: str) -> None:
    answer = await rest.client.post(
        f"/api/v1{ADD}",
        content=f'{{"payload": {{"first": {literal}}}, "delay": "1h"}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 201, answer.text
    shown = (await rest.get(f"/instances/{answer.json()['instance_id']}")).json()["payload"]["first"]
    assert shown == json.loads(literal)
    assert type(shown) is type(json.loads(literal))


@pytest.mark.parametrize(
    "literal",
    [
        "NaN",
        "Infinity",
        "-Infinity",
        "1e400",
        "-1e999",
        '"\\ud800"',
        "[" * 10_000 + "]" * 10_000,
        "1" * 400,
        "01",
        "'x'",
    ],
    ids=[
        "nan",
        "infinity",
        "minus infinity",
        "1e400",
        "-1e999",
        "surrogate",
        "deep",
        "400 digits",
        "octal",
        "quotes",
    ],
)
async def test_c161_what_json_cannot_carry_is_refused_and_nothing_is_stored(rest: Rest, literal: str) -> None:
    answer = await rest.client.post(
        f"/api/v1{ADD}",
        content=f'{{"payload": {{"first": {literal}}}, "delay": "1h"}}'.encode(),
        headers={"content-type": "application/json"},
    )
    assert answer.status_code == 400, answer.text
    assert answer.json()["code"] in ("INVALID_PAYLOAD", "INVALID_DOCUMENT")
    assert (await rest.get("/instances")).json()["items"] == []


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        (ADD, {"key": "a\0b"}, "key"),
        (ADD, {"reason": "a\0b"}, "reason"),
        ("/namespaces/default/instances", {"submissions": [{"task": "a\0b"}]}, "submissions[0].task"),
        ("/instances/cancel", {"ids": ["a\0b"]}, ""),
        ("/instances/cancel", {"filter": {"task": "a\0b"}}, "filter.task"),
        ("/instances/cancel", {"filter": {"key": "a\0b"}}, "filter.key"),
        ("/instances/retry", {"filter": {"code": "a\0b"}}, "filter.code"),
        ("/apply", {"version": 1, "namespace": "a\0b", "tasks": []}, "namespace"),
        ("/workers/scripted/drain", {"reason": "a\0b"}, "reason"),
    ],
)
async def test_c157_nul_in_a_name_key_or_text_of_a_body_is_refused_with_its_field(
    rest: Rest, path: str, body: dict[str, Any], field: str
) -> None:
    answer = await rest.post(path, body)
    assert answer.status_code in ((404,) if not field else (400,)), answer.text
    assert answer.json().get("field", "") == field or not field


@pytest.mark.parametrize(
    "query",
    [
        "/instances?task=a%00b",
        "/instances?key=a%00b",
        "/instances?code=a%00b",
        "/instances?namespace=%00",
        "/instances?cursor=%00",
        "/namespaces/default/tasks?search=%00",
        "/instances?state=%00",
    ],
)
async def test_c157_nul_in_the_search_box_and_every_filter_is_refused_or_finds_nothing(
    rest: Rest, query: str
) -> None:
    await rest.submit("add", delay="1h")
    answer = await rest.get(query)
    assert answer.status_code in (200, 400)
    if answer.status_code == 200:
        assert answer.json()["items"] == []
    else:
        assert answer.json()["field"] in query


@pytest.mark.parametrize(
    "path", ["/instances/%00", "/workers/%00", "/namespaces/%00/tasks", "/namespaces/default/tasks/%00"]
)
async def test_c157_nul_in_an_address_names_nothing(rest: Rest, path: str) -> None:
    assert (await rest.get(path)).status_code in (400, 404)


async def test_c157_nul_within_payload_result_and_output_is_kept_or_shown(rest: Rest) -> None:
    nul = {"first": "a\0b", "second\0": "\0"}
    answer = await rest.post("/namespaces/default/tasks/endless/instances", {"payload": nul})
    assert answer.status_code == 201, answer.text
    instance_id = answer.json()["instance_id"]
    await rest.in_state(instance_id, "running")
    (item,) = rest.worker.running.values()
    await rest.worker.finish(item, json.dumps({"said": "a\0b"}).encode())
    story = await rest.in_state(instance_id, "success")
    assert (story["payload"], story["result"]) == (nul, {"said": "a\0b"})
