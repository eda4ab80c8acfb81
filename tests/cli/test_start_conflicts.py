"""What a scheduler, worker or ``dev`` says that cannot start: which setting is at fault."""

from __future__ import annotations

import socket
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.dev import APP, clean_environment

SCHEDULER = ("scheduler", "--bind", "127.0.0.1:0", "--worker-bind", "127.0.0.1:0")
DEV = ("dev", "shop.py", "--bind", "127.0.0.1:0")


def _run(
    directory: Path, *arguments: str, env: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ostinato.cli", *arguments],
        cwd=directory,
        env=clean_environment() | dict(env or {}),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )


def _left(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()} - {"__pycache__"}


@contextmanager
def _taken() -> Iterator[str]:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        yield f"127.0.0.1:{taken.getsockname()[1]}"


@pytest.mark.parametrize(
    ("command", "name"), [("scheduler", "bind"), ("scheduler", "worker_bind"), ("dev", "bind")]
)
def test_port_in_use_names_its_setting_and_no_database_is_made(
    command: str, name: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    with _taken() as address:
        places = {"OSTINATO_BIND": "127.0.0.1:0", "OSTINATO_WORKER_BIND": "127.0.0.1:0"}
        places[f"OSTINATO_{name.upper()}"] = address
        arguments = [command] if command == "scheduler" else [command, "shop.py"]
        done = _run(tmp_path, *arguments, env=places)
    assert done.returncode == 4, done.stderr
    assert f"PORT_IN_USE: OSTINATO_{name.upper()}: " in done.stderr
    assert address in done.stderr
    assert _left(tmp_path) == {"shop.py"}


@pytest.mark.parametrize("command", [SCHEDULER, DEV], ids=lambda words: words[0])
@pytest.mark.parametrize(
    ("env", "words"),
    [
        ({"OSTINATO_JOIN_TOKEN_FILE": "none"}, "OSTINATO_JOIN_TOKEN_FILE: none cannot be read"),
        ({"OSTINATO_DATABASE": "oracle://x"}, "OSTINATO_DATABASE: 'oracle' is no kind of database"),
        ({"OSTINATO_DATABASE": "sqlite:///none/x.db"}, "OSTINATO_DATABASE: none/x.db: there is no folder"),
        ({"OSTINATO_NAMESPACE": "a b"}, "OSTINATO_NAMESPACE: 'a b' is not a name"),
    ],
)
def test_wrong_setting_ends_with_2_and_no_database_is_made(
    command: tuple[str, ...], env: dict[str, str], words: str, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    done = _run(tmp_path, *command, env=env)
    assert done.returncode == 2, done.stderr
    assert words in done.stderr
    assert _left(tmp_path) == {"shop.py"}


def test_second_node_of_a_database_is_told_whose_setting_it_is(tmp_path: Path) -> None:
    with subprocess.Popen(
        [sys.executable, "-m", "ostinato.cli", *SCHEDULER],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline().startswith("scheduler on database")
        done = _run(tmp_path, *SCHEDULER, env={"OSTINATO_DATABASE": "sqlite:///ostinato.db"})
        first.terminate()
        first.communicate(timeout=30)
    assert done.returncode == 4, done.stderr
    assert (
        f"NODE_ALREADY_RUNNING: OSTINATO_DATABASE: another scheduler node, process {first.pid},"
        in done.stderr
    )


def test_database_that_another_process_holds_for_itself_is_told_with_the_setting(tmp_path: Path) -> None:
    path = tmp_path / "held.db"
    with closing(sqlite3.connect(path, isolation_level=None)) as holder:
        holder.execute("pragma locking_mode = exclusive")
        holder.execute("begin exclusive")
        done = _run(tmp_path, *SCHEDULER, env={"OSTINATO_DATABASE": f"sqlite:///{path}"})
        holder.rollback()
    assert done.returncode == 3, done.stderr
    assert "DATABASE_UNAVAILABLE: OSTINATO_DATABASE: " in done.stderr
    assert "locked" in done.stderr


def test_worker_with_an_app_that_is_wrong_names_where_it_came_from(tmp_path: Path) -> None:
    done = _run(tmp_path, "worker", env={"OSTINATO_APP": "nothing.py"})
    assert done.returncode == 2, done.stderr
    assert "INVALID_APP: OSTINATO_APP: there is no file nothing.py" in done.stderr
    (tmp_path / "ostinato.toml").write_text('app = "broken.py"\n', encoding="utf-8")
    (tmp_path / "broken.py").write_text("import nosuchmodule\n", encoding="utf-8")
    done = _run(tmp_path, "worker")
    assert done.returncode == 2, done.stderr
    assert "INVALID_APP: ostinato.toml: app: broken.py could not be imported" in done.stderr


def test_document_as_the_app_of_a_worker_is_refused_with_what_to_do_instead(tmp_path: Path) -> None:
    done = _run(tmp_path, "worker", "--app", "tasks.yaml")
    assert done.returncode == 2, done.stderr
    assert "ostinato apply -f tasks.yaml" in done.stderr


def test_dev_without_an_app_says_how_to_give_one(tmp_path: Path) -> None:
    done = _run(tmp_path, "dev")
    assert done.returncode == 2, done.stderr
    assert "no app is given" in done.stderr
    assert "ostinato dev tasks.py" in done.stderr


def test_worker_without_the_schedulers_token_is_told_the_option(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("sesame\n", encoding="utf-8")
    with subprocess.Popen(
        [sys.executable, "-m", "ostinato.cli", *SCHEDULER, "--join-token-file", "token"],
        cwd=tmp_path,
        env=clean_environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as scheduler:
        assert scheduler.stdout is not None
        scheduler.stdout.readline()
        address = scheduler.stdout.readline().split()[-1]
        done = _run(tmp_path, "worker", "--scheduler", address)
        scheduler.terminate()
        scheduler.communicate(timeout=30)
    assert done.returncode == 2, done.stderr
    assert "UNKNOWN_TOKEN: --join-token-file: the worker brings no token" in done.stderr
    assert "--join-token-file FILE" in done.stderr
