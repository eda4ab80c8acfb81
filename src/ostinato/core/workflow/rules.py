"""Trigger rules: whether a node runs, once the ends of its direct upstream are known.

A rule looks at how many of the direct upstream ended how, and decides only when all of them have ended
(``always`` alone asks nobody). A mapped node is one upstream, whatever the number of its items: ``success``
if all of them are, also if there are none. What the rules do not look at is in no count, so the order of
endings cannot matter.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import NamedTuple

import msgspec

from ostinato.core.workflow.states import NodeState


class Ends(msgspec.Struct, frozen=True):
    """How many direct upstream of a node have ended how."""

    success: int = 0
    #: Failed, with strategy ``skip``: a failure for those who look for one, and in nobody's way.
    excused: int = 0
    #: Failed otherwise, or never ran since something upstream failed.
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0

    @property
    def total(self) -> int:
        return self.success + self.excused + self.failed + self.skipped + self.cancelled


class Decision(StrEnum):
    """What becomes of a node whose upstream has ended."""

    RUN = "run"
    SKIP = "skip"
    UPSTREAM_FAILED = "upstream_failed"


class Rule(NamedTuple):
    """One trigger rule: when it holds, and when a failure is to blame for that it does not."""

    holds: Callable[[Ends], bool]
    #: Asked only where it does not hold. True: the failure is passed on, so that no skip hides it (C145).
    blames: Callable[[Ends], bool]
    meaning: str


def _nobody(_ends: Ends) -> bool:
    return False


def _unsuccessful(ends: Ends) -> bool:
    return ends.failed + ends.cancelled > 0


def _not_only_skipped(ends: Ends) -> bool:
    return ends.skipped < ends.total


RULES: dict[str, Rule] = {
    "all_success": Rule(
        lambda ends: ends.success + ends.excused == ends.total,
        _unsuccessful,
        "every upstream succeeded, or failed with strategy `skip`",
    ),
    "all_done": Rule(lambda ends: True, _nobody, "every upstream has ended, however"),
    "all_failed": Rule(
        lambda ends: ends.total > 0 and ends.failed + ends.excused == ends.total,
        _nobody,
        "every upstream failed, or could not run because something failed",
    ),
    "all_skipped": Rule(
        lambda ends: ends.total > 0 and ends.skipped == ends.total, _nobody, "every upstream was skipped"
    ),
    "one_success": Rule(lambda ends: ends.success > 0, _not_only_skipped, "at least one upstream succeeded"),
    "one_failed": Rule(lambda ends: ends.failed + ends.excused > 0, _nobody, "at least one upstream failed"),
    "one_done": Rule(
        lambda ends: ends.success + ends.excused + ends.failed > 0,
        _nobody,
        "at least one upstream succeeded or failed",
    ),
    "none_failed": Rule(
        lambda ends: not _unsuccessful(ends),
        _unsuccessful,
        "no upstream failed or was cancelled, but for failures with strategy `skip`",
    ),
    "none_failed_min_one_success": Rule(
        lambda ends: not _unsuccessful(ends) and ends.success > 0,
        _not_only_skipped,
        "as `none_failed`, and at least one upstream succeeded",
    ),
    "none_skipped": Rule(lambda ends: ends.skipped == 0, _nobody, "no upstream was skipped"),
    "always": Rule(lambda ends: True, _nobody, "at once: it waits for nobody, `after` only draws the line"),
}

#: Decided without waiting for anybody; what stands after such a node knows nothing of what stands before it.
EARLY_RULES = frozenset({"always"})


def needs_upstream(rule: str) -> bool:
    """Whether a node of that rule could never run if nothing stood before it."""
    return not RULES[rule].holds(Ends())


def decide_rule(rule: str, ends: Ends) -> Decision:
    """What becomes of a node with trigger rule `rule` whose direct upstream ended as `ends` says."""
    row = RULES[rule]
    if row.holds(ends):
        return Decision.RUN
    return Decision.UPSTREAM_FAILED if row.blames(ends) else Decision.SKIP


def counted_as(state: NodeState, *, excused: bool) -> str:
    """Count of `Ends` to which a direct upstream that ended in `state` belongs."""
    if state is NodeState.FAILED:
        return "excused" if excused else "failed"
    return "failed" if state is NodeState.UPSTREAM_FAILED else state.value
