"""Lists, acts by name and by filter, and logs, beside a running node."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.dev import Dev, clean_environment


def _ended(talk: Dev, task: str, *options: str) -> dict[str, Any]:
    ended: dict[str, Any] = json.loads(talk.run("task", "trigger", task, "--wait", "--json", *options).stdout)
    return ended


def _started(talk: Dev, task: str, *options: str) -> str:
    identity: str = talk.json("task", "trigger", task, *options)["instance_id"]
    return identity


def _until(talk: Dev, identity: str, state: str) -> None:
    while talk.json("instance", "show", identity)["state"] != state:
        assert talk.process.poll() is None


# ── lists ─────────────────────────────────────────────────────────────────────────────────────────────


def test_tasks_are_found_by_a_part_of_their_name_in_any_case(talk: Dev) -> None:
    assert [task["name"] for task in talk.json("task", "list", "--search", "TALK")] == ["talker"]
    assert len(talk.json("task", "list", "--limit", "2")) == 2


@pytest.mark.parametrize("noun", ["task", "instance"])
def test_unknown_namespace_is_empty_and_a_note_says_which_there_are(talk: Dev, noun: str) -> None:
    result = talk.run(noun, "list", "-n", "nope")
    assert (result.returncode, result.stdout.count("\n")) == (0, 1)
    assert result.stderr == "namespace nope has no tasks; those that have: default\n"
    assert talk.json(noun, "list", "-n", "nope") == []


def test_a_list_of_a_task_that_there_is_none_of_is_empty_and_a_note_says_so(talk: Dev) -> None:
    result = talk.run("instance", "list", "--task", "talkr")
    assert (result.returncode, result.stdout) == (0, "There are no such instances.\n")
    assert "task default/talkr does not exist" in result.stderr
    assert "talker" in result.stderr
    assert talk.json("instance", "list", "--task", "talkr") == []


def test_task_is_shown_in_the_words_of_tasks_yaml(talk: Dev) -> None:
    told = talk.run("task", "show", "later").stdout
    assert "retry max_retry: 1" in told
    entry = told.partition("\ntasks:\n")[2]
    assert "name: later\n" in entry
    assert "max_retry: 1" in entry
    assert talk.json("task", "show", "later")["definition"]["name"] == "later"


def test_workers_nodes_partitions_and_namespaces_are_listed(talk: Dev) -> None:
    (node,) = talk.json("node", "list")
    partitions = talk.json("partition", "list")
    assert {partition["owner"] for partition in partitions} == {node["id"]}
    assert node["partitions"] == len(partitions)
    while not (workers := talk.json("worker", "list")):
        assert talk.process.poll() is None
    (worker,) = workers
    assert (worker["state"], worker["nodes"]) == ("connected", [node["id"]])
    told = talk.run("worker", "show", worker["name"]).stdout
    assert f"worker: {worker['name']}\n" in told
    assert "add" in told


def test_instances_are_filtered_by_code_and_time_and_counted(talk: Dev) -> None:
    failed = _ended(talk, "wide")
    code = failed["failure"]["code"]
    assert failed["id"] in [row["id"] for row in talk.json("instance", "list", "--code", code)]
    assert talk.json("instance", "list", "--code", "NO_SUCH_CODE") == []
    assert talk.json("instance", "list", "--until", "1d") == []
    assert failed["id"] in [row["id"] for row in talk.json("instance", "list", "--since", "1h")]
    counted = talk.json("instance", "list", "--count", "--task", "wide")
    assert counted["by_state"]["failed"] >= 1
    assert counted["exact"] is True


@pytest.mark.parametrize("arguments", [["task", "list"], ["instance", "list"], ["partition", "list"]])
def test_watch_without_a_terminal_writes_a_json_document_a_line_until_nobody_reads(
    talk: Dev, arguments: list[str]
) -> None:
    watching = subprocess.Popen(
        talk.command(*arguments, "--watch", "--interval", "100ms", "--json"),
        cwd=talk.directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert watching.stderr is not None
    assert [type(json.loads(watching.stdout.readline())) for _ in range(3)] == [list] * 3
    watching.stdout.close()
    assert watching.wait(timeout=30) == 0
    assert watching.stderr.read() == ""
    watching.stderr.close()


def test_ctrl_c_is_the_good_end_of_a_watch(talk: Dev) -> None:
    watching = subprocess.Popen(
        talk.command("task", "list", "--watch"),
        cwd=talk.directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert watching.stdout is not None
    assert watching.stdout.readline().startswith("NAME")
    watching.send_signal(signal.SIGINT)
    _, complaint = watching.communicate(timeout=30)
    assert (watching.returncode, complaint) == (0, "")


# ── acts ──────────────────────────────────────────────────────────────────────────────────────────────


def test_cancel_says_whether_it_has_ended_or_was_asked_to(talk: Dev) -> None:
    waiting, running = _started(talk, "add", "--delay", "1h"), _started(talk, "endless")
    _until(talk, running, "running")
    said = talk.run("instance", "cancel", waiting, running).stdout.splitlines()
    assert said == [
        f"{waiting} cancelled",
        f"{running} cancel requested; it ends when the attempt has",
    ]


def test_unknown_id_among_several_is_said_and_the_others_are_carried_out(talk: Dev) -> None:
    waiting = _started(talk, "later", "--delay", "1h")
    result = talk.run("instance", "cancel", "nothing", waiting, "nobody")
    assert (result.returncode, result.stdout) == (5, f"{waiting} cancelled\n")
    assert result.stderr.count("INSTANCE_NOT_FOUND") == 2
    again = talk.run("instance", "retry", waiting, "nothing")
    assert (again.returncode, again.stdout) == (5, f"{waiting} runs again\n")
    talk.run("instance", "cancel", waiting)


def test_retry_by_filter_is_shown_first_and_done_with_yes(talk: Dev) -> None:
    identity = _ended(talk, "wide")["id"]
    meant = talk.json("instance", "retry", "--task", "wide", "--dry-run")
    assert identity in [row["id"] for row in meant]
    assert talk.json("instance", "show", identity)["generation"] == 1
    refused = talk.run("instance", "retry", "--task", "wide")
    assert refused.returncode == 2
    assert (
        "of default/wide would be retried; repeat with --yes, there is no terminal to ask at"
        in refused.stderr
    )
    done = talk.json("instance", "retry", "--task", "wide", "--yes")
    assert {"instance_id": identity, "code": "OK", "message": "generation 2 begins"} in done


def test_success_is_retried_only_by_force(talk: Dev) -> None:
    identity = _ended(talk, "add")["id"]
    for arguments in ([identity], ["--task", "add", "--state", "success", "--yes"]):
        refused = talk.run("instance", "retry", *arguments)
        assert (refused.returncode, refused.stdout) == (4, "")
        assert "INSTANCE_SUCCEEDED" in refused.stderr
        assert "--force" in refused.stderr
    assert talk.json("instance", "show", identity)["generation"] == 1
    (done,) = talk.json("instance", "retry", identity, "--force")
    assert (done["code"], done["message"]) == ("OK", "generation 2 begins")


def test_document_that_would_change_a_task_of_the_app_is_refused_with_its_place(
    talk: Dev, tmp_path: Path
) -> None:
    file = tmp_path / "tasks.yaml"
    file.write_text("version: 1\ntasks:\n  - {name: wide, shell: {command: 'false'}}\n", encoding="utf-8")
    for option in ("--yes", "--diff", "--dry-run"):
        refused = talk.run("apply", "-f", str(file), option)
        assert (refused.returncode, refused.stdout) == (4, ""), option
        assert "tasks.yaml:3:5: " in refused.stderr
        assert "TASK_OF_APP" in refused.stderr
        assert "task default/wide is declared by an app" in refused.stderr
    exported = talk.run("export").stdout
    file.write_text(exported, encoding="utf-8")
    applied = talk.run("apply", "-f", str(file), "--yes").stdout.splitlines()
    assert {line.split()[0] for line in applied} == {"unchanged"}


def test_cancel_by_filter_takes_what_has_not_ended(talk: Dev) -> None:
    identity = _started(talk, "spare", "--delay", "1h")
    done = talk.json("instance", "cancel", "--task", "spare", "--since", "10m", "--yes")
    assert [answer["instance_id"] for answer in done] == [identity]
    assert talk.json("instance", "show", identity)["state"] == "cancelled"


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        ([], "ID"),
        (["01", "--task", "wide"], "--task"),
        (["01", "--dry-run"], "--dry-run"),
        (["--task", "wide", "--limit", "0", "--yes"], "limit"),
        (["--task", "wide", "--limit", "99999999999999999999999", "--yes"], "limit"),
        (["--since", "tomorrow", "--yes"], "--since"),
        (["--since", "1h", "--until", "2h", "--yes"], "--until"),
        (["--state", "sleeping", "--yes"], "--state"),
    ],
)
def test_filter_that_cannot_be_is_refused_and_named(talk: Dev, arguments: list[str], field: str) -> None:
    for verb in ("retry", "cancel"):
        result = talk.run("instance", verb, *arguments, "--json")
        assert (result.returncode, result.stdout) == (2, "")
        assert json.loads(result.stderr)["error"]["field"] == field


def test_delete_says_what_waits_and_is_refused_without_yes_or_a_terminal(talk: Dev) -> None:
    waiting = _started(talk, "spare", "--delay", "1h")
    refused = talk.run("task", "delete", "spare")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "with 1 waiting instance to be cancelled and 0 running" in refused.stderr
    missing = talk.run("task", "delete", "spare", "sparse", "--yes")
    assert missing.returncode == 5
    assert talk.json("task", "show", "spare")["name"] == "spare"
    deleted = talk.json("task", "delete", "spare", "--yes")
    assert [(row["task"], row["done"]) for row in deleted] == [("spare", "deleted")]
    assert talk.run("task", "show", "spare").returncode == 5
    assert talk.json("instance", "show", waiting)["state"] == "cancelled"


def test_unknown_worker_is_not_found_and_ends_with_5(talk: Dev) -> None:
    for verb in ("show", "drain"):
        result = talk.run("worker", verb, "nobody")
        assert result.returncode == 5
        assert "WORKER_NOT_FOUND" in result.stderr


# ── one instance ──────────────────────────────────────────────────────────────────────────────────────


def test_instance_is_found_by_the_beginning_of_its_id_and_as_the_last_one(talk: Dev) -> None:
    older, newer = _started(talk, "add", "--delay", "1h"), _started(talk, "later", "--delay", "1h")
    beginning = newer[:20]
    assert talk.json("instance", "show", beginning)["id"] == newer
    assert talk.json("instance", "show", "--last")["id"] == newer
    assert talk.json("instance", "show", "--last", "--task", "add")["id"] == older
    assert talk.run("instance", "logs", "--last").returncode == 0
    assert talk.run("instance", "logs", beginning).stderr == "it has written nothing\n"
    assert talk.run("instance", "cancel", beginning, newer, older[:22]).stdout.splitlines() == [
        f"{newer} cancelled",
        f"{older} cancelled",
    ]
    assert talk.json("instance", "retry", beginning)[0]["instance_id"] == newer


@pytest.mark.parametrize(
    ("arguments", "status", "field"),
    [
        ([], 2, "ID"),
        (["01kbd3t4w8", "--last"], 2, "--last"),
        (["01kbd3t4w8", "--task", "add"], 2, "--task"),
        (["--last", "--task", "nothing"], 5, "--last"),
        (["01kbd3"], 5, None),
        (["zzzzzzzzzz"], 5, None),
    ],
)
def test_instance_that_cannot_be_meant_is_refused(
    talk: Dev, arguments: list[str], status: int, field: str | None
) -> None:
    for verb in ("show", "logs"):
        result = talk.run("instance", verb, *arguments, "--json")
        assert result.returncode == status
        assert json.loads(result.stderr)["error"]["field"] == field


# ── trigger ───────────────────────────────────────────────────────────────────────────────────────────


def test_arguments_come_one_by_one_from_a_file_and_from_stdin(talk: Dev) -> None:
    assert _ended(talk, "add", "--arg", "first:=2", "--arg", "second:=3")["result"] == 5
    (talk.directory / "payload.json").write_text('{"first": 4}', encoding="utf-8")
    assert _ended(talk, "add", "--payload", "@payload.json", "--arg", "second:=4")["result"] == 8
    piped = subprocess.run(
        talk.command("task", "trigger", "add", "--payload", "-", "--wait", "--json"),
        cwd=talk.directory,
        env=clean_environment(),
        input='{"first": 9}',
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(piped.stdout)["result"] == 10


@pytest.mark.parametrize(
    ("arguments", "code", "field"),
    [
        (["--payload", "@none.json"], "INVALID_VALUE", "--payload"),
        (["--payload", "@."], "INVALID_VALUE", "--payload"),
        (["--payload", "-"], "INVALID_PAYLOAD", "payload"),
        (["--payload", "[1]"], "INVALID_PAYLOAD", "payload"),
        (["first=1"], "INVALID_VALUE", "--arg"),
        (["--arg", "first"], "INVALID_VALUE", "--arg"),
        (["--arg", "first=1", "--arg", "first=2"], "INVALID_VALUE", "--arg"),
        (["--arg", "third=1"], "INVALID_PAYLOAD", "payload.third"),
        (["--arg", "first:=soon"], "INVALID_PAYLOAD", "--arg"),
        (["--arg", ":=1"], "INVALID_VALUE", "--arg"),
        (["--delay", "soon"], "INVALID_DURATION", "delay"),
        (["--at", "2026-01-01"], "INVALID_INSTANT", "at"),
        (["--delay", "1s", "--at", "2026-01-01T00:00:00Z"], "INVALID_VALUE", "at"),
        (["--priority", "10"], "INVALID_VALUE", "priority"),
        (["-n", "a b"], "INVALID_NAME", "--namespace"),
    ],
)
def test_trigger_that_cannot_be_is_refused_before_anything_is_submitted(
    talk: Dev, arguments: list[str], code: str, field: str
) -> None:
    before = talk.json("instance", "list", "--task", "add", "--count")
    result = subprocess.run(
        talk.command("task", "trigger", "add", *arguments, "--json"),
        cwd=talk.directory,
        env=clean_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (result.returncode, result.stdout) == (2, "")
    told = json.loads(result.stderr)["error"]
    assert (told["code"], told["field"]) == (code, field)
    assert talk.json("instance", "list", "--task", "add", "--count") == before


# ── logs ──────────────────────────────────────────────────────────────────────────────────────────────


def test_follow_shows_what_is_written_when_it_is_and_ends_with_the_instance(talk: Dev) -> None:
    (talk.directory / "go").unlink(missing_ok=True)
    identity = _started(talk, "talker")
    following = subprocess.Popen(
        talk.command("instance", "logs", "-f", identity),
        cwd=talk.directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert [following.stdout.readline() for _ in range(2)] == ["--- attempt 1 ---\n", "one\n"]
    (talk.directory / "go").touch()
    rest, complaint = following.communicate(timeout=60)
    assert (following.returncode, rest, complaint) == (0, "two\n", "")


def test_follow_goes_through_all_attempts_and_a_tail_begins_late(talk: Dev) -> None:
    (talk.directory / "tried").unlink(missing_ok=True)
    identity = _started(talk, "twice")
    whole = talk.run("instance", "logs", "--follow", identity)
    assert whole.stdout == "--- attempt 1 ---\ntrying\n--- attempt 2 ---\ntrying\n"
    assert talk.run("instance", "logs", identity, "--tail", "1").stdout == "--- attempt 2 ---\ntrying\n"
    assert talk.run("instance", "logs", identity, "--tail", "0").stdout == ""
    assert talk.run("instance", "logs", identity, "--attempt", "1").stdout == "trying\n"
    lines = talk.run("instance", "logs", "-f", identity, "--json").stdout.splitlines()
    assert [json.loads(line)["attempt"] for line in lines] == [1, 2]
    assert "there is no attempt 7" in talk.run("instance", "logs", identity, "--attempt", "7").stderr


def test_c195_ctrl_c_in_follow_ends_with_130_and_leaves_the_instance_running(talk: Dev) -> None:
    identity = _started(talk, "endless")
    following = subprocess.Popen(
        talk.command("instance", "logs", "-f", identity),
        cwd=talk.directory,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert following.stdout is not None
    assert following.stdout.readline() == "--- attempt 1 ---\n"
    following.send_signal(signal.SIGINT)
    _, complaint = following.communicate(timeout=30)
    assert following.returncode == 130
    assert f"instance {identity} goes on" in complaint
    assert "Traceback" not in complaint
    assert talk.json("instance", "show", identity)["state"] == "running"
    assert talk.run("instance", "cancel", identity).returncode == 0


@pytest.mark.parametrize("option", [["--attempt", "0"], ["--tail", "-1"], ["--tail", "99999999999999999999"]])
def test_impossible_part_of_the_logs_is_refused_by_its_option(talk: Dev, option: list[str]) -> None:
    result = talk.run("instance", "logs", "x", *option)
    assert result.returncode == 2
    assert option[0] in result.stderr
