"""The options that every command has, before or after its name, and the settings that follow from them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ostinato.settings import Settings

DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="Database URL, such as sqlite:///ostinato.db.", metavar="URL")
]
NamespaceOption = Annotated[
    str | None, typer.Option("--namespace", "-n", help="Namespace of tasks and instances.", metavar="NAME")
]
_AS_JSON = "as_json"


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
    return bool(context.find_root().meta.get(_AS_JSON))


def settings_of(context: typer.Context, **flags: object) -> Settings:
    """Settings of a command from its flags (None: not given), the environment and the file.

    An option given after the command's name beats the same one before it.
    """
    from ostinato.settings import load_settings  # not at the top: `--help` and `cron` need none of it

    before = _before(context)
    after = {name: value for name, value in flags.items() if value is not None}
    return load_settings({**before, **after}, os.environ, cwd=Path.cwd())


def _before(context: typer.Context) -> dict[str, object]:
    found = context.find_root().obj
    return found if isinstance(found, dict) else {}
