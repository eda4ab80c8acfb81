"""The shop's orders service: an HTTP server that misbehaves on purpose, the same way every time.

What it does to the n-th request of a path is written in ``MISBEHAVIOUR``; after the last entry it is well::

    GET  /manifest           how many orders the day has, and their sum
    GET  /orders             the orders of the day as JSON
    POST /night-closed       a notice that the night's work has ended
    POST /accounts/NAME/reports   takes a report; the account of `closed-ltd` is closed for good
    GET  /health             always well

Run by hand: ``python examples/nightly/orders_service.py --port 8090``.
"""

from __future__ import annotations

import argparse
import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

DAY = "2026-03-14"
ORDER_COUNT = 2_000
PRODUCTS = (("tea", 450), ("cup", 1_290), ("kettle", 4_900), ("honey", 780), ("book", 2_150))
CLOSED_ACCOUNT = "closed-ltd"
#: Longer than any client of the example waits for an answer.
SLOW_SECONDS = 4.0


def orders_of(day: str) -> list[dict[str, Any]]:
    """The orders of a day; the same ones whenever they are asked for."""
    orders = []
    for number in range(ORDER_COUNT):
        product, price_cents = PRODUCTS[number * 7 % len(PRODUCTS)]
        quantity = 1 + number * number % 4
        orders.append(
            {
                "id": f"{day}-{number:05d}",
                "product": product,
                "quantity": quantity,
                "total_cents": quantity * price_cents,
            }
        )
    return orders


def manifest_of(day: str) -> dict[str, Any]:
    """What a complete load of the day must add up to."""
    orders = orders_of(day)
    return {"day": day, "count": len(orders), "total_cents": sum(order["total_cents"] for order in orders)}


class OrdersHandler(BaseHTTPRequestHandler):
    """Answers one request, or misbehaves as the script says."""

    server: OrdersServer
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = urlsplit(self.path).path
        if path == "/health" or not self.server.misbehave(self, path):
            self._answer_get(path)

    def do_POST(self) -> None:
        path = urlsplit(self.path).path
        # Read to the end even when refusing, or the next request of this connection would begin in the body.
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if not self.server.misbehave(self, path):
            self._answer_post(path, body)

    def _answer_get(self, path: str) -> None:
        if path == "/health":
            self.send_json(HTTPStatus.OK, {"status": "well"})
        elif path == "/manifest":
            self.send_json(HTTPStatus.OK, manifest_of(DAY))
        elif path == "/orders":
            self.send_json(HTTPStatus.OK, orders_of(DAY))
        else:
            self.send_json(HTTPStatus.NOT_FOUND, {"error": f"no {path} here"})

    def _answer_post(self, path: str, body: bytes) -> None:
        if path == f"/accounts/{CLOSED_ACCOUNT}/reports":
            self.send_json(HTTPStatus.GONE, {"error": f"the account {CLOSED_ACCOUNT} is closed"})
        elif path == "/night-closed" or (path.startswith("/accounts/") and path.endswith("/reports")):
            self.send_json(HTTPStatus.OK, {"received_bytes": len(body)})
        else:
            self.send_json(HTTPStatus.NOT_FOUND, {"error": f"no {path} here"})

    def send_json(
        self, status: HTTPStatus, content: object, *, headers: dict[str, str] | None = None
    ) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", **(headers or {})}.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        # Flushed line by line, so that whoever reads our output sees it as it happens.
        print(f"{datetime.now(UTC):%H:%M:%S} {format % args}", flush=True)


Trouble = Callable[[OrdersHandler], None]


def busy_seconds(seconds: int) -> Trouble:
    """503 that says in how many seconds to come again."""

    def answer(handler: OrdersHandler) -> None:
        handler.send_json(
            HTTPStatus.SERVICE_UNAVAILABLE, {"error": "busy"}, headers={"Retry-After": str(seconds)}
        )

    return answer


def busy_until(seconds: int) -> Trouble:
    """503 that says when to come again, as an HTTP date."""

    def answer(handler: OrdersHandler) -> None:
        until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=seconds)
        retry_after = format_datetime(until, usegmt=True)
        handler.send_json(
            HTTPStatus.SERVICE_UNAVAILABLE, {"error": "busy"}, headers={"Retry-After": retry_after}
        )

    return answer


def slow(handler: OrdersHandler) -> None:
    """Say nothing for so long that the client gives up, then hang up."""
    time.sleep(SLOW_SECONDS)
    handler.close_connection = True


def reset(handler: OrdersHandler) -> None:
    """Break the connection: linger 0 makes the kernel send RST instead of FIN."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.connection.close()
    handler.close_connection = True


#: What the first requests of each path get.
MISBEHAVIOUR: dict[str, list[Trouble]] = {
    "/manifest": [busy_seconds(2), slow],
    "/orders": [reset, busy_until(3)],
    "/night-closed": [busy_seconds(1)],
}


class OrdersServer(ThreadingHTTPServer):
    """Counts the requests of each path, because the n-th one decides what goes wrong."""

    daemon_threads = True

    def __init__(self, port: int) -> None:
        super().__init__(("127.0.0.1", port), OrdersHandler)
        self._counts: Counter[str] = Counter()
        self._lock = threading.Lock()

    def misbehave(self, handler: OrdersHandler, path: str) -> bool:
        """Do to this request what the script says; False when the path has got through its troubles."""
        with self._lock:
            count = self._counts[path]
            self._counts[path] += 1
        troubles = MISBEHAVIOUR.get(path, [])
        if count >= len(troubles):
            return False
        troubles[count](handler)
        return True

    def handle_error(self, request: object, client_address: object) -> None:
        # A client that has given up on a slow answer is part of the play, not a fault of the server.
        print(f"connection of {client_address} ended early", flush=True)


def main() -> None:
    """Serve until interrupted; the first line of output names the address."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--port", type=int, default=0, help="0 picks a free one")
    server = OrdersServer(parser.parse_args().port)
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        print("stopped", flush=True)


if __name__ == "__main__":
    main()
