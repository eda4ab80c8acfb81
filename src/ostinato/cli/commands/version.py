"""``ostinato version``."""

from __future__ import annotations

import typer

from ostinato.cli.options import JsonOption, wants_json
from ostinato.cli.output import print_json, say


def version(context: typer.Context, *, as_json: JsonOption = False) -> None:
    """Show the version of Ostinato and of the Python that runs it."""
    import platform
    from importlib.metadata import version as installed_version

    own = installed_version("ostinato")
    if wants_json(context, as_json=as_json):
        print_json({"ostinato": own, "python": platform.python_version()})
    else:
        say(f"ostinato {own} (Python {platform.python_version()})")
