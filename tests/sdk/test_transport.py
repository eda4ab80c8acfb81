"""What an app makes of a network and of servers that do not behave: each request ends with a clear word."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path

import pytest
from support.certificates import self_signed
from support.scripted_http import Answer, Hang, Reset, ScriptedHttp, Seen, Step

from ostinato import App, ConflictError, InternalError, OstinatoError, Submission, UnavailableError, UserError
from ostinato.clock import SystemClock
from ostinato.control.document.errors import InvalidDocument
from ostinato.core.instants import MILLISECOND
from ostinato.sdk.gateway.address import SaidUrl
from ostinato.sdk.gateway.transport import TRIES, Patience, Transport

INSTANCE = "01jd0000000000000000000000"


def created(request: Seen) -> Answer:
    """As the API answers a submission: with the id that was chosen for it."""
    said = request.json
    if "submissions" in said:
        items = [{"instance_id": entry["id"], "created": True} for entry in said["submissions"]]
        return Answer(json.dumps({"items": items}).encode(), status=201)
    return Answer(json.dumps({"instance_id": said["id"], "created": True}).encode(), status=201)


def problem(status: int, code: str, *headers: str, **more: object) -> Answer:
    body = {
        "type": f"urn:ostinato:error:{code}",
        "title": "t",
        "status": status,
        "detail": "why",
        "code": code,
    }
    return Answer(json.dumps(body | more).encode(), status, "application/problem+json", headers=headers)


@pytest.fixture
def apps() -> Iterator[list[App]]:
    made: list[App] = []
    yield made
    for app in made:
        app.close()


def raised(apps: list[App], *steps: Step) -> tuple[OstinatoError, ScriptedHttp]:
    """The error of a submission by name to a server that does `steps`."""
    with ScriptedHttp(*steps) as server:
        app = App("shop", server.url)
        apps.append(app)
        with pytest.raises(OstinatoError) as caught:
            app.submit("report", {"day": 1})
    return caught.value, server


def test_a_submission_says_everything_in_one_request(apps: list[App]) -> None:
    with ScriptedHttp(created) as server:
        app = App("shop", server.url + "/jobs/", namespace="night")
        apps.append(app)
        handle = app.submit("report", {"day": 10**18}, key="k", delay="90s", priority=9)
        many = app.submit_many("report", [{"day": 1}, Submission({"day": 2}, priority=0)])
    single, batch = server.requests
    assert (single.method, single.path) == ("POST", "/jobs/api/v1/namespaces/night/tasks/report/instances")
    assert single.json == {
        "id": handle.id,
        "payload": {"day": 10**18},
        "key": "k",
        "delay": "1m30s",
        "priority": 9,
    }
    assert single.headers["content-type"] == "application/json"
    assert batch.path == "/jobs/api/v1/namespaces/night/instances"
    assert batch.json["submissions"] == [
        {"task": "report", "id": many[0].id, "payload": {"day": 1}},
        {"task": "report", "id": many[1].id, "payload": {"day": 2}, "priority": 0},
    ]
    assert (handle.created, server.connections) == (True, 1)


def test_c141_a_submission_whose_answer_was_lost_is_repeated_with_the_same_id(apps: list[App]) -> None:
    cut = Answer(raw=b"HTTP/1.1 201 Created\r\ncontent-type: application/json\r\ncontent-le", closes=True)
    with ScriptedHttp(Reset(), cut, created) as server:
        app = App("shop", server.url)
        apps.append(app)
        handle = app.submit("report", {"day": 1})
    assert [request.json["id"] for request in server.requests] == [handle.id] * 3
    assert handle.created


def test_c141_an_answer_that_never_comes_says_what_is_not_known(apps: list[App]) -> None:
    error, server = raised(apps, Reset())
    assert isinstance(error, UnavailableError)
    assert (error.code, error.field, error.subject) == ("SCHEDULER_UNREACHABLE", "url", server.url)
    assert len(server.requests) == TRIES
    identifier = server.requests[0].json["id"]
    assert f"whether instance {identifier} was accepted is not known" in error.hint


def test_a_connection_that_was_closed_while_idle_is_replaced_unnoticed(apps: list[App]) -> None:
    def created_then_gone(request: Seen) -> Answer:
        return created(request)._replace(closes=True)

    with ScriptedHttp(created_then_gone) as server:
        app = App("shop", server.url)
        apps.append(app)
        assert len({app.submit("report").id for _ in range(5)}) == 5
    assert server.connections >= 5


def test_where_nobody_listens_the_error_says_what_to_do(
    apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedHttp(created) as server:
        url = server.url
    app = App("shop", url)
    apps.append(app)
    with pytest.raises(UnavailableError, match="connection refused") as caught:
        app.submit("report")
    error = caught.value
    assert (error.code, error.field, error.subject) == ("SCHEDULER_UNREACHABLE", "url", url)
    assert error.hint == "start it there, or correct url"
    monkeypatch.setattr("ostinato.sdk.gateway.address.DEFAULT_URL", url)
    for name in ("OSTINATO_URL", "OSTINATO_DATABASE"):
        monkeypatch.delenv(name, raising=False)
    default = App("shop")
    apps.append(default)
    with pytest.raises(UnavailableError, match=re.escape(url)) as caught:
        default.submit("report")
    assert caught.value.field == ""
    for words in ("ostinato dev", "OSTINATO_URL", "database's URL"):
        assert words in caught.value.hint


def test_a_host_that_does_not_exist_is_named(apps: list[App], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
    app = App("shop", "http://no-such-host.invalid:8640")
    apps.append(app)
    with pytest.raises(UnavailableError, match=r"no scheduler answers at http://no-such-host\.invalid:8640"):
        app.submit("report")


# ── answers that are not ours ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(b"<html>hello</html>", kind="text/html; charset=utf-8"), r"answers 200 .*\(text/html\)"),
        (Answer(b"<html>login</html>", 404, "text/html"), r"answers 404 .*\(text/html\)"),
        (Answer(b"{}", 401, "application/json"), r"answers 401"),
        (Answer(b'{"detail":"x"}', 404, "application/problem+json"), r"answers 404 .*\(application/problem"),
        (Answer(b'"oops', 200), "cannot be understood"),
        (Answer(b'{"instance":1}', 201), "cannot be understood.*instance_id"),
        (Answer(b"\xff\xfe", 201), "cannot be understood"),
        (Answer(b"[" * 100_000, 201), "cannot be understood"),
        (
            Answer(b"", 308, "text/html", headers=("location: https://u:s3cret@example.com/a?token=s3cret",)),
            r"redirect \(308\) to https://example\.com/a$",
        ),
        (Answer(b"", 302, "text/html", headers=("location: /login",)), r"redirect \(302\) to /login$"),
        (Answer(b"", 204), "answers 204"),
        (Answer(b"zz", 200, headers=("content-encoding: gzip",)), "cannot be asked"),
    ],
)
def test_an_answer_of_another_server_is_refused_by_its_address(
    apps: list[App], answer: Answer, words: str
) -> None:
    error, server = raised(apps, answer)
    assert isinstance(error, UserError)
    assert (error.code, error.field, error.subject) == ("INVALID_SETTING", "url", server.url)
    assert re.search(words, error.message), error.message
    assert server.url in error.message
    assert "s3cret" not in str(error)
    assert len(server.requests) == 1


@pytest.mark.parametrize("status", [500, 502, 503, 504])
def test_a_proxy_whose_scheduler_is_away_counts_as_unreachable(apps: list[App], status: int) -> None:
    error, server = raised(apps, Answer(b"<html>Bad Gateway</html>", status, "text/html"))
    assert isinstance(error, UnavailableError)
    assert error.code == "SCHEDULER_UNREACHABLE"
    assert f"answers {status}" in error.message
    assert len(server.requests) == 1


def test_bytes_that_are_no_http_are_an_error_too(apps: list[App]) -> None:
    error, _ = raised(apps, Answer(raw=b"SSH-2.0-OpenSSH_9.6\r\n", closes=True))
    assert error.code == "SCHEDULER_UNREACHABLE"


# ── problems ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("status", "code", "family"),
    [
        (400, "INVALID_PAYLOAD", UserError),
        (413, "PAYLOAD_TOO_LARGE", UserError),
        (404, "TASK_NOT_FOUND", UserError),
        (409, "KEY_CONFLICT", ConflictError),
        (500, "INTERNAL", InternalError),
        (500, "INVARIANT", InternalError),
        (503, "DATABASE_FULL", UnavailableError),
    ],
)
def test_a_problem_is_the_error_that_it_was_made_of(
    apps: list[App], status: int, code: str, family: type[OstinatoError]
) -> None:
    error, _ = raised(
        apps, problem(status, code, field="payload.day", hint="mend it", subject="default/report")
    )
    assert type(error) is family
    assert (error.code, error.message, error.field) == (code, "why", "payload.day")
    assert (error.hint, error.subject) == ("mend it", "default/report")


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        (400, (UserError, "INVALID_VALUE")),
        (500, (InternalError, "INTERNAL")),
        (503, (UnavailableError, "SCHEDULER_UNREACHABLE")),
    ],
)
def test_a_code_of_a_newer_release_keeps_its_family_and_its_name(
    apps: list[App], status: int, expected: tuple[type[OstinatoError], str]
) -> None:
    error, _ = raised(apps, problem(status, "FROM_THE_FUTURE"))
    assert (type(error), error.code, error.message) == (*expected, "FROM_THE_FUTURE: why")


def test_all_faults_of_a_document_are_kept(apps: list[App]) -> None:
    faults = [
        {"code": "INVALID_DURATION", "detail": "bad", "field": "tasks[0].timeout"},
        {"code": "FROM_THE_FUTURE", "detail": "worse", "field": "tasks[1].retry"},
    ]
    error, _ = raised(apps, problem(400, "INVALID_DURATION", errors=faults))
    assert isinstance(error, InvalidDocument)
    assert (error.code, error.field) == ("INVALID_DURATION", "tasks[0].timeout")
    assert [each.message for each in error.errors] == ["bad", "FROM_THE_FUTURE: worse"]


def test_a_refusal_that_says_when_to_come_back_is_repeated_then(apps: list[App]) -> None:
    busy = problem(503, "SCHEDULER_UNREACHABLE", "retry-after: 0")
    with ScriptedHttp(busy, Answer(b"slow down", 429, "text/plain", ("retry-after: 0",)), created) as server:
        app = App("shop", server.url)
        apps.append(app)
        handle = app.submit("report")
    assert [request.json["id"] for request in server.requests] == [handle.id] * 3
    error, server = raised(apps, busy)
    assert (error.code, len(server.requests)) == ("SCHEDULER_UNREACHABLE", TRIES)


@pytest.mark.parametrize("when", ["6", "99999999", "-1", "soon", "1.5", "Fri, 31 Dec 1999 23:59:59 GMT"])
def test_a_refusal_for_longer_or_in_other_words_is_raised_at_once(apps: list[App], when: str) -> None:
    error, server = raised(apps, problem(503, "DATABASE_UNAVAILABLE", f"retry-after: {when}"))
    assert (error.code, len(server.requests)) == ("DATABASE_UNAVAILABLE", 1)


def test_a_recorded_request_is_not_recorded_again(apps: list[App]) -> None:
    with ScriptedHttp(problem(503, "SCHEDULER_UNREACHABLE", "retry-after: 0")) as server:
        app = App("shop", server.url)
        apps.append(app)
        with pytest.raises(UnavailableError):
            app.handle(INSTANCE).cancel("not needed")
    (seen,) = server.requests
    assert (seen.path, seen.json) == (f"/api/v1/instances/{INSTANCE}/cancel", {"reason": "not needed"})
    assert seen.headers["x-ostinato-by"] == "shop"


# ── time ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("step", "patience"),
    [
        (Hang(), Patience(read_us=50 * MILLISECOND)),
        (
            Answer(raw=b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 9\r\n\r\n{"),
            Patience(read_us=50 * MILLISECOND),
        ),
        (Hang(), Patience(whole_us=50 * MILLISECOND)),
    ],
)
async def test_a_server_that_does_not_answer_is_waited_for_once_and_no_longer(
    step: Step, patience: Patience
) -> None:
    with ScriptedHttp(step) as server:
        transport = Transport(SaidUrl("url", server.url), clock=SystemClock(), patience=patience)
        with pytest.raises(UnavailableError, match="has not answered within") as caught:
            await transport.post("/api/v1/apply", {}, lost="nobody knows")
        await transport.close()
    assert caught.value.code == "SCHEDULER_UNREACHABLE"
    assert caught.value.hint.startswith("nobody knows; ")
    assert len(server.requests) == 1


@pytest.mark.parametrize(("ahead_seconds", "is_corrected"), [(0, False), (3_600, True), (-86_400, True)])
async def test_ids_are_made_at_the_schedulers_time(ahead_seconds: int, is_corrected: bool) -> None:
    clock = SystemClock()
    date = formatdate(clock.wall_us() // 1_000_000 + ahead_seconds, usegmt=True)
    with ScriptedHttp(
        Answer(b"{}", headers=(f"date: {date}",)), Answer(b"{}", headers=("date: never",))
    ) as server:
        transport = Transport(SaidUrl("url", server.url), clock=clock)
        for _ in range(2):
            await transport.get("/api/v1/version")
            behind_us = transport.now_us() - clock.wall_us()
            assert abs(behind_us - ahead_seconds * 1_000_000) < 2_000_000
            assert (abs(behind_us) > 2_000_000) == is_corrected
        await transport.close()


def test_a_scheduler_that_restarts_does_not_end_a_wait_for_a_result(apps: list[App]) -> None:
    whole = {"id": INSTANCE, "namespace": "default", "task": "report"}
    running = Answer(json.dumps(whole | {"state": "running"}).encode())
    done = Answer(json.dumps(whole | {"state": "success", "result": [1.0, {"b": 1, "a": 2}]}).encode())
    away = Answer(b"", 502, "text/html")
    with ScriptedHttp(running, Reset(), Reset(), Reset(), away, done) as server:
        app = App("shop", server.url)
        apps.append(app)
        assert app.handle(INSTANCE).result(timeout="20s") == [1.0, {"b": 1, "a": 2}]
    with ScriptedHttp(away) as server:
        app = App("shop", server.url)
        apps.append(app)
        with pytest.raises(UnavailableError):
            app.handle(INSTANCE).result(timeout="20s")
    assert len(server.requests) == 1, "who has never answered is not waited for"


# ── many at once, proxies, closing ────────────────────────────────────────────────────────────────────


def test_threads_share_a_bounded_number_of_connections(apps: list[App]) -> None:
    with ScriptedHttp(created) as server:
        app = App("shop", server.url)
        apps.append(app)
        made: list[str] = []
        threads = [
            threading.Thread(target=lambda: made.extend(app.submit("report").id for _ in range(5)))
            for _ in range(40)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert len(set(made)) == 200
    assert server.connections <= 20


def test_a_proxy_of_the_environment_is_not_asked_for_this_machine(
    apps: list[App], monkeypatch: pytest.MonkeyPatch
) -> None:
    with ScriptedHttp(created) as server, ScriptedHttp(Answer(b"proxy", 502, "text/plain")) as proxy:
        for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
            monkeypatch.setenv(name, proxy.url)
        ours, other = App("shop", server.url), App("shop", "http://scheduler.example:8640")
        apps += [ours, other]
        assert ours.submit("report").created
        assert not proxy.requests
        with pytest.raises(UnavailableError, match=r"scheduler\.example:8640 answers 502"):
            other.submit("report")
        assert proxy.requests[0].path.startswith("http://scheduler.example:8640/api/v1/")


def test_a_scheduler_behind_tls_is_asked_only_if_its_certificate_is_trusted(
    apps: list[App], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    certificate = self_signed(tmp_path)
    with ScriptedHttp(created, certificate=certificate) as server:
        app = App("shop", server.url)
        apps.append(app)
        with pytest.raises(
            UnavailableError, match=r"no scheduler answers at https://.*CERTIFICATE_VERIFY_FAILED"
        ):
            app.submit("report")
        assert not server.requests
        app.close()
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate.certificate))
        assert app.submit("report").created


def test_certificates_that_cannot_be_read_are_named_where_they_are_needed(
    apps: list[App], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "none.pem"))
    app = App("shop", "https://127.0.0.1:1")
    apps.append(app)
    with pytest.raises(UserError, match="cannot be read: No such file or directory") as caught:
        app.submit("report")
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "SSL_CERT_FILE")
    with ScriptedHttp(created) as server:
        plain = App("shop", server.url)
        apps.append(plain)
        assert plain.submit("report").created


def test_closing_ends_a_request_under_way_and_its_connection() -> None:
    before = threading.active_count()
    with ScriptedHttp(Hang()) as server:
        app = App("shop", server.url)
        ended: list[str] = []

        def wait() -> None:
            try:
                app.submit("report")
            except BaseException as error:  # noqa: BLE001 - kept to be looked at below
                ended.append(type(error).__name__)

        thread = threading.Thread(target=wait)
        thread.start()
        while not server.requests:
            thread.join(0.01)
        app.close()
        thread.join(10)
        assert ended == ["CancelledError"]
    assert threading.active_count() <= before


@pytest.mark.parametrize("identifier", ["", "../tasks", "a/b", "a b", "é", "x\0", "%2e%2e"])
def test_an_id_that_none_can_be_is_not_asked_for(apps: list[App], identifier: str) -> None:
    with ScriptedHttp(Answer(b"{}")) as server:
        app = App("shop", server.url)
        apps.append(app)
        handle = app.handle(identifier)
        for ask in (handle.status, handle.story, handle.cancel):
            with pytest.raises(UserError, match="no instance has the id") as caught:
                ask()
            assert caught.value.code == "INSTANCE_NOT_FOUND"
    assert not server.requests
