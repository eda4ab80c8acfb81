"""Commands of the user's: run in a session of their own, with a limit, and their last words kept."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

from ostinato.chaos.scenario import Command
from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import UserError
from ostinato.worker.process_tree import start_ticks_of

_SAID_BYTES_MAX = 2_000
_GRACE_S = 5.0
#: A shell that becomes the program once it is told to; if nobody is left to tell it, it ends.
WAIT_THEN_BECOME = 'read -r _ && exec "$0" "$@" </dev/null'


class CommandFailed(Exception):
    """A command did not do what it should; the text says how it ended and what it wrote last."""


def words_of(command: Command) -> list[str]:
    """What is executed: a text is given to the shell."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def shown_command(command: Command) -> str:
    """The command as its author wrote it, on one line."""
    return command if isinstance(command, str) else " ".join(command)


def require_program(
    command: Command, *, folder: Path, field: str, environment: Mapping[str, str] | None = None
) -> None:
    """Raise ``CHAOS_REFUSED`` where the first of the words is no program; a text is left to the shell.

    A name without a slash is looked for on the path of `environment`; a path begins at `folder`.
    """
    if isinstance(command, str) or not command:
        return
    program = str(folder / command[0]) if "/" in command[0] else command[0]
    path = (os.environ if environment is None else environment).get("PATH")
    if shutil.which(program, path=path) is None:
        hint = "correct it, or install the program"
        raise UserError("CHAOS_REFUSED", f"there is no program {command[0]}", field=field, hint=hint)


class CommandRun:
    """One command that runs from here on; `finish` blocks, `kill` may be called from another thread."""

    def __init__(
        self,
        command: Command,
        *,
        folder: Path,
        environment: Mapping[str, str] | None = None,
        waits: bool = False,
    ) -> None:
        """`waits`: it does nothing before `go`. Raises `CommandFailed` if it cannot be started."""
        self._command = command
        self._said = _open_for_words()
        self._lock = threading.Lock()
        words = words_of(command)
        try:
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", WAIT_THEN_BECOME, *words] if waits else words,
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE if waits else subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            raise CommandFailed(f"{shown_command(command)} cannot be run: {error.strerror}") from None
        #: Tells it from whoever has its pid later.
        self.start_ticks = start_ticks_of(self._process.pid)

    @property
    def pid(self) -> int:
        """Of the shell or program, which leads the session."""
        return self._process.pid

    def go(self) -> None:
        """Whoever has to end it knows it by now: it may begin."""
        stream = self._process.stdin
        assert stream is not None, "it was made to wait"
        # It may have been ended meanwhile.
        with suppress(BrokenPipeError), stream:
            stream.write(b"\n")

    def finish(self, limit_us: int) -> None:
        """Wait for its end. Raises `CommandFailed` unless that is 0, within the limit."""
        try:
            status = self._process.wait(limit_us / SECOND)
        except subprocess.TimeoutExpired:
            self.kill()
            message = f"{shown_command(self._command)} did not end within {format_duration(limit_us)}"
            raise CommandFailed(message + self._last_words()) from None
        if status:
            raise CommandFailed(f"{shown_command(self._command)} ended with {status}{self._last_words()}")
        self._said.close()

    def kill(self) -> None:
        """End it and what it has started in its own session; nothing happens if it has ended."""
        with self._lock:
            if self._process.poll() is not None:
                return
            self._send(signal.SIGTERM)
            try:
                self._process.wait(_GRACE_S)
            except subprocess.TimeoutExpired:
                self._send(signal.SIGKILL)
                self._process.wait()

    def _send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)

    def _last_words(self) -> str:
        with self._said as file:
            size_bytes = file.seek(0, os.SEEK_END)
            file.seek(max(0, size_bytes - _SAID_BYTES_MAX))
            said = " ".join(file.read().decode("utf-8", "replace").split())
        return f": {said}" if said else ""


def _open_for_words() -> BinaryIO:
    """Where a command writes: no pipe, which a server that it starts may keep open for ever.

    In memory where the system can: what undoes a fault has to run on a full disk too.
    """
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("ostinato-chaos"), "w+b")
    return tempfile.TemporaryFile()
