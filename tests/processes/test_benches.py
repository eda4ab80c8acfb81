"""The benchmarks run and print figures: small, on SQLite, without peers. How fast it is, nobody asks here."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path

_BENCH = Path(__file__).parents[2] / "bench"
_LIMIT_S = 240


def _figures(program: str, *arguments: str) -> dict[str, list[str]]:
    """The cells of the table that a benchmark prints, by the first of each row."""
    # On a busy machine longer than a test may take; the process has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    done = subprocess.run(
        [sys.executable, str(_BENCH / program), "--database", "sqlite", "--runs", "1", *arguments],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]
    assert rows, done.stdout
    assert "failed in run" not in done.stderr, done.stderr
    return {row[0]: row[1:] for row in rows}


def _rate(cell: str) -> float:
    return float(cell.replace(",", ""))


def test_the_limit_of_a_database_is_measured() -> None:
    moved, pipelined, inserted, _ = _figures("limit.py", "--count", "1000", "--batch", "100")["sqlite"]
    assert _rate(moved) > 0
    # One writer.
    assert pipelined == "-"
    assert _rate(inserted) > _rate(moved)


def test_throughput_is_measured_beside_the_limit() -> None:
    figures = _figures("throughput.py", "--count", "4000")
    assert _rate(figures["ostinato-sqlite"][0]) > 0
    assert figures["ostinato-sqlite"][1] == "1.00"
    assert _rate(figures["limit sqlite"][0]) > 0


def test_latency_is_measured_idle_and_loaded() -> None:
    cells = _figures("latency.py", "--count", "4000", "--seconds", "2")["ostinato-sqlite"]
    idle_p50, idle_p99, rate, loaded_p50, loaded_p99 = map(_rate, cells[:5])
    assert 0 < idle_p50 <= idle_p99
    assert 0 < loaded_p50 <= loaded_p99
    assert rate > 0
