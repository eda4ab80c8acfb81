"""Draws what ``make demo`` prints as ``docs/images/demo.svg``: one real run, its first stories."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).parent.parent
#: Stories shown, by the heading that the example gives them.
SHOWN = ("━━ fetch the orders", "━━ deliver to closed-ltd")
COLUMNS = 130


def stories(lines: list[str]) -> list[str]:
    """The progress lines, then the chosen stories, then the checks."""
    first = next(index for index, line in enumerate(lines) if line.startswith("━━"))
    shown = lines[:first]
    is_shown = False
    for line in lines[first:]:
        if line.startswith("━━"):
            is_shown = line.startswith(SHOWN)
        if line.startswith("  ok "):
            is_shown = True
        if is_shown:
            shown.append(line)
    return shown


def coloured(line: str) -> Text:
    """Headings, failures and checks in their colours."""
    text = Text(line)
    if line.startswith("━━"):
        text.stylize("bold cyan")
    text.highlight_regex(r"^ +failure .*", "red")
    text.highlight_regex(r"^ +decided .*", "yellow")
    text.highlight_regex(r"^ +ok ", "green")
    return text


def main() -> None:
    run = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "nightly" / "run.py")],
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    console = Console(record=True, width=COLUMNS, file=open("/dev/null", "w"))  # noqa: SIM115 - ends with us
    console.print(Text("$ make demo", style="bold"))
    for line in stories(run.stdout.splitlines()):
        console.print(coloured(line), overflow="fold")
    target = ROOT / "docs" / "images" / "demo.svg"
    target.write_text(console.export_svg(title="ostinato", unique_id="demo"), encoding="utf-8")


if __name__ == "__main__":
    main()
