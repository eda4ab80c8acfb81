"""Writes docs/tasks.schema.json: ``python tools/generate_json_schema.py``."""

from __future__ import annotations

import json
from pathlib import Path

from ostinato.control.document.json_schema import json_schema

FILE = Path(__file__).parents[1] / "docs" / "tasks.schema.json"


def rendered() -> str:
    """The file as it should be."""
    return json.dumps(json_schema(), indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    FILE.write_text(rendered(), encoding="utf-8")
