"""Asking before what cannot be undone: on a terminal a question, elsewhere ``--yes`` or a refusal."""

from __future__ import annotations

import sys

import typer

from ostinato.cli.output import note, safe
from ostinato.errors import UserError


def confirm(what: str, *, consequence: str, yes: bool) -> bool:
    """Whether `what`, a question without its mark, may be done; with `yes` nobody is asked.

    `consequence` says the same as what would happen.

    Raises ``INVALID_VALUE`` where there is no terminal to ask at.
    """
    if yes:
        return True
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise UserError(
            "INVALID_VALUE",
            f"{consequence}; repeat with --yes, there is no terminal to ask at",
            field="--yes",
            hint="nothing was done",
        )
    typer.echo(f"{safe(what)}? [y/N] ", nl=False, err=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        typer.echo(err=True)
    if answer.strip().lower() in ("y", "yes"):
        return True
    note("nothing was done")
    return False
