"""``ostinato chaos``: break the user's own cluster on schedule, restore it, and say what was violated."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import SystemRandom
from typing import TYPE_CHECKING, Annotated

import typer

from ostinato.cli.options import JsonOption, wants_json

if TYPE_CHECKING:
    from ostinato.chaos.scenario import Scenario

_CONSENT = "--yes-break-things"


def chaos(
    context: typer.Context,
    *,
    scenario: Annotated[Path, typer.Argument(metavar="FILE", help="The scenario, as YAML.")],
    plan: Annotated[
        bool, typer.Option("--plan", help="Check everything and show what would be done; do nothing.")
    ] = False,
    consent: Annotated[
        bool, typer.Option(_CONSENT, help="Consent to what the scenario does; without it nothing is done.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Break your own cluster as a scenario says, restore it, and tell what was violated.

    Only what the scenario names is touched: processes are killed and paused, connections through a proxy of
    chaos cut and slowed down, disks filled, commands run. Everything is restored on every way out, also after
    Ctrl-C. Ends with 1 if something was violated.
    """
    from ostinato.errors import UserError

    in_json = wants_json(context, as_json=as_json)
    read = _read(scenario)
    if plan:
        _plan(read, in_json=in_json)
        return
    if not consent:
        raise UserError(
            "CHAOS_REFUSED",
            f"{scenario} breaks things, and nobody has consented",
            field=_CONSENT,
            hint=f"look at it with --plan, then repeat with {_CONSENT}; nothing was done",
        )
    _run(read, name=str(scenario), in_json=in_json)


def _read(path: Path) -> Scenario:
    from ostinato.chaos.scenario_text import read_scenario
    from ostinato.cli.commands.apply_files import read_file

    return read_scenario(read_file(str(path)), name=str(path), folder=path.absolute().parent)


def _plan(scenario: Scenario, *, in_json: bool) -> None:
    import asyncio

    from ostinato.chaos.examine import examine_all
    from ostinato.chaos.plan import plan_json, plan_lines
    from ostinato.cli.output import print_json, safe, say
    from ostinato.clock import SystemClock

    found = asyncio.run(examine_all(scenario, clock=SystemClock()))
    if in_json:
        print_json(plan_json(scenario, found))
    else:
        for line in plan_lines(scenario, found):
            say(safe(line))
    found.require()


def _run(scenario: Scenario, *, name: str, in_json: bool) -> None:
    from ostinato.chaos.report import report_json, report_lines
    from ostinato.chaos.run import run_scenario
    from ostinato.cli.output import note, print_json, safe, say
    from ostinato.clock import SystemClock
    from ostinato.errors import EXIT_FAILED, EXIT_INTERRUPTED

    def tell(text: str) -> None:
        # A terminal that is gone does not end the run.
        with suppress(OSError):
            note(text)

    report = run_scenario(scenario, name=name, clock=SystemClock(), rng=SystemRandom(), tell=tell)
    if in_json:
        print_json(report_json(report))
    else:
        for line in report_lines(report):
            say(safe(line))
    if report.interrupted:
        raise typer.Exit(EXIT_INTERRUPTED)
    if not report.is_good:
        raise typer.Exit(EXIT_FAILED)
