"""Every fault of a database's file has a code, names the file and the setting, and leaves the file alone."""

from __future__ import annotations

import gc
import os
import sqlite3
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.errors import OstinatoError, UserError
from ostinato.store.from_url import open_store_from_url
from ostinato.store.migrations import HEAD_REVISION
from ostinato.store.sqlite.check import check_file
from ostinato.store.sqlite.database import APPLICATION_ID
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import T0, Owner, counts, make_definition, make_instance

NOBODY = 65534


async def _made(path: Path) -> None:
    store = SqliteStore(str(path), clock=SystemClock())
    await store.open()
    owner = await Owner.of(store)
    await store.apply([make_definition()], now_us=T0)
    await owner.submit(*[make_instance(number, payload=b"x" * 3_000) for number in range(200)])
    await store.remove_node("node-1")
    await store.close()


def _run(path: Path, *statements: str) -> None:
    connection = sqlite3.connect(path, isolation_level=None)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def _newer(path: Path) -> None:
    _run(path, "UPDATE alembic_version SET version_num = '9999'")


def _no_revision(path: Path) -> None:
    _run(path, "DELETE FROM alembic_version")


def _other_application(path: Path) -> None:
    _run(path, "PRAGMA application_id = 252006673")


def _foreign_tables(path: Path) -> None:
    path.unlink()
    _run(path, "CREATE TABLE theirs (id INTEGER)")


def _foreign_view(path: Path) -> None:
    path.unlink()
    _run(path, "CREATE VIEW theirs AS SELECT 1")


def _our_mark_alone(path: Path) -> None:
    path.unlink()
    _run(path, f"PRAGMA application_id = {APPLICATION_ID}", "CREATE TABLE theirs (id INTEGER)")


def _text(path: Path) -> None:
    path.write_text("no database, but more than the header of one would be\n" * 40)


def _short_text(path: Path) -> None:
    path.write_text("x")


def _corrupt_schema(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[100:4096] = b"\xff" * 3996
    path.write_bytes(content)


def _truncated(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def _cut_within_the_header(path: Path) -> None:
    os.truncate(path, 60)


def _folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


def _pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def _loop(path: Path) -> None:
    path.unlink()
    path.symlink_to(path)


FAULTS: list[tuple[Callable[[Path], None], str, str]] = [
    (_newer, "SCHEMA_VERSION", "9999"),
    (_no_revision, "DATABASE_UNUSABLE", "does not say which schema"),
    (_other_application, "DATABASE_UNUSABLE", "belongs to another program"),
    (_foreign_tables, "DATABASE_UNUSABLE", "belongs to another program"),
    (_foreign_view, "DATABASE_UNUSABLE", "belongs to another program"),
    (_our_mark_alone, "DATABASE_UNUSABLE", "belongs to another program"),
    (_text, "DATABASE_UNUSABLE", "not a SQLite database"),
    (_short_text, "DATABASE_UNUSABLE", "not a SQLite database"),
    (_corrupt_schema, "DATABASE_UNUSABLE", "corrupt"),
    (_truncated, "DATABASE_UNUSABLE", "corrupt"),
    (_cut_within_the_header, "DATABASE_UNUSABLE", "corrupt"),
    (_folder, "DATABASE_UNUSABLE", "it is a folder"),
    (_pipe, "DATABASE_UNUSABLE", "no regular file"),
    (_loop, "DATABASE_UNUSABLE", "cannot be opened"),
]


async def _refusal(url: str) -> OstinatoError:
    store = open_store_from_url(url, clock=SystemClock())
    began = time.perf_counter()
    with pytest.raises(OstinatoError) as caught:
        await store.open()
    await store.close()
    assert time.perf_counter() - began < 5
    assert caught.value.field == "database"
    assert caught.value.hint
    return caught.value


def _seen(path: Path) -> object:
    return path.read_bytes() if path.is_file() else sorted(os.listdir(path.parent))


@pytest.mark.parametrize(("break_it", "code", "words"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
async def test_a_broken_or_foreign_file_is_named_and_left_alone(
    tmp_path: Path, break_it: Callable[[Path], None], code: str, words: str
) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    break_it(path)
    before = _seen(path)
    for _ in range(2):
        error = await _refusal(f"sqlite:///{path}")
        assert (type(error), error.code) == (UserError, code)
        assert words in error.message
        assert str(path) in error.message
    assert _seen(path) == before
    facts = check_file(str(path))
    assert _seen(path) == before
    assert facts.exists
    assert facts.problems or facts.schema == "newer"


@pytest.mark.parametrize(("break_it", "code", "words"), FAULTS, ids=[fault[0].__name__ for fault in FAULTS])
async def test_a_broken_file_is_closed_when_that_is_told(
    tmp_path: Path, break_it: Callable[[Path], None], code: str, words: str
) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    break_it(path)
    # What the garbage collector may close some day is not closed.
    gc.disable()
    try:
        error = await _refusal(f"sqlite:///{path}")
        left = [name for name in _open_files() if name.startswith(str(tmp_path))]
    finally:
        gc.enable()
    assert (error.code, words in error.message) == (code, True)
    assert left == []


def _open_files() -> list[str]:
    names: list[str] = []
    for descriptor in os.listdir("/proc/self/fd"):
        with suppress(FileNotFoundError):
            names.append(os.readlink(f"/proc/self/fd/{descriptor}"))
    return names


@pytest.mark.parametrize(
    ("url", "code", "words"),
    [
        ("sqlite:////proc/x.db", "DATABASE_UNUSABLE", "opened"),
        ("sqlite:////dev/null", "DATABASE_UNUSABLE", "no regular file"),
        ("sqlite:////nowhere/at/all/x.db", "DATABASE_UNUSABLE", "no folder /nowhere/at/all"),
        ("sqlite:////tmp/" + "x" * 300 + ".db", "DATABASE_UNUSABLE", "opened"),
    ],
)
async def test_a_place_where_no_database_can_be_is_named(url: str, code: str, words: str) -> None:
    error = await _refusal(url)
    assert error.code == code
    assert words in error.message
    assert not check_file(url.removeprefix("sqlite:///")).row_counts


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("sqlite:///x.db?mode=ro", "no parameters, such as 'mode'"),
        ("sqlite:///x.db?", "no parameters"),
        ("sqlite:///?mode=memory", "no parameters"),
        ("sqlite:///a\0b.db", "no file name has"),
        ("sqlite:///a\ud800.db", "no file name has"),
    ],
)
def test_a_url_with_parameters_or_impossible_characters_is_refused(url: str, words: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store_from_url(url, clock=SystemClock())
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "database")
    assert words in caught.value.message
    str(caught.value).encode()


@pytest.mark.parametrize(
    "name",
    ["a%20b.db", "100%.db", "a b.db", "ä ö ü.db", "日本.db", "a#b;c'd\".db", os.fsdecode(b"latin\xe9.db")],
)
async def test_the_path_is_taken_as_it_stands(tmp_path: Path, name: str) -> None:
    store = open_store_from_url(f"sqlite:///{tmp_path}/{name}", clock=SystemClock())
    await store.open()
    await (await Owner.of(store)).submit(make_instance(1))
    await store.close()
    assert name in os.listdir(tmp_path)
    facts = check_file(f"{tmp_path}/{name}")
    assert (facts.schema, facts.integrity, facts.row_counts["instance"]) == ("current", "ok", 1)


async def test_an_empty_file_becomes_a_database(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.touch()
    assert check_file(str(path)).schema == "none"
    await _made(path)
    assert check_file(str(path)).schema == "current"


@pytest.mark.parametrize(
    ("file_mode", "folder_mode", "words"),
    [
        (0o444, 0o777, "the file is read-only"),
        (0o000, 0o777, "cannot be read"),
        (0o666, 0o555, "read-only"),
        (None, 0o555, "cannot be written"),
    ],
)
async def test_what_this_user_may_not_write_is_named(
    file_mode: int | None, folder_mode: int, words: str
) -> None:
    # Not below pytest's own folder, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.db"
        if file_mode is not None:
            await _made(path)
            (Path(name) / "a.db.lock").unlink()
            os.chmod(path, file_mode)
        os.chmod(name, folder_mode)
        user = os.geteuid()
        try:
            if user == 0:
                # Root may write everything; the user "nobody" may not.
                os.seteuid(NOBODY)
            error = await _refusal(f"sqlite:///{path}")
            facts = check_file(str(path))
        finally:
            os.seteuid(user)
            os.chmod(name, 0o755)
        assert error.code == "DATABASE_UNUSABLE"
        assert words in error.message
        assert not facts.is_writable


async def test_a_check_tells_what_is_in_the_file_and_makes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    missing = check_file(str(path))
    assert (missing.exists, missing.schema, missing.problems, missing.is_writable) == (
        False,
        "none",
        (),
        True,
    )
    await _made(path)
    _run(path, "DELETE FROM instance WHERE id >= 'i000100'", "PRAGMA wal_checkpoint(TRUNCATE)")
    before = sorted(os.listdir(tmp_path))
    facts = check_file(str(path))
    assert sorted(os.listdir(tmp_path)) == before
    assert (facts.revision, facts.schema, facts.integrity) == (HEAD_REVISION, "current", "ok")
    assert (facts.journal_mode, facts.is_writable, facts.problems) == ("wal", True, ())
    assert (facts.row_counts["instance"], facts.row_counts["task"]) == (100, 1)
    assert facts.size_bytes == path.stat().st_size
    assert facts.free_page_count > 10
    assert facts.disk_free_bytes > 0
    assert facts.uncounted == ()


async def test_a_check_sees_what_a_running_store_has_committed(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    store = SqliteStore(str(path), clock=SystemClock())
    await store.open()
    await (await Owner.of(store)).submit(make_instance(1_000))
    facts = check_file(str(path))
    assert (facts.integrity, facts.row_counts["instance"], facts.row_counts["node"]) == ("ok", 201, 1)
    assert (await counts(store)) == {"pending": 201}
    await store.close()


async def test_a_check_finds_damage_that_no_statement_has_met_yet(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    content = bytearray(path.read_bytes())
    middle = len(content) // 2 // 4096 * 4096
    content[middle : middle + 4096] = b"\xff" * 4096
    path.write_bytes(content)
    facts = check_file(str(path))
    assert (facts.integrity, facts.schema) == ("corrupt", "current")
    assert facts.problems


async def test_a_check_of_integrity_ends_at_its_deadline(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    _run(
        path,
        "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 300000)"
        " INSERT INTO output SELECT 'i000001', 1, i, 'a', 0, 'stdout', 'line' FROM n",
    )
    began = time.perf_counter()
    facts = check_file(str(path), deadline_us=1_000)
    assert time.perf_counter() - began < 2
    assert (facts.integrity, facts.schema) == ("unfinished", "current")
    assert facts.row_counts["output"] == 300_000


async def test_a_check_calls_older_and_newer_schemas_by_name(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    for revision, schema in (("0001", "older"), ("9999", "newer")):
        _run(path, f"UPDATE alembic_version SET version_num = '{revision}'")
        assert (check_file(str(path)).schema, check_file(str(path)).revision) == (schema, revision)
