"""Each trigger rule over every combination of ends; the page shows the same table."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from house.project import ROOT

from ostinato.core.workflow.rules import RULES, Decision, Ends, counted_as, decide_rule
from ostinato.core.workflow.states import TERMINAL_NODE_STATES, NodeState

ALL_ENDS = [Ends(*counts) for counts in itertools.product(range(3), repeat=5)]

#: When each runs, written down once more, by hand.
RUNS: dict[str, Callable[[Ends], bool]] = {
    "all_success": lambda e: e.failed == e.skipped == e.cancelled == 0,
    "all_done": lambda e: True,
    "all_failed": lambda e: e.success == e.skipped == e.cancelled == 0 and e.failed + e.excused > 0,
    "all_skipped": lambda e: e.success == e.excused == e.failed == e.cancelled == 0 and e.skipped > 0,
    "one_success": lambda e: e.success >= 1,
    "one_failed": lambda e: e.failed >= 1 or e.excused >= 1,
    "one_done": lambda e: e.success >= 1 or e.failed >= 1 or e.excused >= 1,
    "none_failed": lambda e: e.failed == 0 and e.cancelled == 0,
    "none_failed_min_one_success": lambda e: e.failed == 0 and e.cancelled == 0 and e.success >= 1,
    "none_skipped": lambda e: e.skipped == 0,
    "always": lambda e: True,
}


def test_every_rule_is_in_the_table() -> None:
    assert set(RUNS) == set(RULES)


@pytest.mark.parametrize("rule", sorted(RULES))
def test_a_rule_holds_exactly_where_it_is_said_to(rule: str) -> None:
    wrong = [ends for ends in ALL_ENDS if (decide_rule(rule, ends) is Decision.RUN) != RUNS[rule](ends)]
    assert wrong == []


@pytest.mark.parametrize("rule", ["all_success", "one_success", "none_failed", "none_failed_min_one_success"])
def test_a_rule_that_wants_success_never_hides_a_failure_in_a_skip(rule: str) -> None:
    """C145: `skipped` only where nothing failed."""
    skipped = [ends for ends in ALL_ENDS if decide_rule(rule, ends) is Decision.SKIP]
    assert [ends for ends in skipped if ends.failed + ends.cancelled > 0] == []


@pytest.mark.parametrize("rule", ["one_success", "none_failed_min_one_success"])
def test_a_rule_that_wants_one_success_is_skipped_only_where_all_upstream_was(rule: str) -> None:
    """C145."""
    skipped = [ends for ends in ALL_ENDS if decide_rule(rule, ends) is Decision.SKIP]
    assert [ends for ends in skipped if ends.skipped != ends.total] == []


@pytest.mark.parametrize("rule", ["all_failed", "one_failed", "all_skipped", "one_done", "none_skipped"])
def test_a_handler_that_is_not_needed_is_skipped(rule: str) -> None:
    assert {decide_rule(rule, ends) for ends in ALL_ENDS} == {Decision.RUN, Decision.SKIP}


@pytest.mark.parametrize("state", sorted(TERMINAL_NODE_STATES))
def test_every_end_belongs_to_one_count(state: NodeState) -> None:
    for excused in (False, True):
        assert counted_as(state, excused=excused) in Ends.__struct_fields__
    assert counted_as(NodeState.UPSTREAM_FAILED, excused=True) == "failed"


_LETTERS = {"S": "success", "X": "excused", "F": "failed", "K": "skipped", "C": "cancelled"}
_ANSWERS = {"run": Decision.RUN, "skip": Decision.SKIP, "fail": Decision.UPSTREAM_FAILED}


def test_the_truth_table_of_the_page_is_that_of_the_code() -> None:
    page = (ROOT / "docs/workflows.md").read_text(encoding="utf-8")
    header, _, *rows = page[page.index("\n| rule |") :].strip().split("\n\n")[0].splitlines()
    columns = header.strip("| ").split(" | ")[1:]
    shown = {}
    for row in rows:
        rule, *cells = row.strip("| ").split(" | ")
        for column, cell in zip(columns, cells, strict=True):
            letters = column.split()
            ends = Ends(**{_LETTERS[letter]: letters.count(letter) for letter in letters})
            assert decide_rule(rule.strip("`"), ends) is _ANSWERS[cell], f"{rule} of {column}"
            shown[rule.strip("`"), column] = cell
    assert len(shown) == len(RULES) * len(columns)
    assert len(columns) >= 12
