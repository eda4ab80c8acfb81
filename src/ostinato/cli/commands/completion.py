"""``ostinato completion``: the script that makes a shell complete commands, options, names and ids."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.output import say
from ostinato.errors import UserError

SHELLS = ("bash", "zsh", "fish")


def _matching(incomplete: str) -> list[str]:
    return [shell for shell in SHELLS if shell.startswith(incomplete)]


def completion(
    shell: Annotated[
        str, typer.Argument(metavar="SHELL", help="bash, zsh or fish.", autocompletion=_matching)
    ],
) -> None:
    """Print the script that makes a shell complete commands, options, names and ids.

    For bash and zsh: source <(ostinato completion bash). For fish: ostinato completion fish | source.
    """
    from typer.completion import get_completion_script  # type: ignore[attr-defined]  # of a private module

    if shell not in SHELLS:
        raise UserError(
            "INVALID_VALUE", f"{shell!r} is not a shell", field="SHELL", hint=f"one of {', '.join(SHELLS)}"
        )
    say(get_completion_script(prog_name="ostinato", complete_var="_OSTINATO_COMPLETE", shell=shell))
