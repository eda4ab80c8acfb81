"""``ostinato db``: what a person and a program are told, and how each command ends."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.commands import Invoke
from support.servers import SERVER_KINDS, TestDatabase, connect, fresh_database

from ostinato.store.migrations import HEAD_REVISION, REVISIONS, SERVER_VERSION_TABLE


@pytest.fixture(params=SERVER_KINDS)
def database(request: pytest.FixtureRequest) -> Iterator[TestDatabase]:
    """Without any table."""
    with fresh_database(request.param, has_schema=False) as found:
        yield found


def test_an_empty_database_is_looked_at_upgraded_used_and_emptied(
    invoke: Invoke, database: TestDatabase
) -> None:
    settings = {"OSTINATO_DATABASE": database.url}
    looked = invoke("db", "status", env=settings)
    assert looked.exit_code == 0
    assert "schema: none" in looked.stdout
    assert f"pending: {', '.join(REVISIONS)}" in looked.stdout
    assert "missing: run ostinato db upgrade" in looked.stdout
    checked = invoke("db", "status", "--check", env=settings)
    assert (checked.exit_code, checked.stdout) == (1, looked.stdout)
    refused = invoke("task", "list", env=settings)
    assert refused.exit_code == 2
    assert "SCHEMA_VERSION: OSTINATO_DATABASE: " in refused.stderr
    assert "run ostinato db upgrade" in refused.stderr
    upgraded = invoke("db", "upgrade", "--partitions", "8", env=settings)
    assert (upgraded.exit_code, upgraded.stderr) == (0, "")
    assert "partitions: 8" in upgraded.stdout
    assert upgraded.stdout.endswith("current\n")
    assert invoke("db", "status", "--check", env=settings).exit_code == 0
    assert invoke("task", "list", env=settings).exit_code == 0
    assert len(json.loads(invoke("partition", "list", "--json", env=settings).stdout)) == 8
    emptied = invoke("db", "downgrade", "--to", "base", "--yes", env=settings)
    assert emptied.exit_code == 0
    assert emptied.stdout == looked.stdout


def test_doctor_looks_at_a_server_too(invoke: Invoke, database: TestDatabase) -> None:
    sick = invoke("doctor", "--database", database.url)
    assert "has schema none, and" in sick.stdout
    assert "ostinato db upgrade" in sick.stdout
    invoke("db", "upgrade", "--partitions", "8", "--database", database.url)
    well = invoke("doctor", "--database", database.url)
    assert f"answers and has the current schema, {HEAD_REVISION}, 8 partitions" in well.stdout
    assert "no worker is connected" in well.stdout


def test_a_program_is_told_the_same_as_json(invoke: Invoke, database: TestDatabase) -> None:
    told = invoke("db", "upgrade", "--to", "0002", "--json", "--database", database.url)
    assert json.loads(told.stdout) == {
        "database": database.server_url.shown,
        "revision": "0002",
        "newest": HEAD_REVISION,
        "pending": list(REVISIONS[2:]),
        "partitions": 64,
        "state": "older",
        "to_do": "run ostinato db upgrade",
    }
    newest = json.loads(invoke("db", "upgrade", "--json", "--database", database.url).stdout)
    assert (newest["state"], newest["to_do"], newest["pending"]) == ("current", None, [])


def test_the_number_of_partitions_is_fixed(invoke: Invoke, database: TestDatabase) -> None:
    invoke("db", "upgrade", "--partitions", "8", "--database", database.url)
    again = invoke("db", "upgrade", "--partitions", "16", "--database", database.url)
    assert again.exit_code == 0
    assert "keeps its 8 partitions" in again.stderr
    assert "partitions: 8" in again.stdout


def test_a_downgrade_asks_and_does_nothing_without_an_answer(invoke: Invoke, database: TestDatabase) -> None:
    invoke("db", "upgrade", "--database", database.url)
    refused = invoke("db", "downgrade", "--to", "0001", "--database", database.url)
    assert refused.exit_code == 2
    assert "--yes" in refused.stderr
    assert "current" in invoke("db", "status", "--database", database.url).stdout


def test_a_newer_database_is_named_as_such(invoke: Invoke, database: TestDatabase) -> None:
    invoke("db", "upgrade", "--database", database.url)
    connection = connect(database.server_url)
    connection.cursor().execute(f"UPDATE {SERVER_VERSION_TABLE} SET version_num = '9999'")
    connection.commit()
    connection.close()
    looked = json.loads(invoke("db", "status", "--json", "--database", database.url).stdout)
    assert (looked["state"], looked["revision"], looked["pending"]) == ("newer", "9999", [])
    refused = invoke("db", "upgrade", "--database", database.url)
    assert refused.exit_code == 2
    assert "SCHEMA_VERSION" in refused.stderr


def test_a_downgrade_that_broke_off_is_told_by_all_and_ended_by_the_same_command(
    invoke: Invoke, database: TestDatabase
) -> None:
    settings = {"OSTINATO_DATABASE": database.url}
    invoke("db", "upgrade", "--partitions", "8", env=settings)
    reader = connect(database.server_url)
    reader.cursor().execute("SELECT * FROM task")
    # It waits for the reader in vain, at the last of its steps.
    broken_off = invoke("db", "downgrade", "--to", "0001", "--yes", env=settings)
    reader.close()
    assert broken_off.exit_code == 3
    looked = json.loads(invoke("db", "status", "--json", env=settings).stdout)
    if database.kind == "postgresql":
        assert looked["state"] == "current"
        return
    command = "ostinato db downgrade --to 0001"
    assert looked["state"] == "unfinished"
    assert looked["to_do"] == f"wait for its end, or where it has broken off, run {command}"
    assert f"not ended: downgrade from {HEAD_REVISION} to 0001" in invoke("db", "status", env=settings).stdout
    for arguments in (("task", "list"), ("db", "upgrade"), ("scheduler",)):
        refused = invoke(*arguments, env=settings)
        assert refused.exit_code == 2
        assert "SCHEMA_VERSION: OSTINATO_DATABASE: " in refused.stderr
        assert f"repeat it: {command}" in refused.stderr
    sick = invoke("doctor", env=settings)
    assert f"is in the middle of a schema downgrade from {HEAD_REVISION} to 0001" in sick.stdout
    assert command in sick.stdout
    ended = invoke("db", "downgrade", "--to", "0001", "--yes", env=settings)
    assert ended.exit_code == 0
    assert "older: run ostinato db upgrade" in ended.stdout
    assert "current" in invoke("db", "upgrade", env=settings).stdout


def test_a_wrong_password_is_not_repeated(invoke: Invoke, database: TestDatabase) -> None:
    url = database.url.replace("@", ":s3cret@").replace(database.server_url.database, "no_such_database")
    refused = invoke("db", "status", "--database", url)
    assert refused.exit_code in (2, 3)
    assert "DATABASE_UNUSABLE: --database: " in refused.stderr
    assert "s3cret" not in refused.stderr


@pytest.mark.parametrize(
    ("arguments", "field"),
    [
        (("upgrade", "--to", "0000"), "to"),
        (("upgrade", "--partitions", "0"), "--partitions"),
        (("downgrade", "--to", "9999", "--yes"), "to"),
        (("downgrade", "--yes"), "--to"),
    ],
)
def test_a_wrong_option_is_named(
    invoke: Invoke, database: TestDatabase, arguments: tuple[str, ...], field: str
) -> None:
    refused = invoke("db", *arguments, "--database", database.url)
    assert refused.exit_code == 2
    assert field in refused.stderr
    assert "missing" in invoke("db", "status", "--database", database.url).stdout


def test_a_sqlite_file_is_made_looked_at_and_downgraded_too(invoke: Invoke, tmp_path: Path) -> None:
    missing = invoke("db", "status", "--database", "sqlite:///new.db")
    assert missing.exit_code == 3
    assert not (tmp_path / "new.db").exists()
    assert invoke("db", "upgrade", "--database", "sqlite:///new.db").exit_code == 0
    down = invoke("db", "downgrade", "--to", "0001", "--yes", "--database", "sqlite:///new.db")
    assert "schema: 0001" in down.stdout
    # Whoever opens it migrates it.
    assert invoke("task", "list", "--database", "sqlite:///new.db").exit_code == 0
    assert "current" in invoke("db", "status", "--database", "sqlite:///new.db").stdout


@pytest.mark.parametrize(
    ("stray", "hint"),
    [
        (["x=5"], "write --arg x=5"),
        (["x=5", "y:=[1, 2]"], "write --arg x=5 --arg 'y:=[1, 2]'"),
        (["5"], "the task takes its arguments as --arg NAME=TEXT"),
    ],
)
def test_an_argument_without_its_option_is_told_the_option(
    invoke: Invoke, stray: list[str], hint: str
) -> None:
    refused = invoke("task", "trigger", "nightly", *stray, "--database", "sqlite:///none.db")
    assert refused.exit_code == 2
    assert f"--arg: '{stray[0]}' is one argument too many ({hint})" in refused.stderr


def test_a_copy_says_what_it_copied(invoke: Invoke, database: TestDatabase, tmp_path: Path) -> None:
    document = 'version: 1\ntasks: [{name: nightly, shell: {command: "true"}, triggers: [{every: 1h}]}]\n'
    (tmp_path / "tasks.yaml").write_text(document)
    applied = invoke("apply", "tasks.yaml", "--create", "--database", "sqlite:///old.db")
    assert applied.exit_code == 0, applied.stderr
    triggered = invoke("task", "trigger", "nightly", "--key", "once", "--database", "sqlite:///old.db")
    assert triggered.exit_code == 0, triggered.stderr
    refused = invoke("db", "copy", "sqlite:///old.db", database.url)
    assert refused.exit_code == 2
    assert "SCHEMA_VERSION: TO: " in refused.stderr
    invoke("db", "upgrade", "--database", database.url)
    copied = invoke("db", "copy", "sqlite:///old.db", database.url)
    assert copied.exit_code == 0, copied.stderr
    assert copied.stdout.splitlines()[2:] == [
        "tasks: 1",
        "versions of definitions: 1",
        "triggers: 0",
        "waiting instances: 1",
        "rows of their history: 0",
        "live idempotency keys: 1",
    ]
    assert "start schedulers on the new database alone" in copied.stderr
    assert "nightly" in invoke("task", "list", "--database", database.url).stdout
    again = invoke("db", "copy", "sqlite:///old.db", database.url, "--json")
    assert again.exit_code == 4
    assert json.loads(again.stderr)["error"]["code"] == "COPY_REFUSED"
