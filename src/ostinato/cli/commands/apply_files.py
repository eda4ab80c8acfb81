"""Files that ``apply`` is given: found, read and checked, all of them before anything is written."""

from __future__ import annotations

import errno
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from ostinato.control.document.yaml_text import TEXT_BYTES_MAX
from ostinato.errors import UserError

#: Stands for standard input.
STDIN = "-"
STDIN_NAME = "<stdin>"
SUFFIXES = (".yaml", ".yml")
#: Folders below each other; a real tree has a handful.
DEPTH_MAX = 50


def find_files(given: Sequence[str]) -> list[str]:
    """Files that `given` names, each once, those of folders in sorted order; ``-`` stays.

    Raises ``INVALID_DOCUMENT`` for what does not exist, for a folder without a file, and for links that lead
    round in a circle; ``INVALID_VALUE`` for an empty name.
    """
    found: dict[str, str] = {}
    for name in given:
        if name == STDIN:
            found.setdefault(STDIN, STDIN)
            continue
        if not name:
            raise UserError("INVALID_VALUE", "an empty path", field="--file", hint="write . for this folder")
        path = Path(name)
        if not _is_folder(path):
            found.setdefault(os.path.realpath(path), name)
            continue
        files = list(_files_below(path, above=()))
        if not files:
            raise _refused(
                name, "no *.yaml or *.yml file is in this folder", hint="hidden files do not count"
            )
        for file in files:
            found.setdefault(os.path.realpath(file), str(file))
    return list(found.values())


def read_file(name: str) -> bytes:
    """Content of a file, or of standard input for ``-``, up to what a document may hold and a byte more.

    A pipe is waited for until its writer has ended. Raises ``INVALID_DOCUMENT`` for what cannot be read.
    """
    try:
        if name == STDIN:
            return sys.stdin.buffer.read(TEXT_BYTES_MAX + 1)
        with open(name, "rb") as file:
            return file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(shown_name(name), _reason(error)) from None


def read_regular_file(name: str) -> bytes:
    """As `read_file`, of a regular file alone: what may be waited for without end is refused.

    Raises ``INVALID_DOCUMENT`` also for pipes, sockets and devices.
    """
    try:
        # Without waiting for a writer, and looked at once it is open: its name may mean another by then.
        with open(os.open(name, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _refused(name, "is no regular file", hint="ostinato apply -f reads a pipe once")
            return file.read(TEXT_BYTES_MAX + 1)
    except OSError as error:
        raise _refused(shown_name(name), _reason(error)) from None


def shown_name(name: str) -> str:
    """What an error calls the file."""
    return STDIN_NAME if name == STDIN else name


def _is_folder(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.stat().st_mode)
    except OSError as error:
        raise _refused(str(path), _reason(error)) from None
    except ValueError:
        raise _refused(str(path), "is not a path: it holds a NUL character") from None


def _files_below(folder: Path, *, above: tuple[tuple[int, int], ...]) -> Iterator[Path]:
    """Files to read in a folder and those below it. `above` identifies the folders that lead to it."""
    try:
        status = folder.stat()
        entries = sorted(folder.iterdir(), key=lambda entry: entry.name)
    except OSError as error:
        raise _refused(str(folder), _reason(error)) from None
    here = (status.st_dev, status.st_ino)
    if here in above or len(above) >= DEPTH_MAX:
        raise _refused(str(folder), "a link leads back to a folder above it", hint="remove the link")
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir():
            yield from _files_below(entry, above=(*above, here))
        elif entry.name.lower().endswith(SUFFIXES):
            _require_regular(entry)
            yield entry


def _require_regular(path: Path) -> None:
    """A pipe or device among a folder's files would be waited for, or never end."""
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise _refused(str(path), _reason(error)) from None
    if not stat.S_ISREG(mode):
        raise _refused(str(path), "is no regular file", hint="name it with -f if it is meant to be read")


def _reason(error: OSError) -> str:
    if error.errno == errno.ENOENT:
        return "no such file or folder"
    if error.errno == errno.ELOOP:
        return "the link leads round in a circle"
    return f"cannot be read: {(error.strerror or type(error).__name__).lower()}"


def _refused(place: str, message: str, *, hint: str = "") -> UserError:
    return UserError("INVALID_DOCUMENT", message, place=place, hint=hint)
