"""A process beside chaos that restores what is still broken when chaos itself was killed.

It reads one JSON object a line from its standard input: ``{"id", "hold": {…}}`` for what has to be restored,
``{"id", "done": true}`` once that has happened. The end of the input is the end of chaos, whatever ended it;
what is held then is restored, the newest first. ``hold`` is one of ``{"signal", "pid", "start_ticks"}``,
``{"command", "folder", "limit_us"}``, or ``{"session", "start_ticks"}`` for a command under way that is to
end with all that it has started in its session.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from ostinato.chaos.commands import CommandFailed, CommandRun
from ostinato.worker.process_tree import TreeProcess, open_handle, signal_process

_END_S = 60.0


class Keeper:
    """The other end of the keeper's input."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "ostinato.chaos.keeper"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            # A Ctrl-C at the terminal is not meant for it.
            start_new_session=True,
        )

    def hold(self, number: int, what: dict[str, Any]) -> None:
        """Have it restored if chaos ends before `let_go`. Raises ``BrokenPipeError`` without a keeper."""
        self._tell({"id": number, "hold": what})

    def let_go(self, number: int) -> None:
        """It has been restored."""
        # A keeper that is gone holds nothing either.
        with suppress(BrokenPipeError):
            self._tell({"id": number, "done": True})

    def close(self) -> None:
        """Nothing is held any more."""
        # It may have ended by itself.
        with suppress(BrokenPipeError):
            self._input.close()
        self._process.wait(_END_S)

    @property
    def _input(self) -> IO[bytes]:
        stream = self._process.stdin
        assert stream is not None, "it was opened with a pipe"
        return stream

    def _tell(self, what: dict[str, Any]) -> None:
        self._input.write(json.dumps(what).encode() + b"\n")
        self._input.flush()


def restore(what: dict[str, Any]) -> None:
    """Undo one thing. Raises `CommandFailed`."""
    if "signal" in what:
        process = TreeProcess(int(what["pid"]), int(what["start_ticks"]))
        signal_process(process, signal.Signals(int(what["signal"])))
        return
    if "session" in what:
        leader = TreeProcess(int(what["session"]), int(what["start_ticks"]))
        handle = open_handle(leader)
        if handle is not None:
            # It may have ended since the handle told that it had not.
            with suppress(ProcessLookupError):
                os.killpg(leader.pid, signal.SIGKILL)
            select.select([handle], [], [], _END_S)
            os.close(handle)
        return
    command = what["command"]
    CommandRun(command if isinstance(command, str) else tuple(command), folder=Path(what["folder"])).finish(
        int(what["limit_us"])
    )


def main() -> None:
    """Read until the end of the input, then restore what is held."""
    for ignored in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(ignored, signal.SIG_IGN)
    held: dict[int, dict[str, Any]] = {}
    for line in sys.stdin:
        said = json.loads(line)
        if "hold" in said:
            held[said["id"]] = said["hold"]
        else:
            held.pop(said["id"], None)
    for number in sorted(held, reverse=True):
        try:
            restore(held[number])
        except CommandFailed as error:
            print(f"ostinato chaos: {error}", file=sys.stderr)


if __name__ == "__main__":
    main()
