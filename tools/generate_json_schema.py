"""Writes docs/tasks.schema.json and docs/chaos.schema.json: ``python tools/generate_json_schema.py``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ostinato.chaos.scenario_text import scenario_schema
from ostinato.control.document.json_schema import json_schema

DOCS = Path(__file__).parents[1] / "docs"


def rendered(schema: dict[str, Any] | None = None) -> str:
    """A file as it should be; that of tasks unless another schema is given."""
    return json.dumps(json_schema() if schema is None else schema, indent=2, ensure_ascii=False) + "\n"


if __name__ == "__main__":
    (DOCS / "tasks.schema.json").write_text(rendered(), encoding="utf-8")
    (DOCS / "chaos.schema.json").write_text(rendered(scenario_schema()), encoding="utf-8")
