"""The benchmarks run and print figures: small, on SQLite, without peers. How fast it is, nobody asks here."""

from __future__ import annotations

import faulthandler
import subprocess
import sys
from pathlib import Path

_BENCH = Path(__file__).parents[2] / "bench"
_LIMIT_S = 240


def _figures(program: str, *arguments: str) -> dict[str, list[str]]:
    """The cells of the tables that a benchmark prints on SQLite, by the first of each row."""
    return _cells(program, "--database", "sqlite", "--runs", "1", *arguments)


def _cells(program: str, *arguments: str) -> dict[str, list[str]]:
    # On a busy machine longer than a test may take; the process has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    done = subprocess.run(
        [sys.executable, str(_BENCH / program), *arguments],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    lines = [line for line in done.stdout.splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert len(rows) > 2, done.stdout
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


def test_cron_tasks_a_burst_and_a_start_are_measured() -> None:
    figures = _figures(
        "schedules.py",
        *("--tasks", "300", "--burst", "100", "--period", "60", "--seconds", "4"),
        *("--drained", "3000", "--registered", "400"),
    )
    # Two hundred tasks, each once a minute.
    assert _rate(figures["fires that were measured"][0]) >= 8
    for moment in ("instance", "start"):
        p50, p99 = (_rate(figures[f"instant → {moment} {share}, ms"][0]) for share in ("p50", "p99"))
        assert 0 <= p50 <= p99
    assert _rate(figures["instant → instance p99, ms"][0]) <= _rate(figures["instant → start p99, ms"][0])
    made, drained = (_rate(figures[f"burst: {what} a second"][0]) for what in ("instances made", "drained"))
    assert made > 0
    noop = _rate(figures["no-op drain, a second"][0])
    assert abs(_rate(figures["burst : no-op drain"][0]) - drained / noop) < 0.02
    assert figures["burst : no-op drain"][1] == "≥ 0.5"
    assert _rate(figures["start beside registered, s"][0]) > 0
    assert _rate(figures["memory then, MB"][0]) > 20


def test_what_an_instance_costs_is_measured_beside_more_of_everything() -> None:
    figures = _figures(
        "backlog.py",
        *("--waiting", "3000", "--finished", "2000", "--workers", "5", "--partitions", "128"),
        *("--drained", "3000", "--warm", "500", "--warm-workers", "500"),
    )
    sizes = {"waiting": "3,000", "finished": "2,000", "workers": "5", "partitions": "128"}
    for what, size in sizes.items():
        _, most, small, large, ratio, _ = figures[what]
        assert most == size
        # Both are printed without decimals.
        rounded = 0.5 * (1 + _rate(ratio)) / (_rate(small) - 0.5) + 0.01
        assert abs(_rate(ratio) - _rate(large) / _rate(small)) < rounded
        assert _rate(small) > 10
    assert figures["scheduler"][0] == "3,000"
    assert _rate(figures["scheduler"][1]) > 20


def test_the_cost_of_a_retry_decision_is_measured() -> None:
    figures = _cells("decision.py", "--runs", "1", "--count", "500")
    decisions = {row: cells for row, cells in figures.items() if cells[-1] == "10"}
    assert len(decisions) == 7
    assert all(_rate(cells[0]) > 0 for cells in decisions.values())
    assert _rate(figures["the owner's step for a failed attempt"][0]) > 0


def test_the_report_names_bound_verdict_and_command_of_each_figure() -> None:
    figures = _cells("report.py", "--quick", "--only", "decision")
    measured, bound, verdict, command = figures["retry decision, lost worker, µs"]
    assert bound == "≤ 10"
    assert verdict == ("yes" if _rate(measured) <= 10 else "no")
    assert command == "`python bench/decision.py --runs 1 --count 2000`"
