"""C129, cancels that cross assignment, start, end and reports: played on virtual time, in every order."""

from __future__ import annotations

import asyncio
import os
from collections import Counter
from pathlib import Path
from random import Random

from support.cancel_race import CancelRace, end_of, turns
from support.cluster import Cluster, python_task, value_of, worker_of
from support.scripted_worker import ScriptedWorker

from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import MINUTE
from ostinato.core.model import HistoryKind, Outcome
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import Assignment

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"

#: Final state, and the answer to the request.
Ends = Counter[tuple[State, str]]


# ── a real worker ─────────────────────────────────────────────────────────────────────────────────────────


def test_c129_a_cancel_at_any_moment_leaves_one_end_and_no_run_behind(tmp_path: Path) -> None:
    """At -5 to +5 ms around assignment, start and end, and in every turn of the loop between."""

    async def story() -> Ends:
        race, ends = CancelRace(Cluster(), tmp_path), Ends()
        await race.cluster.start(race.task)
        running = asyncio.create_task(race.worker.run())
        await race.worker.is_connected.wait()
        for _ in range(1000 if FULL else 60):
            ends.update(await asyncio.gather(*(race.one() for _ in range(10))))
        await race.cluster.sleep(MINUTE)
        for row in race.ended:
            assert await race.cluster.instance(row.id) == row
        race.worker.drain()
        await running
        await race.cluster.stop()
        return ends

    ends = run_virtual(story())
    # Both races were really run, and each was won by either side. A request is granted or refused:
    # granted, it may still come too late; refused, the end was there before it.
    assert ends[State.CANCELLED, "OK"] > 50
    assert ends[State.SUCCESS, "INSTANCE_TERMINAL"] > 50
    assert ends.keys() <= {
        (State.CANCELLED, "OK"),
        (State.SUCCESS, "INSTANCE_TERMINAL"),
        (State.SUCCESS, "OK"),
    }


# ── reports in any order ──────────────────────────────────────────────────────────────────────────────────


def _outcome(cluster: Cluster, item: Assignment, result: bytes | None) -> Outcome:
    now_us = cluster.clock.wall_us()
    return Outcome(
        instance_id=item.instance_id,
        attempt=item.attempt,
        attempt_id=item.attempt_id,
        started_us=now_us,
        finished_us=now_us,
        result=result,
        failure=None if result is not None else safe_failure("CANCELLED", "the attempt was stopped"),
    )


async def _acknowledged(cluster: Cluster, worker: ScriptedWorker, item: Assignment, count: int) -> None:
    await cluster.until(lambda: value_of(worker.acknowledged.count(item.attempt_id) == count))


async def _crossing(
    cluster: Cluster, worker: ScriptedWorker, item: Assignment, *, chance: Random
) -> tuple[State, str]:
    """Report good and bad ends of one attempt with a request somewhere between."""
    identity = item.instance_id
    reports: list[bytes | None] = [b"1", None]
    reports += [chance.choice((b"1", None)) for _ in range(chance.randrange(3))]
    chance.shuffle(reports)
    asking: asyncio.Task[str] | None = None
    asked_at = chance.randrange(len(reports) + 1)
    for position, report in enumerate(reports):
        if position == asked_at:
            asking = asyncio.create_task(cluster.ask("cancel", instance_id=identity))
            await turns(chance.randrange(30))
        await worker.report([_outcome(cluster, item, report)])
        await turns(chance.randrange(30))
    answer = await (asking or cluster.ask("cancel", instance_id=identity))
    row = await end_of(cluster, identity)
    await _acknowledged(cluster, worker, item, len(reports))
    # The first report counts; a request that came before a bad end turns it into a cancel.
    bad = State.CANCELLED if answer == "OK" else State.FAILED
    assert row.state is (State.SUCCESS if reports[0] is not None else bad)
    await worker.report([_outcome(cluster, item, b"2")])
    await _acknowledged(cluster, worker, item, len(reports) + 1)
    assert await cluster.instance(identity) == row
    assert row.attempt == 1
    assert (await cluster.store.history(identity))[-1].kind is HistoryKind.LATE_RESULT
    return row.state, answer


def test_c129_reports_that_cross_a_cancel_in_any_order_count_once() -> None:
    """The worker says success and cancelled, each perhaps twice; what comes after the end is refused."""

    async def story() -> Ends:
        chance, ends = Random(1290), Ends()
        cluster, task = Cluster(), python_task(retry=RetryPolicy(max_retry=0))
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        for number in range(2000 if FULL else 150):
            await cluster.submit(task)
            await cluster.until(lambda number=number: value_of(len(worker.assigned) == number + 1))
            item = worker.assigned[-1]
            ends[await _crossing(cluster, worker, item, chance=chance)] += 1
            worker.granted += 1
            worker.running.pop(item.attempt_id)
        await worker.disconnect()
        await cluster.stop()
        return ends

    ends = run_virtual(story())
    assert {state for state, _ in ends} == {State.SUCCESS, State.CANCELLED, State.FAILED}
    assert min(ends.values()) > 5
