"""What a dead worker has left at its engine: ended by a later one of its data directory, told by nobody."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.fake_engine import FakeContainer, FakeEngine, fake_engine

from ostinato.testing.contracts.executor_harness import attempt_of
from ostinato.worker.engine.leftovers import end_containers, mark, may_have_containers, remove_labelled
from ostinato.worker.engine.request import create_body, labels_of
from tests.worker.containers import container_task
from tests.worker.spool_stories import kept, outcomes


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        yield engine


def left_by(engine: FakeEngine, worker_id: str, *, has_started: bool = True) -> FakeContainer:
    start = attempt_of(container_task(("sleep", "600")))
    labels = labels_of(start.assignment, worker_id=worker_id, worker_name="build-1")
    body = create_body(start.assignment, start.spec, deadline_us=None, labels=labels)
    container = engine.create(f"ostinato-{start.assignment.attempt_id}", body)
    if has_started:
        assert container.start() == ""
    return container


async def test_containers_of_a_dead_worker_are_ended_before_it_is_told_as_ended(
    engine: FakeEngine, tmp_path: Path
) -> None:
    left_by(engine, "first")
    left_by(engine, "first", has_started=False)
    other = left_by(engine, "first-of-another-machine")
    mark(tmp_path / "workers" / "first", str(engine.socket))
    async with kept(tmp_path, "second") as made:
        await made.spool.take_over()
        assert made.spool.ended_workers == ["first"]
        assert list(engine.containers.values()) == [other]
        assert other.is_running
        assert made.outbox.unacknowledged == [], "nothing is reported: the scheduler decides"
        assert not (tmp_path / "workers" / "first").exists()


async def test_containers_of_a_worker_that_lives_are_left_alone(engine: FakeEngine, tmp_path: Path) -> None:
    container = left_by(engine, "first")
    async with kept(tmp_path, "first"):
        mark(tmp_path / "workers" / "first", str(engine.socket))
        async with kept(tmp_path, "second") as made:
            await made.spool.take_over()
            assert made.spool.ended_workers == []
            assert container.is_running
        remove_labelled(str(engine.socket), "first")


async def test_while_the_engine_is_away_results_are_taken_over_and_the_worker_is_not_told_as_ended(
    engine: FakeEngine, tmp_path: Path
) -> None:
    """I1: what is told as ended is retried at once, and its container may run on."""
    container = left_by(engine, "first")
    async with kept(tmp_path, "first") as made:
        mark(tmp_path / "workers" / "first", str(engine.socket))
        made.outbox.add_outcomes(outcomes(1))
    assert may_have_containers(tmp_path / "workers" / "first"), "a clean end keeps what is not done"
    engine.die()
    async with kept(tmp_path, "second") as made:
        await made.spool.take_over()
        assert [outcome.attempt_id for outcome in made.outbox.unacknowledged] == ["a-0"]
        assert made.spool.ended_workers == []
        assert container.is_running
        engine.listen()
        await made.spool.take_over()
        assert made.spool.ended_workers == ["first"]
        assert not container.is_running
        made.acknowledge(["a-0"])


def test_a_worker_that_never_ran_a_container_needs_no_engine(tmp_path: Path) -> None:
    assert end_containers(tmp_path / "workers" / "first", "first") == ""


def test_an_engine_that_refuses_says_why_something_may_run_on(engine: FakeEngine, tmp_path: Path) -> None:
    socket = tmp_path / "gone.sock"
    mark(tmp_path / "workers" / "first", str(socket))
    said = end_containers(tmp_path / "workers" / "first", "first")
    assert said.startswith(f"its containers may run on: {socket}: ")
