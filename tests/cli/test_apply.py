"""``ostinato apply``, ``export`` and ``schema`` as people call them, on a database of their own."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from house.project import ROOT
from support.commands import Execute

BACKUP = """
version: 1
tasks:
  - name: backup
    shell: {command: "true"}
    triggers: [{cron: "0 2 * * *", timezone: Europe/Berlin}]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Where commands run."""
    return tmp_path


def put(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def tasks_text(*names: str, namespace: str = "", **fields: str) -> str:
    """A document of shell tasks, each with `fields` as YAML."""
    lines = ["version: 1", *([f"namespace: {namespace}"] if namespace else []), "tasks:"]
    for name in names:
        lines += [f"  - name: {name}", '    shell: {command: "true"}']
        lines += [f"    {field}: {value}" for field, value in fields.items()]
    return "\n".join(lines) + "\n"


def versions(folder: Path) -> dict[str, int]:
    """Tasks in the database with their versions; none where there is no database."""
    if not (folder / "ostinato.db").exists():
        return {}
    with sqlite3.connect(folder / "ostinato.db") as connection:
        rows = connection.execute("SELECT namespace || '/' || name, version FROM task ORDER BY 1").fetchall()
    connection.close()
    return dict(rows)


def told(stderr: str) -> dict[str, Any]:
    """The error that a command told as JSON."""
    error: dict[str, Any] = json.loads(stderr.splitlines()[-1])["error"]
    return error


# ── what is done ──────────────────────────────────────────────────────────────────────────────────────


def test_apply_makes_the_database_and_the_tasks_and_again_changes_nothing(
    execute: Execute, folder: Path
) -> None:
    put(folder / "tasks.yaml", BACKUP)
    first = execute("apply", "--create", "-f", "tasks.yaml")
    assert (first.returncode, first.stdout) == (0, "created default/backup (version 1)\n"), first.stderr
    assert "made the database ostinato.db" in first.stderr
    assert "no scheduler is running" in first.stderr
    assert "1 task: 1 created" in first.stderr
    again = execute("apply", "--create", "-f", "tasks.yaml")
    assert (again.returncode, again.stdout) == (0, "unchanged default/backup (version 1)\n")
    put(folder / "tasks.yaml", BACKUP + "    priority: 9\n")
    changed = execute("apply", "--create", "-f", "tasks.yaml", "--json")
    assert changed.returncode == 0, changed.stderr
    (change,) = json.loads(changed.stdout)["changes"]
    assert list(change) == ["namespace", "name", "action", "version", "before", "after"]
    assert (change["name"], change["action"], change["version"]) == ("backup", "change", 2)
    assert "priority" not in change["before"]
    assert change["after"]["priority"] == 9
    assert versions(folder) == {"default/backup": 2}


def test_a_folder_is_read_below_in_order_without_hidden_files_and_each_file_once(
    execute: Execute, folder: Path
) -> None:
    for path, name in (
        ("d/b.yml", "second"),
        ("d/a.yaml", "first"),
        ("d/sub/c.YAML", "third"),
        ("d/.hidden.yaml", "hidden"),
        ("d/.git/x.yaml", "hidden"),
        ("d/notes.txt", "text"),
        ("d/e.yaml.bak", "text"),
    ):
        put(folder / path, tasks_text(name))
    (folder / "d" / "link.yaml").symlink_to("a.yaml")
    result = execute("apply", "--create", "-f", "d", "-f", "d/a.yaml", "--json")
    assert result.returncode == 0, result.stderr
    names = [change["name"] for change in json.loads(result.stdout)["changes"]]
    assert names == ["first", "second", "third"]


def test_standard_input_is_read_for_a_dash(folder: Path, execute: Execute) -> None:
    import subprocess
    import sys

    command = [sys.executable, "-m", "ostinato.cli", "apply", "--create", "-f", "-"]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("OSTINATO_")}
    result = subprocess.run(
        command, cwd=folder, env=kept, input="\ufeff" + BACKUP, capture_output=True, text=True, check=False
    )
    assert (result.returncode, result.stdout) == (0, "created default/backup (version 1)\n"), result.stderr
    wrong = subprocess.run(
        command,
        cwd=folder,
        env=kept,
        input="version: 1\ntasks: [{}]\n",
        capture_output=True,
        text=True,
        check=False,
    )
    assert wrong.returncode == 2
    assert "<stdin>:2:" in wrong.stderr


def test_namespace_is_the_default_of_documents_and_no_override(execute: Execute, folder: Path) -> None:
    put(folder / "none.yaml", tasks_text("a"))
    put(folder / "staging.yaml", tasks_text("b", namespace="staging"))
    result = execute("apply", "--create", "-f", "none.yaml", "-f", "staging.yaml", "--namespace", "staging")
    assert result.returncode == 0, result.stderr
    assert set(versions(folder)) == {"staging/a", "staging/b"}
    put(folder / "default.yaml", tasks_text("c", namespace="default"))
    refused = execute("apply", "-n", "staging", "-f", "default.yaml")
    assert refused.returncode == 2
    assert "default.yaml:2:12: namespace: the document is for default" in refused.stderr
    # A setting is a default for those who say nothing, not a wish for this apply.
    result = execute(
        "apply", "--create", "-f", "none.yaml", "-f", "default.yaml", env={"OSTINATO_NAMESPACE": "team"}
    )
    assert result.returncode == 0, result.stderr
    assert set(versions(folder)) == {"staging/a", "staging/b", "team/a", "default/c"}


def test_example_of_the_shop_applies_and_says_what_would_be_done(execute: Execute, folder: Path) -> None:
    shutil.copytree(ROOT / "examples/shop", folder / "shop")
    result = execute("apply", "--create", "-f", "shop")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        f"created shop/{name} (version 1)"
        for name in ("backup_orders", "check_checkout", "import_prices", "weekly_report", "announce_report")
    ]
    assert execute("apply", "--create", "-f", "shop", "--diff").returncode == 0


# ── what is refused ───────────────────────────────────────────────────────────────────────────────────


def test_every_error_of_every_file_is_told_and_nothing_is_written(execute: Execute, folder: Path) -> None:
    put(
        folder / "d/a.yaml", tasks_text("one", priority="10") + tasks_text("x")[len("version: 1\ntasks:\n") :]
    )
    put(folder / "d/b.yaml", "version: 1\ntasks:\n  - name: two\n    shel: {command: x}\n    timeout: soon\n")
    put(folder / "d/c.yaml", "version: 1\ntasks: [\n")
    put(folder / "d/good.yaml", tasks_text("good"))
    result = execute("apply", "--create", "-f", "d")
    assert (result.returncode, result.stdout) == (2, "")
    for part in ("d/a.yaml:5:", "d/b.yaml:4:", "did you mean shell", "d/b.yaml:5:", "d/c.yaml:"):
        assert part in result.stderr
    assert "Traceback" not in result.stderr
    assert not (folder / "ostinato.db").exists()
    in_json = told(execute("apply", "--create", "-f", "d", "--json").stderr)
    assert len(in_json["errors"]) >= 4
    assert all(error["place"] for error in in_json["errors"])


def test_same_task_in_two_files_names_both_places(execute: Execute, folder: Path) -> None:
    put(folder / "d/a.yaml", tasks_text("other", "same"))
    put(folder / "d/b.yaml", "# a comment\n" + tasks_text("same"))
    result = execute("apply", "--create", "-f", "d")
    assert result.returncode == 2
    assert "d/b.yaml:4:5: tasks[0].name: task default/same is given twice" in result.stderr
    assert "first at d/a.yaml:5:5" in result.stderr
    assert not (folder / "ostinato.db").exists()
    put(folder / "d/b.yaml", tasks_text("same", namespace="elsewhere"))
    assert execute("apply", "--create", "-f", "d").returncode == 0


def _missing(folder: Path) -> str:
    return "nope.yaml"


def _empty_folder(folder: Path) -> str:
    put(folder / "empty/.hidden.yaml", BACKUP)
    return "empty"


def _binary(folder: Path) -> str:
    (folder / "x.yaml").write_bytes(b"version: 1\n\x80\x81")
    return "x.yaml"


def _nul(folder: Path) -> str:
    (folder / "x.yaml").write_bytes(b"version: 1\0")
    return "x.yaml"


def _nothing(folder: Path) -> str:
    return put(folder / "x.yaml", "# nothing yet\n").name


def _folder_loop(folder: Path) -> str:
    put(folder / "d/a.yaml", BACKUP)
    (folder / "d/sub").mkdir()
    (folder / "d/sub/up").symlink_to("..")
    return "d"


def _file_loop(folder: Path) -> str:
    (folder / "x.yaml").symlink_to("x.yaml")
    return "x.yaml"


def _dangling(folder: Path) -> str:
    (folder / "d").mkdir()
    (folder / "d/x.yaml").symlink_to("nowhere.yaml")
    return "d"


def _pipe(folder: Path) -> str:
    (folder / "d").mkdir()
    os.mkfifo(folder / "d/x.yaml")
    return "d"


def _endless(folder: Path) -> str:
    return "/dev/zero"


def _no_mapping(folder: Path) -> str:
    return put(folder / "x.yaml", "- a\n").name


@pytest.mark.parametrize(
    ("make", "code", "words"),
    [
        (_missing, "INVALID_DOCUMENT", "no such file"),
        (_empty_folder, "INVALID_DOCUMENT", "no *.yaml"),
        (_binary, "INVALID_DOCUMENT", "not UTF-8"),
        (_nul, "INVALID_DOCUMENT", ""),
        (_nothing, "INVALID_DOCUMENT", ""),
        (_folder_loop, "INVALID_DOCUMENT", "leads back"),
        (_file_loop, "INVALID_DOCUMENT", "circle"),
        (_dangling, "INVALID_DOCUMENT", "no such file"),
        (_pipe, "INVALID_DOCUMENT", "no regular file"),
        (_endless, "BODY_TOO_LARGE", "at most"),
        (_no_mapping, "INVALID_DOCUMENT", ""),
    ],
)
def test_what_cannot_be_read_is_a_sentence_that_names_the_file(
    execute: Execute, folder: Path, make: Any, code: str, words: str
) -> None:
    name = make(folder)
    result = execute("apply", "--create", "-f", name, "--json")
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    error = told(result.stderr)
    assert error["code"] == code
    assert name in error["place"]
    assert words in error["message"]
    assert not (folder / "ostinato.db").exists()


def test_an_empty_path_is_not_this_folder(execute: Execute, folder: Path) -> None:
    put(folder / "tasks.yaml", BACKUP)
    result = execute("apply", "--create", "-f", "", "--json")
    assert (result.returncode, told(result.stderr)["field"]) == (2, "--file")


def test_apply_without_a_file_is_a_wrong_call(execute: Execute) -> None:
    result = execute("apply")
    assert result.returncode == 2
    assert "--file" in result.stderr


# ── questions ─────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("question", ["--diff", "--dry-run"])
def test_a_question_never_makes_a_database(execute: Execute, folder: Path, question: str) -> None:
    put(folder / "tasks.yaml", BACKUP)
    result = execute("apply", "--create", "-f", "tasks.yaml", question)
    assert (result.returncode, result.stdout) == (3, "")
    assert "there is no database" in result.stderr
    assert not (folder / "ostinato.db").exists()


def test_a_database_is_made_only_where_that_is_asked_for(execute: Execute, folder: Path) -> None:
    put(folder / "tasks.yaml", BACKUP)
    refused = execute("apply", "tasks.yaml", "--json")
    assert (refused.returncode, refused.stdout) == (3, "")
    error = told(refused.stderr)
    assert error["code"] == "DATABASE_UNAVAILABLE"
    assert "--create" in str(error["hint"])
    assert not (folder / "ostinato.db").exists()
    made = execute("apply", "tasks.yaml", "--create")
    assert (made.returncode, made.stdout) == (0, "created default/backup (version 1)\n"), made.stderr


def test_paths_are_given_with_or_without_their_option(execute: Execute, folder: Path) -> None:
    put(folder / "a.yaml", tasks_text("a"))
    put(folder / "b.yaml", tasks_text("b"))
    result = execute("apply", "--create", "a.yaml", "-f", "b.yaml")
    assert result.returncode == 0, result.stderr
    assert versions(folder) == {"default/a": 1, "default/b": 1}


def test_dry_run_says_what_would_be_done_and_writes_nothing(execute: Execute, folder: Path) -> None:
    put(folder / "tasks.yaml", tasks_text("a", "b"))
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    put(folder / "tasks.yaml", tasks_text("b", "c", priority="9"))
    result = execute("apply", "--create", "-f", "tasks.yaml", "--dry-run", "--prune")
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines() == [
        "would change default/b (version 1)",
        "would create default/c",
        "would delete default/a (version 1)",
    ]
    assert "nothing was written" in result.stderr
    assert versions(folder) == {"default/a": 1, "default/b": 1}


def test_diff_shows_the_words_of_the_file_and_ends_with_one_only_for_a_change(
    execute: Execute, folder: Path
) -> None:
    put(folder / "tasks.yaml", tasks_text("a", "b", description="old"))
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    same = execute("apply", "--create", "-f", "tasks.yaml", "--diff")
    assert (same.returncode, same.stdout, same.stderr) == (0, "", "")
    put(folder / "tasks.yaml", tasks_text("a", "c", description='"new\\u202e"'))
    changed = execute("apply", "--create", "-f", "tasks.yaml", "--diff")
    assert changed.returncode == 1, changed.stderr
    lines = changed.stdout.splitlines()
    assert lines[:2] == ["--- default/a (version 1)", "+++ default/a"]
    assert "-description: old" in lines
    assert any(line.startswith("+description: ") for line in lines)
    assert "--- no task" in lines
    assert "+name: c" in lines
    assert "default/b" not in changed.stdout
    assert "\u202e" not in changed.stdout
    assert versions(folder) == {"default/a": 1, "default/b": 1}
    pruned = execute("apply", "--create", "-f", "tasks.yaml", "--diff", "--prune")
    assert "-name: b" in pruned.stdout.splitlines()
    in_json = execute("apply", "--create", "-f", "tasks.yaml", "--diff", "--json")
    assert in_json.returncode == 1
    assert [change["action"] for change in json.loads(in_json.stdout)["changes"]] == ["change", "create"]


def test_colour_is_for_terminals_or_for_those_who_ask(execute: Execute, folder: Path) -> None:
    put(folder / "tasks.yaml", tasks_text("a"))
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    put(folder / "tasks.yaml", tasks_text("a", priority="9"))
    asked = execute(
        "apply", "--create", "-f", "tasks.yaml", "--diff", "--color", "always", env={"NO_COLOR": "1"}
    )
    assert "\x1b[32m+priority: 9\x1b[0m" in asked.stdout.splitlines()
    assert "\x1b" not in execute("apply", "--create", "-f", "tasks.yaml", "--diff").stdout
    wrong = execute("apply", "--create", "-f", "tasks.yaml", "--diff", "--color", "pink")
    assert (wrong.returncode, wrong.stdout) == (2, "")


# ── export and schema ─────────────────────────────────────────────────────────────────────────────────


def test_what_is_exported_applies_without_a_change(execute: Execute, folder: Path) -> None:
    shutil.copytree(ROOT / "examples/shop", folder / "shop")
    assert execute("apply", "--create", "-f", "shop").returncode == 0
    for options, name in (([], "out.yaml"), (["--json"], "out.json")):
        exported = execute("export", "--namespace", "shop", *options)
        assert (exported.returncode, exported.stderr) == (0, "")
        put(folder / name, exported.stdout)
        same = execute("apply", "--create", "-f", name, "--diff", "--prune")
        assert (same.returncode, same.stdout) == (0, ""), same.stderr
    one = execute("export", "-n", "shop", "--task", "backup_orders", "--json")
    assert [entry["name"] for entry in json.loads(one.stdout)["tasks"]] == ["backup_orders"]


def test_export_of_what_does_not_exist(execute: Execute, folder: Path) -> None:
    assert execute("export").returncode == 3
    assert not (folder / "ostinato.db").exists()
    put(folder / "tasks.yaml", BACKUP)
    assert execute("apply", "--create", "-f", "tasks.yaml").returncode == 0
    missing = execute("export", "--task", "bakup", "--json")
    assert (missing.returncode, told(missing.stderr)["code"]) == (5, "TASK_NOT_FOUND")
    nothing = execute("export", "-n", "empty", "--json")
    assert (nothing.returncode, json.loads(nothing.stdout)["tasks"]) == (0, [])
    assert "no such tasks in namespace empty" in nothing.stderr


def test_schema_is_json_schema(execute: Execute) -> None:
    result = execute("schema")
    assert result.returncode == 0, result.stderr
    schema = json.loads(result.stdout)
    assert schema["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    assert "tasks" in schema["properties"]
