"""Scenario files: what is wrong is told at once, each with its line and field."""

from __future__ import annotations

import json
import runpy
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from ostinato.chaos.scenario import Scenario
from ostinato.chaos.scenario_text import read_scenario, scenario_schema
from ostinato.control.document.errors import InvalidDocument
from ostinato.core.instants import SECOND
from ostinato.errors import UserError

ROOT = Path(__file__).parents[2]

EVERYTHING = """\
version: 1
processes:
  node-a: {pid: 4711, started: 2026-01-31T18:00:00Z, command: ostinato scheduler}
  node-b: {pidfile: run/node-b.pid, command: ostinato, again: [systemctl, start, node-b], again_after: 2s}
  node-c: {command_line: ostinato scheduler --bind 127.0.0.1:8642}
  worker: {start: ostinato worker, environment: {A: b}, log: worker.log}
proxies:
  database: {listen: "127.0.0.1:15432", target: "db.example:5432"}
disks:
  data: {folder: /srv/data, leave_free: 1MiB}
commands:
  restart: {run: pg_ctl restart, undo: [pg_ctl, start], timeout: 30s}
probes:
  node-a: http://127.0.0.1:8640/readyz
  database: 127.0.0.1:5432
steps:
  - {kill: node-a, at: 10s, every: 5s, times: 3}
  - {pause: node-b, at: 12s, for: 5s}
  - {cut: database, at: 30s, for: 5s, how: silent}
  - {delay: database, at: 40s, for: 5s, by: 200ms}
  - {fill: data, at: 50s, for: 5s}
  - {run: restart, at: 60s, for: 1s}
lasts: 2m
recover_within: 30s
workload:
  {url: "http://127.0.0.1:8640", task: probe, namespace: default, rate: 2.5, payload: {a: 1}, runs_for: 1s,
   worker_lease: 6s, settle: 1m}
witness: out/witness
"""


def read(text: str) -> Scenario:
    return read_scenario(text, name="chaos.yaml", folder=Path("/srv/scenarios"))


def faults(text: str) -> list[str]:
    with pytest.raises(InvalidDocument) as refused:
        read(text)
    return [str(error) for error in refused.value.errors]


def scenario_with(**sections: Any) -> str:
    return yaml.safe_dump({"version": 1, **sections}, sort_keys=False)


def test_every_field_is_read_and_the_schema_accepts_it() -> None:
    scenario = read(EVERYTHING)
    assert [step.words for step in scenario.schedule] == [
        "kill node-a",
        "pause node-b for 5s",
        "kill node-a",
        "kill node-a",
        "cut database silent for 5s",
        "delay database by 200ms for 5s",
        "fill data for 5s",
        "run restart for 1s",
    ]
    assert scenario.end_us == 120 * SECOND
    assert scenario.workload is not None
    # I9: twice the ownership lease, the worker lease, two seconds, and what the task takes.
    assert scenario.workload.hang_bound_us == (2 * 3 + 6 + 2 + 1) * SECOND
    assert scenario.path(scenario.witness) == Path("/srv/scenarios/out/witness")
    Draft202012Validator.check_schema(scenario_schema())
    Draft202012Validator(scenario_schema()).validate(yaml.load(EVERYTHING, yaml.BaseLoader) | _typed())


def _typed() -> dict[str, Any]:
    """What is no text in the file."""
    loaded = yaml.safe_load(EVERYTHING)
    loaded["processes"]["node-a"]["started"] = "2026-01-31T18:00:00Z"
    return dict(loaded)


def test_the_schedule_ends_with_its_last_fault_unless_it_lasts_longer() -> None:
    text = scenario_with(
        disks={"data": {"folder": "x", "leave_free": 0}}, steps=[{"fill": "data", "at": "2s", "for": "3s"}]
    )
    assert read(text).end_us == 5 * SECOND


def test_all_faults_are_told_at_once_each_with_line_and_field() -> None:
    text = """\
version: 1
processes:
  node-a: {pid: 4711}
  node-b: {pid: 4711, pidfile: x, command: y}
  node-c: {start: "ostinato 'worker"}
  node-d: {start: ostinato worker, command: worker}
proxies:
  database: {listen: 0.0.0.0:15432, target: 127.0.0.1:0}
probes: {node-a: somewhere, node-b: "http://:8640"}
steps:
  - {kill: node-a, at: 10}
  - {pause: node-a, at: 10s}
  - {cut: database, delay: database, at: 10s}
  - {burn: node-a, at: 1s}
workload: {url: x, task: t, rate: 0}
"""
    assert [fault.partition(" (")[0] for fault in faults(text)] == [
        "chaos.yaml:3:3: processes.node-a.command: is missing",
        "chaos.yaml:4:3: processes.node-b: says pid and pidfile",
        "chaos.yaml:5:12: processes.node-c.start: cannot be split into words: No closing quotation",
        "chaos.yaml:6:36: processes.node-d.command: means nothing beside start",
        "chaos.yaml:8:14: proxies.database.listen: 0.0.0.0:15432 can be reached from other machines, and "
        "this address has neither TLS nor tokens",
        "chaos.yaml:8:37: proxies.database.target: nobody can connect to 127.0.0.1:0",
        "chaos.yaml:9:10: probes.node-a: 'somewhere' is not an address",
        "chaos.yaml:9:29: probes.node-b: 'http://:8640' is no address",
        "chaos.yaml:11:20: steps[0].at: 10 has no unit",
        "chaos.yaml:12:5: steps[1].for: is missing",
        "chaos.yaml:13:5: steps[2]: says cut and delay",
        "chaos.yaml:14:5: steps[3]: 'burn' is not something that a step does",
        "chaos.yaml:15:29: workload.rate: 0 is out of range",
    ]


def test_what_is_meant_is_told_of_a_probe_without_a_scheme_and_of_a_step_that_there_is_not() -> None:
    text = """\
version: 1
probes: {node-a: "127.0.0.1:8640/readyz"}
steps: [{explode: node-a, at: 1s}, {kil: node-a, at: 1s}, {at: 1s}]
"""
    assert faults(text) == [
        "chaos.yaml:2:10: probes.node-a: '127.0.0.1:8640/readyz' has a path and no http:// "
        "(write http://127.0.0.1:8640/readyz, or HOST:PORT alone for a connection)",
        "chaos.yaml:3:9: steps[0]: 'explode' is not something that a step does "
        "(write {kill: node-a, at: 10s}; the verbs are kill, pause, cut, delay, fill, run)",
        "chaos.yaml:3:36: steps[1]: 'kil' is not something that a step does (did you mean kill?)",
        "chaos.yaml:3:59: steps[2]: says nothing to do "
        "(write {kill: node-a, at: 10s}; the verbs are kill, pause, cut, delay, fill, run)",
    ]


def test_a_step_names_something_of_its_section() -> None:
    text = scenario_with(
        processes={"node-a": {"pid": 4711, "command": "x"}},
        steps=[{"kill": "node-b", "at": "1s"}, {"fill": "node-a", "at": "1s", "for": "1s"}],
    )
    assert faults(text) == [
        "chaos.yaml:7:3: steps[0].kill: 'node-b' is not among the processes of this scenario "
        "(did you mean node-a?)",
        "chaos.yaml:9:3: steps[1].fill: 'node-a' is not among the disks of this scenario "
        "(write it under disks:)",
    ]


@pytest.mark.parametrize(
    "second",
    [
        {"pause": "a", "at": "3s", "for": "1s"},
        {"pause": "a", "at": "0s", "for": "1s", "every": "2s", "times": 2},
    ],
    ids=["one", "repeated"],
)
def test_two_faults_of_one_kind_on_one_target_do_not_overlap(second: dict[str, Any]) -> None:
    text = scenario_with(
        processes={"a": {"pid": 4711, "command": "x"}},
        steps=[{"pause": "a", "at": "2s", "for": "2s"}, second],
    )
    (fault,) = faults(text)
    assert "is not over" in fault


def test_what_the_system_could_not_take_or_would_take_for_another_is_refused() -> None:
    text = """\
version: 1
processes:
  a: {pidfile: "a\\0b", command: x}
  b: {command_line: "  "}
  c: {start: x, environment: {"A=B": c}}
proxies:
  a: {listen: "127.0.0.1:18000", target: "127.0.0.1:18000"}
  b: {listen: "127.0.0.1:18000", target: "127.0.0.1:1"}
commands: {c: {run: " "}}
steps: []
"""
    assert [fault.partition(": ")[2].partition(" (")[0] for fault in faults(text)] == [
        "processes.a.pidfile: holds a NUL character",
        "processes.b: does not say which process it is",
        "processes.c.environment: 'A=B' is no name of a variable",
        "proxies.a.target: 127.0.0.1:18000 is where the proxy itself listens",
        "proxies.b.listen: 127.0.0.1:18000 is where a listens",
        "commands.c.run: is empty",
    ]


def test_a_schedule_has_an_end_and_a_number_of_faults_that_fits() -> None:
    node = {"processes": {"a": {"pid": 4711, "command": "x"}}}
    long = scenario_with(**node, steps=[{"kill": "a", "at": "6d", "every": "1h", "times": 1000}])
    (fault,) = faults(long)
    assert ": steps[0].times: its last time ends 47d15h after the beginning (at most 7d" in fault
    many = [{"kill": "a", "at": "0s", "every": "1s", "times": 10_000} for _ in range(1000)]
    (fault,) = faults(scenario_with(**node, steps=many))
    assert ": steps: are 10000000 faults with their repetitions, at most 10000 (" in fault


def test_a_repeated_step_says_how_often_and_a_fault_of_a_command_how_it_is_undone() -> None:
    text = scenario_with(
        commands={"restart": {"run": "true"}},
        steps=[{"run": "restart", "at": "1s", "every": "2s"}, {"run": "restart", "at": "1s", "for": "2s"}],
    )
    assert [fault.split(": ")[1] for fault in faults(text)] == ["steps[0].times", "steps[1].for"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "holds no document"),
        ("[1]", "is a list, not a scenario"),
        ("version: 2\nsteps: []", "version 2 is not known"),
        ("version: 1", "is missing"),
        ("a: [", "is not YAML"),
    ],
)
def test_what_is_no_scenario_is_refused(text: str, told: str) -> None:
    assert told in faults(text)[0]


def test_a_workload_names_an_api_or_a_database() -> None:
    text = scenario_with(steps=[], workload={"url": "redis://cache", "task": "t", "rate": 1})
    assert faults(text)[0].startswith("chaos.yaml:4:3: workload.url: the URL is neither an HTTP address nor")


def test_a_file_holds_one_scenario() -> None:
    with pytest.raises(UserError, match="holds 2 documents, not one"):
        read("version: 1\nsteps: []\n---\nversion: 1\nsteps: []\n")


def test_the_published_schema_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "tools/generate_json_schema.py"))
    written = (ROOT / "docs/chaos.schema.json").read_text(encoding="utf-8")
    assert written == generator["rendered"](generator["scenario_schema"]()), (
        "run: python tools/generate_json_schema.py"
    )
    assert json.loads(written) == scenario_schema()


def test_the_examples_are_scenarios() -> None:
    found = sorted((ROOT / "examples/chaos").glob("*.yaml"))
    assert found
    for path in found:
        assert read_scenario(path.read_bytes(), name=path.name, folder=path.parent).steps
