"""A file without a name that takes the room of a disk; with the end of this process the room is back."""

from __future__ import annotations

import os
import tempfile
import threading
from contextlib import suppress
from pathlib import Path

from ostinato.core.sizes import KIB, MIB

#: What is taken at a time; small, so that the end of a fault waits for little.
_PORTION_BYTES = 64 * MIB
_PORTION_BYTES_MIN = 4 * KIB
#: Random, because a disk that compresses or shares blocks would not be filled by anything else.
_NOISE_BYTES = MIB


def free_bytes(folder: Path) -> int:
    """Room that whoever is not root can still take on the disk of `folder`."""
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


def shown_size(size_bytes: int) -> str:
    """A size to the tenth of a MiB."""
    return f"{size_bytes / MIB:,.1f} MiB"


class Ballast:
    """Room that is taken from the disk of a folder until `close`.

    The file has no name from the beginning: however this process ends, the system gives the room back.
    """

    def __init__(self, folder: Path) -> None:
        """Raises ``OSError`` where no file can be made."""
        self._folder = folder
        self._file = _nameless(folder)
        self._lock = threading.Lock()
        self._is_closed = False

    def fill(self, leave_free_bytes: int) -> int:
        """Take what is free but so much; bytes that are taken. Blocks for as long as the disk needs."""
        portion_bytes = _PORTION_BYTES
        size_bytes = 0
        while portion_bytes >= _PORTION_BYTES_MIN:
            with self._lock:
                excess_bytes = 0 if self._is_closed else free_bytes(self._folder) - leave_free_bytes
                wanted_bytes = min(portion_bytes, excess_bytes)
                if wanted_bytes < _PORTION_BYTES_MIN:
                    break
                if self._take(size_bytes, wanted_bytes):
                    size_bytes += wanted_bytes
                else:
                    portion_bytes //= 2
        return size_bytes

    def close(self) -> None:
        """Give the room back; idempotent."""
        with self._lock:
            if not self._is_closed:
                self._is_closed = True
                os.close(self._file)

    def _take(self, start_bytes: int, size_bytes: int) -> bool:
        """Whether the disk had room for that; what is in the way of a reservation is written instead."""
        before_bytes = free_bytes(self._folder)
        try:
            if hasattr(os, "posix_fallocate"):
                os.posix_fallocate(self._file, start_bytes, size_bytes)
            if free_bytes(self._folder) < before_bytes:
                return True
            noise = os.urandom(min(_NOISE_BYTES, size_bytes))
            for place in range(start_bytes, start_bytes + size_bytes, len(noise)):
                os.pwrite(self._file, noise, place)
            os.fsync(self._file)
        except OSError:
            return False  # full, or a quota: a smaller portion may still fit
        return True


def _nameless(folder: Path) -> int:
    # Not every system and file system knows such files (NFS, some overlays).
    nameless = getattr(os, "O_TMPFILE", None)
    if nameless is not None:
        with suppress(OSError):
            return os.open(folder, nameless | os.O_RDWR | os.O_CLOEXEC, 0o600)
    number, name = tempfile.mkstemp(prefix=".ostinato-chaos-", dir=folder)
    os.unlink(name)
    return number
