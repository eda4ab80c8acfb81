"""Running a node or worker from the command line: logs, event loop, what is refused before, exit code."""

from __future__ import annotations

import asyncio
import gc
import signal
import sys
from collections.abc import Coroutine
from importlib.machinery import PathFinder
from importlib.util import find_spec
from pathlib import Path

from ostinato.errors import UserError
from ostinato.observe.logs import configure_logging
from ostinato.settings import Settings, naming_sources

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
