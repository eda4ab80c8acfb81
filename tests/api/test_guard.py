"""The door of the API: who may ask, how much, how long, how many at once."""

from __future__ import annotations

import asyncio
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
from support.rest import Rest, running_rest

from ostinato.api.guard import Limits
from ostinato.core.instants import SECOND

SUBMIT = "/namespaces/default/tasks/add/instances"
JSON = {"content-type": "application/json"}
DEEP = "[" * 10_000 + "1" + "]" * 10_000

#: Most of these requests change nothing, so they share one API.
pytestmark = pytest.mark.asyncio(loop_scope="module")


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def rest(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path_factory.mktemp("rest")) as running:
        yield running


def code_of(answer: httpx.Response) -> tuple[int, str, str]:
    """Status, code and field of a problem."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    problem = answer.json()
    assert problem["type"] == f"urn:ostinato:error:{problem['code']}"
    assert problem["status"] == answer.status_code
    return answer.status_code, problem["code"], problem.get("field", "")


# ── who ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1", "[::1]:8640", "127.0.0.2"])
async def test_names_of_this_machine_are_answered(rest: Rest, host: str) -> None:
    assert (await rest.get("/version", headers={"host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8640",
        "127.0.0.1.evil.example",
        "localhost@evil.example",
        "10.0.0.1",
        "localhost#evil",
        "localhost?evil",
        "localhost/evil",
        "localhost\\evil",
        "localhost:80:80",
        "localhost:x",
        "localhost:65536",
        "localhost:-1",
        "localhost, localhost",
        "[::1",
        "::1",
        "[localhost]",
        "[::1%25lo]",
        "local\thost",
        "127.1",
        "",
        "[",
    ],
)
async def test_any_other_host_is_refused(rest: Rest, host: str) -> None:
    answer = await rest.get("/version", headers={"host": host})
    assert code_of(answer) == (403, "HOST_REFUSED", "host")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_health_and_metrics_know_their_host_too(rest: Rest, path: str) -> None:
    for host in ("evil.example:8640", "localhost#evil", ""):
        assert code_of(await rest.client.get(path, headers={"host": host})) == (403, "HOST_REFUSED", "host")
    for host in ("127.0.0.1:8640", "[::1]:8640", "localhost"):
        assert (await rest.client.get(path, headers={"host": host})).status_code == 200
    # Probes of HTTP/1.0 name no host, which no browser leaves out.
    assert b" 200 " in (await rest.raw(f"GET {path} HTTP/1.0\r\n\r\n".encode())).split(b"\r\n")[0]


async def test_request_without_a_host_is_refused(rest: Rest) -> None:
    answered = await rest.raw(b"GET /api/v1/version HTTP/1.0\r\n\r\n")
    assert b" 403 " in answered.split(b"\r\n")[0]


@pytest.mark.parametrize(
    ("header", "value"),
    [
        ("origin", "http://evil.example"),
        ("origin", "null"),
        ("origin", "http://localhost:3000"),
        ("origin", "https://127.0.0.1.evil.example"),
        ("sec-fetch-site", "cross-site"),
        ("sec-fetch-site", "same-site"),
    ],
)
async def test_foreign_pages_are_refused(rest: Rest, header: str, value: str) -> None:
    answer = await rest.post("/namespaces/default/tasks/add/pause", headers={header: value})
    assert code_of(answer) == (403, "HOST_REFUSED", header)
    assert (await rest.get("/namespaces/default/tasks/add")).json()["paused"] is False


async def test_own_page_is_answered(rest: Rest) -> None:
    host, port = rest.address
    headers = {"origin": f"http://{host}:{port}", "sec-fetch-site": "same-origin"}
    assert (await rest.get("/version", headers=headers)).status_code == 200


# ── addresses and methods ─────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "path", ["", "/", "/nothing", "/instances/", "//instances", "/instances//output", "/" + "x" * 5000]
)
async def test_unknown_address_is_not_found(rest: Rest, path: str) -> None:
    assert code_of(await rest.get(path))[:2] == (404, "ADDRESS_NOT_FOUND")


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "TRACE", "BREW"])
async def test_wrong_method_names_the_right_ones(rest: Rest, method: str) -> None:
    answer = await rest.client.request(method, "/api/v1/instances/x")
    assert code_of(answer)[:2] == (405, "METHOD_NOT_ALLOWED")
    assert answer.headers["allow"] == "GET, HEAD, OPTIONS"


async def test_head_is_a_get_without_its_body(rest: Rest) -> None:
    whole = await rest.get("/version")
    head = await rest.client.head("/api/v1/version")
    assert (head.status_code, head.content) == (200, b"")
    assert head.headers["content-length"] == whole.headers["content-length"]
    missing = await rest.client.head("/api/v1/instances/x")
    assert (missing.status_code, missing.content) == (404, b"")


async def test_options_says_what_is_allowed(rest: Rest) -> None:
    answer = await rest.client.options("/api/v1/namespaces/a/tasks/b")
    assert (answer.status_code, answer.content) == (204, b"")
    assert answer.headers["allow"] == "DELETE, GET, HEAD, OPTIONS, PUT"


async def test_nothing_of_an_answer_is_kept_guessed_or_run(rest: Rest) -> None:
    for answer in (
        await rest.get("/version"),
        await rest.get("/nothing"),
        await rest.get("/instances/x/output.txt"),
        await rest.post(SUBMIT, {"priority": 77}),
    ):
        assert answer.headers["cache-control"] == "no-store"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'"


# ── bodies ────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "headers",
    [
        {"content-type": "text/plain"},
        {"content-type": "application/x-www-form-urlencoded"},
        {"content-type": "application/json; charset=latin-1"},
        {"content-type": "application/jsonp"},
        {},
    ],
)
async def test_body_that_does_not_say_json_is_refused(rest: Rest, headers: dict[str, str]) -> None:
    answer = await rest.client.post(f"/api/v1{SUBMIT}", content=b"{}", headers=headers)
    assert code_of(answer) == (415, "MEDIA_TYPE", "content-type")


async def test_json_with_its_charset_is_read(rest: Rest) -> None:
    headers = {"content-type": "Application/JSON; charset=UTF-8"}
    answer = await rest.client.post(f"/api/v1{SUBMIT}", content=b"{}", headers=headers)
    assert answer.status_code == 201


async def test_compressed_body_is_refused(rest: Rest) -> None:
    headers = {**JSON, "content-encoding": "gzip"}
    answer = await rest.client.post(f"/api/v1{SUBMIT}", content=gzip.compress(b"{}"), headers=headers)
    assert code_of(answer) == (415, "MEDIA_TYPE", "content-encoding")


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (b"", (400, "INVALID_DOCUMENT", "")),
        (b"{", (400, "INVALID_DOCUMENT", "")),
        (b"null", (400, "INVALID_DOCUMENT", "")),
        (b"[]", (400, "INVALID_DOCUMENT", "")),
        (b'"x"', (400, "INVALID_DOCUMENT", "")),
        (b'{"submissions": []}{}', (400, "INVALID_DOCUMENT", "")),
        (b"\xef\xbb\xbf{}", (400, "INVALID_DOCUMENT", "")),
        (b'{"submissions": [{"task": "\xff"}]}', (400, "INVALID_DOCUMENT", "")),
        (b'{"submissions": NaN}', (400, "INVALID_VALUE", "submissions")),
        (b"[" * 10_000 + b"]" * 10_000, (400, "INVALID_DOCUMENT", "")),
        (b'{"submissions": [], "submissions": []}', (400, "INVALID_VALUE", "submissions")),
        (
            b'{"submissions": [{"task": "add", "payload": {"a": {"second": 1, "second": 2}}}]}',
            (400, "INVALID_PAYLOAD", "submissions[0].payload.a.second"),
        ),
        (b'{"submission": []}', (400, "INVALID_VALUE", "submission")),
        (b"{}", (400, "INVALID_VALUE", "submissions")),
        (b'{"submissions": {}}', (400, "INVALID_VALUE", "submissions")),
        (b'{"submissions": [3]}', (400, "INVALID_VALUE", "submissions[0]")),
        (b'{"submissions": [{"task": 3}]}', (400, "INVALID_VALUE", "submissions[0].task")),
        (b'{"submissions": [{"task": "add", "pay": 1}]}', (400, "INVALID_VALUE", "submissions[0].pay")),
    ],
)
async def test_body_of_another_form_is_refused_with_its_path(
    rest: Rest, body: bytes, expected: tuple[int, str, str]
) -> None:
    answer = await rest.client.post("/api/v1/namespaces/default/instances", content=body, headers=JSON)
    assert code_of(answer) == expected


@pytest.mark.parametrize(
    ("member", "expected"),
    [
        ('"payload": {"second": 1e400}', (400, "INVALID_PAYLOAD", "payload.second")),
        ('"payload": {"second": NaN}', (400, "INVALID_PAYLOAD", "payload.second")),
        (f'"payload": {{"second": {10**30}}}', (400, "INVALID_PAYLOAD", "payload.second")),
        ('"payload": {"second": "\\ud800"}', (400, "INVALID_PAYLOAD", "payload.second")),
        (
            '"payload": {"second": ' + "[" * 200 + "1" + "]" * 200 + "}",
            (400, "INVALID_PAYLOAD", "payload.second[0]"),
        ),
        ('"payload": {"second": ' + DEEP + "}", (400, "INVALID_PAYLOAD", "payload")),
        ('"payload": [1]', (400, "INVALID_PAYLOAD", "payload")),
        ('"payload": null', (400, "INVALID_PAYLOAD", "payload")),
        ('"payload": {"third": 1}', (400, "INVALID_PAYLOAD", "payload.third")),
        ('"payload": {"second": "' + "x" * 300_000 + '"}', (413, "PAYLOAD_TOO_LARGE", "payload")),
        ('"priority": "3"', (400, "INVALID_VALUE", "priority")),
        ('"priority": true', (400, "INVALID_VALUE", "priority")),
        ('"priority": 3.5', (400, "INVALID_VALUE", "priority")),
        ('"priority": 10', (400, "INVALID_VALUE", "priority")),
        ('"priority": -1', (400, "INVALID_VALUE", "priority")),
        ('"priority": 1' + "0" * 400, (400, "INVALID_VALUE", "priority")),
        ('"delay": "soon"', (400, "INVALID_DURATION", "delay")),
        ('"delay": 5', (400, "INVALID_DURATION", "delay")),
        ('"delay": "-5s"', (400, "INVALID_DURATION", "delay")),
        ('"at": "2030-01-01T00:00:00"', (400, "INVALID_INSTANT", "at")),
        ('"at": "2030-01-01T00:00:00Z", "delay": "1s"', (400, "INVALID_VALUE", "at")),
        ('"key": ""', (400, "INVALID_NAME", "key")),
        ('"key": "a\\u0000b"', (400, "INVALID_NAME", "key")),
        ('"key": "' + "k" * 600 + '"', (400, "INVALID_NAME", "key")),
        ('"prioriti": 3', (400, "INVALID_VALUE", "prioriti")),
    ],
)
async def test_bad_submission_names_the_field(
    rest: Rest, member: str, expected: tuple[int, str, str]
) -> None:
    before = (await rest.get("/instances")).json()
    body = ("{" + member + "}").encode()
    status, code, field = code_of(await rest.client.post(f"/api/v1{SUBMIT}", content=body, headers=JSON))
    assert (status, code) == expected[:2]
    assert field.startswith(expected[2])
    assert (await rest.get("/instances")).json() == before


@pytest.mark.parametrize("body", [b"[" * 100_000, b"[" * 100_000 + b"]" * 100_000, b'{"a":' * 100_000])
async def test_body_that_is_nested_too_deep_is_called_that(rest: Rest, body: bytes) -> None:
    for path in ("/namespaces/default/tasks/add", "/apply", "/instances/cancel"):
        verb = "PUT" if path.endswith("/add") else "POST"
        answer = await rest.client.request(verb, f"/api/v1{path}", content=body, headers=JSON)
        assert code_of(answer) == (400, "INVALID_DOCUMENT", "")
        assert answer.json()["detail"] == "the body is nested too deep"


@pytest.mark.parametrize("number", ["1e2", "1.0", "0x10", "+5", " 5", "5 ", "1_0", "٣", "", "five"])
async def test_number_in_the_query_is_written_as_a_whole_number(rest: Rest, number: str) -> None:
    for path in ("/instances", "/namespaces/default/tasks"):
        answer = await rest.get(path, params={"limit": number})
        assert code_of(answer) == (400, "INVALID_VALUE", "limit")


async def test_misspelt_member_comes_with_a_suggestion(rest: Rest) -> None:
    answer = await rest.post(SUBMIT, {"prioriti": 3})
    assert answer.json()["hint"] == "did you mean priority?"


async def test_body_over_the_limit_is_refused_before_it_is_read(rest: Rest) -> None:
    head = f"POST /api/v1{SUBMIT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    answered = await rest.raw(f"{head}Content-Length: 99999999999\r\n\r\n".encode())
    assert answered.startswith(b"HTTP/1.1 413 ")
    assert b"BODY_TOO_LARGE" in answered


@pytest.mark.parametrize(
    ("path", "status"),
    [
        (SUBMIT, 413),
        ("/instances/retry", 413),
        ("/namespaces/default/instances", 400),
        ("/apply", 400),
    ],
)
async def test_only_documents_and_many_submissions_may_be_over_a_mebibyte(
    rest: Rest, path: str, status: int
) -> None:
    body = ('{"wrong": "' + "x" * 2_000_000 + '"}').encode()
    answer = await rest.client.post(f"/api/v1{path}", content=body, headers=JSON)
    assert (answer.status_code, answer.json()["code"] == "BODY_TOO_LARGE") == (status, status == 413)


async def test_body_of_unknown_length_is_cut_off_at_the_limit(rest: Rest) -> None:
    sent = 0

    async def endless() -> AsyncIterator[bytes]:
        nonlocal sent
        while sent < 100_000_000:
            sent += 65_536
            yield b" " * 65_536

    try:
        answer = await rest.client.post(f"/api/v1{SUBMIT}", content=endless(), headers=JSON)
    except (httpx.WriteError, httpx.ReadError):
        pass  # it has closed while we wrote, which is what it is for
    else:
        assert code_of(answer)[:2] == (413, "BODY_TOO_LARGE")
    assert sent < 50_000_000


async def test_body_that_does_not_come_is_given_up(tmp_path: Path) -> None:
    async with running_rest(tmp_path, limits=Limits(body_seconds_max=0.2)) as rest:
        head = f"POST /api/v1{SUBMIT} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        answered = await rest.raw(f"{head}Content-Length: 10\r\n\r\n{{".encode())
        assert answered.startswith(b"HTTP/1.1 400 ")
        assert b"INVALID_DOCUMENT" in answered
        assert (await rest.get("/version")).status_code == 200


# ── queries and headers ───────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limt=5", (400, "INVALID_VALUE", "limt")),
        ("limit=5&limit=6", (400, "INVALID_VALUE", "limit")),
        ("limit=0", (400, "INVALID_VALUE", "limit")),
        ("limit=1001", (400, "INVALID_VALUE", "limit")),
        ("limit=five", (400, "INVALID_VALUE", "limit")),
        ("limit=", (400, "INVALID_VALUE", "limit")),
        ("limit=9999999999999999999999", (400, "INVALID_VALUE", "limit")),
        ("cursor=", (400, "INVALID_VALUE", "cursor")),
        ("cursor=x", (400, "INVALID_VALUE", "cursor")),
        ("cursor=%00", (400, "INVALID_VALUE", "cursor")),
        ("state=runing", (400, "INVALID_VALUE", "state")),
        ("namespace=a%20b", (400, "INVALID_NAME", "namespace")),
        ("task=%00", (400, "INVALID_NAME", "task")),
        ("key=%01", (400, "INVALID_NAME", "key")),
        ("code=%00", (400, "INVALID_VALUE", "code")),
        ("key=%ff", (400, "INVALID_VALUE", "query")),
        ("key=%ED%A0%80", (400, "INVALID_VALUE", "query")),
        ("created_from=2030-01-01", (400, "INVALID_INSTANT", "created_from")),
        ("created_before=yesterday", (400, "INVALID_INSTANT", "created_before")),
        ("%00=1", (400, "INVALID_VALUE", "\\x00")),
        ("=1", (400, "INVALID_VALUE", "query")),
    ],
)
async def test_bad_query_names_the_parameter(rest: Rest, query: str, expected: tuple[int, str, str]) -> None:
    assert code_of(await rest.get(f"/instances?{query}")) == expected


async def test_misspelt_parameter_comes_with_a_suggestion(rest: Rest) -> None:
    assert (await rest.get("/instances?limt=5")).json()["hint"] == "did you mean limit?"


@pytest.mark.parametrize(
    "path",
    [
        "/namespaces/%00/tasks",
        "/namespaces/%ff/tasks",
        "/namespaces/a%20b/tasks",
        f"/namespaces/{'n' * 201}/tasks",
    ],
)
async def test_bad_name_in_an_address_is_named(rest: Rest, path: str) -> None:
    assert code_of(await rest.get(path)) == (400, "INVALID_NAME", "namespace")


@pytest.mark.parametrize("value", [b"a\x01b", b"\xff", b"x" * 201])
async def test_bad_name_of_who_asks_is_refused(rest: Rest, value: bytes) -> None:
    answer = await rest.client.post(
        "/api/v1/namespaces/default/tasks/add/pause", headers=[(b"X-Ostinato-By", value)]
    )
    assert answer.status_code == 400
    assert answer.json()["code"] == "INVALID_VALUE"


async def test_header_given_twice_is_refused(rest: Rest) -> None:
    answer = await rest.client.post(
        f"/api/v1{SUBMIT}", json={}, headers=[("Idempotency-Key", "a"), ("Idempotency-Key", "b")]
    )
    assert code_of(answer) == (400, "INVALID_VALUE", "Idempotency-Key")


# ── how long and how many ─────────────────────────────────────────────────────────────────────────────


async def test_without_a_scheduler_the_wait_for_an_owner_ends_and_says_so(tmp_path: Path) -> None:
    async with running_rest(tmp_path, wait_us=SECOND // 10, with_node=False) as rest:
        answer = await rest.post("/namespaces/default/tasks/add/pause")
        assert code_of(answer)[:2] == (503, "SCHEDULER_UNREACHABLE")
        assert answer.headers["retry-after"] == "1"


async def test_more_requests_at_once_than_agreed_are_refused_and_the_rest_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running_rest(tmp_path, limits=Limits(requests_at_once_max=2)) as rest:
        stalled, go_on = _stall(rest, monkeypatch)
        waiting = [asyncio.create_task(rest.get("/nodes")) for _ in range(2)]
        await rest.until(lambda: _when(stalled, 2))
        refused = await rest.get("/version")
        assert code_of(refused)[:2] == (503, "OVERLOADED")
        assert refused.headers["retry-after"] == "1"
        assert (await rest.client.get("/healthz")).status_code == 200
        go_on.set()
        assert [(await each).status_code for each in waiting] == [200, 200]
        assert (await rest.get("/version")).status_code == 200


async def test_stalled_database_is_an_answer_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_rest(tmp_path, limits=Limits(answer_seconds_max=0.2)) as rest:
        _, go_on = _stall(rest, monkeypatch)
        assert code_of(await rest.get("/nodes"))[:2] == (503, "DATABASE_UNAVAILABLE")
        go_on.set()
        assert (await rest.get("/nodes")).status_code == 200


async def test_wait_ends_when_its_client_has_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running_rest(tmp_path, limits=Limits(requests_at_once_max=1)) as rest:
        stalled, go_on = _stall(rest, monkeypatch)
        _, writer = await asyncio.open_connection(*rest.address)
        writer.write(b"GET /api/v1/nodes HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await rest.until(lambda: _when(stalled, 1))
        assert (await rest.get("/version")).status_code == 503
        writer.close()

        async def answered() -> bool | None:
            return (await rest.get("/version")).status_code == 200 or None

        assert await rest.until(answered)
        assert not go_on.is_set()
        go_on.set()


async def test_bug_is_an_internal_error_that_tells_nothing_and_is_logged(
    rest: Rest, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken() -> Any:
        raise ZeroDivisionError("a secret")

    monkeypatch.setattr(rest.store, "partition_owners", broken)
    answer = await rest.get("/partitions")
    assert code_of(answer)[:2] == (500, "INTERNAL")
    assert "secret" not in answer.text
    record = next(record for record in caplog.records if record.message == "api_failed")
    assert record.exc_info is not None
    assert record.exc_info[0] is ZeroDivisionError


def _stall(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], asyncio.Event]:
    """Let reads of nodes wait; gives the reads that began, and what lets them go on."""
    began: list[int] = []
    go_on = asyncio.Event()
    real = rest.store.nodes

    async def nodes() -> Any:
        began.append(1)
        await go_on.wait()
        return await real()

    monkeypatch.setattr(rest.store, "nodes", nodes)
    return began, go_on


async def _when(began: list[int], count: int) -> bool | None:
    return len(began) >= count or None


async def test_limits_have_room_for_what_the_design_allows() -> None:
    limits = Limits()
    assert limits.body_bytes_max >= 256 * 1024 + len(json.dumps({"payload": {}}))
    assert limits.answer_seconds_max > 10
