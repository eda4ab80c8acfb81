"""Lost attempts, with real processes: whole workers frozen, reports blocked, rolling kills, a poison pill."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.matrix import FULL, WORKER_LEASE_S
from support.stage import Load, Round, Stage, thaw
from support.witness import Excused, boot_ns, overlaps

#: How long a thawed process may run before its guardian, thawed with it, has seen that the lease is over.
WAKING_S = 0.5


@pytest.fixture
def stage(tmp_path: Path) -> Iterator[Stage]:
    stage = Stage(tmp_path / "stage", slots=4)
    yield stage
    stage.close()


def test_c075_a_worker_frozen_beyond_its_lease_and_thawed_neither_goes_on_nor_counts(stage: Stage) -> None:
    """Strict: all that wakes is ended, its late end refused. Relaxed: it may end, and that is refused too."""
    stage.open("a")
    round = stage.begin(Load({"hold": 3, "block": 1, "escaping": 1, "block_relaxed": 2}))
    victims = round.on("a")
    strict = [victim for victim in victims if victim.task != "block_relaxed"]
    relaxed = [victim for victim in victims if victim.task == "block_relaxed"]
    stage.start_worker("b")
    frozen = stage.freeze_worker("a")
    frozen_ns = boot_ns()
    round.retried(victims, since_ns=frozen_ns, within_s=WORKER_LEASE_S + 3, what="worker frozen: retried")
    round.go_on(WORKER_LEASE_S + (20 if FULL else 3), since_ns=frozen_ns)
    thawed_ns = thaw(frozen)
    woken = Excused(thawed_ns, thawed_ns + int(WAKING_S * 1e9))
    stage.services.until(lambda: round.late_results(strict) == {victim.id for victim in strict})
    # The relaxed attempt 1 goes on beside attempt 2, until the gate lets both end.
    first = round.witness.trails([victim.id for victim in relaxed])
    stage.services.until(lambda: _ticks_after(round, list(first), woken.to_ns))
    round.open_gate()
    round.wait_until_ended()
    stage.services.until(lambda: round.late_results(relaxed) == {victim.id for victim in relaxed})
    for victim in victims:
        assert _moves(round, victim.id) == [("retry", 1, "WORKER_LOST"), ("late_result", 1)]
    round.witness.judge([victim.id for victim in strict], excused=[woken])
    assert {facts.attempt for facts in round.witness.facts(round.gated).values()} == {2}


def test_c083_each_loss_changes_the_state_once_however_often_reports_come_late(stage: Stage) -> None:
    """The worker that has the attempt is silenced beyond its lease and let through again, three times."""
    stage.open("a", "b")
    round = stage.begin(Load({"hold": 1, "block": 1}))
    for attempt in (1, 2, 3):
        _silence_the_holders(stage, round, attempt=attempt)
    round.judge()
    assert _history(round) == _each_lost_and_refused_once(round, 3)


def test_c089_each_of_three_rolling_kills_costs_no_more_than_a_lease(stage: Stage) -> None:
    """Of the first worker nothing is left that could report; of the others only the supervisor is killed."""
    stage.open("a", "b", "c")
    round = stage.begin(Load({"hold": 1}))
    (identity,) = round.gated
    for attempt in (1, 2, 3):
        (victim,) = round.witness.facts([identity]).values()
        if attempt == 1:
            killed_ns = stage.power_off_worker(victim.worker_name)
        else:
            killed_ns = boot_ns()
            stage.services.kill(victim.worker_name)
        round.retried(
            [victim],
            since_ns=killed_ns,
            within_s=WORKER_LEASE_S + 1,
            what=f"rolling kill {attempt}: retried",
            attempt=attempt + 1,
        )
        stage.start_worker(victim.worker_name)
    round.judge()
    assert [code for _, _, code in _moves(round, identity)] == ["WORKER_LOST"] * 3
    assert round.witness.facts([identity])[identity].attempt == 4


def test_c093_a_task_that_kills_its_worker_has_max_lost_and_one_attempts_and_others_run_on(
    stage: Stage,
) -> None:
    """Others run at each of its kills, and end before the next one, however slow the machine is."""
    stage.open("a", "b")
    stage.services.on_end = lambda name: _restart(stage, name)
    poison = stage.begin(Load({"kill_worker": 1}))
    (identity,) = poison.gated
    for attempt in (1, 2, 3, 4):
        poison.wait_until_gated_run(attempt)
        others = stage.begin(Load({"hold": 2, "block": 1}, {"hold": 2, "block": 1}, short_seconds=(0.1,)))
        poison.open_gate_of(attempt)
        stage.services.until(lambda attempt=attempt: _all_decided(poison, attempt))
        others.judge()
    poison.wait_until_ended()
    moves = _moves(poison, identity)
    assert moves == [
        ("retry", 1, "WORKER_LOST"),
        ("retry", 2, "WORKER_LOST"),
        ("retry", 3, "WORKER_LOST"),
        ("gave_up", 4, "WORKER_LOST"),
    ]
    trails = poison.witness.trails([identity])[identity]
    assert [trail.attempt for trail in trails] == [1, 2, 3, 4]
    assert overlaps(trails) == []
    (last,) = (event for event in poison.witness.events([identity]) if event.attempt == 4)
    assert "max_lost allows 3" in last.sentence


def _restart(stage: Stage, name: str) -> None:
    """What runs workers as a service does."""
    stage.services.kill(name)
    stage.start_worker(name)


def _silence_the_holders(stage: Stage, round: Round, *, attempt: int) -> None:
    """Nothing passes for longer than a lease; then everything, until late reports are in and all runs on."""
    holders = {facts.worker_name for facts in round.witness.facts(round.gated).values()}
    for worker in holders:
        stage.proxy(worker).blackhole()
    silent_ns = boot_ns()
    stage.services.until(lambda: _all_decided(round, attempt), within_s=WORKER_LEASE_S + 5)
    round.go_on(WORKER_LEASE_S + 1, since_ns=silent_ns)
    for worker in holders:
        stage.proxy(worker).resume()
    expected = _each_lost_and_refused_once(round, attempt)
    stage.services.until(lambda: _history(round) == expected, within_s=20)
    round.wait_until_gated_run(attempt + 1)


def _ticks_after(round: Round, identities: list[str], moment_ns: int) -> bool:
    """Whether every first attempt was seen to run after that moment."""
    trails = round.witness.trails(identities)
    return all(trails[identity][0].last_ns > moment_ns for identity in identities)


def _all_decided(round: Round, attempt: int) -> bool:
    """Whether the end of that attempt stands in the history of every instance."""
    ends = {event.instance_id for event in round.witness.events(round.gated) if event.attempt == attempt}
    return ends == set(round.gated)


def _history(round: Round) -> Counter[tuple[object, ...]]:
    return Counter(
        (event.instance_id, event.kind, event.attempt) for event in round.witness.events(round.gated)
    )


def _moves(round: Round, identity: str) -> list[tuple[object, ...]]:
    """The history of an instance; codes only of what decided something."""
    return [
        (event.kind, event.attempt) + ((event.code,) if event.kind != "late_result" else ())
        for event in round.witness.events([identity])
    ]


def _each_lost_and_refused_once(round: Round, attempt_count: int) -> Counter[tuple[object, ...]]:
    """What `_history` gives when so many attempts of each instance were lost and then reported late."""
    return Counter(
        (identity, kind, attempt)
        for identity in round.gated
        for attempt in range(1, attempt_count + 1)
        for kind in ("retry", "late_result")
    )
