"""Imports an app in a process of its own, to see whether a worker could run it; nothing of it runs here.

The process is started as a worker's are: a fresh interpreter in the same directory, with the environment that
tasks get. What the app prints while it is imported goes to standard error and is read, so that a traceback
that the app itself shows is not lost either.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from contextlib import suppress

import msgspec

from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import UserError
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.task_environment import task_environment

_MODULE = "ostinato.worker.app_probe"
#: As long as a worker's own processes may take for it.
PROBE_US_MAX = 120 * SECOND
_SAID_BYTES_MAX = 8_000


async def probe_app(app: str, *, limit_us: int = PROBE_US_MAX) -> KnownTasks:
    """What the app declares, and what of it could not be imported.

    Raises ``INVALID_APP`` where the import ends its process or takes longer than `limit_us`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-X",
        "utf8",
        "-m",
        _MODULE,
        app,
        env=task_environment(os.environ),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # So that all of it can be ended, and a Ctrl-C in the terminal is not its business.
        start_new_session=True,
    )
    try:
        async with asyncio.timeout(limit_us / SECOND):
            answer, said = await process.communicate()
    except TimeoutError:
        raise UserError(
            "INVALID_APP",
            f"{app} was not imported within {format_duration(limit_us)}",
            field="app",
            hint="a module that declares tasks must not wait for anything while it is imported",
        ) from None
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
    if process.returncode != 0:
        last_words = said[-_SAID_BYTES_MAX:].decode("utf-8", "replace").strip()
        raise UserError(
            "INVALID_APP",
            f"the process that imported {app} ended with {process.returncode}"
            + (f":\n{last_words}" if last_words else ""),
            field="app",
        )
    return msgspec.msgpack.decode(answer, type=KnownTasks)


def main() -> None:
    """Import the app named on the command line, and write what it declares to standard output."""
    answers = os.dup(1)
    os.dup2(2, 1)
    # Only here: whoever asks for a probe must not import what runs in processes of tasks.
    from ostinato.worker.task_modules import TaskModules

    # As `python -c` and a worker's processes: the directory that the command was started in comes first.
    modules = TaskModules(sys.argv[1])
    sys.stdout.flush()
    with open(answers, "wb") as out:
        out.write(msgspec.msgpack.encode(modules.known))
    # Threads and exit handlers of the app have no say in how this ends.
    os._exit(0)


if __name__ == "__main__":
    main()
