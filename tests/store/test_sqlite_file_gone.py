"""What the SQLite adapter does when its file is taken away, or no more files can be opened, while it runs."""

from __future__ import annotations

import os
import resource
import sqlite3
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.core.changes import CommitBatch, CommitReport, Request
from ostinato.errors import UnavailableError, UserError
from ostinato.store.batches import NodeRow
from ostinato.store.sqlite import statements
from ostinato.store.sqlite.commit import commit
from ostinato.store.sqlite.store import SqliteStore
from ostinato.testing.contracts.store_kit import T0, counts, make_definition, make_submission

NODE = NodeRow("node", 0, "", T0)


def _store(path: Path) -> SqliteStore:
    return SqliteStore(str(path), clock=SystemClock())


_WRITES: dict[str, Callable[[SqliteStore], Awaitable[object]]] = {
    "submit": lambda store: store.submit([make_submission(2)]),
    "apply": lambda store: store.apply([make_definition()], now_us=T0),
    "add_requests": lambda store: store.add_requests(
        [Request(id="r1", partition=0, kind="drain", namespace="default", created_us=T0)]
    ),
    "commit": lambda store: store.commit(CommitBatch()),
    "append_output": lambda store: store.append_output([]),
    "record_workers": lambda store: store.record_workers([], gone_before_us=0),
    "register_node": lambda store: store.register_node(NODE),
    "renew_node": lambda store: store.renew_node(NODE.id),
    "take_partitions": lambda store: store.take_partitions(NODE.id, [0]),
    "delete_finished": lambda store: store.delete_finished(
        success_before_us=0, other_before_us=0, keys_before_us=0, limit=1
    ),
}


@pytest.mark.parametrize("is_replaced", [False, True])
@pytest.mark.parametrize("write", _WRITES)
async def test_nothing_is_acknowledged_that_went_into_a_file_taken_away(
    tmp_path: Path, write: str, is_replaced: bool
) -> None:
    path, moved = tmp_path / "a.db", tmp_path / "moved.db"
    store = _store(path)
    await store.open()
    try:
        await store.register_node(NODE)
        path.rename(moved)
        if is_replaced:
            path.write_bytes(moved.read_bytes())
        with pytest.raises(UserError) as caught:
            await _WRITES[write](store)
        assert (caught.value.code, caught.value.http_status) == ("DATABASE_UNUSABLE", 503)
        path.unlink(missing_ok=True)
        moved.rename(path)
        assert await counts(store) == {}
        assert (await store.submit([make_submission(1)]))[0].created
    finally:
        await store.close()


async def test_of_what_is_written_while_the_file_goes_away_nothing_is_known(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "a.db"
    store = _store(path)
    await store.open()

    def commit_then_lose(connection: sqlite3.Connection, batch: CommitBatch) -> CommitReport:
        report = commit(connection, batch)
        path.unlink()
        return report

    monkeypatch.setattr("ostinato.store.sqlite.store.commit", commit_then_lose)
    with pytest.raises(UnavailableError) as caught:
        await store.commit(CommitBatch())
    assert caught.value.code == "DATABASE_UNAVAILABLE"
    await store.close()


async def test_nothing_is_opened_later_that_an_open_store_needs(tmp_path: Path) -> None:
    store = _store(tmp_path / "a.db")
    await store.open()
    await store.register_node(NODE)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with pytest.raises(OSError, match="Too many open files"):
            os.open(tmp_path, os.O_RDONLY)
        await store.submit([make_submission(1)])
        await store.apply([make_definition()], now_us=T0)
        assert await store.find_work([0], now_us=T0, limit=1) is not None
        assert await counts(store) == {"pending": 1}
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        await store.close()


def test_every_statement_is_read_when_the_adapter_is_imported() -> None:
    folder = Path(statements.__file__).with_name("sql")
    assert sorted(statements._TEXTS) == sorted(path.stem for path in folder.glob("*.sql"))
    assert all(text and "--" not in text for text in statements._TEXTS.values())
