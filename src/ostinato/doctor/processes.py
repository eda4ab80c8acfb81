"""Processes of this machine: who holds a port, and which of ours have been stopped."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from ostinato.core.url_text import without_passwords
from ostinato.doctor.report import Status
from ostinato.settings import Address

Found = Iterator[tuple[Status, str, str]]

_PROC = Path("/proc")
#: State of a socket that listens in ``/proc/net/tcp``.
_LISTENS = "0A"
_NAMED_MAX = 10
_COMMAND_LETTERS_MAX = 200


def check_processes() -> Found:
    """Processes of ours that somebody has stopped: the others take over, and the database forgets them."""
    stopped = [folder for folder in _folders() if is_stopped(folder) and is_ostinato(_command_of(folder))]
    for folder in stopped[:_NAMED_MAX]:
        command = without_passwords(" ".join(_command_of(folder)).strip())[:_COMMAND_LETTERS_MAX]
        what = f"process {folder.name} is stopped, so that nothing of it goes on: {command}"
        hint = f"kill -CONT {folder.name}: it joins again; what it held was taken over meanwhile"
        yield "warn", what, hint
    if len(stopped) > _NAMED_MAX:
        yield "warn", f"and {len(stopped) - _NAMED_MAX} more processes are stopped", ""
    if not stopped:
        yield "ok", "no process of Ostinato on this machine is stopped", ""


def is_stopped(folder: Path) -> bool:
    """Whether the process of a folder of ``/proc`` was stopped by a signal or a debugger."""
    try:
        # The name, in brackets, may hold anything.
        after_name = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2]
    except OSError:
        return False
    return after_name.split()[:1] in (["T"], ["t"])


def _folders() -> list[Path]:
    return sorted(_PROC.glob("[0-9]*"), key=lambda folder: int(folder.name))


def _command_of(folder: Path) -> list[str]:
    try:
        return (folder / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return []


class Holder(NamedTuple):
    """Which process listens at an address, as far as that can be seen."""

    shown: str = ""
    #: None: no process can be seen, or a Python program that may be anything.
    is_ostinato: bool | None = None
    #: By a signal: it holds the port and does nothing.
    is_stopped: bool = False


def holder_of(address: Address) -> Holder:
    """The process that listens at an address, as far as this user can see it."""
    inodes = {
        fields[9]
        for table in ("/proc/net/tcp", "/proc/net/tcp6")
        for fields in map(str.split, _lines(table)[1:])
        if fields[3] == _LISTENS and int(fields[1].rpartition(":")[2], 16) == address.port
    }
    wanted = {f"socket:[{inode}]" for inode in inodes}
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            if any(os.readlink(entry) in wanted for entry in folder.iterdir()):
                name = (folder.parent / "comm").read_text(encoding="utf-8", errors="replace").strip()
                command = (folder.parent / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
                shown = f" (process {folder.parent.name}, {name})"
                return Holder(shown, is_ostinato(command), is_stopped(folder.parent))
        except OSError:
            # Ended meanwhile, or another user's.
            continue
    return Holder()


def is_ostinato(command: Sequence[str]) -> bool | None:
    """Whether a command line is one of ours; None: a Python program that may be anything."""
    for at, word in enumerate(command):
        is_module = word.partition(".")[0] == "ostinato" and at > 0 and command[at - 1] == "-m"
        # The script itself, or what the interpreter that comes first is given.
        if is_module or (at < 2 and Path(word).name == "ostinato"):
            return True
    return None if command and Path(command[0]).name.startswith("python") else False


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="ascii").splitlines()
    except OSError:
        return [""]
