"""A container engine for tests: the Engine API on a UNIX socket, with local processes as containers.

What a container runs is a real process here, in a session of its own, with an environment of what it was
given alone: so signals, exit statuses, output and time are real. Images are names. What the engine is to get
wrong is said by `faults`, and by the names of images.
"""

from __future__ import annotations

import io
import json
import os
import re
import shutil
import signal
import socketserver
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from threading import Condition, Event, Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

#: There from the beginning.
IMAGE = "local/tools:1"
VERSION = "1.45"
_NEVER = "0001-01-01T00:00:00Z"


class FakeContainer:
    """One container: created, running, exited."""

    def __init__(self, name: str, body: dict[str, Any], number: int) -> None:
        self.id = f"{number:064x}"
        self.name = name
        self.body = body
        self.root = Path(tempfile.mkdtemp(prefix="fake-container-"))
        self.frames: list[bytes] = []
        self.exit_code = 0
        self.changed = Condition()
        self.process: subprocess.Popen[bytes] | None = None
        self.is_over = False
        self._threads: list[Thread] = []

    @property
    def is_running(self) -> bool:
        return self.process is not None and not self.is_over

    def start(self) -> str:
        """Run it; why that cannot be done, or nothing."""
        command = [*(self.body.get("Entrypoint") or []), *(self.body.get("Cmd") or [])]
        env = dict(variable.split("=", 1) for variable in self.body["Env"])
        inside = {name: re.sub("^/ostinato", f"{self.root}/ostinato", value) for name, value in env.items()}
        try:
            self.process = subprocess.Popen(
                command,
                env={"PATH": os.environ["PATH"], **inside},
                cwd=self.root,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
        except FileNotFoundError:
            return f'exec: "{command[0]}": executable file not found in $PATH: unknown'
        except PermissionError:
            return f'exec: "{command[0]}": permission denied: unknown'
        pipes = ((1, self.process.stdout), (2, self.process.stderr))
        self._threads = [Thread(target=self._read, args=pipe) for pipe in pipes]
        for thread in [*self._threads, Thread(target=self._reap)]:
            thread.start()
        return ""

    def _read(self, stream: int, pipe: Any) -> None:
        while data := pipe.read1(65536):
            with self.changed:
                self.frames.append(bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data)
                self.changed.notify_all()
        pipe.close()

    def _reap(self) -> None:
        assert self.process is not None
        code = self.process.wait()
        # With a container's first process the kernel ends all others.
        self.signal(signal.SIGKILL)
        for thread in self._threads:
            thread.join()
        with self.changed:
            self.exit_code = 128 - code if code < 0 else code
            self.is_over = True
            self.changed.notify_all()

    def signal(self, number: int) -> None:
        """SIGKILL ends all of it, as the kernel does; any other signal is for the first process."""
        if self.process is not None:
            with suppress(ProcessLookupError):
                (os.killpg if number == signal.SIGKILL else os.kill)(self.process.pid, number)

    def wait(self, limit_s: float | None = None) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self.is_over or self.process is None, limit_s)

    @property
    def state(self) -> dict[str, Any]:
        has_oom = self.is_over and self.exit_code and "FAKE_OOM=1" in self.body["Env"]
        status = "running" if self.is_running else "exited" if self.is_over else "created"
        return {
            "Status": status,
            "Running": self.is_running,
            "OOMKilled": bool(has_oom),
            "Pid": self.process.pid if self.is_running and self.process else 0,
            "ExitCode": self.exit_code,
            "Error": "",
            "StartedAt": _NEVER if self.process is None else "2026-01-01T00:00:00.5Z",
        }

    def end(self) -> None:
        """Kill it and delete what it had."""
        self.signal(signal.SIGKILL)
        self.wait(10)
        shutil.rmtree(self.root, ignore_errors=True)


class FakeEngine:
    """The engine. `faults` are words for what goes wrong, looked at in each request."""

    def __init__(self, socket: Path) -> None:
        self.socket = socket
        self.images = {IMAGE}
        self.containers: dict[str, FakeContainer] = {}
        self.faults: set[str] = set()
        #: Of each request: method and path, without the version.
        self.requests: list[str] = []
        #: Set: answers come. Cleared: everything waits.
        self.answers = Event()
        self.answers.set()
        self._number = 0
        self._server: _Server | None = None
        self._thread: Thread | None = None

    def listen(self) -> None:
        """Begin to answer; also after `die`."""
        self._server = _Server(str(self.socket), _Handler)
        self._server.engine = self
        self._thread = Thread(target=self._server.serve_forever, args=(0.02,))
        self._thread.start()

    def die(self) -> None:
        """Answer nothing more, and break off what is under way; containers run on."""
        if self._server is None or self._thread is None:
            return
        server, self._server = self._server, None
        server.is_dead = True
        server.shutdown()
        self._thread.join()
        self.socket.unlink(missing_ok=True)
        self.answers.set()
        for container in list(self.containers.values()):
            with container.changed:
                container.changed.notify_all()
        server.break_connections()
        server.server_close()

    def close(self) -> None:
        self.die()
        for container in list(self.containers.values()):
            container.end()

    def find(self, name: str) -> FakeContainer | None:
        return next((each for each in list(self.containers.values()) if name in (each.name, each.id)), None)

    def create(self, name: str, body: dict[str, Any]) -> FakeContainer:
        self._number += 1
        container = FakeContainer(name, body, self._number)
        self.containers[container.id] = container
        return container

    def running(self) -> list[FakeContainer]:
        return [each for each in list(self.containers.values()) if each.is_running]


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    # What a test breaks off must not hold its end up.
    daemon_threads = False
    block_on_close = True
    request_queue_size = 128
    engine: FakeEngine
    is_dead = False

    def __init__(self, *arguments: Any) -> None:
        self._open: set[Any] = set()
        super().__init__(*arguments)

    def process_request(self, request: Any, client_address: Any) -> None:
        self._open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self._open.discard(request)
        super().shutdown_request(request)

    def break_connections(self) -> None:
        for request in list(self._open):
            with suppress(OSError):
                request.shutdown(2)

    def handle_error(self, request: Any, client_address: Any) -> None:
        return  # the other side is gone


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: _Server

    def setup(self) -> None:
        # A UNIX socket has no address of its other side.
        self.client_address = ("", 0)
        super().setup()

    def log_message(self, *_: object) -> None:
        return

    def _route(self) -> None:
        engine = self.server.engine
        parts = urlsplit(self.path)
        self.query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        path = re.sub(r"^/v[0-9.]+/", "/", unquote(parts.path))
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        engine.requests.append(f"{self.command} {path}")
        engine.answers.wait()
        if self.server.is_dead:
            self.close_connection = True
            return
        match [self.command, *path.strip("/").split("/")]:
            case ["GET", "_ping"]:
                self._answer(200, b"OK", **{"Api-Version": VERSION})
            case ["GET", "images", *name, "json"]:
                known = "/".join(name) in engine.images
                self._json(200, {}) if known else self._refuse(404, f"No such image: {'/'.join(name)}")
            case ["POST", "images", "create"]:
                self._pull(f"{self.query['fromImage']}:{self.query['tag']}")
            case ["POST", "containers", "create"]:
                self._create()
            case ["GET", "containers", "json"]:
                self._list()
            case [_, "containers", name, *rest]:
                container = engine.find(name)
                if container is None:
                    self._refuse(404, f"No such container: {name}")
                else:
                    self._on_container(container, "/".join(rest))
            case _:
                self._refuse(404, "page not found")

    do_GET = do_POST = do_PUT = do_DELETE = _route

    def _pull(self, image: str) -> None:
        if image.startswith("missing/"):
            message = f"pull access denied for {image}, repository does not exist"
            return self._refuse(404, message)
        self._begin_chunks()
        self._chunk(json.dumps({"status": "Pulling"}).encode() + b"\r\n")
        if image.startswith("stuck/"):
            while not self.server.is_dead and "stuck" not in self.server.engine.faults:
                self._chunk(b"")  # nothing
                self.server.engine.answers.wait()
                Event().wait(0.05)
        elif image.startswith("broken/"):
            said = {"errorDetail": {"message": "toomanyrequests: slow down"}, "error": "toomanyrequests"}
            self._chunk(json.dumps(said).encode() + b"\r\n")
        else:
            self.server.engine.images.add(image)
        return self._end_chunks()

    def _create(self) -> None:
        engine, name, body = self.server.engine, self.query["name"], json.loads(self.body)
        if body["Image"] not in engine.images:
            return self._refuse(404, f"No such image: {body['Image']}")
        if engine.find(name) is not None:
            return self._refuse(409, f'Conflict. The container name "/{name}" is already in use')
        if any(mount["Source"] == "/nowhere" for mount in body["HostConfig"].get("Mounts", [])):
            return self._refuse(400, 'invalid mount config for type "bind": bind source path does not exist')
        return self._json(201, {"Id": engine.create(name, body).id, "Warnings": []})

    def _list(self) -> None:
        wanted = json.loads(self.query.get("filters", "{}")).get("label", [])
        found = [
            {"Id": each.id, "Names": [f"/{each.name}"], "Labels": each.body["Labels"]}
            for each in list(self.server.engine.containers.values())
            if all(word in (f"{k}={v}" for k, v in each.body["Labels"].items()) for word in wanted)
        ]
        self._json(200, found)

    def _on_container(self, container: FakeContainer, act: str) -> None:
        engine = self.server.engine
        match self.command, act:
            case "GET", "json":
                self._json(200, {"Id": container.id, "State": container.state})
            case "PUT", "archive":
                with tarfile.open(fileobj=io.BytesIO(self.body)) as archive:
                    archive.extractall(container.root, filter="fully_trusted")
                self._answer(200, b"")
            case "POST", "start":
                refusal = container.start()
                if "start unanswered" in engine.faults:
                    self.close_connection = True
                elif refusal:
                    self._refuse(400, f"failed to create task for container: {refusal}")
                else:
                    self._answer(204, b"")
            case "POST", "wait":
                self._wait(container)
            case "GET", "logs":
                self._logs(container)
            case "POST", "stop":
                container.signal(signal.SIGTERM)
                if not container.wait(float(self.query["t"])):
                    container.signal(signal.SIGKILL)
                    container.wait()
                self._answer(204, b"")
            case "POST", "kill":
                if not container.is_running:
                    return self._refuse(409, f"container {container.id} is not running")
                container.signal(signal.SIGKILL)
                container.wait(10)
                self._answer(204, b"")
            case "DELETE", "":
                container.end()
                engine.containers.pop(container.id, None)
                self._answer(204, b"")
            case _:
                self._refuse(404, "page not found")
        return None

    def _wait(self, container: FakeContainer) -> None:
        self._begin_chunks()
        if "wait ends early" not in self.server.engine.faults:
            with container.changed:
                container.changed.wait_for(lambda: container.is_over or self.server.is_dead)
        self._chunk(json.dumps({"StatusCode": container.exit_code}).encode())
        self._end_chunks()

    def _logs(self, container: FakeContainer) -> None:
        faults = self.server.engine.faults
        if "no logs" in faults:
            return self._refuse(501, "configured logging driver does not support reading")
        self._begin_chunks()
        sent = 0
        while True:
            with container.changed:
                while not (len(container.frames) > sent or container.is_over or self.server.is_dead):
                    container.changed.wait()
                frames, is_over = b"".join(container.frames[sent:]), container.is_over
                sent = len(container.frames)
            if self.server.is_dead:
                return None
            if frames:
                self._chunk(frames)
            if frames and "logs break once" in faults:
                faults.discard("logs break once")
                self.close_connection = True
                return self.connection.shutdown(2)
            if is_over and "logs never end" not in faults:
                return self._end_chunks()
            if is_over:
                Event().wait(0.05)

    # ── answers ───────────────────────────────────────────────────────────────────────────────────────

    def _answer(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if status != 204:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _json(self, status: int, said: object) -> None:
        self._answer(status, json.dumps(said).encode(), **{"Content-Type": "application/json"})

    def _refuse(self, status: int, message: str) -> None:
        self._json(status, {"message": message})

    def _begin_chunks(self) -> None:
        self.send_response(200)
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()

    def _chunk(self, data: bytes) -> None:
        if data:
            self.wfile.write(b"%x\r\n%b\r\n" % (len(data), data))

    def _end_chunks(self) -> None:
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def fake_engine(folder: Path) -> Iterator[FakeEngine]:
    """An engine that answers, and ends with all that it has."""
    engine = FakeEngine(folder / "engine.sock")
    engine.listen()
    try:
        yield engine
    finally:
        engine.close()
