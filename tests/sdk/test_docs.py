"""Every example of docs/sdk.md runs, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine
from support.transaction_databases import new_database

from ostinato import App
from ostinato.clock import SystemClock
from ostinato.store.memory import MemoryStore

PAGE = Path(__file__).parents[2] / "docs" / "sdk.md"
_BLOCK = re.compile(r"^```python([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def blocks() -> list[tuple[str, str]]:
    """What stands behind the word python, and the code moved down to its own lines of the page."""
    text = PAGE.read_text(encoding="utf-8")
    return [
        (found[1].strip(), "\n" * text.count("\n", 0, found.start(2)) + found[2])
        for found in _BLOCK.finditer(text)
    ]


def test_the_examples_of_the_page_run() -> None:
    store = MemoryStore(SystemClock())
    names: dict[str, Any] = {"__name__": "shop"}

    async def opened(clock: object) -> MemoryStore:
        return store

    ran = 0
    for remark, code in blocks():
        program = compile(code, str(PAGE), "exec")
        if remark:
            continue
        exec(program, names)
        names["app"].use_store(opened)
        ran += 1
    app = names["app"]
    assert isinstance(app, App)
    assert ran >= 5
    assert {definition.name for definition in app.definitions()} >= {"fetch_prices", "backup", "charge"}
    app.close()


def test_the_examples_of_transactions_run_on_a_server(tmp_path: Path) -> None:
    names: dict[str, Any] = {"__name__": "shop"}
    exec(compile(blocks()[0][1], str(PAGE), "exec"), names)
    with new_database("postgresql", tmp_path) as database:
        database.put_tasks(names["app"].definitions())
        names["database"] = database.url.set(drivername="postgresql").render_as_string(hide_password=False)
        names["engine"] = create_engine(database.url)
        ran = [code for remark, code in blocks() if remark == "needs PostgreSQL"]
        for code in ran:
            exec(compile(code, str(PAGE), "exec"), names)
        names["engine"].dispose()
        assert len(ran) == 3
        assert database.rows("SELECT number FROM orders ORDER BY 1") == [(17,), (18,), (19,), (20,)]
        payloads = [bytes(row[0]) for row in database.rows("SELECT payload FROM instance ORDER BY payload")]
        assert payloads == [b'{"customer":%d}' % number for number in (17, 18, 19, 20)]
        assert database.taken_keys() == [("order-18", names["handle"].id)]
    names["app"].close()
