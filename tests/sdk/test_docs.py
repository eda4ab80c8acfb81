"""Every example of docs/sdk.md runs, in the order of the page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

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
        if remark == "needs a worker":
            continue
        exec(program, names)
        names["app"].use_store(opened)
        ran += 1
    app = names["app"]
    assert isinstance(app, App)
    assert ran >= 5
    assert {definition.name for definition in app.definitions()} >= {"fetch_prices", "backup", "charge"}
    app.close()
