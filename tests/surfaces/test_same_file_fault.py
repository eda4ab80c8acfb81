"""A database that cannot be used, a port that is taken: one code, and the setting named, whoever meets it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest
from support.dev import APP, clean_environment
from support.surfaces import Surfaces, Told, sdk_told, told_by_command, told_by_process

from ostinato import App
from ostinato.clock import SystemClock
from ostinato.errors import CODES
from ostinato.store.from_url import open_store_from_url

NOBODY = 65534
PLACES = {"OSTINATO_BIND": "127.0.0.1:0", "OSTINATO_WORKER_BIND": "127.0.0.1:0"}
TASKS = "version: 1\ntasks: [{name: t, shell: {command: 'true'}}]\n"
#: What meets the file in a process of its own, because it would stay.
STAYING = {"scheduler": ["scheduler"], "dev": ["dev", "shop.py"]}


def _database(path: Path) -> None:
    async def make() -> None:
        store = open_store_from_url(f"sqlite:///{path}", clock=SystemClock())
        await store.open()
        await store.close()

    asyncio.run(make())
    for extra in path.parent.glob(f"{path.name}?*"):
        extra.unlink()


def _newer(path: Path) -> None:
    _database(path)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("update alembic_version set version_num = '9999'")
        connection.commit()


def _damaged(path: Path) -> None:
    _database(path)
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(100)
        file.write(b"\xff" * (size - 100))


def _text(path: Path) -> None:
    path.write_bytes(b"no database, and long enough to have a header" * 100)


def _foreign(path: Path) -> None:
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("create table customer (name)")


def _read_only(path: Path) -> None:
    _database(path)
    path.chmod(0o444)


def _folder(path: Path) -> None:
    path.mkdir()


FILES: dict[str, tuple[Callable[[Path], None], str]] = {
    "of a newer version": (_newer, "SCHEMA_VERSION"),
    "damaged": (_damaged, "DATABASE_UNUSABLE"),
    "a text": (_text, "DATABASE_UNUSABLE"),
    "of another program": (_foreign, "DATABASE_UNUSABLE"),
    "read-only": (_read_only, "DATABASE_UNUSABLE"),
    "a folder": (_folder, "DATABASE_UNUSABLE"),
}


@contextmanager
def _as_nobody(place: Path, *, read_only: bool) -> Iterator[None]:
    """Root may write everything; the user "nobody" may not. Only where the mode of the file is the fault."""
    user = os.geteuid()
    if read_only:
        place.chmod(0o777)
        (place / "shop.py").chmod(0o644)
        if user == 0:
            os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def _meet(place: Path) -> dict[str, Told | None]:
    """What each way says that meets the database of the environment."""
    told: dict[str, Told | None] = {
        "list": told_by_command("task", "list"),
        "show": told_by_command("instance", "show", "x"),
        "trigger": told_by_command("task", "trigger", "t"),
        "apply": told_by_command("apply", "-f", str(place / "tasks.yaml")),
        "export": told_by_command("export"),
        "nodes": told_by_command("node", "list"),
    }
    for name, use in {
        "sdk submit": lambda app: app.submit("t"),
        "sdk apply": lambda app: (app.shell("t", "true"), app.apply()),
        "sdk status": lambda app: app.handle("x").status(),
    }.items():
        app = App("shop")
        told[name] = sdk_told(lambda use=use, app=app: use(app))
        app.close()
    return told


#: Takes from root what lets it write files whose mode forbids it.
_BOUND = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override")


def test_damage_that_a_later_statement_meets_is_told_with_one_voice(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "shop.db"
    _database(path)
    with closing(sqlite3.connect(path)) as connection:
        pages = connection.execute(
            "select rootpage from sqlite_master where tbl_name = 'instance'"
        ).fetchall()
        ((page_bytes,),) = connection.execute("pragma page_size")
    with path.open("r+b") as file:
        for (page,) in pages:
            file.seek((page - 1) * page_bytes)
            file.write(b"\xff" * page_bytes)
    before = path.read_bytes()
    monkeypatch.setenv("OSTINATO_DATABASE", f"sqlite:///{path}")
    told = {
        "list": told_by_command("instance", "list"),
        "show": told_by_command("instance", "show", "x"),
    }
    app = App("shop")
    told["sdk status"] = sdk_told(lambda: app.handle("x").status())
    told["sdk story"] = sdk_told(lambda: app.handle("x").story())
    app.close()
    first = told["list"]
    assert first is not None
    said = {way: one and (one.code, one.field, one.message) for way, one in told.items()}
    assert said == dict.fromkeys(said, ("DATABASE_UNUSABLE", "OSTINATO_DATABASE", first.message))
    assert path.read_bytes() == before


def _process(place: Path, *arguments: str, bound: bool = False) -> Told | None:
    done = subprocess.run(
        [*(_BOUND if bound else ()), sys.executable, "-m", "ostinato.cli", "--json", *arguments],
        cwd=place,
        env=clean_environment() | {name: os.environ[name] for name in os.environ if "OSTINATO" in name},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return told_by_process(done.returncode, done.stderr)


@pytest.mark.parametrize("kind", FILES)
def test_a_database_that_cannot_be_used_is_told_with_one_voice(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make, code = FILES[kind]
    # Not below pytest's own folder, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        (place / "shop.py").write_text(APP, encoding="utf-8")
        (place / "tasks.yaml").write_text(TASKS, encoding="utf-8")
        path = place / "shop.db"
        make(path)
        before = {item.name: item.read_bytes() for item in place.iterdir() if item.is_file()}
        monkeypatch.chdir(place)
        for variable, value in {**PLACES, "OSTINATO_DATABASE": f"sqlite:///{path}"}.items():
            monkeypatch.setenv(variable, value)
        read_only = kind == "read-only"
        root = os.geteuid() == 0
        with _as_nobody(place, read_only=read_only):
            told = _meet(place)
        for way, arguments in STAYING.items():
            told[way] = _process(place, *arguments, bound=read_only and root)
        doctor = _doctor(place, bound=read_only and root)
        left = {item.name: item.read_bytes() for item in place.iterdir() if item.is_file()}
        monkeypatch.chdir("/")
    first = told["list"]
    assert first is not None
    said = {way: one and (one.code, one.field, one.message) for way, one in told.items()}
    assert said == dict.fromkeys(said, (code, "OSTINATO_DATABASE", first.message))
    assert left == before
    assert f"OSTINATO_DATABASE: {first.message}" in doctor


def _doctor(place: Path, *, bound: bool = False) -> str:
    done = subprocess.run(
        [*(_BOUND if bound else ()), sys.executable, "-m", "ostinato.cli", "doctor", "--json"],
        cwd=place,
        env=clean_environment() | {name: os.environ[name] for name in os.environ if "OSTINATO" in name},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    findings = json.loads(done.stdout)["findings"]
    return "\n".join(row["what"] for row in findings if row["status"] == "fail")


def test_a_port_in_use_is_told_with_one_voice(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    before = {item.name for item in tmp_path.iterdir()}
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for name, value in {**PLACES, "OSTINATO_BIND": address}.items():
            monkeypatch.setenv(name, value)
        told = {name: _process(tmp_path, *arguments) for name, arguments in STAYING.items()}
        doctor = _doctor(tmp_path)
    first = told["scheduler"]
    assert first is not None
    assert address in first.message
    assert told == dict.fromkeys(told, first)
    assert (first.code, first.field) == ("PORT_IN_USE", "OSTINATO_BIND")
    assert f"OSTINATO_BIND: {address}" in doctor
    assert {item.name for item in tmp_path.iterdir()} - {"__pycache__"} == before


def test_a_second_node_on_one_file_is_told_with_one_voice(
    surfaces: Surfaces, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "shop.py").write_text(APP, encoding="utf-8")
    for name, value in {**PLACES, "OSTINATO_DATABASE": surfaces.database}.items():
        monkeypatch.setenv(name, value)
    before, files = surfaces.written(), {item.name for item in tmp_path.iterdir()}
    told = {name: _process(tmp_path, *arguments) for name, arguments in STAYING.items()}
    first = told["scheduler"]
    assert first is not None
    assert told == dict.fromkeys(told, first)
    assert (first.code, first.field) == ("NODE_ALREADY_RUNNING", "OSTINATO_DATABASE")
    assert CODES[first.code].exit_code == 4
    # Whoever only asks is no second node.
    assert surfaces.cli_told("task", "list") is None
    assert surfaces.written() == before
    assert {item.name for item in tmp_path.iterdir()} - {"__pycache__"} == files
