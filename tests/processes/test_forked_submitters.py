"""Processes forked from one that has used the SDK, over each database: web servers, multiprocessing."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from pathlib import Path

import psutil
import pytest
from support.servers import SERVER_KINDS, fresh_database
from support.services import Services

REQUEST_COUNT = 80
CHILD_COUNT = 4
#: The parent submits before its first fork, and at its end.
PARENT_COUNT = 2

APP = """
@app.task(overlap="allow")
def visit(context: Context, number: int) -> int:
    witness(context, "start")
    witness(context, "end")
    return number
"""

#: Imports the app, uses it, and forks its workers as pre-forking web servers do; who has died is replaced.
WEB = f"""
import json, os, signal, sys
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from app import app, visit


class Quiet(WSGIRequestHandler):
    def log_message(self, *_):
        pass


def site(environ, start_response):
    number = int(environ["PATH_INFO"].strip("/"))
    handle = visit.options(key=f"visit-{{number}}").submit(number)
    start_response("200 OK", [("Content-Type", "application/json")])
    return [json.dumps([handle.id, handle.created, os.getpid()]).encode()]


def end(*_):
    sys.exit(0)


signal.signal(signal.SIGTERM, end)
visit.submit(-1)
server = WSGIServer(("127.0.0.1", 0), Quiet)
server.set_app(site)
print(server.server_port, flush=True)
children = set()
try:
    while True:
        while len(children) < {CHILD_COUNT}:
            child = os.fork()
            if not child:
                children = set()
                server.serve_forever()
            children.add(child)
        children.discard(os.wait()[0])
finally:
    for child in children:
        os.kill(child, signal.SIGTERM)
    if children:
        assert {{os.waitpid(child, 0)[1] for child in children}} == {{0}}
        visit.submit(-2)
"""

#: As `multiprocessing` and its pools do it, with batches; each child says whom it is connected with.
POOL = f"""
import multiprocessing
import psutil

def sockets():
    return sorted(each.laddr.port for each in psutil.Process().net_connections("tcp") if each.raddr)

def work(name):
    ids = [visit.submit(number).id for number in range(50)]
    ids += [handle.id for handle in app.submit_many(visit, [{{"number": 1}}] * 50)]
    (HERE / f"child-{{name}}.json").write_text(json.dumps([ids, sockets()]))

app.apply()
visit.submit(-1)
of_parent = sockets()
context = multiprocessing.get_context("fork")
children = [context.Process(target=work, args=(name,)) for name in range({CHILD_COUNT})]
for child in children:
    child.start()
for child in children:
    child.join()
    assert child.exitcode == 0
visit.submit(-2)
(HERE / "parent.json").write_text(json.dumps(of_parent))
"""


@pytest.fixture(params=("sqlite", *SERVER_KINDS))
def services(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Services]:
    on_server = nullcontext() if request.param == "sqlite" else fresh_database(request.param)
    with on_server as database:
        started = Services(tmp_path, APP, database="" if database is None else database.url)
        if database is None:
            # Made by whoever owns it, which on a server a migration has done.
            started.start_scheduler()
            started.kill("scheduler", signal.SIGTERM)
        yield started
        started.close()


class Web:
    """The web server, and who asks it."""

    def __init__(self, services: Services) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", WEB], cwd=services.folder, env=services.environment, stdout=subprocess.PIPE
        )
        assert self.process.stdout is not None
        self.port = int(self.process.stdout.readline())

    def workers(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def ask(self, number: int) -> tuple[str, bool, int]:
        """Id, whether it was new, and the process that answered; asked again until one has."""
        while True:
            try:
                with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{number}", timeout=30) as answer:
                    identity, created, pid = json.load(answer)
                    return identity, created, pid
            except (OSError, ValueError):
                assert self.process.poll() is None, "the web server has ended"

    def end(self) -> int:
        self.process.terminate()
        code = self.process.wait(30)
        assert self.process.stdout is not None
        self.process.stdout.close()
        return code


def test_c081_workers_of_a_web_server_submit_and_schedule_nothing_and_one_killed_loses_and_doubles_nothing(
    services: Services,
) -> None:
    web = Web(services)
    with ThreadPoolExecutor(8) as visitors:
        asking = [visitors.submit(web.ask, number) for number in range(REQUEST_COUNT // 2)]
        services.until(lambda: sum(each.done() for each in asking) >= REQUEST_COUNT // 8)
        web.workers()[0].kill()
        services.until(lambda: len(web.workers()) == CHILD_COUNT)
        asking += [visitors.submit(web.ask, number) for number in range(REQUEST_COUNT // 2, REQUEST_COUNT)]
        answers = [each.result() for each in asking]
    assert len({pid for _, _, pid in answers}) > 1
    assert len({identity for identity, _, _ in answers}) == REQUEST_COUNT
    # Nobody is a scheduler: there is no node, no owner, and nothing has moved.
    assert services.rows("select count(*) from node") == [(0,)]
    assert services.rows("select count(*) from partition_owner where owner <> ''") == [(0,)]
    assert web.end() == 0
    stored = REQUEST_COUNT + PARENT_COUNT
    assert services.rows("select state, count(*) from instance group by state") == [("pending", stored)]
    services.start_scheduler()
    services.start_worker(slots=4)
    services.until(
        lambda: services.rows("select state, count(*) from instance group by state") == [("success", stored)]
    )
    assert all(services.witnessed(identity) == {1: ["start", "end"]} for identity, _, _ in answers)


def test_c081_children_of_multiprocessing_have_connections_of_their_own_and_lose_and_double_nothing(
    services: Services,
) -> None:
    services.run(POOL)
    of_parent = set(json.loads((services.folder / "parent.json").read_text(encoding="utf-8")))
    told = [
        json.loads((services.folder / f"child-{name}.json").read_text(encoding="utf-8"))
        for name in range(CHILD_COUNT)
    ]
    ids = [identity for child_ids, _ in told for identity in child_ids]
    assert len(set(ids)) == len(ids) == CHILD_COUNT * 100
    assert services.rows("select count(*) from instance") == [(len(ids) + PARENT_COUNT,)]
    own = [set(ports) - of_parent for _, ports in told]
    if "sqlite" not in services.database:
        assert of_parent
        assert all(own)
        assert len(set().union(*own)) == sum(map(len, own))
