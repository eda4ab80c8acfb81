"""What a worker has on its disk for nodes that have not acknowledged it."""

from __future__ import annotations

import shutil
from pathlib import Path

from ostinato.worker.spool_file import read_spool


def spooled(folder: Path, worker: str) -> set[str]:
    """Instances whose outcomes a worker has on its disk, read from a copy: its own file is locked."""
    copy = folder / "copy"
    shutil.rmtree(copy, ignore_errors=True)
    # The file before its log: what moves from the log to the file meanwhile stays in both.
    shutil.copytree(folder / worker / "spool", copy)
    for path in (folder / worker / "spool").glob("*.db-wal"):
        shutil.copy(path, copy)
    return {outcome.instance_id for path in copy.glob("*.db") for outcome in read_spool(path).outcomes}
