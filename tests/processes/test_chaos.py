"""``ostinato chaos`` against real clusters: what it breaks comes back, and nothing is lost or runs twice."""

from __future__ import annotations

import faulthandler
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import yaml
from support.chaos import Chaos
from support.private_servers import PrivatePostgres, is_installed
from support.small_disk import small_disk

_ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(_ROOT / "bench"))

from chaos.databases import upgrade  # noqa: E402 - found on the path above
from chaos.processes import Member, Node, Worker, environment_of, free_port  # noqa: E402 - found on the path above

_EXAMPLE = _ROOT / "examples/chaos"
_OSTINATO = [sys.executable, "-m", "ostinato.cli"]
_LIMIT_S = 240
_PROBE = {"task": "probe", "rate": 5, "runs_for": "5s", "worker_lease": "6s", "settle": "1m"}


@pytest.fixture
def chaos(tmp_path: Path) -> Iterator[Chaos]:
    shutil.copy(_EXAMPLE / "jobs.py", tmp_path)
    (tmp_path / "witness").mkdir()
    # Longer than a test may take where the machine is busy; the command has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    made = Chaos(tmp_path)
    yield made
    made.end()


def test_a_cluster_on_sqlite_that_chaos_starts_survives_kills_a_pause_cuts_delay_and_a_full_disk(
    chaos: Chaos,
) -> None:
    """The example's scenario, faster, with its database on a disk that is filled."""
    api, behind, before = free_port(), free_port(), free_port()
    with small_disk(chaos.folder / "disk", size_bytes=32 << 20) as disk:
        scenario = _example(chaos.folder, {18640: api, 18641: behind, 18642: before})
        scenario["processes"]["scheduler"]["start"][-1] = f"sqlite:///{disk.path}/chaos.db"
        scenario["disks"] = {"data": {"folder": str(disk.path), "leave_free": "0B"}}
        scenario["steps"] = [
            # Longer than its lease: its guardian ends what it runs.
            {"pause": "worker-b", "at": "500ms", "for": "7s"},
            {"kill": "worker-a", "at": "1s"},
            {"fill": "data", "at": "2s", "for": "1s"},
            {"cut": "scheduler", "at": "3500ms", "for": "500ms"},
            {"delay": "scheduler", "at": "4s", "for": "1s", "by": "100ms"},
            {"cut": "scheduler", "at": "5s", "for": "1s", "how": "silent"},
            {"kill": "scheduler", "at": "6s"},
        ]
        report = chaos.report(scenario, limit_s=_LIMIT_S)
    assert [fault["error"] for fault in report["faults"]] == [None] * 7
    assert all(fault["recovered_after"] for fault in report["faults"])
    workload = report["workload"]
    assert workload["states"] == {"success": workload["accepted"]}
    assert workload["accepted"] >= len(scenario["steps"])
    assert report["executions"] >= workload["accepted"]
    assert report["violations"] == report["restored"] == []


def _example(folder: Path, ports: dict[int, int]) -> dict[str, Any]:
    """The scenario of the example on free ports, run by this interpreter in `folder`."""
    text = (_EXAMPLE / "restarts.yaml").read_text("utf-8")
    for published, free in ports.items():
        text = text.replace(str(published), str(free))
    scenario: dict[str, Any] = yaml.safe_load(text.replace("out/", ""))
    for process in scenario["processes"].values():
        process["start"] = [*_OSTINATO, *process["start"].split()[1:]]
    scenario["workload"] |= {"rate": 5, "runs_for": "5s"}
    scenario["recover_within"] = "1m"
    del scenario["version"]
    return scenario


class _Way(NamedTuple):
    """Where a worker dials."""

    address: str


class Supervised:
    """Members that somebody else than chaos keeps running: started again, with a pidfile each."""

    def __init__(self, members: list[Member], folder: Path) -> None:
        self.members = members
        self._folder = folder
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def pidfile(self, member: Member) -> Path:
        return self._folder / f"{member.name}.pid"

    def _watch(self) -> None:
        while not self._ending.wait(0.1):
            for member in self.members:
                if not member.is_running:
                    member.start()
                    self.pidfile(member).write_text(str(member.pid))

    def __enter__(self) -> Supervised:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()
        for member in reversed(self.members):
            member.stop()


@contextmanager
def restarting(server: PrivatePostgres, folder: Path) -> Iterator[str]:
    """A command that restarts the server and ends once it has been restarted."""
    ending = threading.Event()
    asked, done = folder / "asked", folder / "done"

    def serve() -> None:
        while not ending.wait(0.05):
            if asked.exists():
                asked.unlink()
                server.restart()
                done.touch()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"rm -f {done}; touch {asked}; until [ -e {done} ]; do sleep 0.05; done"
    finally:
        ending.set()
        thread.join()


def test_a_cluster_on_postgresql_that_runs_already_survives_kills_pauses_a_cut_and_a_restart_of_the_database(
    chaos: Chaos,
) -> None:
    if not is_installed(PrivatePostgres):
        pytest.skip("PostgreSQL is not installed")
    folder, before = chaos.folder, free_port()
    with PrivatePostgres() as server, restarting(server, folder) as restart:
        database = server.make_database("jobs")
        upgrade(database)
        environment = environment_of(folder, database, worker_lease="6s")
        environment |= {"WITNESS": str(folder / "witness")}
        nodes = [Node(number, folder=folder, environment=environment) for number in range(2)]
        # Its way to the first node leads through chaos.
        ways = [_Way(f"127.0.0.1:{before}"), _Way(nodes[1].address)]
        worker = Worker(
            0, ways, app="jobs:app", slots=2, async_slots=1, folder=folder, environment=environment
        )
        with Supervised([*nodes, worker], folder) as supervised:
            for node in nodes:
                node_is_up(node)
            report = chaos.report(
                {
                    "processes": {
                        member.name: {"pidfile": str(supervised.pidfile(member)), "command": "ostinato.cli"}
                        for member in supervised.members
                    },
                    "proxies": {"node-0": {"listen": f"127.0.0.1:{before}", "target": nodes[0].address}},
                    "commands": {"restart-database": {"run": restart}},
                    "probes": {node.name: f"http://127.0.0.1:{node.api_port}/readyz" for node in nodes},
                    "steps": [
                        {"kill": "node-1", "at": "500ms"},
                        {"cut": "node-0", "at": "1s", "for": "1s", "how": "silent"},
                        {"run": "restart-database", "at": "2500ms"},
                        # Longer than its lease: the other one takes over.
                        {"pause": "node-0", "at": "5s", "for": "4s"},
                        {"kill": "worker-0", "at": "9s"},
                    ],
                    "workload": {**_PROBE, "url": database},
                    "witness": "witness",
                },
                limit_s=_LIMIT_S,
            )
    assert [fault["error"] for fault in report["faults"]] == [None] * 5
    assert report["faults"][0]["recovered_after"] is not None
    workload = report["workload"]
    assert workload["states"] == {"success": workload["accepted"]}
    assert report["violations"] == report["restored"] == []


def node_is_up(node: Node) -> None:
    while not node.is_running:
        threading.Event().wait(0.05)
    node.wait_until_ready()


def test_ctrl_c_in_the_middle_of_a_cut_ends_everything_that_chaos_has_started(chaos: Chaos) -> None:
    api, behind, before = free_port(), free_port(), free_port()
    scenario = _example(chaos.folder, {18640: api, 18641: behind, 18642: before})
    scenario["steps"] = [{"cut": "scheduler", "at": "0s", "for": "1h"}]
    process = chaos.start(scenario, "--yes-break-things", "--json")
    assert process.stderr is not None
    assert process.stderr.readline() == "+0s cut scheduler for 1h\n"
    os.kill(process.pid, signal.SIGINT)
    stdout, _ = process.communicate(timeout=60)
    assert process.returncode == 130
    report = json.loads(stdout)
    assert report["interrupted"] == "SIGINT"
    assert report["restored"] == ["scheduler no longer cut"]
    listening = subprocess.run(
        ["/bin/sh", "-c", "cat /proc/net/tcp"], capture_output=True, text=True, check=True
    )
    assert not any(f":{port:04X} 00000000" in listening.stdout for port in (api, behind, before))
