"""Commands as people use them, beside a running ``ostinato dev``."""

from __future__ import annotations

import json
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from support.dev import Dev, clean_environment, running_dev


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("dev")) as running:
        yield running


def _failed(dev: Dev, task: str) -> str:
    """Id of an instance of `task` that has failed."""
    result = dev.run("task", "trigger", task, "--wait", "--json")
    assert result.returncode == 1, result.stderr
    identity: str = json.loads(result.stdout)["id"]
    return identity


def test_dev_says_which_tasks_it_found_and_when_each_fires_next(dev: Dev) -> None:
    fires = {task["name"]: task["next"] for task in dev.said["tasks"]}
    assert set(fires) == {"add", "flaky", "closed", "endless", "noisy"}
    assert fires["add"].endswith("Z")
    assert fires["closed"] is None
    assert dev.said["problems"] == []


def test_dev_serves_health_and_metrics(dev: Dev) -> None:
    base = f"http://{dev.said['api']}"
    assert httpx.get(f"{base}/readyz").json()["ready"] is True
    assert "ostinato_workers_connected 1.0" in httpx.get(f"{base}/metrics").text


def test_second_node_on_the_same_database_is_a_conflict(dev: Dev) -> None:
    result = dev.run("scheduler", "--bind", "127.0.0.1:0", "--worker-bind", "127.0.0.1:0")
    assert result.returncode == 4
    assert "NODE_ALREADY_RUNNING" in result.stderr


def test_tasks_are_listed_and_shown_with_their_policy(dev: Dev) -> None:
    assert {task["name"] for task in dev.json("task", "list")} == {
        "add",
        "flaky",
        "closed",
        "endless",
        "noisy",
    }
    shown = dev.json("task", "show", "flaky")
    assert (shown["retry"]["backoff"], shown["retry"]["max_retry"]) == ("fixed", 1)
    people = dev.run("task", "show", "add").stdout
    assert "trigger: cron 0 6 * * * Europe/Berlin, next 20" in people
    assert "retry max_retry: 3" in people


def test_c195_narrow_terminal_without_locale_shows_tasks_as_blocks(dev: Dev) -> None:
    result = dev.run("task", "list", env={"LANG": "C", "COLUMNS": "20"})
    assert result.returncode == 0
    assert "NAME: add\n" in result.stdout
    assert "STATUS: active\n" in result.stdout


def test_trigger_with_wait_shows_the_result(dev: Dev) -> None:
    result = dev.run("task", "trigger", "add", "--payload", '{"first": 2}', "--wait")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[-1] == "success: 3"


def test_trigger_with_wait_fails_when_the_task_does_and_json_stays_alone_on_stdout(dev: Dev) -> None:
    result = dev.run("task", "trigger", "closed", "--wait", "--json")
    assert result.returncode == 1
    ended = json.loads(result.stdout)
    assert (ended["state"], ended["failure"]["category"]) == ("failed", "permanent")


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["task", "trigger", "ad"], 5, ["TASK_NOT_FOUND", "did you mean add"]),
        (["task", "trigger", "add", "--payload", '{"frist": 1}'], 2, ["INVALID_PAYLOAD", "frist"]),
        (["task", "trigger", "add", "--payload", "{"], 2, ["INVALID_PAYLOAD", "payload"]),
        (["task", "show", "nothing"], 5, ["TASK_NOT_FOUND"]),
        (["instance", "show", "nothing"], 5, ["INSTANCE_NOT_FOUND"]),
        (["instance", "logs", "nothing"], 5, ["INSTANCE_NOT_FOUND"]),
        (["instance", "list", "--state", "sleeping"], 2, ["--state", "retry_waiting"]),
        (["instance", "list", "--limit", "0"], 2, ["limit"]),
        (["task", "list", "--database", "sqlite:///none.db"], 3, ["DATABASE_UNAVAILABLE", "none.db"]),
        (["task", "list", "--database", "oracle://x"], 2, ["oracle"]),
        (["worker", "--worker-lease", "1s"], 2, ["--worker-lease"]),
        (["dev", "shop.py", "--worker-lease", "1s"], 2, ["--worker-lease", "6s"]),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, list) else str(value),
)
def test_error_has_its_exit_code_and_says_what_is_wrong(
    dev: Dev, arguments: list[str], status: int, words: list[str]
) -> None:
    result = dev.run(*arguments)
    assert result.returncode == status, result.stderr
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert [word for word in words if word not in result.stderr] == []


def test_question_never_makes_a_database(dev: Dev) -> None:
    assert dev.run("instance", "list", "--database", "sqlite:///mistyped.db").returncode == 3
    assert not (dev.directory / "mistyped.db").exists()


def test_live_key_with_another_payload_is_a_conflict(dev: Dev) -> None:
    first = dev.json("task", "trigger", "add", "--payload", '{"first": 1}', "--key", "k1")
    again = dev.json("task", "trigger", "add", "--payload", '{"first": 1}', "--key", "k1")
    assert (first["instance_id"], again["created"]) == (again["instance_id"], False)
    other = dev.run("task", "trigger", "add", "--payload", '{"first": 2}', "--key", "k1")
    assert other.returncode == 4
    assert "KEY_CONFLICT" in other.stderr


def test_show_tells_the_story_of_each_attempt_and_which_rule_decided(dev: Dev) -> None:
    identity = _failed(dev, "flaky")
    told = dev.run("instance", "show", identity).stdout
    assert "attempt 1 on" in told
    assert "attempt 2 on" in told
    assert "ECONNREFUSED" in told
    assert "next: nothing" in told
    shown = dev.json("instance", "show", identity)
    assert [attempt["code"] for attempt in shown["attempts"]] == ["ECONNREFUSED"] * 2
    assert "retry 1 of 1" in shown["attempts"][0]["decision"]
    assert shown["attempts"][0]["next_due"].endswith("Z")


def test_story_shows_payload_result_and_what_a_failed_command_wrote_last(dev: Dev) -> None:
    waited = dev.run("task", "trigger", "add", "--payload", '{"first": 2}', "--wait", "--json")
    told = dev.run("instance", "show", json.loads(waited.stdout)["id"]).stdout
    assert 'payload  {"first": 2}\n' in told
    assert "result   3\n" in told
    identity = _failed(dev, "noisy")
    told = dev.run("instance", "show", identity).stdout
    assert "    stderr  one\n    stderr  two\n" in told
    assert f"logs: ostinato instance logs {identity}" in told


def test_wait_tells_each_failure_that_is_tried_again(dev: Dev) -> None:
    waited = dev.run("task", "trigger", "flaky", "--wait")
    assert waited.returncode == 1
    assert "attempt 1 failed: ECONNREFUSED: " in waited.stderr
    assert "; the next is due at 20" in waited.stderr


def test_script_can_page_through_instances(dev: Dev) -> None:
    for _ in range(2):
        dev.json("task", "trigger", "add")
    first = dev.run("instance", "list", "--limit", "1", "--json")
    cursor = json.loads(first.stderr)["cursor"]
    second = dev.json("instance", "list", "--limit", "1", "--cursor", cursor)
    every = dev.json("instance", "list", "--all")
    shown = [json.loads(first.stdout)[0]["id"], second[0]["id"]]
    assert [instance["id"] for instance in every[:2]] == shown
    assert len(every) > 2


def test_logs_show_what_was_written_with_nothing_that_a_terminal_obeys(dev: Dev) -> None:
    ended = json.loads(
        dev.run("task", "trigger", "add", "--payload", '{"first": 1}', "--wait", "--json").stdout
    )
    shown = dev.run("instance", "logs", ended["id"])
    assert shown.stdout == "--- attempt 1 ---\nadding\\x1b[31m\n"
    (chunk,) = dev.json("instance", "logs", ended["id"])
    assert (chunk["attempt"], chunk["stream"], chunk["text"]) == (1, "stdout", "adding\x1b[31m\n")


def test_instances_are_listed_by_task_and_state(dev: Dev) -> None:
    identity = _failed(dev, "closed")
    listed = dev.json("instance", "list", "--task", "closed", "--state", "failed")
    assert identity in [instance["id"] for instance in listed]
    assert {instance["task"] for instance in listed} == {"closed"}
    assert "payload" not in listed[0]


def test_retry_runs_an_ended_instance_again_and_cancel_refuses_it(dev: Dev) -> None:
    identity = _failed(dev, "closed")
    refused = dev.run("instance", "cancel", identity)
    assert refused.returncode == 4
    assert "INSTANCE_TERMINAL" in refused.stderr
    assert f"{identity} runs again" in dev.run("instance", "retry", identity, "--reason", "try").stdout
    shown = dev.json("instance", "show", identity)
    assert shown["generation"] == 2


def test_paused_task_is_shown_as_paused_until_it_is_resumed(dev: Dev) -> None:
    assert "is paused" in dev.run("task", "pause", "closed").stdout
    assert dev.json("task", "show", "closed")["paused"] is True
    assert dev.run("task", "pause", "add").returncode == 0
    (line,) = [row for row in dev.run("task", "list").stdout.splitlines() if row.startswith("add ")]
    assert line.split()[2:4] == ["paused", "-"]
    assert dev.run("task", "resume", "add").returncode == 0
    assert dev.run("task", "resume", "closed").returncode == 0
    assert dev.json("task", "show", "closed")["paused"] is False


def test_disabled_task_refuses_to_be_triggered(dev: Dev) -> None:
    assert dev.run("task", "disable", "closed").returncode == 0
    refused = dev.run("task", "trigger", "closed")
    assert (refused.returncode, "TASK_DISABLED" in refused.stderr) == (4, True)
    assert dev.run("task", "enable", "closed").returncode == 0


def test_c195_ctrl_c_in_wait_leaves_the_instance_running_and_says_so(dev: Dev) -> None:
    waiting = subprocess.Popen(
        dev.command("task", "trigger", "endless", "--wait"),
        cwd=dev.directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert waiting.stdout is not None
    identity = waiting.stdout.readline().strip()
    while dev.json("instance", "show", identity)["state"] != "running":
        assert waiting.poll() is None
    waiting.send_signal(signal.SIGINT)
    _, complaint = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert f"instance {identity} goes on" in complaint
    assert "Traceback" not in complaint
    assert dev.json("instance", "show", identity)["state"] == "running"
    assert dev.run("instance", "cancel", identity).returncode == 0


def test_interrupted_dev_ends_with_130_and_leaves_no_process_and_requests_find_no_scheduler(
    tmp_path: Path,
) -> None:
    with running_dev(tmp_path) as dev:
        identity = _failed(dev, "closed")
        children = psutil.Process(dev.process.pid).children(recursive=True)
        assert children
        dev.process.send_signal(signal.SIGINT)
        dev.process.communicate(timeout=30)
        assert dev.process.returncode == 130
        _, alive = psutil.wait_procs(children, timeout=5)
        assert alive == []
        assert "Traceback" not in (tmp_path / "dev.log").read_text(encoding="utf-8")
        asked = dev.run("instance", "retry", identity)
        assert asked.returncode == 3
        assert "no scheduler is running" in asked.stderr
        waiting = dev.json("task", "trigger", "add")["instance_id"]
        told = dev.run("instance", "show", waiting).stdout
        assert "next: no scheduler is running; attempt 1" in told


@pytest.mark.parametrize("text", ["import nosuchmodule", "x = 1", "app = 1"])
def test_app_that_cannot_be_used_ends_dev_with_2_and_says_why(tmp_path: Path, text: str) -> None:
    (tmp_path / "broken.py").write_text(text, encoding="utf-8")
    dev = Dev(subprocess.Popen(["true"], text=True), tmp_path, {})
    dev.process.wait()
    result = dev.run("dev", "broken.py:app" if "app" in text else "broken.py", "--bind", "127.0.0.1:0")
    assert result.returncode == 2
    assert "INVALID_APP" in result.stderr
    assert "broken.py" in result.stderr
    assert "Traceback" not in result.stderr
