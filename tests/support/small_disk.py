"""A disk of a few megabytes that a test can fill and free: a real file system of its own."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


class SmallDisk:
    """A mounted file system; `path` is where to put files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._ballast = path / "ballast"

    def fill(self) -> None:
        """Take all the room that is left, to the last byte."""
        descriptor = os.open(self._ballast, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            size_bytes = 1 << 20
            while size_bytes:
                try:
                    os.write(descriptor, b"x" * size_bytes)
                except OSError:
                    size_bytes //= 2
        finally:
            os.close(descriptor)

    def free(self) -> None:
        """Give back what `fill` has taken."""
        self._ballast.unlink()


@contextmanager
def small_disk(path: Path, *, size_bytes: int = 8 << 20) -> Iterator[SmallDisk]:
    """Mount at `path`, which is made. Skips the test where this user may not mount."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount a file system")
    path.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size_bytes}", "tmpfs", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    if mounted.returncode != 0:
        pytest.skip(f"file systems cannot be mounted here: {mounted.stderr.strip()}")
    try:
        yield SmallDisk(path)
    finally:
        # Lazily: a failed test may have left a file open, and its error is the one to show.
        subprocess.run(["umount", "--lazy", str(path)], check=True)
