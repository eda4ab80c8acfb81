"""URLs of databases: which store they name, and how a wrong one is refused."""

from __future__ import annotations

import subprocess
import sys
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
        ("postgresql://user:secret@host", "names no database"),
        ("postgresql+psycopg://user:secret@host/db", "names a driver"),
        ("mysql://user:secret@host/db?sslmod=on", "'sslmod' is not known"),
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


@pytest.mark.parametrize(
    ("url", "name"),
    [
        ("postgresql://user:secret@host/db", "postgres"),
        ("postgres://user@host/db", "postgres"),
        ("mysql://user:secret@host/db", "mysql"),
        ("mariadb://user@host/db", "mysql"),
    ],
)
def test_a_server_is_named_without_being_asked(url: str, name: str) -> None:
    store = open_store_from_url(url, clock=SystemClock())
    assert store.capabilities.name == name
    assert store.capabilities.many_nodes


@pytest.mark.parametrize(
    ("url", "driver", "extra"),
    [
        ("postgresql://user:secret@host/db", "asyncpg", "postgres"),
        ("mysql://user:secret@host/db", "asyncmy", "mysql"),
        ("mariadb://user:secret@host/db", "greenlet", "mysql"),
    ],
)
def test_a_missing_driver_is_named_with_what_installs_it(url: str, driver: str, extra: str) -> None:
    program = (
        f"import sys; sys.modules[{driver!r}] = None\n"
        "from ostinato.clock import SystemClock\n"
        "from ostinato.errors import UserError\n"
        "from ostinato.store.from_url import open_store_from_url\n"
        "try:\n"
        f"    open_store_from_url({url!r}, clock=SystemClock())\n"
        "except UserError as error:\n"
        "    print(error.code, error)\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("INVALID_SETTING database: the driver for")
    assert f"pip install 'ostinato[{extra}]'" in done.stdout
    assert "secret" not in done.stdout
