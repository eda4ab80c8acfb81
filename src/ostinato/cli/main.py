"""The ``ostinato`` command: its commands, the options before them, and how every one of them ends."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer
from typer.core import TyperGroup

from ostinato.cli.commands import version
from ostinato.cli.exits import translated_errors
from ostinato.cli.lazy import COMMANDS, LazyCommands
from ostinato.cli.options import (
    DatabaseOption,
    JsonOption,
    NamespaceOption,
    json_was_given,
    remember,
    remember_arguments,
)
from ostinato.cli.output import prepare_streams
from ostinato.cli.plain_values import spare_conversions

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Root(TyperGroup):
    """Commands are loaded when they are named, and run inside one translation of errors to exit codes."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.commands = LazyCommands(COMMANDS)  # type: ignore[assignment]  # nobody adds to it

    def list_commands(self, ctx: typer.Context) -> list[str]:  # type: ignore[override]  # as below
        return list(COMMANDS)

    def format_commands(self, ctx: typer.Context, formatter: Any) -> None:  # type: ignore[override]  # as below
        """The commands with what each does, none of them loaded."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, row.help) for name, row in COMMANDS.items()])

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]  # as below
        # Not before: Typer adds parameters of its own to the group that it has made.
        spare_conversions(self, ctx)
        remember_arguments(ctx, args)
        return super().parse_args(ctx, args)

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # vendored click has another name
        with translated_errors(in_json=lambda: json_was_given(ctx)):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Root,
    name="ostinato",
    help="A distributed task scheduler in which every retry is decided in one place.\n\n"
    "A task says what runs and when; an instance is one run of a task, with all its attempts.",
    no_args_is_help=True,
    # Plain help and messages: they go to pipes, logs and narrow terminals alike, and start faster.
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)


@app.callback()
def _options(
    context: typer.Context,
    *,
    database: DatabaseOption = None,
    namespace: NamespaceOption = None,
    as_json: JsonOption = False,
    show_version: version.VersionOption = False,
) -> None:
    del as_json, show_version  # their callbacks have done what is asked
    remember(context, database=database, namespace=namespace)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and end the process with its exit code."""
    prepare_streams()
    app(args=None if arguments is None else list(arguments), prog_name="ostinato")
