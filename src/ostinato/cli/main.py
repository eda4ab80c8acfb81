"""The ``ostinato`` command: its commands, the options before them, and how every one of them ends."""

from __future__ import annotations

from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from ostinato.cli.commands import cron, instance, instance_acts, run, task, task_acts, version
from ostinato.cli.exits import translated_errors
from ostinato.cli.options import DatabaseOption, JsonOption, NamespaceOption, json_was_given, remember
from ostinato.cli.output import prepare_streams

if TYPE_CHECKING:
    from collections.abc import Sequence


class _Root(TyperGroup):
    """Every command runs inside one translation of errors to exit codes."""

    def invoke(self, ctx: typer.Context) -> object:  # type: ignore[override]  # vendored click has another name
        with translated_errors(in_json=lambda: json_was_given(ctx)):
            return super().invoke(ctx)


app = typer.Typer(
    cls=_Root,
    name="ostinato",
    help="A distributed task scheduler in which every retry is decided in one place.",
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
) -> None:
    del as_json  # its callback has noted it
    remember(context, database=database, namespace=namespace)


app.command("dev")(run.dev)
app.command("scheduler")(run.scheduler)
app.command("worker")(run.worker)
# Without a name of their own, the acts become commands of the noun.
task.app.add_typer(task_acts.app)
instance.app.add_typer(instance_acts.app)
app.add_typer(task.app, name="task")
app.add_typer(instance.app, name="instance")
app.add_typer(cron.app, name="cron")
app.command("version")(version.version)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line, and end the process with its exit code."""
    prepare_streams()
    app(args=None if arguments is None else list(arguments), prog_name="ostinato")
