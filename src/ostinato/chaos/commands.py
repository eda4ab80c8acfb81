"""Commands of the user's: run in a session of their own, with a limit, and their last words kept."""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from ostinato.chaos.scenario import Command
from ostinato.core.instants import SECOND, format_duration

_SAID_BYTES_MAX = 2_000
_GRACE_S = 5.0


class CommandFailed(Exception):
    """A command did not do what it should; the text says how it ended and what it wrote last."""


def words_of(command: Command) -> list[str]:
    """What is executed: a text is given to the shell."""
    return ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)


def shown_command(command: Command) -> str:
    """The command as its author wrote it, on one line."""
    return command if isinstance(command, str) else " ".join(command)


class CommandRun:
    """One command that runs from here on; `finish` blocks, `kill` may be called from another thread."""

    def __init__(
        self, command: Command, *, folder: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        """Raises `CommandFailed` if it cannot be started."""
        self._command = command
        # A file, not a pipe: a server that the command starts may keep it open for ever.
        self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed by `finish`, once it is read
        self._lock = threading.Lock()
        try:
            self._process = subprocess.Popen(
                words_of(command),
                cwd=folder,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.DEVNULL,
                stdout=self._said,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except OSError as error:
            self._said.close()
            raise CommandFailed(f"{shown_command(command)} cannot be run: {error.strerror}") from None

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
