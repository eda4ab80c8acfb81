"""A worker whose network is away for longer than its lease, over each server: it stops before that ends.

The proxy between worker and node resets the worker's connections and refuses new ones, or lets nothing pass
and tells nobody. Another worker of the same node goes on meanwhile, and takes what the first one has lost.
``OSTINATO_CASES_FULL=1`` runs 20 rounds of each under 200 running tasks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.leaks import no_leaks
from support.matrix import LONGER_S, ROUNDS, WORKER_LEASE_S, Matrix
from support.proxy import Proxy
from support.servers import SERVER_KINDS, fresh_database
from support.witness import boot_ns


def _reset(proxy: Proxy) -> None:
    proxy.refuse()
    proxy.cut()


CUTS: dict[str, Callable[[Proxy], None]] = {"reset": _reset, "silent": Proxy.blackhole}


@pytest.fixture(autouse=True, scope="module")
def _leaves_nothing_behind() -> Iterator[None]:
    """In place of the check of each test: services live from round to round here."""
    with no_leaks():
        yield


@pytest.fixture(scope="module", params=SERVER_KINDS)
def matrix(
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    _leaves_nothing_behind: None,
) -> Iterator[Matrix]:
    with fresh_database(request.param) as database:
        matrix = Matrix(tmp_path_factory.mktemp("matrix"), database=database)
        yield matrix
        matrix.close()


@pytest.mark.parametrize("how", CUTS)
@pytest.mark.parametrize("number", range(ROUNDS))
def test_i1_a_worker_whose_network_is_away_stops_its_attempts_before_its_lease_ends(
    matrix: Matrix, how: str, number: int
) -> None:
    round = matrix.begin()
    victims = round.on("a")
    proxy = matrix.stage.proxy("a")
    CUTS[how](proxy)
    cut_ns = boot_ns()
    second = round.retried(victims, since_ns=cut_ns, within_s=WORKER_LEASE_S + 1, what=f"{how}: retried")
    # The last sign of life, by the witness's clock; the lease runs from a heartbeat before the cut.
    trails = round.witness.trails(second)
    stopped_s = {identity: (trails[identity][0].last_ns - cut_ns) / 1e9 for identity in second}
    assert max(stopped_s.values()) < WORKER_LEASE_S, stopped_s
    matrix.measures.add(f"{how}: stopped", (seconds * 1e3 for seconds in stopped_s.values()))
    round.go_on(LONGER_S, since_ns=cut_ns)
    proxy.resume()
    matrix.stage.services.until(
        lambda: round.late_results(victims) == {victim.id for victim in victims}, within_s=15
    )
    round.expect_attempts(victims, 2)
    matrix.finish(round)
