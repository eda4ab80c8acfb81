"""How a command ends: exit codes of design section 11, and a sentence instead of a traceback.

0 ok · 1 failed · 2 bad input · 3 unreachable · 4 conflict · 5 not found · 130 interrupted. Typer itself ends
with 2 on a wrong option. ``OSTINATO_DEBUG=1`` shows the traceback of whatever went wrong.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable, Generator
from contextlib import contextmanager

import typer

from ostinato.cli.output import complain, note_json
from ostinato.errors import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, InternalError, OstinatoError


@contextmanager
def translated_errors(*, in_json: Callable[[], bool] = lambda: False) -> Generator[None, None, None]:
    """Turn whatever the block raises into an exit code and, on stderr, what a person needs to know.

    `in_json` is asked after an error, when options have been read: whether a program wants to know it.
    """
    try:
        yield
        sys.stdout.flush()
    except OstinatoError as error:
        show_traceback_on_demand()
        if in_json():
            complain_json(error)
        else:
            complain(f"{error.code}: {error}")
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader had seen enough (``… | head -1``). What is still buffered has nowhere to go.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(EXIT_OK) from None
    except typer.Exit:
        raise
    except Exception as error:
        if is_usage_error(error):
            raise
        show_traceback_on_demand()
        bug = InternalError(
            "INTERNAL",
            f"{type(error).__name__}: {error}",
            hint="this is a bug in Ostinato, please report it; OSTINATO_DEBUG=1 shows where it happened",
        )
        if in_json():
            complain_json(bug)
        else:
            complain(f"{bug.code}: {bug}")
        raise typer.Exit(EXIT_FAILED) from None


def complain_json(error: OstinatoError) -> None:
    """What went wrong as one line of JSON on stderr; a field or hint that there is not is null."""
    note_json(
        {
            "error": {
                "code": error.code,
                "message": error.message,
                "field": error.field or None,
                "hint": error.hint or None,
            }
        }
    )


def is_usage_error(error: Exception) -> bool:
    """Whether Typer raised it and will show it itself, with the usage."""
    # Its base class is public under no name in every version that is supported; BadParameter is in all.
    base = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    return isinstance(error, base | typer.Abort)


def show_traceback_on_demand() -> None:
    if os.environ.get("OSTINATO_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
