"""What chaos breaks is restored on every way out: at the end, by signals, by errors, after its own death."""

from __future__ import annotations

import errno
import json
import os
import re
import signal
import socket
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from support.chaos import Chaos, MakeVictim, until
from support.processes_of import is_living
from support.small_disk import small_disk

from ostinato import App

_FOR_EVER = "1h"


def test_without_consent_nothing_is_done_and_the_plan_does_nothing_either(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    scenario = {"processes": {"node-a": victim.entry}, "steps": [{"kill": "node-a", "at": "0s"}]}
    refused = chaos.run(scenario)
    assert refused.returncode == 2
    assert "CHAOS_REFUSED: --yes-break-things: " in refused.stderr
    planned = chaos.run(scenario, "--plan")
    assert planned.returncode == 0
    assert f"processes node-a: pid {victim.pid}, since " in planned.stdout
    assert "kill node-a" in planned.stdout
    both = chaos.run(scenario, "--plan", "--yes-break-things", "--json")
    assert json.loads(both.stdout)["steps"] == [
        {"at": "0s", "what": "kill node-a; somebody else starts it again", "step": 0}
    ]
    assert victim.is_living


def test_what_is_not_as_the_scenario_says_is_refused_before_anything_is_broken(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": victim.entry, "node-b": {"pid": os.getpid(), "command": "python"}},
        "steps": [{"kill": "node-a", "at": "0s"}],
    }
    for option in ("--plan", "--yes-break-things"):
        refused = chaos.run(scenario, option)
        assert refused.returncode == 2
        assert "CHAOS_REFUSED: processes.node-b: chaos descends from" in refused.stderr
    assert victim.is_living


@pytest.mark.parametrize(
    ("section", "field"),
    [
        ({"disks": {"data": {"folder": "missing", "leave_free": 0}}}, "disks.data.folder"),
        ({"witness": "missing"}, "witness"),
        ({"processes": {"own": {"start": "true", "log": "missing/log"}}}, "processes.own.log"),
        ({"processes": {"own": {"start": "missing-program --now"}}}, "processes.own.start"),
    ],
    ids=["disk", "witness", "log", "program"],
)
def test_a_folder_or_program_that_is_missing_is_refused(
    section: dict[str, object], field: str, chaos: Chaos
) -> None:
    refused = chaos.run({**section, "steps": []}, "--yes-break-things")
    assert refused.returncode == 2
    assert f"CHAOS_REFUSED: {field}: there is no " in refused.stderr


def test_a_cluster_that_is_not_well_before_is_not_broken(chaos: Chaos, make_victim: MakeVictim) -> None:
    victim = make_victim()
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        scenario = {
            "processes": {"node-a": victim.entry},
            "probes": {"node-a": f"127.0.0.1:{silent.getsockname()[1]}"},
            "steps": [{"kill": "node-a", "at": "0s"}],
            "recover_within": "1s",
        }
        refused = chaos.run(scenario, "--yes-break-things")
    assert refused.returncode == 2
    assert "CHAOS_REFUSED: probes.node-a: does not answer within 1s, before anything is broken" in (
        refused.stderr
    )
    assert victim.is_living


def test_a_paused_process_goes_on_when_its_time_is_over(chaos: Chaos, make_victim: MakeVictim) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": victim.entry},
        "steps": [{"pause": "node-a", "at": "0s", "for": "500ms"}],
    }
    (fault,) = chaos.report(scenario)["faults"]
    assert (fault["detail"], fault["error"]) == (f"pid {victim.pid}", None)
    # The system tells a parent of a child that was stopped and goes on, and of no other.
    _, status = os.waitpid(victim.pid, os.WCONTINUED | os.WNOHANG)
    assert os.WIFCONTINUED(status)
    assert not victim.is_stopped


@pytest.fixture
def sighup_heeded() -> Iterator[None]:
    """Tests that are run under ``nohup`` hand down that SIGHUP is ignored."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP], ids=lambda each: each.name)
def test_a_signal_in_the_middle_of_a_pause_ends_it_with_130_and_the_process_goes_on(
    number: signal.Signals, chaos: Chaos, make_victim: MakeVictim, sighup_heeded: None
) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": victim.entry},
        "steps": [{"pause": "node-a", "at": "0s", "for": _FOR_EVER}],
    }
    process = chaos.start(scenario, "--yes-break-things")
    until(lambda: victim.is_stopped)
    process.send_signal(number)
    stdout, _ = process.communicate(timeout=30)
    assert process.returncode == 130
    assert f"restored on the way out: node-a (pid {victim.pid}) continued" in stdout
    assert f"ended early by {number.name}" in stdout
    assert not victim.is_stopped
    assert victim.is_living


def test_when_chaos_itself_is_killed_a_paused_process_goes_on_and_an_undo_is_run(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": victim.entry},
        "commands": {"stop": {"run": "touch done", "undo": ["touch", "undone"]}},
        "steps": [{"run": "stop", "at": "0s"}, {"pause": "node-a", "at": "0s", "for": _FOR_EVER}],
    }
    process = chaos.start(scenario, "--yes-break-things")
    until(lambda: victim.is_stopped and (chaos.folder / "done").exists())
    process.kill()
    until(lambda: not victim.is_stopped)
    until((chaos.folder / "undone").exists)
    assert process.wait(10) == -signal.SIGKILL
    assert victim.is_living


def test_when_chaos_itself_is_killed_a_command_under_way_ends_before_its_undo(chaos: Chaos) -> None:
    # One that has ended may wait for its parent to be told.
    still = "ps -o stat= -p $(cat pid) | grep -qv Z || touch undone"
    scenario = {
        "commands": {"stop": {"run": "echo $$ > pid; sleep 600; true", "undo": still}},
        "steps": [{"run": "stop", "at": "0s"}],
    }
    process = chaos.start(scenario, "--yes-break-things")
    pidfile = chaos.folder / "pid"
    until(lambda: pidfile.exists() and pidfile.read_text())
    process.kill()
    until((chaos.folder / "undone").exists)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


def test_when_chaos_itself_is_killed_after_a_kill_the_process_is_started_again(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": {**victim.entry, "again": "touch again", "again_after": "12h"}},
        "steps": [{"kill": "node-a", "at": "0s"}],
    }
    process = chaos.start(scenario, "--yes-break-things")
    until(lambda: not victim.is_living)
    process.kill()
    until((chaos.folder / "again").exists)
    process.communicate(timeout=30)
    assert process.returncode == -signal.SIGKILL


def test_two_runs_do_not_have_hold_of_one_process(chaos: Chaos, make_victim: MakeVictim) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": victim.entry},
        "steps": [{"pause": "node-a", "at": "0s", "for": _FOR_EVER}],
    }
    first = chaos.start(scenario, "--yes-break-things")
    until(lambda: victim.is_stopped)
    second = chaos.run(scenario, "--yes-break-things")
    assert second.returncode == 2
    assert f"processes.node-a: another run of chaos has hold of process {victim.pid}" in second.stderr
    assert victim.is_stopped
    first.send_signal(signal.SIGINT)
    first.communicate(timeout=30)
    assert not victim.is_stopped


def test_an_undo_is_run_after_its_time_at_the_end_and_on_the_way_out_once(chaos: Chaos) -> None:
    def commands(**steps: str) -> dict[str, object]:
        return {
            "commands": {"stop": {"run": "echo stop >> log", "undo": "echo undo >> log"}},
            "steps": [{"run": "stop", "at": "0s", **steps}],
        }

    log = chaos.folder / "log"
    chaos.report(commands(**{"for": "100ms"}))
    assert log.read_text() == "stop\nundo\n"
    chaos.report(commands())
    assert log.read_text() == "stop\nundo\n" * 2
    process = chaos.start(commands(**{"for": _FOR_EVER}), "--yes-break-things")
    until(lambda: log.read_text() == "stop\nundo\n" * 2 + "stop\n")
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert log.read_text() == "stop\nundo\n" * 3


def test_commands_that_fail_and_faults_that_cannot_be_done_are_violations(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    victim.end()
    live = make_victim()
    scenario = {
        "processes": {"node-a": live.entry},
        "commands": {
            "wrong": {"run": "echo it is broken; exit 3", "undo": "exit 4"},
            "slow": {"run": "sleep 600", "timeout": "200ms"},
        },
        "steps": [
            {"run": "wrong", "at": "0s"},
            {"run": "slow", "at": "0s"},
            {"kill": "node-a", "at": "0s"},
            {"kill": "node-a", "at": "2s"},
        ],
    }
    report = chaos.report(scenario, status=1)
    told = {(found["rule"], found["what"].partition(": ")[0]) for found in report["violations"]}
    assert told == {
        ("carried out", "steps[0] run wrong"),
        ("carried out", "steps[1] run slow"),
        ("carried out", "steps[3] kill node-a"),
        ("restored", "wrong undone"),
    }
    said = " ".join(found["what"] for found in report["violations"])
    assert "ended with 3: it is broken" in said
    assert "did not end within 200ms" in said
    assert "there is no process" in said
    assert not live.is_living


def test_a_killed_process_is_started_again_and_its_successor_is_waited_for(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    (chaos.folder / "node.pid").write_text(str(victim.pid))
    again = f"{victim.words[0]} -c 'import signal; signal.pause()' {victim.mark} & echo $! > node.pid"
    scenario = {
        "processes": {
            "node-a": {
                "pidfile": "node.pid",
                "command": victim.mark,
                "again": again,
                "again_after": "100ms",
            }
        },
        "steps": [{"kill": "node-a", "at": "0s"}],
    }
    # Once it is told that there is a successor, this can be killed as well.
    (first,) = chaos.report(scenario)["faults"]
    successor = int((chaos.folder / "node.pid").read_text())
    (second,) = chaos.report(scenario)["faults"]
    assert re.fullmatch(rf"pid {victim.pid}, then pid {successor} after [0-9ms.]+", first["detail"])
    assert second["detail"].startswith(f"pid {successor}, then pid ")
    assert second["recovered_after"] is not None
    os.kill(int((chaos.folder / "node.pid").read_text()), signal.SIGKILL)


def test_an_undo_or_again_that_fails_in_a_step_is_told_as_not_restored(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    scenario = {
        "processes": {"node-a": {**victim.entry, "again": "echo no room; exit 4", "again_after": "0s"}},
        "commands": {"stop": {"run": "true", "undo": "echo stuck; exit 3"}},
        "steps": [{"run": "stop", "at": "0s", "for": "1ms"}, {"kill": "node-a", "at": "0s"}],
    }
    report = chaos.report(scenario, status=1)
    assert {(found["rule"], found["what"]) for found in report["violations"]} == {
        (
            "restored",
            "steps[0] run stop for 1ms: stop undone: echo stuck; exit 3: "
            "echo stuck; exit 3 ended with 3: stuck",
        ),
        (
            "restored",
            "steps[1] kill node-a: node-a started again: echo no room; exit 4 ended with 4: no room",
        ),
    }
    assert [fault["error"] for fault in report["faults"]] == [None, None]
    assert all(fault["not_restored"] for fault in report["faults"])


def test_a_plan_shows_all_that_would_be_done_and_all_that_is_wrong_at_once(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    victim = make_victim()
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        address, nobody = (f"127.0.0.1:{each.getsockname()[1]}" for each in (taken, silent))
        scenario = {
            "processes": {
                "node-a": victim.entry,
                "node-b": victim.entry,
                "node-c": {"pidfile": "missing.pid", "command": "x"},
            },
            "proxies": {"database": {"listen": address, "target": nobody}},
            "disks": {"data": {"folder": ".", "leave_free": "900000GiB"}},
            "commands": {"cut": {"run": ["no-such-program"], "undo": "true"}},
            "probes": {"node-a": f"http://{nobody}/readyz"},
            "steps": [{"kill": "node-a", "at": "1s"}, {"run": "cut", "at": "2s"}],
            "workload": {"url": f"http://{nobody}", "task": "probe", "rate": 1},
            "witness": "missing",
        }
        told = chaos.run(scenario, "--plan", "--json")
        assert told.returncode == 2
        plan = json.loads(told.stdout)
        refused = chaos.run(scenario, "--yes-break-things")
    static = [
        "processes.node-b",
        "processes.node-c.pidfile",
        "proxies.database.listen",
        "disks.data.leave_free",
        "commands.cut.run",
        "witness",
    ]
    assert [fault["field"] for fault in plan["wrong"]] == [*static, "proxies.database.target"]
    assert [fault["field"] for fault in json.loads(told.stderr)["error"]["errors"]] == [
        fault["field"] for fault in plan["wrong"]
    ]
    # What a proxy of chaos may still bring is no fault yet.
    assert "not yet: " in plan["probes"][0]["what"]
    assert "not yet: " in plan["workload"]
    assert [step["what"] for step in plan["steps"]] == [
        "kill node-a; somebody else starts it again",
        "run cut; undone at the end",
    ]
    assert refused.returncode == 2
    assert [line.split(": ")[2] for line in refused.stderr.splitlines() if "CHAOS_REFUSED" in line] == static
    assert victim.is_living


def test_a_plan_asks_for_the_task_and_all_probes(chaos: Chaos) -> None:
    scenario = {
        "probes": {"a": "127.0.0.1:1", "b": "http://127.0.0.1:1/readyz"},
        "steps": [],
        "workload": {"url": "sqlite:///" + str(chaos.folder / "shop.db"), "task": "probe", "rate": 1},
    }
    told = chaos.run(scenario, "--plan", "--json")
    assert told.returncode == 2
    fields = [fault["field"] for fault in json.loads(told.stdout)["wrong"]]
    assert fields == ["probes.a", "probes.b", "workload.url"]
    assert not (chaos.folder / "shop.db").exists()
    (chaos.folder / "shop.db").touch()
    empty = chaos.run({"steps": [], "workload": scenario["workload"]}, "--plan")
    assert "workload.url: " in empty.stderr
    assert "shop.db has schema none, not that of this version" in empty.stderr
    assert (chaos.folder / "shop.db").stat().st_size == 0
    with closing(App("shop", scenario["workload"]["url"])) as app:
        app.apply()
    (fault,) = json.loads(
        chaos.run({"steps": [], "workload": scenario["workload"]}, "--plan", "--json").stdout
    )["wrong"]
    assert fault["field"] == "workload.task"
    assert "task default/probe does not exist" in fault["what"]


def test_a_killed_process_without_a_successor_is_told(chaos: Chaos, make_victim: MakeVictim) -> None:
    victim = make_victim()
    (chaos.folder / "node.pid").write_text(str(victim.pid))
    scenario = {
        "processes": {"node-a": {"pidfile": "node.pid", "command": victim.mark}},
        "steps": [{"kill": "node-a", "at": "0s"}],
        "recover_within": "1s",
    }
    (found,) = chaos.report(scenario, status=1)["violations"]
    assert found == {"rule": "recovery", "what": "1s after kill node-a: node-a has no successor"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda each: each.name)
def test_a_full_disk_has_its_room_back_when_chaos_is_interrupted_or_killed(
    number: signal.Signals, chaos: Chaos, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        before_bytes = free_of(disk.path)
        process = chaos.start(_filling(disk.path, duration="1h"), "--yes-break-things")
        until(lambda: free_of(disk.path) <= 64 * 1024)
        # No name: nobody can take it for something of value, or leave it behind.
        assert os.listdir(disk.path) == []
        with pytest.raises(OSError) as full:  # noqa: PT011 - the number is looked at below
            (disk.path / "row").write_bytes(b"x" * 128 * 1024)
        assert full.value.errno == errno.ENOSPC
        (disk.path / "row").unlink()
        process.send_signal(number)
        process.communicate(timeout=30)
        until(lambda: free_of(disk.path) == before_bytes)
        assert process.returncode == (130 if number is signal.SIGINT else -number)


def test_a_disk_is_filled_to_what_is_left_free_and_has_its_room_back_after_its_time(
    chaos: Chaos, tmp_path: Path
) -> None:
    with small_disk(tmp_path / "disk") as disk:
        before_bytes = free_of(disk.path)
        (fault,) = chaos.report(_filling(disk.path, duration="200ms"))["faults"]
        assert fault["detail"].endswith(" taken, 0.1 MiB left free")
        assert free_of(disk.path) == before_bytes


def _filling(folder: Path, *, duration: str) -> dict[str, object]:
    return {
        "disks": {"data": {"folder": str(folder), "leave_free": "64KiB"}},
        "steps": [{"fill": "data", "at": "0s", "for": duration}],
    }


def free_of(path: Path) -> int:
    found = os.statvfs(path)
    return found.f_bavail * found.f_frsize


def test_processes_of_the_scenario_end_with_it_also_when_chaos_is_killed(
    chaos: Chaos, make_victim: MakeVictim
) -> None:
    words = make_victim().words
    scenario = {
        "processes": {
            "node-a": {"start": ["/bin/sh", "-c", 'echo $$ > pid; exec "$@"', "sh", *words[:-1], "own"]}
        },
        "steps": [],
        "lasts": _FOR_EVER,
    }
    pidfile = chaos.folder / "pid"
    for number in (signal.SIGTERM, signal.SIGKILL):
        pidfile.unlink(missing_ok=True)
        process = chaos.start(scenario, "--yes-break-things")
        until(lambda: pidfile.exists() and pidfile.read_text())
        own = psutil.Process(int(pidfile.read_text()))
        process.send_signal(number)
        process.communicate(timeout=30)
        until(lambda own=own: not is_living(own))
        assert process.returncode == (130 if number is signal.SIGTERM else -number)


def test_a_process_of_the_scenario_that_ends_by_itself_is_told_with_its_log(chaos: Chaos) -> None:
    scenario = {
        "processes": {"node-a": {"start": ["/bin/sh", "-c", "echo no; exit 3"]}},
        "probes": {"node-a": "127.0.0.1:1"},
        "steps": [],
    }
    refused = chaos.run(scenario, "--yes-break-things")
    assert refused.returncode == 2
    log = chaos.folder / "node-a.log"
    assert f"CHAOS_REFUSED: processes.node-a: has ended by itself, before anything is broken ({log}" in (
        refused.stderr
    )
    assert log.read_text() == "no\n"


def test_a_port_that_is_taken_is_told_and_nothing_is_broken(chaos: Chaos, make_victim: MakeVictim) -> None:
    victim = make_victim()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        scenario = {
            "processes": {"node-a": victim.entry},
            "proxies": {"database": {"listen": address, "target": "127.0.0.1:5432"}},
            "steps": [{"kill": "node-a", "at": "0s"}],
        }
        refused = chaos.run(scenario, "--yes-break-things")
    assert refused.returncode == 2
    assert f"CHAOS_REFUSED: proxies.database.listen: {address} cannot be listened on" in refused.stderr
    assert victim.is_living
