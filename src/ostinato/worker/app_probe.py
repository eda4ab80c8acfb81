"""Imports an app in a process of its own, to see whether a worker could run it; nothing of it runs here.

The process is started as a worker's are: a fresh interpreter in the same directory, with the environment that
tasks get. What the app prints while it is imported goes to standard error; its end is kept, so that a
traceback that the app itself shows is not lost either.

The process runs code of users, so nothing is taken for granted of it: it may end without an answer, answer
what is none, print without end, or leave copies of itself behind, which are ended with it.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import signal
import subprocess
import sys
from collections import deque
from typing import IO

import msgspec

from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import UserError
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.process_tree import MARKER_VARIABLE, Tree, TreeProcess, kill_trees, start_ticks_of
from ostinato.worker.task_environment import task_environment

_MODULE = "ostinato.worker.app_probe"
#: As long as a worker's own processes may take for it.
PROBE_US_MAX = 120 * SECOND
_SAID_BYTES_MAX = 8_000
#: More than any app declares; what comes after it is not kept.
_ANSWER_BYTES_MAX = 64 * 1024 * 1024
_READ_BYTES = 64 * 1024
#: For what stands in the pipes once everybody is gone who wrote to them.
_LAST_WORDS_SECONDS = 1.0


async def probe_app(app: str, *, limit_us: int = PROBE_US_MAX) -> KnownTasks:
    """What the app declares, and what of it could not be imported.

    Raises ``INVALID_APP`` where the import ends its process, takes longer than `limit_us`, or keeps the
    process from giving one answer. Cancelled, it has ended the process before it is over.
    """
    marker = secrets.token_hex(8)
    process = _start(app, marker=marker)
    tree = Tree(TreeProcess(process.pid, start_ticks_of(process.pid)), marker)
    ended = asyncio.create_task(asyncio.to_thread(process.wait))
    answer, said = _Kept(_ANSWER_BYTES_MAX), _Kept(_SAID_BYTES_MAX, of_end=True)
    reading: list[asyncio.Task[None]] = []
    try:
        reading = [
            asyncio.create_task(_read(process.stdout, answer)),
            asyncio.create_task(_read(process.stderr, said)),
        ]
        _, late = await asyncio.wait([ended], timeout=limit_us / SECOND)
    finally:
        # Copies of it hold the pipes too: without their end there would be none of the reading.
        await asyncio.shield(asyncio.create_task(_end(process, tree, ended=ended)))
        if reading:
            await asyncio.wait(reading, timeout=_LAST_WORDS_SECONDS)
        for each in reading:
            each.cancel()
    if late:
        raise UserError(
            "INVALID_APP",
            f"{app} was not imported within {format_duration(limit_us)}",
            field="app",
            hint="a module that declares tasks must not wait for anything while it is imported",
        )
    return _understood(app, answer, said=said, status=process.returncode)


def _start(app: str, *, marker: str) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            [sys.executable, "-X", "utf8", "-m", _MODULE, app],
            env={**task_environment(os.environ), MARKER_VARIABLE: marker},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            # So that all of it can be ended, and a Ctrl-C in the terminal is not its business.
            start_new_session=True,
        )
    except OSError as error:
        why = error.strerror or str(error)
        raise UserError(
            "INVALID_APP", f"no process could be started to import {app}: {why}", field="app"
        ) from None


async def _end(process: subprocess.Popen[bytes], tree: Tree, *, ended: asyncio.Task[int]) -> None:
    await asyncio.to_thread(kill_trees, [tree])
    await ended


def _understood(app: str, answer: _Kept, *, said: _Kept, status: int) -> KnownTasks:
    """The answer, where it is one and only one. Raises ``INVALID_APP`` with what happened instead."""
    if status != 0:
        why = f"ended with {_shown_status(status)}"
    elif not answer.size_bytes:
        why = "ended with exit status 0 before the import was over, so without an answer"
    elif answer.size_bytes > _ANSWER_BYTES_MAX:
        why = f"answered with more than {_ANSWER_BYTES_MAX} bytes"
    else:
        try:
            return msgspec.msgpack.decode(answer.content, type=KnownTasks)
        except msgspec.DecodeError:
            why = "gave an answer that cannot be read, or more than one"
    words = said.content.decode("utf-8", "replace").strip()
    raise UserError(
        "INVALID_APP",
        f"the process that imported {app} {why}" + (f":\n{words}" if words else ""),
        field="app",
        hint="a module that declares tasks must neither end nor copy its process while it is imported",
    )


def _shown_status(status: int) -> str:
    if status > 0:
        return f"exit status {status}"
    try:
        return f"signal {signal.Signals(-status).name}"
    except ValueError:
        return f"signal {-status}"


class _Kept:
    """What has been read, up to a size: the beginning and a piece more, or the end."""

    def __init__(self, size_bytes_max: int, *, of_end: bool = False) -> None:
        self._size_bytes_max = size_bytes_max
        self._of_end = of_end
        self._pieces: deque[bytes] = deque()
        self._kept_bytes = 0
        #: Of everything, kept or not.
        self.size_bytes = 0

    def add(self, piece: bytes) -> None:
        """Keep the piece if there is room for it, or make room."""
        self.size_bytes += len(piece)
        if not self._of_end and self._kept_bytes > self._size_bytes_max:
            return
        self._pieces.append(piece)
        self._kept_bytes += len(piece)
        while self._of_end and self._kept_bytes - len(self._pieces[0]) >= self._size_bytes_max:
            self._kept_bytes -= len(self._pieces.popleft())

    @property
    def content(self) -> bytes:
        """What is kept, in its order."""
        content = b"".join(self._pieces)
        return content[-self._size_bytes_max :] if self._of_end else content


async def _read(pipe: IO[bytes] | None, kept: _Kept) -> None:
    """Read to the end, so that whoever writes is never held up."""
    reader = asyncio.StreamReader(limit=_READ_BYTES)
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    try:
        while piece := await reader.read(_READ_BYTES):
            kept.add(piece)
    finally:
        transport.close()


def main() -> None:
    """Import the app named on the command line, and write what it declares to standard output."""
    answers = os.dup(1)
    os.dup2(2, 1)
    process_id = os.getpid()
    # Only here: whoever asks for a probe must not import what runs in processes of tasks.
    from ostinato.worker.task_modules import TaskModules

    # As `python -c` and a worker's processes: the directory that the command was started in comes first.
    modules = TaskModules(sys.argv[1])
    sys.stdout.flush()
    # A copy that the app has made of this process has nothing to say.
    if os.getpid() == process_id:
        with open(answers, "wb") as out:
            out.write(msgspec.msgpack.encode(modules.known))
    # Threads and exit handlers of the app have no say in how this ends.
    os._exit(0)


if __name__ == "__main__":
    main()
