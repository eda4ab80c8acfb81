"""HTTP tasks against a real server: statuses, Retry-After, time-outs, broken connections, secrets."""

from __future__ import annotations

import gzip
import socket
import struct
import tracemalloc
import zlib
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import HttpSpec
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.testing.contracts.executor_harness import attempt_of, opened, task_spec
from ostinato.worker.executors.http import HttpExecutor
from ostinato.worker.executors.http_body import BODY_BYTES_MAX, decoded_body, text_of
from ostinato.worker.executors.http_exchange import is_success
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart

GOOD = b'{"found": [1, 2]}'
BOMB_BYTES = 50 * BODY_BYTES_MAX


def bomb() -> bytes:
    """Zeros, compressed twice: some hundred bytes that stand for 50 MiB."""
    packer = zlib.compressobj(9, wbits=31)
    parts = [packer.compress(bytes(BODY_BYTES_MAX)) for _ in range(BOMB_BYTES // BODY_BYTES_MAX)]
    return gzip.compress(b"".join([*parts, packer.flush()]))


CODED = {
    "gzip": ("gzip", gzip.compress(GOOD)),
    "gzip-members": ("x-gzip", gzip.compress(GOOD[:5]) + gzip.compress(GOOD[5:])),
    "gzip-twice": ("gzip, identity, GZIP", gzip.compress(gzip.compress(GOOD))),
    "deflate": ("deflate", zlib.compress(GOOD)),
    "deflate-raw": ("deflate", zlib.compress(GOOD)[2:-4]),
    "gzip-empty": ("gzip", b""),
    "bomb": ("gzip, gzip", bomb()),
    "half": ("gzip", gzip.compress(GOOD)[:-12]),
    "broken": ("gzip", b"this is not gzip"),
    "unknown": ("br", b"whatever"),
    "deep": (", ".join(["gzip"] * 500), b"whatever"),
}


class Server:
    """Answers by path; remembers what it was sent."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str, dict[str, str], bytes]] = []
        self.is_over = Event()
        server = self

        class Handler(BaseHTTPRequestHandler):
            def handle_any(self) -> None:
                size = int(self.headers.get("Content-Length") or 0)
                body = self.rfile.read(size)
                server.requests.append((self.command, self.path, dict(self.headers.items()), body))
                server.answer(self)

            do_GET = do_POST = do_PUT = do_DELETE = handle_any

            def log_message(self, *_: object) -> None:
                return

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._thread = Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._http.server_port}"

    def close(self) -> None:
        self.is_over.set()
        self._http.shutdown()
        self._thread.join()
        self._http.server_close()

    def answer(self, request: BaseHTTPRequestHandler) -> None:
        name = request.path.strip("/")
        if name == "reset":
            # Closed with an unsent answer and no linger: the client sees a reset.
            request.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            request.connection.close()
        elif name == "hang-up":
            request.close_connection = True
        elif name == "silent":
            self.is_over.wait(1)
        elif name == "garbage":
            request.wfile.write(b"this is not http\r\n\r\n")
            request.close_connection = True
        elif name.isdecimal():
            self.send(request, int(name), b'{"found": [1, 2]}', {"Content-Type": "application/json"})
        elif name == "text":
            self.send(request, 200, "caf\u00e9\0".encode(), {"Content-Type": "text/plain; charset=utf-8"})
        elif name == "large":
            self.send(request, 200, b"\x01" * (3 * BODY_BYTES_MAX), {})
        elif name.startswith("charset/"):
            content_type = f"text/plain; charset={name.removeprefix('charset/')}"
            self.send(request, 200, b"caf\xc3\xa9 \xff", {"Content-Type": content_type})
        elif name in CODED:
            encoding, body = CODED[name]
            headers = {"Content-Encoding": encoding, "Content-Type": "application/json"}
            self.send(request, 200, body, headers)
        elif name == "bad-json":
            self.send(request, 200, b"{nope", {"Content-Type": "application/json"})
        elif name == "cookie":
            self.send(request, 200, b"", {"Set-Cookie": "session=abc; Path=/"})
        elif name == "redirect":
            self.send(request, 302, b"", {"Location": "/redirect"})
        elif name.startswith("echo-secret"):
            self.send(request, 401, str(request.headers["Authorization"]).encode(), {})
        elif name.startswith("retry-after/"):
            value = name.removeprefix("retry-after/").replace("%20", " ")
            self.send(request, 503, b"busy", {"Retry-After": value})

    def send(
        self, request: BaseHTTPRequestHandler, status: int, body: bytes, headers: dict[str, str]
    ) -> None:
        request.send_response(status)
        for name, value in headers.items():
            request.send_header(name, value)
        request.send_header("Content-Length", str(len(body)))
        request.end_headers()
        try:
            request.wfile.write(body)
        except ConnectionError:
            return  # the client has read as much as it wants


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    yield made
    made.close()


async def send(spec: HttpSpec, payload: bytes = b"{}") -> tuple[AttemptFinished, AttemptStart]:
    executor = HttpExecutor(clock=SystemClock())
    async with opened(executor) as sink:
        start = attempt_of(task_spec("request", spec), payload)
        executor.start([start])
        return await sink.end_of(start.assignment.attempt_id), start


async def failure_of(spec: HttpSpec) -> Failure:
    finished, _ = await send(spec)
    assert finished.result is None
    assert finished.failure is not None
    return finished.failure


async def result_of(spec: HttpSpec) -> dict[str, Any]:
    finished, _ = await send(spec)
    assert finished.failure is None
    assert finished.result is not None
    return msgspec.json.decode(finished.result, type=dict[str, Any])


@pytest.mark.parametrize(
    ("rules", "status", "expected"),
    [
        (["2xx"], 204, True),
        (["2xx"], 301, False),
        (["200"], 201, False),
        (["200-204", "404"], 203, True),
        (["200-204", "404"], 404, True),
        (["200-204"], 205, False),
        (["5XX"], 503, True),
        ([], 200, False),
    ],
)
def test_success_rules(rules: list[str], status: int, expected: bool) -> None:
    assert is_success(status, rules) is expected


async def test_a_json_answer_becomes_part_of_the_result(server: Server) -> None:
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/200"))
    assert result == {"status": 200, "body": {"found": [1, 2]}}


async def test_other_answers_are_text_with_nul_made_visible(server: Server) -> None:
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/text"))
    assert result == {"status": 200, "body": "caf\u00e9\u2400"}
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/bad-json"))
    assert result["body"] == "{nope"


async def test_a_large_answer_is_cut_so_that_the_result_fits(server: Server) -> None:
    finished, _ = await send(HttpSpec(method="GET", url=f"{server.url}/large"))
    assert finished.result is not None
    assert len(finished.result) <= 1024 * 1024
    assert msgspec.json.decode(finished.result)["truncated"] is True


@pytest.mark.parametrize(
    "charset", ["bogus", "base64", "idna", "undefined", "punycode", "cp9999", "hex", "%00", "''", "utf-7"]
)
async def test_a_charset_that_is_none_does_not_fail_what_has_been_done(server: Server, charset: str) -> None:
    result = await result_of(HttpSpec(method="POST", url=f"{server.url}/charset/{charset}"))
    assert result == {"status": 200, "body": "caf\u00e9 \\xff"}


@pytest.mark.parametrize("name", ["latin-1", "ISO-8859-1", '"windows-1252"'])
def test_a_known_charset_is_used(name: str) -> None:
    assert text_of(b"caf\xe9", content_type=f"text/plain; Charset={name}; x=y") == "caf\u00e9"


@pytest.mark.parametrize("name", ["gzip", "gzip-members", "gzip-twice", "deflate", "deflate-raw"])
async def test_a_compressed_answer_is_decoded_though_none_was_asked_for(server: Server, name: str) -> None:
    server.requests.clear()
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/{name}"))
    assert result == {"status": 200, "body": {"found": [1, 2]}}
    assert server.requests[0][2]["Accept-Encoding"] == "identity"


async def test_an_answer_that_unpacks_without_end_is_cut_and_says_so(server: Server) -> None:
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/bomb"))
    assert result["truncated"] is True
    assert len(result["body"]) < BODY_BYTES_MAX


@pytest.mark.parametrize(
    ("encodings", "raw"),
    [
        (["gzip", "gzip"], CODED["bomb"][1]),
        (["gzip"], gzip.decompress(CODED["bomb"][1])),
        (["deflate"], zlib.compress(bytes(BOMB_BYTES))),
        (["gzip"], gzip.compress(b"") * 50_000),
    ],
    ids=["twice", "once", "deflate", "members"],
)
def test_no_body_takes_more_memory_than_a_few_times_the_bound(encodings: list[str], raw: bytes) -> None:
    tracemalloc.start()
    try:
        body = decoded_body(raw, encodings=encodings)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert not body.is_whole
    assert len(body.content) <= BODY_BYTES_MAX
    assert peak_bytes < 6 * BODY_BYTES_MAX


def test_a_body_that_just_fits_is_whole() -> None:
    for encode, name in ((gzip.compress, "gzip"), (zlib.compress, "deflate")):
        fits, too_long = (encode(bytes(BODY_BYTES_MAX + more)) for more in (0, 1))
        assert decoded_body(fits, encodings=[name]) == (bytes(BODY_BYTES_MAX), True, None)
        assert decoded_body(too_long, encodings=[name]) == (bytes(BODY_BYTES_MAX), False, None)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("broken", "the body is not valid gzip"),
        ("unknown", "the body's content encoding 'br' is not known"),
        ("deep", "the body is encoded 500 times, at most 4 are decoded"),
    ],
)
async def test_a_body_that_cannot_be_decoded_is_left_out_of_a_success(
    server: Server, name: str, problem: str
) -> None:
    result = await result_of(HttpSpec(method="POST", url=f"{server.url}/{name}"))
    assert result == {"status": 200, "body": "", "undecoded": problem}
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/{name}", success_status=("201",)))
    assert failure.detail == f"[{problem}]"


async def test_a_compressed_answer_may_be_empty_or_end_early(server: Server) -> None:
    assert await result_of(HttpSpec(method="GET", url=f"{server.url}/gzip-empty")) == {
        "status": 200,
        "body": "",
    }
    assert (await result_of(HttpSpec(method="GET", url=f"{server.url}/half")))["truncated"] is True


async def test_a_status_of_the_tasks_own_list_is_a_success(server: Server) -> None:
    result = await result_of(HttpSpec(method="GET", url=f"{server.url}/404", success_status=("2xx", "404")))
    assert result["status"] == 404


@pytest.mark.parametrize(
    ("status", "category"), [(400, "permanent"), (404, "permanent"), (429, "transient"), (503, "transient")]
)
async def test_a_status_is_the_code_of_the_failure(server: Server, status: int, category: str) -> None:
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/{status}"))
    assert (failure.code, failure.category) == (f"HTTP_{status}", category)
    assert failure.retry_after_us is None
    assert "found" in failure.detail


@pytest.mark.parametrize(
    ("value", "expected_us"),
    [("7", 7 * SECOND), ("0", 0), ("%20120%20", 120 * SECOND), ("-5", None), ("1.5", None), ("abc", None)],
)
async def test_c063_retry_after_in_seconds(server: Server, value: str, expected_us: int | None) -> None:
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/retry-after/{value}"))
    assert failure.code == "HTTP_503"
    assert failure.retry_after_us == expected_us


async def test_retry_after_as_a_date(server: Server) -> None:
    date = format_datetime(datetime.now(UTC) + timedelta(seconds=90), usegmt=True).replace(" ", "%20")
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/retry-after/{date}"))
    assert failure.retry_after_us is not None
    assert 80 * SECOND < failure.retry_after_us <= 90 * SECOND


async def test_silence_is_a_read_time_out(server: Server) -> None:
    spec = HttpSpec(method="GET", url=f"{server.url}/silent", read_timeout_us=100 * MILLISECOND)
    failure = await failure_of(spec)
    assert (failure.code, failure.category) == ("READ_TIMEOUT", "transient")
    assert "100ms" in failure.message


async def test_no_connection_in_time_is_a_connect_time_out() -> None:
    # A listening socket whose queue is full answers no further connection.
    with (
        closing(socket.socket()) as full,
        closing(socket.socket()) as first,
        closing(socket.socket()) as other,
    ):
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        port = full.getsockname()[1]
        for client in (first, other):
            client.setblocking(False)
            client.connect_ex(("127.0.0.1", port))
        spec = HttpSpec(method="GET", url=f"http://127.0.0.1:{port}/", connect_timeout_us=200 * MILLISECOND)
        failure = await failure_of(spec)
    assert (failure.code, failure.category) == ("CONNECT_TIMEOUT", "transient")


async def test_nobody_listening_is_econnrefused() -> None:
    with closing(socket.socket()) as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    for host in ("127.0.0.1", "localhost"):
        failure = await failure_of(HttpSpec(method="GET", url=f"http://{host}:{port}/"))
        assert (failure.code, failure.category) == ("ECONNREFUSED", "transient")


@pytest.mark.parametrize("path", ["reset", "hang-up"])
async def test_a_connection_closed_midway_is_connection_reset(server: Server, path: str) -> None:
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/{path}"))
    assert (failure.code, failure.category) == ("CONNECTION_RESET", "transient")


async def test_an_answer_that_is_not_http_says_so(server: Server) -> None:
    failure = await failure_of(HttpSpec(method="GET", url=f"{server.url}/garbage"))
    assert failure.code == "HTTP_PROTOCOL"


async def test_a_host_that_does_not_exist_is_dns() -> None:
    failure = await failure_of(HttpSpec(method="GET", url="http://no-such-host.invalid/"))
    assert failure.code == "DNS"


@pytest.mark.parametrize("url", ["gopher://x/", "http://", "not a url"])
async def test_what_is_no_http_url_is_permanent(url: str) -> None:
    failure = await failure_of(HttpSpec(method="GET", url=url))
    assert (failure.code, failure.category) == ("INVALID_URL", "permanent")


async def test_endless_redirects_are_a_permanent_failure(server: Server) -> None:
    spec = HttpSpec(method="GET", url=f"{server.url}/redirect", follow_redirects=True)
    assert (await failure_of(spec)).code == "REDIRECT_LIMIT"
    assert (await failure_of(HttpSpec(method="GET", url=f"{server.url}/redirect"))).code == "HTTP_302"


async def test_the_request_carries_the_fencing_token_and_a_key_of_the_generation(server: Server) -> None:
    server.requests.clear()
    _, start = await send(HttpSpec(method="POST", url=f"{server.url}/200"), b'{"day": "monday"}')
    ((method, _, headers, body),) = server.requests
    assert method == "POST"
    assert body == b'{"day": "monday"}'
    assert headers["Content-Type"] == "application/json"
    assert headers["Ostinato-Instance"] == start.assignment.instance_id
    assert headers["Ostinato-Attempt"] == "1"
    assert headers["Ostinato-Attempt-Id"] == start.assignment.attempt_id
    assert headers["Idempotency-Key"] == f"{start.assignment.instance_id}-1"


async def test_the_tasks_own_headers_and_body_win(server: Server) -> None:
    server.requests.clear()
    spec = HttpSpec(
        method="PUT", url=f"{server.url}/200", headers={"idempotency-key": "mine"}, body="plain text"
    )
    await send(spec, b'{"day": "monday"}')
    ((_, _, headers, body),) = server.requests
    assert body == b"plain text"
    assert [value for name, value in headers.items() if name.lower() == "idempotency-key"] == ["mine"]


async def test_cookies_of_one_attempt_are_not_sent_by_the_next(server: Server) -> None:
    server.requests.clear()
    executor = HttpExecutor(clock=SystemClock())
    async with opened(executor) as sink:
        for _ in range(2):
            start = attempt_of(task_spec("request", HttpSpec(method="GET", url=f"{server.url}/cookie")))
            executor.start([start])
            await sink.end_of(start.assignment.attempt_id)
    assert all("Cookie" not in headers for _, _, headers, _ in server.requests)


async def test_c163_secrets_of_the_request_never_reach_the_failure(server: Server) -> None:
    address = server.url.removeprefix("http://")
    spec = HttpSpec(
        method="GET",
        url=f"http://user:hunter22@{address}/echo-secret",
        headers={"Authorization": "Bearer tok-12345678", "X-Api-Key": "key-87654321"},
    )
    failure = await failure_of(spec)
    shown = msgspec.json.encode(failure).decode()
    assert failure.code == "HTTP_401"
    for secret in ("hunter22", "tok-12345678", "key-87654321"):
        assert secret not in shown
    refused = await failure_of(HttpSpec(method="GET", url="http://user:hunter22@127.0.0.1:1/?token=hunter22"))
    assert "hunter22" not in msgspec.json.encode(refused).decode()
