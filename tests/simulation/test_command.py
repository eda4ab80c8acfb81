"""``python -m ostinato.simulation``: what it prints, and how a failing run is made smaller."""

from __future__ import annotations

import re

import pytest

from ostinato.simulation.__main__ import main
from ostinato.simulation.fault_kinds import KINDS
from ostinato.simulation.mutations.catalogue import MUTATIONS
from ostinato.simulation.run import run_seed
from ostinato.simulation.shrink import shrink
from ostinato.simulation.swarm import FAULT_KINDS, options_of
from ostinato.simulation.trace import Trace


def test_seeds_are_run_and_what_they_cost_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3:5"]) == 0
    told = capsys.readouterr().out
    assert told.startswith("2 seeds, ")
    assert "s a cluster-hour\nfailed: none\n" in told


def test_a_cluster_lives_for_hours_where_that_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--seeds", "3", "--hours", "0.05"]) == 0
    told = capsys.readouterr().out
    assert re.search(r"^1 seeds, 0\.0[5-9] cluster-hours, [1-9]\d* faults \(one every", told)
    assert "s a cluster-hour\nfailed: none\n" in told


def test_a_failing_long_run_is_named_with_its_hours(capsys: pytest.CaptureFixture[str]) -> None:
    with MUTATIONS["loss_untold"].applied(), MUTATIONS["retry_late"].applied():
        assert main(["--seeds", "3", "--hours", "0.1"]) == 1
    told = capsys.readouterr().out
    command = "python -m ostinato.simulation --hours 0.1 --trace 3, or --hours 0.1 --shrink 3"
    assert f"repeat: {command}" in told


@pytest.mark.parametrize("hours", ["0", "-1", "200", "long", "nan"])
def test_what_is_no_number_of_hours_is_refused(capsys: pytest.CaptureFixture[str], hours: str) -> None:
    with pytest.raises(SystemExit):
        main(["--seeds", "3", "--hours", hours])
    assert "is no number of hours up to 168" in capsys.readouterr().err


def test_a_failing_seed_is_named_with_the_command_that_repeats_it(capsys: pytest.CaptureFixture[str]) -> None:
    with MUTATIONS["loss_untold"].applied(), MUTATIONS["retry_late"].applied():
        assert main(["--seeds", "1"]) == 1
    told = capsys.readouterr().out
    assert "seed 1 at " in told
    assert "repeat: python -m ostinato.simulation --trace 1, or --shrink 1" in told
    assert told.endswith("failed: 1\n")


def test_a_trace_tells_the_run_event_by_event(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--trace", "3"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any("executes" in line for line in lines)
    assert any("── healed ──" in line for line in lines)
    # What a line says is the same the next time, and no longer than it need be.
    assert not any(" at 0x" in line for line in lines)
    assert lines[-1].startswith("digest ")


def test_a_failing_run_is_made_smaller_and_still_fails_by_the_same_rule() -> None:
    with MUTATIONS["retry_late"].applied():
        options = options_of(2)
        report = run_seed(options)
        smaller, found = shrink(options, report, tries=4)
        trace = Trace()
        assert run_seed(smaller, listeners=[trace]).digest == found.digest
    assert len(smaller.faults) < len(options.faults)
    assert {"retry times"} == {violation.invariant for violation in found.violations}
    essence = trace.essence(found.violations)
    assert any(found.violations[0].subject in line for line in essence)
    assert len(essence) < len(trace.events)


def test_every_kind_of_fault_can_be_drawn() -> None:
    assert FAULT_KINDS.keys() == KINDS.keys()
    drawn = {kind for seed in range(300) for kind in options_of(seed).faults}
    assert drawn == KINDS.keys()
