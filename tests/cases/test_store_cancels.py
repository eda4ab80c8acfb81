"""C129 on every store: cancels that cross assignment, start and end while a real database takes its time."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.cancel_race import CancelRace
from support.real_stores import STORE_KINDS, Place, RealCluster, place_of

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.states import State

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"

#: 10,000 at full size, in parts that each end before a test has to.
PART_COUNT, ROUND_COUNT = (10, 50) if FULL else (1, 5)
AT_ONCE = 20
#: A cancel that came first, and an end that did.
_BOTH = ((State.CANCELLED, "OK"), (State.SUCCESS, "INSTANCE_TERMINAL"))


@pytest.fixture(scope="module", params=STORE_KINDS)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("store")) as place:
        yield place


@pytest.mark.parametrize("part", range(PART_COUNT))
async def test_c129_a_cancel_at_any_moment_leaves_one_end_and_no_run_behind(
    place: Place, part: int, tmp_path: Path
) -> None:
    """Around assignment, start and end, as far as the database lets these be foreseen."""
    place.clean()
    ends: Counter[tuple[State, str]] = Counter()
    async with RealCluster(place, seed=part) as cluster:
        race = CancelRace(
            cluster,
            tmp_path,
            lead_us=700 * MILLISECOND,
            spread_us=400 * MILLISECOND,
            look_us=50 * MILLISECOND,
        )
        race.chance.seed(part)
        await cluster.start(race.task)
        running = asyncio.create_task(race.worker.run())
        await race.worker.is_connected.wait()
        for number in range(3 * ROUND_COUNT):
            # On a slow machine more rounds, until either side has won its share.
            if number >= ROUND_COUNT and min(ends[each] for each in _BOTH) >= 2:
                break
            ends.update(await asyncio.gather(*(race.one() for _ in range(AT_ONCE))))
        # What a result that came too late would have changed.
        await cluster.sleep(SECOND)
        found = await cluster.store.get_instances([row.id for row in race.ended])
        assert [found[row.id] for row in race.ended] == race.ended
        assert not race.running
        race.worker.drain()
        await running
    # Granted, a cancel may still come too late; refused, the end was there before it.
    assert ends.keys() <= {*_BOTH, (State.SUCCESS, "OK")}
    assert min(ends[each] for each in _BOTH) >= 2
