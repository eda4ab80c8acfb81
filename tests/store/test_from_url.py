"""URLs of databases: which store they name, and how a wrong one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from ostinato.clock import SystemClock
from ostinato.errors import UserError
from ostinato.store.from_url import open_store_from_url


async def test_three_slashes_are_relative_and_four_absolute(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for url in ("sqlite:///relative.db", f"sqlite:///{tmp_path}/absolute.db"):
        store = open_store_from_url(url, clock=SystemClock(), partition_count=4)
        await store.open()
        assert (store.capabilities.name, store.partition_count) == ("sqlite", 4)
        await store.close()
    assert (tmp_path / "relative.db").exists()
    assert (tmp_path / "absolute.db").exists()


async def test_memory_needs_no_file() -> None:
    store = open_store_from_url("memory:", clock=SystemClock(), partition_count=4)
    assert (store.capabilities.name, store.partition_count) == ("memory", 4)


@pytest.mark.parametrize(
    ("url", "word"),
    [
        ("postgresql://user:secret@host/db", "not in this version"),
        ("postgresql+psycopg://host/db", "not in this version"),
        ("mysql://host/db", "not in this version"),
        ("sqlite://a.db", "three slashes"),
        ("sqlite:a.db", "three slashes"),
        ("sqlite:///", "names no file"),
        ("sqlite:///:memory:", "names no file"),
        ("oracle://user:secret@host", "no kind of database"),
        ("a.db", "no kind of database"),
        ("", "no kind of database"),
    ],
)
def test_any_other_url_is_refused_without_repeating_a_password(url: str, word: str) -> None:
    with pytest.raises(UserError) as caught:
        open_store_from_url(url, clock=SystemClock())
    assert caught.value.code == "INVALID_SETTING"
    assert word in caught.value.message
    assert "secret" not in str(caught.value)
