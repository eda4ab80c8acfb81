"""Backpressure on the command line: what is refused, with which exit code, and where the level is seen."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.commands import Invoke

_TASKS = "version: 1\ntasks:\n  - name: hello\n    shell: {command: 'true'}\n"


@pytest.fixture
def full(invoke: Invoke, database: str, tmp_path: Path) -> str:
    """URL of a database in which two instances wait, as many as ``ostinato.toml`` allows."""
    (tmp_path / "tasks.yaml").write_text(_TASKS, encoding="utf-8")
    (tmp_path / "ostinato.toml").write_text("pressure_red = 2\n", encoding="utf-8")
    assert invoke("apply", "-f", "tasks.yaml", "--database", database).exit_code == 0
    for key in ("one", "two"):
        assert (
            invoke("task", "trigger", "hello", "--key", key, "--json", "--database", database).exit_code == 0
        )
    return database


def test_a_run_that_is_too_many_is_refused_as_unreachable_and_says_why(invoke: Invoke, full: str) -> None:
    result = invoke("task", "trigger", "hello", "--json", "--database", full)
    assert result.exit_code == 3
    error = json.loads(result.stderr)
    assert "BACKPRESSURE" in json.dumps(error)
    assert "2 instances wait to start" in json.dumps(error)
    repeated = invoke("task", "trigger", "hello", "--key", "one", "--json", "--database", full)
    assert (repeated.exit_code, json.loads(repeated.stdout)["created"]) == (0, False)
    assert len(json.loads(invoke("instance", "list", "--json", "--database", full).stdout)) == 2


def test_node_list_says_how_much_waits_by_the_limits_that_are_set(
    invoke: Invoke, full: str, tmp_path: Path
) -> None:
    listed = invoke("node", "list", "--database", full)
    assert listed.stderr == "pressure is red: 2 instances wait to start (red from 2)\n"
    listed = invoke("node", "list", "--database", full, env={"OSTINATO_PRESSURE_YELLOW": "1"})
    assert "(yellow from 1, red from 2)" in listed.stderr
    in_json = invoke("node", "list", "--json", "--database", full)
    assert json.loads(in_json.stdout) == []
    assert json.loads(in_json.stderr) == {
        "pressure": {"level": "red", "waiting": 2, "yellow": None, "red": 2}
    }
    (tmp_path / "ostinato.toml").unlink()
    assert invoke("node", "list", "--database", full).stderr == ""
