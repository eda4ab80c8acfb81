"""What the SQLite adapter does with files: new, old, newer, foreign, broken, full, locked."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine

from ostinato.clock import SystemClock
from ostinato.errors import ConflictError, OstinatoError, UnavailableError, UserError
from ostinato.store.administration import administrator_of
from ostinato.store.batches import NodeRow
from ostinato.store.migrations import HEAD_REVISION, REVISIONS
from ostinato.store.migrations.run import alembic_config, upgrade
from ostinato.store.schema import metadata
from ostinato.store.sqlite.new_file import make_schema
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import T0, counts, make_submission

NODE = NodeRow("node", 0, "", T0)


def _store(path: Path, **options: int) -> SqliteStore:
    return SqliteStore(str(path), clock=SystemClock(), **options)


def _python(script: str, *arguments: str, folder: Path | None = None) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True)


async def _refusal(path: Path) -> OstinatoError:
    store = _store(path)
    with pytest.raises(UserError) as caught:
        await store.open()
    await store.close()
    assert str(path) in caught.value.message
    return caught.value


async def _made(path: Path) -> None:
    store = _store(path)
    await store.open()
    await store.close()


async def test_rows_outlive_the_store_and_the_partition_count_is_the_file_s(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.db", partition_count=8)
    await store.open()
    await store.submit([make_submission(1)])
    await store.close()
    await store.close()
    again = _store(tmp_path / "a.db", partition_count=64)
    await again.open()
    assert again.partition_count == 8
    assert await counts(again) == {"pending": 1}
    await again.close()


async def test_a_closed_store_can_be_opened_again(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.db")
    for number in range(2):
        await store.open()
        await store.register_node(NODE)
        assert (await store.submit([make_submission(number)]))[0].created
        await store.close()


async def test_a_name_with_special_characters_is_a_file_of_that_name(tmp_path: Path) -> None:
    path = tmp_path / "a b?c#d%41é.db"
    await _made(path)
    assert path.exists()


@pytest.mark.parametrize("name", ["a.db", "new.db"])
async def test_opening_what_is_current_or_new_imports_no_migration_tools(tmp_path: Path, name: str) -> None:
    await _made(tmp_path / "a.db")
    script = (
        "import asyncio, sys\n"
        "from ostinato.clock import SystemClock\n"
        "from ostinato.store.from_url import open_store_from_url\n"
        "store = open_store_from_url('sqlite:///NAME', clock=SystemClock())\n"
        "asyncio.run(store.open())\n"
        "print(sorted({'alembic', 'sqlalchemy'} & set(sys.modules)))\n"
    )
    with _python(script.replace("NAME", name), folder=tmp_path) as process:
        assert process.stdout is not None
        assert process.stdout.read() == "[]\n"
    began = time.perf_counter()
    await _made(tmp_path / "a.db")
    assert time.perf_counter() - began < 0.15


async def test_migrations_make_what_the_schema_says(tmp_path: Path) -> None:
    await _made(tmp_path / "a.db")
    for name in ("a.db", "fresh.db"):
        engine = create_engine(f"sqlite:///{tmp_path}/{name}")
        with engine.begin() as connection:
            if name == "fresh.db":
                metadata.create_all(connection)
            assert compare_metadata(MigrationContext.configure(connection), metadata) == []
        engine.dispose()
    made, expected = _statements(tmp_path / "a.db"), _statements(tmp_path / "fresh.db")
    # Comparison by metadata does not look at conditions and constraints; the order of constraints is free.
    assert {name: _words(sql) for name, sql in made.items()} == {
        name: _words(sql) for name, sql in expected.items()
    }


def _statements(path: Path) -> dict[str, str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name, sql FROM sqlite_master WHERE tbl_name <> 'alembic_version'")
    statements = {name: sql or "" for name, sql in rows}
    connection.close()
    return statements


def _words(sql: str) -> list[str]:
    return sorted(sql.replace(",", " ").split())


def test_the_head_revision_is_the_newest_and_every_file_says_pre_or_post() -> None:
    scripts = ScriptDirectory.from_config(alembic_config())
    assert scripts.get_current_head() == HEAD_REVISION
    for script in scripts.walk_revisions():
        assert Path(script.path).name.startswith((f"r{script.revision}_pre_", f"r{script.revision}_post_"))


async def test_a_newer_schema_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    await _made(path)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE alembic_version SET version_num = '9999'")
    connection.close()
    assert (await _refusal(path)).code == "SCHEMA_VERSION"
    connection = sqlite3.connect(path)
    assert connection.execute("SELECT version_num FROM alembic_version").fetchone() == ("9999",)
    connection.close()


async def test_somebody_elses_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with sqlite3.connect(path) as connection:
        connection.execute("CREATE TABLE theirs (id INTEGER)")
    connection.close()
    before = path.read_bytes()
    assert (await _refusal(path)).code == "DATABASE_UNUSABLE"
    assert path.read_bytes() == before


async def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    path.write_text("not a database, but a longer text than the header of one" * 20)
    assert (await _refusal(path)).code == "DATABASE_UNUSABLE"
    await _made(tmp_path / "b.db")
    broken = bytearray((tmp_path / "b.db").read_bytes())
    broken[100:4096] = b"\xff" * 3996
    path.write_bytes(broken)
    assert (await _refusal(path)).code == "DATABASE_UNUSABLE"


async def test_a_folder_or_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert (await _refusal(tmp_path)).code == "DATABASE_UNUSABLE"
    assert (await _refusal(tmp_path / "none" / "a.db")).code == "DATABASE_UNUSABLE"
    assert os.listdir(tmp_path) == []


async def test_a_read_only_database_is_refused() -> None:
    # Not below pytest's own folder, which nobody but its owner may enter.
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "a.db"
        await _made(path)
        os.chmod(path, 0o444)
        os.chmod(name, 0o555)
        user = os.geteuid()
        try:
            if user == 0:
                # Root may write everything; the user "nobody" may not.
                os.seteuid(65534)
            assert (await _refusal(path)).code == "DATABASE_UNUSABLE"
        finally:
            os.seteuid(user)
            os.chmod(name, 0o755)


async def test_a_database_that_could_not_be_made_whole_is_made_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"

    def make_and_fail(connection: sqlite3.Connection, *, partition_count: int) -> None:
        make_schema(connection, partition_count=partition_count)
        raise sqlite3.OperationalError("the disk went away")

    with monkeypatch.context() as patch:
        patch.setattr("ostinato.store.sqlite.database.make_schema", make_and_fail)
        await _fails_to_open(path)
    assert _statements(path) == {}
    await _made(path)


async def test_a_database_that_could_not_be_migrated_whole_is_migrated_at_the_next_try(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    administrator = administrator_of(f"sqlite:///{path}", clock=SystemClock())
    await administrator.upgrade(REVISIONS[0], partition_count=4)
    before = _statements(path)

    def upgrade_and_fail(connection: Connection, *, partition_count: int) -> None:
        upgrade(connection, partition_count=partition_count)
        raise sqlite3.OperationalError("the disk went away")

    with monkeypatch.context() as patch:
        patch.setattr("ostinato.store.migrations.run.upgrade", upgrade_and_fail)
        await _fails_to_open(path)
    assert _statements(path) == before
    await _made(path)
    assert (await administrator.facts()).revision == HEAD_REVISION


async def _fails_to_open(path: Path) -> None:
    store = _store(path)
    with pytest.raises(OstinatoError):
        await store.open()
    await store.close()


async def test_c123_a_full_disk_is_said_and_work_goes_on_when_there_is_room(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.db")
    await store.open()
    await store.submit([make_submission(0)])
    limit = "PRAGMA max_page_count = {}"
    pages = await store._writer.run(
        "a test", lambda connection: connection.execute("PRAGMA page_count").fetchone()[0]
    )
    await store._writer.run("a test", lambda c: c.execute(limit.format(pages + 2)).fetchone())
    with pytest.raises(UnavailableError) as caught:
        await store.submit([make_submission(number, payload=b"x" * 5000) for number in range(1, 50)])
    assert caught.value.code == "DATABASE_FULL"
    assert await counts(store) == {"pending": 1}
    await store._writer.run("a test", lambda c: c.execute(limit.format(1_000_000)).fetchone())
    await store.submit([make_submission(number, payload=b"x" * 5000) for number in range(1, 50)])
    assert await counts(store) == {"pending": 50}
    await store.close()


async def test_a_database_held_by_another_process_is_unavailable_at_the_deadline(tmp_path: Path) -> None:
    await _made(tmp_path / "a.db")
    store = _store(tmp_path / "a.db", deadline_us=400_000)
    await store.open()
    other = sqlite3.connect(tmp_path / "a.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    began = time.perf_counter()
    with pytest.raises(UnavailableError) as caught:
        await store.submit([make_submission(1)])
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert time.perf_counter() - began < 2
    # Readers are not held up by a writer.
    assert await counts(store) == {}
    other.execute("ROLLBACK")
    other.close()
    assert (await store.submit([make_submission(1)]))[0].created
    await store.close()


async def test_a_statement_without_end_is_interrupted_at_the_deadline(tmp_path: Path) -> None:
    await _made(tmp_path / "a.db")
    store = _store(tmp_path / "a.db", deadline_us=300_000)
    await store.open()
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT count(*) FROM n"
    with pytest.raises(UnavailableError) as caught:
        await store._writer.run("counting", lambda connection: connection.execute(endless).fetchone())
    assert "counting did not end within 300 ms" in caught.value.message
    assert (await store.submit([make_submission(1)]))[0].created
    await store.close()


# ── the lock file ─────────────────────────────────────────────────────────────────────────────────────

_HOLDER = """
import asyncio, sys
from ostinato.clock import SystemClock
from ostinato.store.batches import NodeRow
from ostinato.store.sqlite.store import SqliteStore

async def main():
    store = SqliteStore(sys.argv[1], clock=SystemClock())
    await store.open()
    await store.register_node(NodeRow("holder", 0, "", 0))
    await store.take_partitions("holder", range(64))
    print("ready", flush=True)
    await asyncio.get_running_loop().create_future()

asyncio.run(main())
"""


async def test_c111_a_second_node_learns_the_holder_and_a_killed_holder_leaves_no_lock(
    tmp_path: Path,
) -> None:
    path = tmp_path / "a.db"
    with _python(_HOLDER, str(path)) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "ready\n"
        store = _store(path)
        await store.open()
        with pytest.raises(ConflictError) as caught:
            await store.register_node(NODE)
        assert caught.value.code == "NODE_ALREADY_RUNNING"
        assert str(holder.pid) in caught.value.message
        # Others may submit all the while.
        assert (await store.submit([make_submission(1)]))[0].created
        holder.send_signal(signal.SIGKILL)
    began = time.perf_counter()
    await store.register_node(NODE)
    proofs = await store.take_partitions("node", range(64))
    assert time.perf_counter() - began < 1
    assert [proof.epoch for proof in proofs] == [2] * 64
    assert [node.id for node in await store.nodes()] == ["node"]
    await store.close()


async def test_c111_two_names_of_one_file_meet_in_one_lock(tmp_path: Path) -> None:
    first = _store(tmp_path / "a.db")
    await first.open()
    await first.register_node(NODE)
    (tmp_path / "link.db").symlink_to(tmp_path / "a.db")
    second = _store(tmp_path / "link.db")
    await second.open()
    with pytest.raises(ConflictError):
        await second.register_node(NodeRow("second", 0, "", T0))
    await first.remove_node("node")
    await second.register_node(NodeRow("second", 0, "", T0))
    await first.close()
    await second.close()


async def test_c111_a_lock_file_left_behind_and_a_process_id_used_again_mean_nothing(tmp_path: Path) -> None:
    (tmp_path / "a.db.lock").write_text(f"{os.getpid()}\n")
    store = _store(tmp_path / "a.db")
    await store.open()
    await store.register_node(NODE)
    assert await store.nodes() == [NODE]
    await store.close()


async def test_c111_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    script = (
        "import asyncio, os, signal, sys\n"
        "from ostinato.store.sqlite.lock_file import LockFile\n"
        "lock = LockFile(sys.argv[1])\n"
        "lock.acquire()\n"
        "child = os.fork()\n"
        "if child == 0:\n"
        "    signal.pause()\n"
        "print(child, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    path = tmp_path / "a.db"
    with _python(script, str(path)) as holder:
        assert holder.stdout is not None
        child = int(holder.stdout.readline())
        holder.wait()
        store = _store(path)
        await store.open()
        # The child may not have run its first line yet.
        for _ in range(1000):
            try:
                await store.register_node(NODE)
                break
            except ConflictError:
                os.sched_yield()
        assert [node.id for node in await store.nodes()] == ["node"]
        os.kill(child, signal.SIGKILL)
    await store.close()


@pytest.mark.parametrize("is_replaced", [False, True])
async def test_a_file_that_is_taken_away_while_in_use_is_noticed_at_the_next_renewal(
    tmp_path: Path, is_replaced: bool
) -> None:
    path = tmp_path / "a.db"
    store = _store(path)
    await store.open()
    try:
        await store.register_node(NodeRow("node-1", 0, "", T0))
        assert await store.renew_node("node-1")
        path.rename(tmp_path / "moved.db")
        if is_replaced:
            path.write_bytes((tmp_path / "moved.db").read_bytes())
        with pytest.raises(UserError) as caught:
            await store.renew_node("node-1")
        assert caught.value.code == "DATABASE_UNUSABLE"
        path.unlink(missing_ok=True)
        (tmp_path / "moved.db").rename(path)
        assert await store.renew_node("node-1")
    finally:
        await store.close()
