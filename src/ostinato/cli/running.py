"""Running a node or worker from the command line: logs, event loop, first words, exit code."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ostinato.assembly import OnReady, Running
from ostinato.cli.output import complain, print_json, print_table, safe, say
from ostinato.cli.views import instant
from ostinato.control.queries import task_triggers
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.schedule.trigger import describe_trigger
from ostinato.core.url_text import shown_url
from ostinato.errors import UserError
from ostinato.observe.logs import configure_logging
from ostinato.settings import Settings, naming_sources
from ostinato.store.batches import TriggerRow

#: Longest wait for the owner to put new triggers in force before they are shown.
_IN_FORCE_US_MAX = 3 * SECOND
_POLL_US = 20 * MILLISECOND
#: Objects between two looks for garbage in cycles. Rows and messages come by the thousand, live for one batch
#: and end by their reference counts: at Python's 700, a quarter of the time goes into looking for cycles.
_COLLECTED_COUNT = 10_000


def run_until_signal(
    settings: Settings, work: Coroutine[None, None, signal.Signals | None], *, service_name: str
) -> None:
    """Run `work` to its end. Ctrl-C ends as ``KeyboardInterrupt`` once all has been stopped."""
    form = settings.log_format
    if form == "auto":
        form = "text" if sys.stderr.isatty() else "json"
    configure_logging(level=settings.log_level, form=form, service_name=service_name)
    gc.set_threshold(_COLLECTED_COUNT)
    with naming_sources(settings), asyncio.Runner(loop_factory=_loop_factory()) as runner:
        ended_by = runner.run(work)
    if ended_by is signal.SIGINT:
        raise KeyboardInterrupt


def require_app(apps: str, *, field: str) -> None:
    """Raise ``INVALID_APP`` for a file or module that does not exist. Nothing is imported."""
    for name in filter(None, (part.strip() for part in apps.split(","))):
        place = name.partition(":")[0]
        if place.lower().endswith((".yaml", ".yml")):
            raise UserError(
                "INVALID_APP",
                f"{place} is a document, not an app",
                field=field,
                hint=f"a scheduler is given it with ostinato apply -f {place}; a worker needs the code alone",
            )
        if place.endswith(".py"):
            if not Path(place).is_file():
                raise UserError("INVALID_APP", f"there is no file {place}", field=field)
            continue
        package = place.partition(".")[0]
        # As the task processes, which also look into the directory that they start in.
        if not package.isidentifier() or not (
            PathFinder.find_spec(package, [str(Path.cwd())]) or find_spec(package)
        ):
            raise UserError(
                "INVALID_APP",
                f"there is no module {package}",
                field=field,
                hint="write module:attribute, path/file.py or path/file.py:attribute",
            )


def require_folder(name: str, *, field: str) -> None:
    """Raise ``INVALID_SETTING`` unless `name` is a folder."""
    if not Path(name).is_dir():
        raise UserError("INVALID_SETTING", f"there is no folder {name}", field=field)


def _loop_factory() -> type[asyncio.AbstractEventLoop] | None:
    """uvloop's where it is installed; None: asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.Loop


def announce_scheduler(settings: Settings, *, in_json: bool) -> OnReady:
    """Says where a scheduler listens."""

    async def announce(running: Running) -> None:
        if in_json:
            print_json(
                {
                    "database": shown_url(settings.database),
                    "workers": running.workers,
                    "api": str(running.api),
                }
            )
            return
        say(f"scheduler on database {safe(shown_url(settings.database))}")
        say(f"workers connect to {running.workers}")
        say(f"API, health and metrics on http://{running.api}")

    return announce


def announce_dev(settings: Settings, *, shown: str, reloads: bool, in_json: bool) -> OnReady:
    """Says what runs where, which tasks were found in what is `shown`, and when each fires next."""

    async def announce(running: Running) -> None:
        await _until_in_force(running)
        tasks = [(ref, await task_triggers(running.store, ref)) for ref in sorted(running.tasks)]
        if in_json:
            print_json(
                {
                    "database": shown_url(settings.database),
                    "api": str(running.api),
                    "tasks": [
                        {"namespace": ref.namespace, "name": ref.name, "next": _next_fire(triggers)}
                        for ref, triggers in tasks
                    ],
                    "problems": running.problems,
                }
            )
            return
        say(f"{safe(shown)} on database {safe(shown_url(settings.database))}")
        print_table(
            ("TASK", "NEXT FIRE", "SCHEDULE"),
            [
                (
                    ref.name,
                    _next_fire(triggers) or "-",
                    "; ".join(describe_trigger(row.spec) for row in triggers),
                )
                for ref, triggers in tasks
            ],
            empty="There are no tasks.",
        )
        for problem in running.problems:
            complain(problem)
        say(f"API, health and metrics on http://{running.api}")
        say(f"{settings.slots} task processes, {settings.async_slots} async slots; Ctrl-C ends them")
        if reloads:
            say("changed files are taken over as they are saved")

    return announce


def _next_fire(triggers: list[TriggerRow]) -> str | None:
    return instant(triggers[0].next_us) if triggers else None


async def _until_in_force(running: Running) -> None:
    """Wait until the owner has put the newest triggers in force, but not for ever."""
    clock = running.clock
    end_us = clock.boot_us() + _IN_FORCE_US_MAX
    while clock.boot_us() < end_us:
        rows = await running.store.get_tasks(running.tasks)
        if all(row.scheduled_version == row.version for row in rows.values()):
            return
        await clock.sleep_until_us(clock.boot_us() + _POLL_US)
