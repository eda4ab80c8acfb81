"""``ostinato doctor``: each check says what is wrong when it is, and changes nothing."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
from support.certificates import self_signed, signed
from support.commands import Execute
from support.dev import Dev, clean_environment, running_dev
from support.fake_engine import fake_engine

from ostinato.clock import SystemClock
from ostinato.doctor.processes import is_ostinato
from ostinato.doctor.report import Check, prefixed, run_checks
from ostinato.errors import UserError
from ostinato.store.batches import WorkerRow
from ostinato.store.from_url import open_store_from_url

Findings = list[dict[str, Any]]


def _doctor(directory: Path, *options: str, env: dict[str, str] | None = None, status: int = 0) -> Findings:
    """Findings of the command in `directory`, on ports that are free unless the options say otherwise."""
    places = {"OSTINATO_BIND": "127.0.0.1:0", "OSTINATO_WORKER_BIND": "127.0.0.1:0"}
    done = subprocess.run(
        [sys.executable, "-m", "ostinato.cli", "doctor", *options, "--json"],
        cwd=directory,
        env={**clean_environment(), **places, **(env or {})},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == status, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert said["ok"] is (status == 0)
    findings: Findings = said["findings"]
    return findings


def _found(findings: Findings, check: str, status: str) -> str:
    """What a check has found of that status, with the hints; it must have found something."""
    rows = [row for row in findings if (row["check"], row["status"]) == (check, status)]
    assert rows, findings
    return "\n".join(f"{row['what']} — {row['hint']}" for row in rows)


def _make_database(directory: Path) -> Path:
    path = directory / "ostinato.db"
    subprocess.run(
        [sys.executable, "-c", "from ostinato import App; App('x', 'sqlite:///ostinato.db').apply()"],
        cwd=directory,
        env=clean_environment(),
        check=True,
        timeout=60,
    )
    return path


# ── a machine on which all is well ────────────────────────────────────────────────────────────────────


def test_empty_folder_is_well_and_stays_empty(tmp_path: Path) -> None:
    findings = _doctor(tmp_path)
    assert list(tmp_path.iterdir()) == []
    assert "no database" in _found(findings, "database", "warn")
    assert "no scheduler is running" in _found(findings, "scheduler", "warn")
    assert {row["check"] for row in findings} == {
        *("python", "packages", "clock", "time zones", "processes", "settings", "database", "ports"),
        *("scheduler", "workers", "limits", "container engine", "app", "data directory", "tls"),
        "join token",
    }


def test_text_has_a_line_a_finding_with_its_status_first(execute: Execute) -> None:
    done = execute("doctor", "--bind", "127.0.0.1:0", "--worker-bind", "127.0.0.1:0")
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert {line.split()[0] for line in lines} == {"ok", "warn"}
    assert any(line.startswith("warn  scheduler: no scheduler is running  —  ostinato dev") for line in lines)


@pytest.fixture(scope="module")
def dev(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dev]:
    with running_dev(tmp_path_factory.mktemp("doctor")) as running:
        yield running


def test_running_dev_is_recognised_as_ours(dev: Dev) -> None:
    address = str(dev.said["api"])
    findings = _doctor(dev.directory, "--bind", address)
    assert f"{address} is taken by a scheduler of ours" in _found(findings, "ports", "ok")
    assert "is ready: 64 partitions, 1 workers" in _found(findings, "scheduler", "ok")
    assert "renews itself" in _found(findings, "scheduler", "ok")
    assert "is connected" in _found(findings, "workers", "ok")
    assert "current" in _found(findings, "database", "ok")
    assert [row for row in findings if row["status"] == "fail"] == []


def test_task_that_no_worker_can_run_is_named(dev: Dev) -> None:
    code = """
from ostinato import App
app = App("elsewhere", "sqlite:///ostinato.db")
app.shell("labelled", "true", labels={"gpu": "yes"})
app.apply()
"""
    subprocess.run(
        [sys.executable, "-c", code], cwd=dev.directory, env=clean_environment(), check=True, timeout=60
    )
    told = _found(_doctor(dev.directory), "workers", "warn")
    assert "no worker can run default/labelled" in told
    assert "gpu=yes" in told


# ── settings ──────────────────────────────────────────────────────────────────────────────────────────


def test_settings_are_shown_with_their_sources_and_without_passwords(tmp_path: Path) -> None:
    (tmp_path / "ostinato.toml").write_text('namespace = "shop"\n', encoding="utf-8")
    findings = _doctor(
        tmp_path,
        "--data-dir",
        "data",
        env={"OSTINATO_DATABASE": "postgresql://me:geheim@127.0.0.1:1/x"},
        status=1,
    )
    told = _found(findings, "settings", "ok")
    assert "namespace is shop (ostinato.toml: namespace)" in told
    assert "data_dir is data (--data-dir)" in told
    assert "database is postgresql://me:***@127.0.0.1:1/x (OSTINATO_DATABASE)" in told
    database = _found(findings, "database", "fail")
    assert "OSTINATO_DATABASE: reading the schema did not succeed" in database
    assert "geheim" not in json.dumps(findings)


def test_setting_that_cannot_be_read_fails_and_the_machine_is_checked_all_the_same(tmp_path: Path) -> None:
    findings = _doctor(tmp_path, env={"OSTINATO_SLOTS": "many"}, status=1)
    assert "OSTINATO_SLOTS: 'many' is not a whole number" in _found(findings, "settings", "fail")
    assert "Python" in _found(findings, "python", "ok")


# ── database ──────────────────────────────────────────────────────────────────────────────────────────


def test_database_of_another_program_fails(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "ostinato.db")) as connection:
        connection.execute("create table t (x)")
    assert "another program" in _found(_doctor(tmp_path, status=1), "database", "fail")


def test_file_that_is_no_database_fails(tmp_path: Path) -> None:
    (tmp_path / "ostinato.db").write_text(
        "not a database, but long enough for a header" * 50, encoding="utf-8"
    )
    assert "not a SQLite database" in _found(_doctor(tmp_path, status=1), "database", "fail")


def test_damaged_pages_fail(tmp_path: Path) -> None:
    path = _make_database(tmp_path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size - size // 2))
    assert "database" in {row["check"] for row in _doctor(tmp_path, status=1) if row["status"] == "fail"}


def test_what_is_wrong_with_the_database_is_told_once_and_by_its_own_check(tmp_path: Path) -> None:
    path = _make_database(tmp_path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 2)
        file.write(b"\xff" * (size - size // 2))
    findings = _doctor(tmp_path, status=1)
    failed = [row for row in findings if row["status"] == "fail"]
    assert [row["check"] for row in failed] == ["database"]
    assert "see the check of the database" in _found(findings, "scheduler", "warn")
    assert "see the check of the database" in _found(findings, "workers", "warn")
    (tmp_path / "ostinato.db").write_bytes(b"\x01" * 5_000)
    failed = [row for row in _doctor(tmp_path, status=1) if row["status"] == "fail"]
    assert len(failed) == 1


@pytest.mark.parametrize(
    ("revision", "status", "words"),
    [("9999", "fail", "newer"), ("0000", "warn", "older")],
)
def test_schema_of_another_version_is_told_and_stays(
    revision: str, status: str, words: str, tmp_path: Path
) -> None:
    path = _make_database(tmp_path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update alembic_version set version_num = ?", [revision])
        connection.commit()
    findings = _doctor(tmp_path, status=int(status == "fail"))
    assert words in _found(findings, "database", status)
    with closing(sqlite3.connect(path)) as connection:
        assert connection.execute("select version_num from alembic_version").fetchone() == (revision,)


def test_database_in_a_folder_that_is_not_there_fails_and_names_the_setting(tmp_path: Path) -> None:
    findings = _doctor(tmp_path, env={"OSTINATO_DATABASE": "sqlite:///no/where.db"}, status=1)
    told = _found(findings, "database", "fail")
    assert "OSTINATO_DATABASE: no/where.db: there is no folder" in told


# ── ports ─────────────────────────────────────────────────────────────────────────────────────────────


@contextmanager
def _listener() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_port_of_another_program_fails_with_its_process(tmp_path: Path) -> None:
    with _listener() as address:
        told = _found(_doctor(tmp_path, "--worker-bind", address, status=1), "ports", "fail")
    assert f"--worker-bind: {address} is taken by another program (process {os.getpid()}, " in told


def test_port_that_takes_connections_and_never_answers_does_not_hold_the_report_up(tmp_path: Path) -> None:
    with _listener() as address:
        told = _found(_doctor(tmp_path, "--bind", address, status=1), "ports", "fail")
    assert f"--bind: {address} is taken by another program" in told


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["/opt/bin/python3.11", "/opt/bin/ostinato", "scheduler"], True),
        (["/opt/bin/ostinato", "dev", "shop.py"], True),
        (["python", "-X", "utf8", "-m", "ostinato.cli", "scheduler"], True),
        (["python", "-m", "ostinato"], True),
        (["python3", "serve.py"], None),
        (["vim", "notes", "ostinato"], False),
        (["nginx: master process"], False),
        ([""], False),
    ],
)
def test_process_of_ours_is_known_by_its_command_line(command: list[str], expected: bool | None) -> None:
    assert is_ostinato(command) is expected


#: Called as the installed script is: it listens where it is told to and does nothing.
_SLEEPER = """
import signal, socket, sys
listening = socket.create_server(("127.0.0.1", 0))
print(listening.getsockname()[1], flush=True)
signal.pause()
"""


def test_stopped_process_of_ours_is_named_and_fails_where_it_holds_the_port(tmp_path: Path) -> None:
    script = tmp_path / "ostinato"
    script.write_text(_SLEEPER)
    command = [sys.executable, str(script), "scheduler"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = f"127.0.0.1:{int(process.stdout.readline())}"
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)
        findings = _doctor(tmp_path, "--worker-bind", address, status=1)
        process.kill()
    stopped = (
        f"process {process.pid} is stopped, so that nothing of it goes on: {' '.join(command)} — kill -CONT"
    )
    assert stopped in _found(findings, "processes", "warn")
    assert f"{address} is taken by a process that is stopped (process {process.pid}, " in (
        _found(findings, "ports", "fail")
    )


def test_node_that_is_gone_while_others_work_is_told_where_it_should_answer(dev: Dev) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{nobody.getsockname()[1]}"
    findings = _doctor(dev.directory, "--bind", address)
    assert "renews itself" in _found(findings, "scheduler", "ok")
    told = _found(findings, "scheduler", "warn")
    assert f"no scheduler answers at {address} (--bind); others do the work" in told


def test_worker_that_is_gone_while_others_work_is_told(dev: Dev) -> None:
    async def record() -> None:
        clock = SystemClock()
        store = open_store_from_url(f"sqlite:///{dev.directory / 'ostinato.db'}", clock=clock)
        await store.open()
        killed = WorkerRow(
            worker_id="killed", worker_name="rack-7", node_id="n", state="gone", seen_us=clock.wall_us()
        )
        await store.record_workers([killed], gone_before_us=0)
        await store.close()

    asyncio.run(record())
    told = _found(_doctor(dev.directory, "--bind", str(dev.said["api"])), "workers", "warn")
    assert "worker rack-7 has been gone since " in told


def test_nobody_is_told_to_end_what_holds_a_port(tmp_path: Path) -> None:
    with _listener() as address:
        told = _found(_doctor(tmp_path, "--worker-bind", address, status=1), "ports", "fail")
    assert "give doctor its options" in told
    assert "end it" not in told


# ── app ───────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("import nosuchmodule\n", "nosuchmodule"),
        ("x = (\n", "was never closed"),
        ("import os\nos._exit(7)\n", "ended with exit status 7"),
        ("import os, signal\nos.kill(os.getpid(), signal.SIGSEGV)\n", "ended with signal SIGSEGV"),
    ],
)
def test_app_that_does_not_import_fails_with_the_reason(content: str, words: str, tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(content, encoding="utf-8")
    assert words in _found(_doctor(tmp_path, "--app", "broken.py", status=1), "app", "fail")


def test_app_that_imports_is_well(tmp_path: Path) -> None:
    source = "from ostinato import App\napp = App('x')\n\n@app.task\ndef one() -> None: ...\n"
    (tmp_path / "fine.py").write_text(source, encoding="utf-8")
    assert "fine.py declares 1 tasks" in _found(_doctor(tmp_path, "--app", "fine.py"), "app", "ok")


# ── files ─────────────────────────────────────────────────────────────────────────────────────────────


def test_data_directory_that_is_a_file_fails(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("", encoding="utf-8")
    findings = _doctor(tmp_path, "--data-dir", "data", status=1)
    assert "--data-dir" in _found(findings, "data directory", "fail")


def test_spools_of_dead_workers_are_told_and_stay(tmp_path: Path) -> None:
    spool = tmp_path / ".ostinato" / "spool"
    spool.mkdir(parents=True)
    for name in ("gone.db", "gone.lock", "old.db.corrupt"):
        (spool / name).touch()
    told = _found(_doctor(tmp_path), "data directory", "warn")
    assert "1 spools of workers that are gone" in told
    assert "1 damaged spools: old.db.corrupt" in told
    assert len(list(spool.iterdir())) == 3


@pytest.mark.parametrize(
    ("mode", "status", "words"),
    [(0o600, "ok", "its owner's alone"), (0o640, "warn", "its group"), (0o644, "fail", "chmod 600")],
)
def test_join_token_is_its_owners_alone(mode: int, status: str, words: str, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text("secret words\n", encoding="utf-8")
    token.chmod(mode)
    findings = _doctor(tmp_path, "--join-token-file", str(token), status=int(status == "fail"))
    assert words in _found(findings, "join token", status)
    assert "secret" not in json.dumps(findings)


def test_empty_join_token_fails_and_names_its_source(tmp_path: Path) -> None:
    (tmp_path / "token").touch(0o600)
    findings = _doctor(tmp_path, env={"OSTINATO_JOIN_TOKEN_FILE": "token"}, status=1)
    assert "OSTINATO_JOIN_TOKEN_FILE: token is empty" in _found(findings, "join token", "fail")


# ── the report itself ─────────────────────────────────────────────────────────────────────────────────


def test_check_that_raises_or_hangs_is_a_failed_line_and_the_others_are_kept() -> None:
    never = threading.Event()

    def hangs() -> Iterator[tuple[Any, str, str]]:
        yield "ok", "begun", ""
        never.wait()

    def breaks() -> Iterator[tuple[Any, str, str]]:
        yield "ok", "before", ""
        raise ZeroDivisionError("by nothing")

    def refuses() -> Iterator[tuple[Any, str, str]]:
        raise UserError("INVALID_SETTING", "is wrong", field="--bind", hint="write it anew")
        yield

    found = run_checks([Check("hangs", hangs, 50_000), Check("breaks", breaks), Check("refuses", refuses)])
    never.set()
    assert [(row.status, row.check, row.what) for row in found] == [
        ("ok", "hangs", "begun"),
        ("fail", "hangs", "the check did not end within 50ms"),
        ("ok", "breaks", "before"),
        ("fail", "breaks", "the check itself failed: ZeroDivisionError: by nothing"),
        ("fail", "refuses", "--bind: is wrong"),
    ]
    assert found[-1].hint == "write it anew"


def test_what_names_itself_is_not_named_twice() -> None:
    assert prefixed("--bind", "--bind: is wrong") == "--bind: is wrong"
    assert prefixed("--bind", "is wrong") == "--bind: is wrong"
    assert prefixed("", "is wrong") == "is wrong"

    def refuses() -> Iterator[tuple[Any, str, str]]:
        raise UserError("INVALID_APP", "app: there is no file", field="app")
        yield

    (finding,) = run_checks([Check("app", refuses)])
    assert finding.what == "app: there is no file"


# ── TLS ───────────────────────────────────────────────────────────────────────────────────────────────


def _tls(certificate: Path, key: Path) -> list[str]:
    return ["--tls-certificate", str(certificate), "--tls-key", str(key)]


def test_certificate_and_its_key_are_well_and_its_end_is_said(tmp_path: Path) -> None:
    made = self_signed(tmp_path)
    told = _found(_doctor(tmp_path, *_tls(made.certificate, made.key)), "tls", "ok")
    assert f"{made.certificate} and its key fit" in told
    assert f"{made.certificate} is valid until 20" in told


@pytest.mark.parametrize(
    ("days", "status", "words"), [(-1, "fail", "out of date since"), (3, "warn", "only until")]
)
def test_certificate_that_is_over_or_nearly_so_is_told(
    days: int, status: str, words: str, tmp_path: Path
) -> None:
    made = signed(tmp_path, self_signed(tmp_path), days=days)
    findings = _doctor(tmp_path, *_tls(made.certificate, made.key), status=int(status == "fail"))
    assert words in _found(findings, "tls", status)


def test_key_of_another_certificate_and_one_that_others_may_read_fail(tmp_path: Path) -> None:
    made, other = self_signed(tmp_path), self_signed(tmp_path, "other")
    told = _found(_doctor(tmp_path, *_tls(made.certificate, other.key), status=1), "tls", "fail")
    assert f"--tls-key: {other.key} is not the key of {made.certificate}" in told
    made.key.chmod(0o644)
    told = _found(_doctor(tmp_path, *_tls(made.certificate, made.key), status=1), "tls", "fail")
    assert f"chmod 600 {made.key}" in told


def test_certificate_that_is_not_there_fails_and_names_its_source(tmp_path: Path) -> None:
    told = _found(_doctor(tmp_path, env={"OSTINATO_TLS_CA": "nothing.pem"}, status=1), "tls", "fail")
    assert "OSTINATO_TLS_CA: nothing.pem cannot be read" in told


def test_engine_that_is_named_and_does_not_answer_fails_and_one_that_nobody_named_is_no_fault(
    tmp_path: Path,
) -> None:
    socket = tmp_path / "engine.sock"
    findings = _doctor(tmp_path, env={"OSTINATO_ENGINE_SOCKET": str(socket)}, status=1)
    told = _found(findings, "container engine", "fail")
    assert f"OSTINATO_ENGINE_SOCKET: no container engine answers at {socket}" in told
    with fake_engine(tmp_path):
        findings = _doctor(tmp_path, env={"OSTINATO_ENGINE_SOCKET": str(socket)})
    assert "answers, API 1.45" in _found(findings, "container engine", "ok")
    findings = _doctor(tmp_path, env={"OSTINATO_ENGINE_SOCKET": "none"})
    assert "turned off" in _found(findings, "container engine", "ok")
