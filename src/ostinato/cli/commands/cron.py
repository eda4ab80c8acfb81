"""``ostinato cron``: what a cron expression will do, computed by the code that fires it."""

from __future__ import annotations

from typing import Annotated

import typer

from ostinato.cli.options import JsonOption, wants_json
from ostinato.cli.output import note, print_json, say

app = typer.Typer(
    help="Try out cron expressions.", no_args_is_help=True, rich_markup_mode=None, add_completion=False
)


@app.callback()
def _cron() -> None:
    pass  # makes `next` a subcommand although it is the only one


@app.command("next")
def next_fires(
    context: typer.Context,
    expression: Annotated[
        str, typer.Argument(metavar="EXPR", help="Five or six fields, or @daily and such.")
    ],
    *,
    timezone: Annotated[str, typer.Option("--tz", metavar="ZONE", help="IANA time zone.")] = "UTC",
    start: Annotated[
        str | None, typer.Option("--start", metavar="INSTANT", help="ISO 8601 with offset; now if left out.")
    ] = None,
    count: Annotated[int, typer.Option("--count", metavar="N", help="How many fires to show.")] = 5,
    as_json: JsonOption = False,
) -> None:
    """Show the next fires strictly after an instant, with the zone's offset at each."""
    from ostinato.core.instants import parse_instant
    from ostinato.core.schedule.preview import preview_cron

    start_us = _now_us() if start is None else parse_instant(start, field="--start")
    fires = preview_cron(expression, timezone, start_us=start_us, count=count)
    if wants_json(context, as_json=as_json):
        print_json(fires)
        return
    for fire in fires:
        say(fire)
    if len(fires) < count:
        note(f"there are no further fires ({len(fires)} of {count} shown)")


def _now_us() -> int:
    from ostinato.clock import SystemClock

    return SystemClock().wall_us()
