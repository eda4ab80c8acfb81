"""The alarm works: each deliberate bug is found by a checker within the seeds that the docs state."""

from __future__ import annotations

import pytest

from ostinato.simulation.mutations.catalogue import MUTATIONS
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.simulation.run import run_seed


def finder(mutation: Mutation) -> tuple[int, str] | None:
    """The first seed that shows the bug, and the rule that it breaks."""
    with mutation.applied():
        for options in mutation.options():
            report = run_seed(options, ends_early=True)
            if report.violations:
                return options.seed, report.violations[0].invariant
    return None


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_deliberate_bug_is_found(name: str) -> None:
    mutation = MUTATIONS[name]
    found = finder(mutation)
    assert found is not None, f"{name} (the code {mutation.meaning}) went unnoticed"
    assert found[1] in mutation.found_by


def test_there_are_many_deliberate_bugs_and_none_is_left_in_place() -> None:
    assert len(MUTATIONS) >= 15
    for mutation in MUTATIONS.values():
        before = [vars(owner)[name] for owner, name, _ in mutation.patches]
        with mutation.applied():
            assert before != [vars(owner)[name] for owner, name, _ in mutation.patches]
        assert before == [vars(owner)[name] for owner, name, _ in mutation.patches]
