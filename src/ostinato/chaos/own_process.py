"""A process that chaos starts itself, starts again after a kill, and ends."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from collections.abc import Callable
from typing import Any, NoReturn

from ostinato.chaos.commands import WAIT_THEN_BECOME, require_program
from ostinato.chaos.scenario import Command, Process, Scenario
from ostinato.errors import UserError
from ostinato.worker.process_tree import TreeProcess, start_ticks_of

#: Of a clean end; a worker drains for 25 s.
_END_S = 40.0


def own_words(command: Command) -> list[str]:
    """A text is split as a shell does, but no shell runs it: that would be killed in place of the process.

    Raises ``ValueError`` for quotes that do not close.
    """
    return shlex.split(command) if isinstance(command, str) else list(command)


class OwnProcess:
    """The process of a ``start`` entry: the newest one, after kills."""

    def __init__(self, process: Process, scenario: Scenario) -> None:
        """Nothing runs yet."""
        self._process = process
        self._folder = scenario.folder
        #: What it writes is added there.
        self.log = scenario.path(process.log or f"{process.name}.log")
        self._running: subprocess.Popen[bytes] | None = None

    @property
    def identity(self) -> TreeProcess:
        """The process that was started last."""
        pid = self._started.pid
        return TreeProcess(pid, start_ticks_of(pid))

    @property
    def is_running(self) -> bool:
        return self._running is not None and self._running.poll() is None

    @property
    def _environment(self) -> dict[str, str]:
        return {**os.environ, **self._process.environment}

    def check(self) -> None:
        """Raise ``CHAOS_REFUSED`` where there is no such program, or no folder for the log."""
        field = f"processes.{self._process.name}"
        words = tuple(own_words(self._process.start))
        require_program(words, folder=self._folder, field=f"{field}.start", environment=self._environment)
        if not self.log.parent.is_dir():
            hint = "make it, or name another log; relative paths begin at the scenario's folder"
            message = f"there is no folder {self.log.parent}"
            raise UserError("CHAOS_REFUSED", message, field=f"{field}.log", hint=hint)
        if self.log.is_dir() or self.log.is_fifo():
            message = f"{self.log} is a folder or a pipe"
            raise UserError("CHAOS_REFUSED", message, field=f"{field}.log", hint="name a file")

    def start(self, hold: Callable[[dict[str, Any]], None]) -> None:
        """Start it, unless it runs. `hold` is told how the keeper ends it before it does anything.

        Raises ``CHAOS_REFUSED`` if it cannot be started.
        """
        if self.is_running:
            return
        self.check()
        words = own_words(self._process.start)
        try:
            with self.log.open("ab") as log:
                self._running = subprocess.Popen(
                    ["/bin/sh", "-c", WAIT_THEN_BECOME, *words],
                    cwd=self._folder,
                    env=self._environment,
                    stdin=subprocess.PIPE,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    # A Ctrl-C at the terminal is meant for chaos, which then ends it.
                    start_new_session=True,
                )
        except OSError as error:
            self._refuse(f"cannot be started: {error.strerror}: {error.filename}")
        identity = self.identity
        hold({"signal": signal.SIGTERM, "pid": identity.pid, "start_ticks": identity.start_ticks})
        stream = self._running.stdin
        assert stream is not None, "it was opened with a pipe"
        stream.write(b"\n")
        stream.close()

    def _refuse(self, message: str) -> NoReturn:
        name = self._process.name
        raise UserError("CHAOS_REFUSED", message, subject=name, field=f"processes.{name}.start")

    def kill(self) -> None:
        """As a crash ends it."""
        self._started.kill()
        self._started.wait()

    def stop(self) -> None:
        """End it cleanly; if it does not within its drain, by SIGKILL."""
        running = self._running
        if running is None or running.poll() is not None:
            return
        running.send_signal(signal.SIGTERM)
        # Stopped, it would not hear of it.
        running.send_signal(signal.SIGCONT)
        try:
            running.wait(_END_S)
        except subprocess.TimeoutExpired:
            running.kill()
            running.wait()

    @property
    def _started(self) -> subprocess.Popen[bytes]:
        assert self._running is not None, f"{self._process.name} was never started"
        return self._running
