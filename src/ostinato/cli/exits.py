"""How a command ends: exit codes of design section 11, and a sentence instead of a traceback.

0 ok · 1 failed · 2 bad input · 3 unreachable · 4 conflict · 5 not found · 130 interrupted. Typer itself ends
with 2 on a wrong option. ``OSTINATO_DEBUG=1`` shows the traceback of whatever went wrong.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager

import typer

from ostinato.cli.output import OutputLost, complain, drop_output, flush_output, note_json
from ostinato.errors import (
    EXIT_BAD_INPUT,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_OK,
    InternalError,
    OstinatoError,
    UserError,
)


@contextmanager
def translated_errors(*, in_json: Callable[[], bool] = lambda: False) -> Generator[None, None, None]:
    """Turn whatever the block raises into an exit code and, on stderr, what a person needs to know.

    `in_json` is asked after an error, when options have been read: whether a program wants to know it.
    """
    try:
        yield
        flush_output()
    except OstinatoError as error:
        show_traceback_on_demand()
        _tell(error, in_json=in_json())
        raise typer.Exit(error.exit_code) from None
    except KeyboardInterrupt:
        raise typer.Exit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        # The reader had seen enough (``… | head -1``). What is still buffered has nowhere to go.
        drop_output()
        raise typer.Exit(EXIT_OK) from None
    except OutputLost as error:
        drop_output()
        complain(f"what was to be shown could not be written: {error}")
        raise typer.Exit(EXIT_FAILED) from None
    except typer.Exit:
        raise
    except Exception as error:
        if is_usage_error(error):
            if in_json() and not isinstance(error, typer.Abort) and not _is_help(error):
                complain_json(_of_usage(error))
                raise typer.Exit(EXIT_BAD_INPUT) from None
            raise
        show_traceback_on_demand()
        bug = InternalError(
            "INTERNAL",
            f"{type(error).__name__}: {error}",
            hint="this is a bug in Ostinato, please report it; OSTINATO_DEBUG=1 shows where it happened",
        )
        _tell(bug, in_json=in_json())
        raise typer.Exit(EXIT_FAILED) from None


def _tell(error: OstinatoError, *, in_json: bool) -> None:
    """The error, and with it all others that were found in the same document."""
    if in_json:
        complain_json(error)
        return
    for one in _all_of(error):
        complain(f"{one.code}: {one}")


def complain_json(error: OstinatoError) -> None:
    """What went wrong as one line of JSON on stderr; a field or hint that there is not is null.

    An error of a file says where (``place``); where several were found, ``errors`` holds all.
    """
    several = _all_of(error)
    more = {"errors": [_in_json(one) for one in several]} if len(several) > 1 else {}
    note_json({"error": {**_in_json(error), **more}})


def _in_json(error: OstinatoError) -> dict[str, object]:
    place = {"place": error.place} if error.place else {}
    return {
        "code": error.code,
        "message": error.message,
        "field": error.field or None,
        "hint": error.hint or None,
        **place,
    }


def _all_of(error: OstinatoError) -> Sequence[OstinatoError]:
    """The errors of a document that was refused; the error itself where it is but one."""
    found: Sequence[OstinatoError] = getattr(error, "errors", ())
    return found or (error,)


def _is_help(error: Exception) -> bool:
    """Whether nothing is wrong but that a command was needed, and the help says which there are."""
    return type(error).__name__ == "NoArgsIsHelpError"


def _of_usage(error: Exception) -> UserError:
    """A wrong option or argument, which Typer found, as an error of ours."""
    parameter = getattr(error, "param", None)
    named = getattr(error, "option_name", None) or getattr(error, "param_hint", None)
    if named is None and parameter is not None:
        named = next(iter([*parameter.opts][:1]), None)
    words = getattr(error, "format_message", error.__str__)
    # Every version of Typer says it in other words; the other surfaces say it in these.
    message = "is not a whole number" if "valid integer" in words() else words()
    return UserError("INVALID_VALUE", message, field=str(named or ""))


def is_usage_error(error: Exception) -> bool:
    """Whether Typer raised it and will show it itself, with the usage."""
    # Its base class is public under no name in every version that is supported; BadParameter is in all.
    base = next(kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException")
    return isinstance(error, base | typer.Abort)


def show_traceback_on_demand() -> None:
    if os.environ.get("OSTINATO_DEBUG", "") not in ("", "0"):
        traceback.print_exc()
