"""The alarm works: each deliberate bug is found by a checker within the seeds that the docs state."""

from __future__ import annotations

from pathlib import Path

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


def row_of(mutation: Mutation) -> str:
    """A deliberate bug as the docs tell it."""
    kinds = ", ".join(f"`{kind}`" for kind in mutation.kinds) or "the seed's own"
    found_by = ", ".join(mutation.found_by)
    seeds = f"{mutation.first_seed}:{mutation.first_seed + mutation.seed_count}"
    return f"| `{mutation.name}` | {mutation.meaning} | {found_by} | {kinds} | {seeds} |"


def test_the_docs_tell_of_every_deliberate_bug_and_of_no_other() -> None:
    page = (Path(__file__).parents[2] / "docs" / "simulation.md").read_text(encoding="utf-8")
    told = page.partition("## Deliberate bugs")[2].splitlines()
    assert [line for line in told if line.startswith("| `")] == [row_of(row) for row in MUTATIONS.values()]
