"""Asking before what cannot be undone: on a terminal a question, elsewhere ``--yes`` or a refusal."""

from __future__ import annotations

import sys

import typer

from ostinato.cli.output import note, safe
from ostinato.errors import UserError


def confirm(what: str, *, yes: bool) -> bool:
    """Whether `what`, a sentence without its end, may be done; with `yes` nobody is asked.

    Raises ``INVALID_VALUE`` where there is no terminal to ask at.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            "INVALID_VALUE",
            f"{what} is asked for first, and here is no terminal to answer at; nothing was done",
            field="--yes",
            hint="give --yes to do it without a question",
        )
    typer.echo(f"{safe(what)}? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
    if answer.strip().lower() in ("y", "yes"):
        return True
    note("nothing was done")
    return False
