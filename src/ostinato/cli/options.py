"""The options that every command has, before or after its name, and the settings that follow from them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli import completing

if TYPE_CHECKING:
    from ostinato.settings import Settings

DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="Database URL, such as sqlite:///ostinato.db.", metavar="URL")
]
NamespaceOption = Annotated[
    str | None,
    typer.Option(
        "--namespace",
        "-n",
        help="Namespace of tasks and instances.",
        metavar="NAME",
        autocompletion=completing.namespaces,
    ),
]
WatchOption = Annotated[
    bool, typer.Option("--watch", "-w", help="Show it again and again, until Ctrl-C, which ends with 0.")
]
IntervalOption = Annotated[
    str | None,
    typer.Option("--interval", metavar="DURATION", help="How often --watch looks; 1s if left out."),
]
YesOption = Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")]
ReasonOption = Annotated[str, typer.Option("--reason", metavar="TEXT", help="Why, for the history.")]
LimitOption = Annotated[int, typer.Option("--limit", metavar="N", help="At most so many, 1 to 1000.")]
_AS_JSON = "as_json"
_ARGUMENTS = "arguments"


def _note_json(context: typer.Context, given: object) -> object:
    if given:
        context.find_root().meta[_AS_JSON] = True
    return given


#: Read before the others, so that an error in any of them is told as JSON too.
JsonOption = Annotated[
    bool,
    typer.Option(
        "--json",
        help="Write JSON on stdout, and an error as JSON on stderr.",
        callback=_note_json,
        is_eager=True,
    ),
]


def remember(context: typer.Context, **given: object) -> None:
    """Keep what was given before the command's name."""
    context.obj = given


def wants_json(context: typer.Context, *, as_json: bool) -> bool:
    """Whether ``--json`` was given, before or after the command's name."""
    return as_json or json_was_given(context)


def json_was_given(context: typer.Context) -> bool:
    """As `wants_json`, for whoever does not have the command's own options."""
    meta = context.find_root().meta
    # A wrong option keeps the others from being read.
    return bool(meta.get(_AS_JSON)) or "--json" in meta.get(_ARGUMENTS, ())


def remember_arguments(context: typer.Context, arguments: Sequence[str]) -> None:
    """Keep the whole command line, as it was before any option was read."""
    context.meta[_ARGUMENTS] = tuple(arguments)


def settings_of(context: typer.Context, **flags: object) -> Settings:
    """Settings of a command from its flags (None: not given), the environment and the file.

    An option given after the command's name beats the same one before it. Raises as
    `load_settings`.
    """
    # Not at the top: `--help` and `cron` need none of it.
    from ostinato.settings import load_settings

    after = {name: value for name, value in flags.items() if value is not None}
    given = {**given_before(context), **after}
    return load_settings(given, os.environ, cwd=Path.cwd())


def given_before(context: typer.Context) -> dict[str, object]:
    """Options that were given before the command's name; None: not given."""
    found = context.find_root().obj
    return found if isinstance(found, dict) else {}
