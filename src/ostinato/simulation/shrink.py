"""A failing run made smaller, as far as that is cheap: fewer faults, less work, smaller, shorter.

Every change of the options changes what chance does from there on, so what is tried either still fails by the
same rule, and is kept, or is thrown away.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from ostinato.core.instants import SECOND
from ostinato.simulation.run import RunReport, run_seed
from ostinato.simulation.swarm import SwarmOptions

#: Runs that shrinking may take.
TRIES_MAX = 60


def shrink(
    options: SwarmOptions, report: RunReport, *, tries: int = TRIES_MAX
) -> tuple[SwarmOptions, RunReport]:
    """The smallest options found that break one of the same rules, with their report."""
    rules = {violation.invariant for violation in report.violations}
    left = tries
    is_smaller = True
    while is_smaller and left:
        is_smaller = False
        for candidate in _smaller(options):
            if not left:
                break
            left -= 1
            found = run_seed(candidate)
            if any(violation.invariant in rules for violation in found.violations):
                options, report, is_smaller = candidate, found, True
                break
    return options, report


def _smaller(options: SwarmOptions) -> Iterator[SwarmOptions]:
    """Options with a little less in them, what helps most first."""
    replace = msgspec.structs.replace
    for kind in options.faults:
        yield replace(options, faults={name: us for name, us in options.faults.items() if name != kind})
    if options.safety_us > 10 * SECOND:
        yield replace(options, safety_us=options.safety_us // 2)
    for name, least in (("task_count", 1), ("client_count", 1), ("worker_count", 1), ("node_count", 1)):
        if getattr(options, name) > least:
            yield replace(options, **{name: getattr(options, name) - 1})
    if options.skew_us_max or options.drift_ppm_max:
        yield replace(options, skew_us_max=0, drift_ppm_max=0)
    if options.act_us < 20 * SECOND:
        yield replace(options, act_us=2 * options.act_us)
