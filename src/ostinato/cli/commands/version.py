"""``ostinato version`` and ``ostinato --version``."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import JsonOption, json_was_given, wants_json
from ostinato.cli.output import print_json, say


def version(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the version of Ostinato and of the Python that runs it."""
    _show(in_json=wants_json(context, as_json=as_json))


def _on_option(context: typer.Context, given: object) -> object:
    if given and not context.resilient_parsing:
        _show(in_json=json_was_given(context))
        raise typer.Exit
    return given


VersionOption = Annotated[
    bool,
    typer.Option("--version", help="Show the version and end.", callback=_on_option, is_eager=True),
]


def _show(*, in_json: bool) -> None:
    import platform
    from importlib.metadata import version as installed_version

    own = installed_version("ostinato")
    if in_json:
        print_json({"ostinato": own, "python": platform.python_version()})
    else:
        say(f"ostinato {own} (Python {platform.python_version()})")
