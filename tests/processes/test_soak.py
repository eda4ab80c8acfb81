"""A minute of the soak: nodes and workers killed at random, the database restarted, judged by a witness.

``bench/soak.py`` runs it for as long and as fast as one likes, and says what it measured.
"""

from __future__ import annotations

import faulthandler
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.private_servers import PrivateMariadb, PrivatePostgres, PrivateServer, is_installed

_ROOT = Path(__file__).parents[2]
_FULL = bool(os.environ.get("OSTINATO_CASES_FULL"))
_LIMIT_S = 1_500 if _FULL else 300


@pytest.mark.parametrize(
    ("name", "kind"),
    [("postgres", PrivatePostgres), ("mariadb", PrivateMariadb)]
    if _FULL
    else [("postgres", PrivatePostgres)],
)
def test_c079_c089_c117_nothing_is_lost_or_runs_twice_at_a_time(
    name: str, kind: type[PrivateServer], tmp_path: Path
) -> None:
    if not is_installed(kind):
        pytest.skip(f"{name} is not installed")
    size = (
        ("--seconds", "600", "--rate", "500", "--restarts", "2")
        if _FULL
        else ("--seconds", "60", "--rate", "60", "--restarts", "1")
    )
    # Longer than a test may take; the process has a limit of its own.
    faulthandler.cancel_dump_traceback_later()
    done = subprocess.run(
        [
            sys.executable,
            str(_ROOT / "bench/soak.py"),
            "--private",
            name,
            *size,
            "--drain",
            "120",
            "--folder",
            str(tmp_path / "soak"),
        ],
        capture_output=True,
        text=True,
        timeout=_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    assert "lost: 0\noverlaps: 0\nbeyond policy: 0\n" in done.stdout
