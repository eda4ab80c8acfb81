"""C123: the volume of a server fills up under real processes, and is freed: nothing lost, nothing twice."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import psutil
import pytest
from support.private_databases import with_schema
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer
from support.services import Services
from support.small_disk import SmallDisk, small_disk

APP = """
@app.task(timeout="5m", overlap="allow")
def waits(context: Context, what: str) -> str:
    witness(context, "start")
    while not (HERE / what).exists():
        time.sleep(0.02)
    witness(context, "end")
    return os.urandom(100_000).hex()


@app.task(overlap="allow")
def large(text: str) -> int:
    return len(text)
"""
RUN_COUNT = 3
#: Longer than the workers' lease, which is 6 s here.
FULL_SECONDS = 8.0
#: Of one processor, while the disk is full.
IDLE_SHARE_MAX = 0.3
DISK_BYTES = 200 << 20


@pytest.fixture(params=[PrivatePostgres, PrivateMariadb])
def server_and_disk(request: pytest.FixtureRequest) -> Iterator[tuple[PrivateServer, SmallDisk]]:
    """A server whose data are on a small disk, and that disk."""
    kind: type[PrivateServer] = request.param
    server = kind()
    try:
        with small_disk(server.folder / "data", size_bytes=DISK_BYTES) as disk:
            owner = server.folder.stat()
            os.chown(disk.path, owner.st_uid, owner.st_gid)
            disk.path.chmod(0o700)
            server.start()
            yield server, disk
            server.kill()
    finally:
        server.close()


@pytest.fixture
def services(tmp_path: Path, server_and_disk: tuple[PrivateServer, SmallDisk]) -> Iterator[Services]:
    server, _ = server_and_disk
    started = Services(tmp_path, APP, database=with_schema(server, "jobs").url)
    yield started
    for name in ("now", "later"):
        (tmp_path / name).touch()
    started.kill_all()


def _asked(services: Services, path: str) -> tuple[int, str]:
    try:
        with urlopen(f"http://127.0.0.1:{services.health_port}{path}", timeout=10) as answer:
            return answer.status, answer.read().decode()
    except HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _says(services: Services, event: str) -> int:
    """How many lines of the scheduler's log are about an event."""
    lines = (services.folder / "scheduler.log").read_text().splitlines()
    return sum(f'"event":"{event}"' in line for line in lines)


def _submit_large(services: Services) -> subprocess.CompletedProcess[str]:
    """One instance that needs room of its own, and cannot be packed."""
    (services.folder / "payload.json").write_text(json.dumps({"text": os.urandom(100_000).hex()}))
    return subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "task", "trigger", "large", "--payload", "@payload.json"],
        cwd=services.folder,
        env=services.environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


def test_c123_a_servers_volume_that_fills_under_running_tasks_and_is_freed(
    services: Services, server_and_disk: tuple[PrivateServer, SmallDisk]
) -> None:
    server, disk = server_and_disk
    services.start_scheduler()
    services.start_worker(slots=4)
    ids = services.run(f"print(*[waits.submit('now').id for _ in range({RUN_COUNT})])").split()
    services.until(lambda: all(services.witnessed(each) for each in ids))
    disk.fill()
    scheduler = psutil.Process(services.processes["scheduler"].pid)
    before, began = scheduler.cpu_times(), time.monotonic()
    (services.folder / "now").touch()
    services.until(lambda: all(services.witnessed(each) == {1: ["start", "end"]} for each in ids))
    # Their results find no room; submissions are refused, and the node says that it is in trouble.
    refused = [_submit_large(services) for _ in range(2)]
    assert {done.returncode for done in refused} == {3}, refused
    assert all("Traceback" not in done.stderr for done in refused)
    services.until(lambda: _asked(services, "/readyz")[0] == 503)
    services.pass_time(max(0.0, FULL_SECONDS - (time.monotonic() - began)))
    after, took = scheduler.cpu_times(), time.monotonic() - began
    assert (after.user + after.system - before.user - before.system) / took < IDLE_SHARE_MAX
    has_stood = server.answers()
    assert has_stood or isinstance(server, PrivateMariadb), server.log()
    if has_stood:
        assert all("DATABASE_FULL" in done.stderr for done in refused), refused
        assert all("free space on the disk of the database" in done.stderr for done in refused)
        assert _says(services, "database_full") == 1
        assert _says(services, "loop_failed") == 0
        assert "ostinato_database_full 1.0" in _asked(services, "/metrics")[1]
    disk.free()
    if not has_stood:
        # MariaDB aborts where a page finds no room in a file that it had been promised.
        server.kill()
        server.start()

    services.until(lambda: all(services.state(each) == ("success", 1) for each in ids))
    services.until(lambda: _asked(services, "/readyz")[0] == 200)
    accepted = _submit_large(services)
    assert accepted.returncode == 0, accepted.stderr
    ended = "select count(*) from instance where state = 'success'"
    services.until(lambda: services.rows(ended) == [(RUN_COUNT + 1,)])
    assert services.rows("select count(*) from instance") == [(RUN_COUNT + 1,)]
    assert all(services.witnessed(each) == {1: ["start", "end"]} for each in ids)
    assert _says(services, "database_full") == _says(services, "database_writable") <= 1
