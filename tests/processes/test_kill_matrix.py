"""The kill matrix: processes of a worker, the node, the stream between them; killed, frozen, cut under load.

What each test says of its victims holds beside what the witness says of every round: no two attempts of an
instance overlap, nothing is lost, each result counts once, nothing is left, every slot is free again.
``OSTINATO_CASES_FULL=1`` runs 20 rounds of each under 200 running tasks, and shows the measured times.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import psutil
import pytest
from support.leaks import no_leaks
from support.matrix import FULL, I9_S, LONGER_S, ROUNDS, SHORTER_S, WORKER_LEASE_S, Matrix
from support.processes_of import WorkerProcesses
from support.stage import Round, freeze, kill, thaw
from support.witness import InstanceFacts, boot_ns
from support.witness_app import BACKOFF_SECONDS

#: From the kill to the first line of the next attempt where no lease has to end for it.
AT_ONCE_S = WORKER_LEASE_S / 2

#: Of workers whose node is started again meanwhile.
PATIENT_LEASE_S = 20.0

#: Where time is short a slot and the loop process are frozen together, and only for longer than a lease.
FROZEN_ROLES = [("slot",), ("loop",)] if FULL else [("slot", "loop")]
FROZEN_S = {"shorter": SHORTER_S, "longer": LONGER_S} if FULL else {"longer": LONGER_S}


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind() -> Iterator[None]:
    """In place of the check of each test: services live from round to round here."""
    with no_leaks():
        yield


@pytest.fixture(scope="module")
def matrix(
    tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest, _leaves_nothing_behind: None
) -> Iterator[Matrix]:
    matrix = Matrix(tmp_path_factory.mktemp("matrix"))
    yield matrix
    matrix.close()
    with request.config.pluginmanager.getplugin("capturemanager").global_and_fixture_disabled():
        print("", *matrix.measures.table(), sep="\n")


@pytest.fixture(params=range(ROUNDS), ids="round{}".format)
def round(matrix: Matrix) -> Round:
    """The load of one round, running."""
    return matrix.begin()


@pytest.fixture(scope="module")
def patient_matrix(
    tmp_path_factory: pytest.TempPathFactory, _leaves_nothing_behind: None
) -> Iterator[Matrix]:
    """Workers whose leases last while a node starts on any machine."""
    matrix = Matrix(tmp_path_factory.mktemp("patient"), worker_lease_s=PATIENT_LEASE_S)
    yield matrix
    matrix.close()


@pytest.fixture(params=range(ROUNDS), ids="round{}".format)
def patient_round(patient_matrix: Matrix) -> Iterator[Round]:
    """The load of one round, running; nothing of it runs on beside the next test."""
    yield patient_matrix.begin()
    if not FULL:
        patient_matrix.close()


# ── killed ────────────────────────────────────────────────────────────────────────────────────────────


def test_attempts_of_a_killed_supervisor_are_retried_within_2_s_of_its_guardians_report(
    matrix: Matrix, round: Round
) -> None:
    victims, tree = round.on("a"), matrix.stage.worker("a")
    killed_ns = boot_ns()
    matrix.stage.services.kill("a")
    second = round.retried(
        victims, since_ns=killed_ns, within_s=WORKER_LEASE_S + 1, what="supervisor killed: retried"
    )
    decided_ns = round.decided_ns(victims)
    after_ms = [(trail.began_ns - decided_ns[identity]) / 1e6 for identity, trail in second.items()]
    matrix.measures.add("supervisor killed: retried after the report", after_ms)
    assert max(after_ms) <= 2000
    # It is the report that ends them, as soon as the guardian has seen its socket close, and no lease.
    assert all("guardian" in (end.message or "") for end in round.first_ends(victims).values())
    assert max(decided_ns.values()) - killed_ns < 2e9
    matrix.stage.all_gone(tree.all, within_s=2)
    matrix.stage.start_worker("a")
    round.expect_attempts(victims, 2)
    matrix.finish(round)


def test_a_killed_guardian_ends_its_attempts_and_a_new_one_takes_its_place(
    matrix: Matrix, round: Round
) -> None:
    victims, tree = round.on("a"), matrix.stage.worker("a")
    killed_ns = kill(tree.guardians)
    round.retried(victims, since_ns=killed_ns, within_s=AT_ONCE_S, what="guardian killed: retried")
    matrix.stage.all_gone(tree.tasks, within_s=2)
    round.expect_attempts(victims, 2)
    matrix.finish(round)


def test_a_killed_slot_fails_its_attempt_at_once_with_the_policys_backoff(
    matrix: Matrix, round: Round
) -> None:
    busy = {facts.id: facts for facts in round.on("a", "block")}
    trail = next(trails[0] for trails in round.witness.trails(busy).values())
    victim = busy[trail.instance_id]
    killed_ns = kill([psutil.Process(trail.lines[0].pid)])
    round.retried(
        [victim], since_ns=killed_ns, within_s=BACKOFF_SECONDS + 1, what="slot killed: retried (backoff 1 s)"
    )
    (end,) = round.first_ends([victim]).values()
    assert end.code in ("EXIT_137", "SIGNAL_9")
    assert end.due_us is not None
    assert BACKOFF_SECONDS * 1e6 <= end.due_us - end.at_us < BACKOFF_SECONDS * 1e6 + 500_000
    (decided_ns,) = round.decided_ns([victim]).values()
    matrix.measures.add("slot killed: its attempt has failed", [(decided_ns - killed_ns) / 1e6])
    assert decided_ns - killed_ns < 1e9
    round.expect_attempts([victim], 2)
    matrix.finish(round)


def test_attempts_of_a_killed_loop_process_are_retried_at_once(matrix: Matrix, round: Round) -> None:
    victims = round.on("a", "hold")
    killed_ns = kill(matrix.stage.worker("a").loops)
    round.retried(victims, since_ns=killed_ns, within_s=AT_ONCE_S, what="loop process killed: retried")
    assert {(end.kind, end.code) for end in round.first_ends(victims).values()} == {("retry", "SIGNAL_9")}
    round.expect_attempts(victims, 2)
    matrix.finish(round)


def test_attempts_are_adopted_by_a_node_that_was_killed_and_started_again(
    patient_matrix: Matrix, patient_round: Round
) -> None:
    patient_matrix.stage.services.kill("scheduler")
    patient_matrix.stage.services.start_scheduler()
    started_ns = boot_ns()
    # In full, for longer than attempts would last that nobody has adopted.
    patient_round.go_on(I9_S - WORKER_LEASE_S + PATIENT_LEASE_S if FULL else 1)
    trails = patient_round.witness.trails(patient_round.gated)
    assert all(each[0].last_ns > started_ns for each in trails.values())
    patient_round.expect_attempts([])
    patient_matrix.finish(patient_round)


def test_attempts_of_a_worker_that_dies_with_the_node_are_retried_within_the_bound_of_i9(
    matrix: Matrix, round: Round
) -> None:
    victims = round.on("a")
    matrix.stage.services.kill("scheduler")
    killed_ns = matrix.stage.power_off_worker("a")
    matrix.stage.services.start_scheduler()
    round.retried(victims, since_ns=killed_ns, within_s=I9_S, what="node and worker killed: retried")
    matrix.stage.start_worker("a")
    round.expect_attempts(victims, 2)
    matrix.finish(round)


# ── frozen ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_supervisor_frozen_for_less_than_its_lease_keeps_its_attempts(matrix: Matrix, round: Round) -> None:
    supervisor = [matrix.stage.worker("a").supervisor]
    freeze(supervisor)
    round.go_on(SHORTER_S)
    thaw(supervisor)
    round.expect_attempts([])
    matrix.finish(round)


def test_attempts_of_a_frozen_supervisor_are_ended_by_its_guardian_and_retried(
    matrix: Matrix, round: Round
) -> None:
    victims, tree = round.on("a"), matrix.stage.worker("a")
    frozen_ns = freeze([tree.supervisor])
    round.retried(victims, since_ns=frozen_ns, within_s=WORKER_LEASE_S + 1, what="supervisor frozen: retried")
    round.go_on(LONGER_S, since_ns=frozen_ns)
    matrix.stage.all_gone(_that_ran(tree, round, victims), within_s=1)
    thaw([tree.supervisor])
    round.expect_attempts(victims, 2)
    matrix.finish(round)


def test_a_guardian_frozen_for_a_moment_is_left_alone(matrix: Matrix, round: Round) -> None:
    guardians = matrix.stage.worker("a").guardians
    assert guardians
    freeze(guardians)
    round.go_on(0.5)
    thaw(guardians)
    round.expect_attempts([])
    matrix.finish(round)
    assert matrix.stage.worker("a").guardians == guardians


def test_a_guardian_frozen_for_good_is_killed_and_its_attempts_are_retried(
    matrix: Matrix, round: Round
) -> None:
    victims, tree = round.on("a"), matrix.stage.worker("a")
    assert tree.guardians
    frozen_ns = freeze(tree.guardians)
    round.retried(victims, since_ns=frozen_ns, within_s=WORKER_LEASE_S + 1, what="guardian frozen: retried")
    matrix.stage.all_gone([*tree.guardians, *tree.tasks], within_s=2)
    round.expect_attempts(victims, 2)
    matrix.finish(round)


@pytest.mark.parametrize("roles", FROZEN_ROLES, ids=" and ".join)
@pytest.mark.parametrize("frozen_s", FROZEN_S.values(), ids=FROZEN_S)
def test_a_frozen_slot_or_loop_process_goes_on_where_it_was(
    matrix: Matrix, round: Round, roles: Sequence[str], frozen_s: float
) -> None:
    """Its supervisor keeps the lease; that a task is slow is no loss, whatever makes it slow."""
    tree = matrix.stage.worker("a")
    busy = round.witness.trails([facts.id for facts in round.on("a", "block")])
    slot = psutil.Process(next(trails[0].lines[0].pid for trails in busy.values()))
    frozen = [slot] * ("slot" in roles) + tree.loops * ("loop" in roles)
    freeze(frozen)
    round.go_on(frozen_s)
    thaw(frozen)
    round.expect_attempts([])
    matrix.finish(round)


def test_a_node_frozen_for_less_than_the_lease_keeps_all_attempts(matrix: Matrix, round: Round) -> None:
    freeze([matrix.stage.node])
    round.go_on(SHORTER_S)
    thaw([matrix.stage.node])
    round.expect_attempts([])
    matrix.finish(round)


def test_attempts_are_stopped_before_a_node_frozen_for_longer_gives_them_away(
    matrix: Matrix, round: Round
) -> None:
    victims = [*round.on("a"), *round.on("b")]
    freeze([matrix.stage.node])
    round.go_on(LONGER_S)
    trails = round.witness.trails(round.gated)
    thawed_ns = thaw([matrix.stage.node])
    assert [each[0] for each in trails.values() if each[0].last_ns > thawed_ns - 500_000_000] == []
    round.retried(
        victims, since_ns=thawed_ns, within_s=WORKER_LEASE_S, what="node frozen: retried after its thaw"
    )
    round.expect_attempts(victims, 2, 3)
    matrix.finish(round)


# ── cut ───────────────────────────────────────────────────────────────────────────────────────────────


def test_attempts_of_a_worker_cut_off_for_less_than_its_lease_are_adopted(
    matrix: Matrix, round: Round
) -> None:
    proxy = matrix.stage.proxy("a")
    proxy.refuse()
    proxy.cut()
    round.go_on(SHORTER_S)
    proxy.resume()
    round.go_on(1)
    round.expect_attempts([])
    matrix.finish(round)


def test_attempts_of_a_worker_cut_off_for_longer_are_retried_and_its_late_results_refused(
    matrix: Matrix, round: Round
) -> None:
    victims = round.on("a")
    proxy = matrix.stage.proxy("a")
    proxy.refuse()
    proxy.cut()
    cut_ns = boot_ns()
    round.retried(victims, since_ns=cut_ns, within_s=WORKER_LEASE_S + 1, what="stream cut: retried")
    proxy.resume()
    matrix.stage.services.until(
        lambda: round.late_results(victims) == {victim.id for victim in victims}, within_s=10
    )
    assert {end.kind for end in round.first_ends(victims).values()} == {"retry"}
    round.expect_attempts(victims, 2)
    matrix.finish(round)


def _that_ran(tree: WorkerProcesses, round: Round, victims: Sequence[InstanceFacts]) -> list[psutil.Process]:
    """The processes of the tree that the victims' first attempts ran in, or left behind."""
    trails = round.witness.trails([victim.id for victim in victims])
    pids = {line.pid for each in trails.values() for line in each[0].lines}
    return [process for process in tree.tasks if process.pid in pids]
