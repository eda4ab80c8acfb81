"""Databases of older versions are migrated by opening them, and keep their rows."""

from __future__ import annotations

import runpy
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from alembic import command
from sqlalchemy import create_engine

from ostinato.clock import SystemClock
from ostinato.core.definition import encode_definition
from ostinato.core.states import Hold, State
from ostinato.errors import ConflictError, UnavailableError, UserError
from ostinato.store.administration import administrator_of
from ostinato.store.batches import CommitReport, HoldWaiting, WorkerRow
from ostinato.store.migrations import HEAD_REVISION, REVISIONS
from ostinato.store.migrations.run import alembic_config
from ostinato.store.sqlite.database import APPLICATION_ID
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import REF, T0, Owner, counts, make_definition

ROOT = Path(__file__).parents[2]

_DEFINITION = make_definition()
_OLD = REVISIONS[:-1]


def _make_old(path: Path, revision: str) -> None:
    """A database as the version made it whose newest revision was `revision`, with a row in each table."""
    engine = create_engine(f"sqlite:///{path}")
    with engine.begin() as connection:
        config = alembic_config()
        config.attributes["connection"] = connection
        config.attributes["partition_count"] = 8
        command.upgrade(config, revision)
    engine.dispose()
    rows: dict[str, dict[str, object]] = {
        "node": {"id": "old", "renewals": 3, "address": "", "started_us": T0},
        "task": {
            "namespace": REF.namespace,
            "name": REF.name,
            "partition": 3,
            "version": 1,
            "scheduled_version": 1,
            "paused": 1,
            "disabled": 0,
            "created_us": T0,
            "updated_us": T0,
        },
        "task_definition": {
            "namespace": REF.namespace,
            "name": REF.name,
            "version": 1,
            "definition": encode_definition(_DEFINITION),
        },
        "instance": {
            "id": "i000001",
            "namespace": REF.namespace,
            "task": REF.name,
            "task_version": 1,
            "partition": 3,
            "state": "pending",
            "priority": 5,
            "due_us": T0,
            "created_us": T0,
            "payload": b"{}",
        },
        "output": {
            "instance_id": "i000001",
            "attempt": 1,
            "sequence": 1,
            "attempt_id": "a",
            "at_us": T0,
            "stream": "stdout",
            "text": "line\n",
        },
    }
    connection = sqlite3.connect(path)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    for table, values in rows.items():
        marks = ", ".join(f":{name}" for name in values)
        connection.execute(f"INSERT INTO {table} ({', '.join(values)}) VALUES ({marks})", values)
    connection.commit()
    connection.close()


def _schema(path: Path) -> dict[str, tuple[object, ...]]:
    """Of each table its columns, as SQLite understands them, and every index with its text."""
    connection = sqlite3.connect(path)
    names = connection.execute("SELECT type, name, sql FROM sqlite_master").fetchall()
    schema = {
        name: (sql,) if kind == "index" else tuple(connection.execute(f"PRAGMA table_info({name})"))
        for kind, name, sql in names
    }
    connection.close()
    return schema


def _rows(path: Path) -> dict[str, list[tuple[object, ...]]]:
    connection = sqlite3.connect(path)
    tables = ("node", "partition_owner", "task", "task_definition", "instance", "output", "worker")
    rows = {table: connection.execute(f"SELECT * FROM {table}").fetchall() for table in tables}
    connection.close()
    return rows


async def _open(path: Path) -> SqliteStore:
    store = SqliteStore(str(path), clock=SystemClock())
    await store.open()
    return store


@pytest.mark.parametrize("revision", _OLD)
async def test_an_old_database_opens_and_keeps_its_rows(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "old.db"
    _make_old(path, revision)
    store = await _open(path)
    try:
        assert store.partition_count == 8
        task = (await store.get_tasks([REF]))[REF]
        assert (task.definition, task.version, task.paused, task.origin) == (_DEFINITION, 1, True, "app")
        assert await counts(store) == {"pending": 1}
        assert (await store.get_instances(["i000001"]))["i000001"].state is State.PENDING
        assert [chunk.text for chunk in await store.output("i000001", after=(0, 0), limit=9)] == ["line\n"]
        assert await store.workers() == []
        # What is new works in it.
        (receipt,) = await store.apply([make_definition(command="false")], now_us=T0, origin="document")
        assert (receipt.version, receipt.outcome) == (2, "changed")
        assert (await store.get_tasks([REF]))[REF].origin == "document"
        owner = await Owner.of(store)
        worker = WorkerRow(worker_id="w", worker_name="w", node_id="node-1", state="connected")
        await store.record_workers([worker], gone_before_us=0)
        assert await store.workers() == [worker]
        batch = owner.batch()
        batch.holds = [HoldWaiting("i000001", 3, State.PENDING, 0, Hold.BUDGET, "no token")]
        assert await store.commit(batch) == CommitReport()
    finally:
        await store.close()


@pytest.mark.parametrize("revision", _OLD)
async def test_a_migrated_database_is_like_one_made_anew(tmp_path: Path, revision: str) -> None:
    _make_old(tmp_path / "old.db", revision)
    for name in ("old.db", "new.db"):
        await (await _open(tmp_path / name)).close()
    assert _schema(tmp_path / "old.db") == _schema(tmp_path / "new.db")


async def test_a_new_file_is_what_the_revisions_make_of_it(tmp_path: Path) -> None:
    """It is made without them, from a text of its own."""
    administrator = administrator_of(f"sqlite:///{tmp_path / 'upgraded.db'}", clock=SystemClock())
    await administrator.upgrade(HEAD_REVISION, partition_count=64)
    await (await _open(tmp_path / "new.db")).close()
    assert _everything(tmp_path / "new.db") == _everything(tmp_path / "upgraded.db")
    generator = runpy.run_path(str(ROOT / "tools/generate_sqlite_schema.py"))
    assert generator["SCHEMA"].read_text(encoding="utf-8") == generator["rendered"](), (
        "run: python tools/generate_sqlite_schema.py"
    )


def _everything(path: Path) -> tuple[object, ...]:
    """All that a file says of itself and holds, text by text."""
    with closing(sqlite3.connect(path)) as connection:
        master = connection.execute("SELECT type, name, tbl_name, sql FROM sqlite_master").fetchall()
        tables = [name for kind, name, _, _ in master if kind == "table"]
        rows = {name: connection.execute(f"SELECT * FROM {name}").fetchall() for name in tables}
        facts = [
            connection.execute(f"PRAGMA {name}").fetchone()
            for name in ("application_id", "user_version", "encoding", "auto_vacuum", "page_size")
        ]
    assert len(rows["partition_owner"]) == 64
    assert len(tables) > 10
    return master, rows, facts


async def test_opening_once_more_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    _make_old(path, "0001")
    await (await _open(path)).close()
    before = _rows(path), _schema(path)
    await (await _open(path)).close()
    assert (_rows(path), _schema(path)) == before


@pytest.mark.parametrize("revision", _OLD)
async def test_rows_are_kept_on_the_way_up_and_down(tmp_path: Path, revision: str) -> None:
    path = tmp_path / "old.db"
    _make_old(path, revision)
    before = _schema(path)
    administrator = administrator_of(f"sqlite:///{path}", clock=SystemClock())
    assert (await administrator.facts()).pending == list(REVISIONS[REVISIONS.index(revision) + 1 :])
    facts = await administrator.upgrade(HEAD_REVISION, partition_count=99)
    assert (facts.revision, facts.partitions, facts.pending) == (HEAD_REVISION, 8, [])
    rows = _rows(path)
    assert len(rows["instance"]) == len(rows["task"]) == 1
    facts = await administrator.downgrade(revision)
    assert (facts.revision, facts.partitions) == (revision, 8)
    assert _without_texts(_schema(path)) == _without_texts(before)
    await administrator.upgrade(HEAD_REVISION, partition_count=99)
    assert _rows(path) == rows


def _without_texts(schema: dict[str, tuple[object, ...]]) -> dict[str, tuple[object, ...]]:
    """SQLite keeps the text of each CREATE TABLE and edits it, which leaves other white space."""
    return {name: value for name, value in schema.items() if not name.startswith("sqlite_")}


async def test_a_file_is_made_by_an_upgrade_and_never_by_a_question(tmp_path: Path) -> None:
    path = tmp_path / "new.db"
    administrator = administrator_of(f"sqlite:///{path}", clock=SystemClock())
    for ask in (administrator.facts, lambda: administrator.downgrade("0001")):
        with pytest.raises(UnavailableError) as caught:
            await ask()
        assert caught.value.code == "DATABASE_UNAVAILABLE"
    assert not path.exists()
    assert (await administrator.upgrade("0001", partition_count=4)).partitions == 4
    store = await _open(path)
    assert store.partition_count == 4
    await store.close()


async def test_a_file_with_a_scheduler_is_not_downgraded(tmp_path: Path) -> None:
    path = tmp_path / "busy.db"
    store = await _open(path)
    try:
        await Owner.of(store)
        administrator = administrator_of(f"sqlite:///{path}", clock=SystemClock())
        with pytest.raises(ConflictError) as caught:
            await administrator.downgrade("0001")
        assert caught.value.code == "NODE_ALREADY_RUNNING"
    finally:
        await store.close()
    assert (await administrator.downgrade("0001")).revision == "0001"


async def test_a_file_is_removed_rather_than_emptied(tmp_path: Path) -> None:
    path = tmp_path / "old.db"
    _make_old(path, "0001")
    with pytest.raises(UserError, match="remove the file") as caught:
        await administrator_of(f"sqlite:///{path}", clock=SystemClock()).downgrade("base")
    assert (caught.value.code, caught.value.field) == ("INVALID_VALUE", "to")


async def test_what_lives_in_memory_has_no_schema() -> None:
    with pytest.raises(UserError) as caught:
        administrator_of("memory:", clock=SystemClock())
    assert (caught.value.code, caught.value.field) == ("INVALID_SETTING", "database")
