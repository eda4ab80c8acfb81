"""Keeps others away from the SQLite database of a scheduler node: an exclusive lock on ``<database>.lock``.

The kernel ends the lock with its holder, so nothing is left to clean up after a ``kill -9``, and a process
id that was used again means nothing (C111). What is in the file, the holder's id and what it does, only
serves the message to the second one. Commands that need the database to themselves take the lock too. The
file itself stays: deleting it would let two nodes lock two files of one name.
"""

from __future__ import annotations

import errno
import fcntl
import os
from typing import Literal, TypeAlias
from weakref import WeakSet

from ostinato.errors import ConflictError, UnavailableError
from ostinato.store.sqlite.failures import FULL_ERRORS, full, unusable

#: What the holder of the lock does with the database.
Purpose: TypeAlias = Literal["schedule", "copy", "downgrade"]
_HOLDER_BYTES_MAX = 64

_held: WeakSet[LockFile] = WeakSet()


class LockFile:
    """The lock of one database file, free at first."""

    def __init__(self, database_path: str, *, purpose: Purpose = "schedule") -> None:
        self._purpose = purpose
        # Two names of one file must meet in one lock.
        self._path = os.path.realpath(database_path) + ".lock"
        self._descriptor: int | None = None

    def acquire(self) -> None:
        """Take the lock; idempotent.

        Raises at once ``NODE_ALREADY_RUNNING`` when a node has it, ``DATABASE_UNAVAILABLE`` when a command
        has, and ``DATABASE_FULL``, ``DATABASE_UNUSABLE`` where the file cannot be made.
        """
        if self._descriptor is not None:
            return
        try:
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(descriptor, _HOLDER_BYTES_MAX, 0).decode("ascii", "replace").split()
            os.close(descriptor)
            raise self._refusal(error, holder) from None
        holding = f"{os.getpid()} {self._purpose}\n".encode("ascii")
        try:
            # Over what is there, which needs no room; shorter only then.
            os.pwrite(descriptor, holding, 0)
            os.ftruncate(descriptor, len(holding))
        except OSError as error:
            os.close(descriptor)
            raise self._unwritable(error) from None
        self._descriptor = descriptor
        _held.add(self)

    def is_held(self) -> bool:
        """Whether this process has the lock that the next node would ask for."""
        if self._descriptor is None:
            return False
        try:
            named = os.stat(self._path)
        except FileNotFoundError:
            return False
        return os.path.samestat(os.fstat(self._descriptor), named)

    def _unwritable(self, error: OSError) -> Exception:
        if error.errno in FULL_ERRORS:
            return full(self._path, "locking the database")
        return unusable(self._path, f"the lock file cannot be written: {error.strerror}")

    def _refusal(self, error: OSError, said: list[str]) -> Exception:
        holder, purpose = (*said, "", "")[:2]
        path = self._path.removesuffix(".lock")
        if error.errno in (errno.EWOULDBLOCK, errno.EACCES):
            if purpose in ("copy", "downgrade"):
                return UnavailableError(
                    "DATABASE_UNAVAILABLE",
                    f"a {purpose} of {path} is under way, by process {holder}",
                    subject=path,
                    hint="wait for its end",
                )
            return ConflictError(
                "NODE_ALREADY_RUNNING",
                f"another scheduler node, process {holder or 'unknown'}, has this database",
                subject=path,
                hint="stop it first, or use PostgreSQL or MySQL to run more than one node",
            )
        return unusable(
            self._path,
            f"the file system cannot lock files: {error.strerror}",
            hint="put the database on a local disk",
        )

    def release(self) -> None:
        """Give the lock back; idempotent."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held.discard(self)


def _forget_in_child() -> None:
    """A forked child shares the lock with its parent and would keep it when the parent is killed."""
    for lock in list(_held):
        lock.release()


os.register_at_fork(after_in_child=_forget_in_child)
