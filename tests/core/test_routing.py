"""Which worker gets an attempt."""

from __future__ import annotations

from itertools import groupby
from random import Random

import pytest

from ostinato.core.definition import HttpSpec, PythonSpec, ShellSpec, TaskDefinition, TaskRef
from ostinato.core.routing import Placed, RoutingRound, Strategy, Unplaced, WorkerView
from ostinato.core.states import Hold


def worker(
    name: str, *, free: int = 2, capacity: int = 4, ahead: int = 0, labels: dict[str, str] | None = None
) -> WorkerView:
    return WorkerView(
        worker_id=name,
        worker_name=name,
        labels=labels or {},
        tasks=frozenset({TaskRef("default", "t")}),
        executors=frozenset({"python", "shell"}),
        capacity={"async": capacity, "process": capacity},
        free={"async": free, "process": free},
        ahead={"process": ahead} if ahead else {},
    )


def task(name: str = "t", **changes: object) -> TaskDefinition:
    return TaskDefinition(
        namespace="default",
        name=name,
        executor=PythonSpec("m:f", is_async=True),
        **changes,  # type: ignore[arg-type]  # keyword arguments of the struct, chosen per test
    )


def chosen(answer: Placed | Unplaced) -> str:
    assert isinstance(answer, Placed), answer
    return answer.worker.worker_id


def test_the_least_loaded_worker_is_taken_and_its_slot_used_up() -> None:
    round_ = RoutingRound([worker("a", free=1), worker("b", free=3)], strategy="least_loaded")
    assert [chosen(round_.place(task())) for _ in range(4)] == ["b", "b", "a", "b"]
    assert isinstance(round_.place(task()), Unplaced)


def test_load_is_relative_to_capacity() -> None:
    small, large = worker("small", free=2, capacity=2), worker("large", free=3, capacity=100)
    assert chosen(RoutingRound([large, small], strategy="least_loaded").place(task())) == "small"


def test_places_ahead_of_the_slots_are_not_free_slots() -> None:
    shell = TaskDefinition(namespace="default", name="t", executor=ShellSpec("true"))
    queueing, plain = worker("queueing", free=54, capacity=4, ahead=50), worker("plain", free=4, capacity=4)
    round_ = RoutingRound([queueing, plain], strategy="least_loaded")
    assert sorted(chosen(round_.place(shell)) for _ in range(8)) == ["plain"] * 4 + ["queueing"] * 4
    # Nobody has a free slot any more, so what waits in a queue waits least.
    assert chosen(round_.place(shell)) == "queueing"
    in_turn = RoutingRound(
        [worker("queueing", free=51, capacity=4, ahead=50), worker("plain", free=4, capacity=4)],
        strategy="round_robin",
    )
    assert [chosen(in_turn.place(shell)) for _ in range(6)].count("queueing") == 2


def test_round_robin_takes_turns() -> None:
    round_ = RoutingRound([worker("a"), worker("b"), worker("c")], strategy="round_robin")
    assert [chosen(round_.place(task())) for _ in range(6)] == ["a", "b", "c", "a", "b", "c"]


def test_a_retry_avoids_the_worker_that_failed_while_another_is_free() -> None:
    round_ = RoutingRound([worker("a", free=2), worker("b", free=1)], strategy="least_loaded")
    assert chosen(round_.place(task(), avoid_worker_id="a")) == "b"
    assert chosen(round_.place(task(), avoid_worker_id="a")) == "a"


def test_labels_must_all_be_carried() -> None:
    plain, gpu = worker("plain"), worker("gpu", labels={"gpu": "yes", "site": "a"})
    round_ = RoutingRound([plain, gpu], strategy="least_loaded")
    assert chosen(round_.place(task(labels={"gpu": "yes"}))) == "gpu"
    answer = round_.place(task("t", labels={"gpu": "no"}))
    # Eligibility is worked out once per task; another version of it comes with the next round.
    assert isinstance(answer, Placed)
    fresh = RoutingRound([plain, gpu], strategy="least_loaded").place(task(labels={"gpu": "no"}))
    assert isinstance(fresh, Unplaced)
    assert fresh.hold is Hold.NO_WORKER
    assert "labels gpu=no" in fresh.reason


def test_the_reason_says_why_nobody_can_run_it() -> None:
    nobody = RoutingRound([], strategy="least_loaded").place(task())
    assert isinstance(nobody, Unplaced)
    assert nobody.reason == "no worker can run default/t: no worker is connected"
    unknown = RoutingRound([worker("a")], strategy="least_loaded").place(task("other"))
    assert isinstance(unknown, Unplaced)
    assert unknown.reason == "no worker can run default/other: none of the 1 connected knows it"
    http = TaskDefinition(namespace="default", name="h", executor=HttpSpec("GET", "http://localhost"))
    without = RoutingRound([worker("a")], strategy="least_loaded").place(http)
    assert isinstance(without, Unplaced)
    assert "has executor http" in without.reason


def test_shell_runs_wherever_the_executor_is() -> None:
    shell = TaskDefinition(namespace="default", name="s", executor=ShellSpec("true"))
    assert chosen(RoutingRound([worker("a")], strategy="least_loaded").place(shell)) == "a"


def test_busy_is_told_from_impossible() -> None:
    answer = RoutingRound([worker("a", free=0)], strategy="least_loaded").place(task())
    assert isinstance(answer, Unplaced)
    assert answer.hold is Hold.BUSY
    assert answer.reason == "the worker that can run it is busy"


class CountingTasks(frozenset[TaskRef]):
    """Counts how often it is asked for a task."""

    asked_count = 0

    def __contains__(self, ref: object) -> bool:
        CountingTasks.asked_count += 1
        return super().__contains__(ref)


def test_of_workers_that_know_the_same_tasks_one_is_asked_whether_it_knows_a_task() -> None:
    names = [f"t{number}" for number in range(5)]
    tasks = CountingTasks(TaskRef("default", name) for name in names)
    alike = [worker(f"w{number}") for number in range(30)]
    for each in alike:
        each.tasks = tasks
    round_ = RoutingRound([*alike, worker("other")], strategy="least_loaded")
    given = [chosen(round_.place(task(name))) for name in names for _ in range(4)]
    assert sorted(given) == sorted(f"w{number}" for number in range(20))
    assert CountingTasks.asked_count == len(names)


def test_tasks_of_the_same_workers_and_pool_share_them_whatever_their_labels_leave() -> None:
    workers = [worker("a", labels={"site": "a"}), worker("b", labels={"site": "b"})]
    round_ = RoutingRound(workers, strategy="least_loaded")
    shells = [TaskDefinition("default", name, ShellSpec("x")) for name in ("one", "two")]
    labelled = TaskDefinition("default", "three", ShellSpec("x"), labels={"site": "b"})
    assert round_.route(shells[0]) is round_.route(shells[1])
    assert round_.route(labelled) is not round_.route(shells[0])
    assert [chosen(round_.place(labelled)) for _ in range(2)] == ["b", "b"]
    # What one task has taken is not free for another.
    assert [chosen(round_.place(shells[0])) for _ in range(2)] == ["a", "a"]
    assert isinstance(round_.place(shells[1]), Unplaced)


def runs_of(round_: RoutingRound, count: int) -> list[tuple[str, int]]:
    """Whom placements of a task went to, and how many in a row."""
    shell = TaskDefinition("default", "t", ShellSpec("x"))
    given = [chosen(round_.place(shell)) for _ in range(count)]
    return [(name, len(list(row))) for name, row in groupby(given)]


@pytest.mark.parametrize("strategy", ["least_loaded", "round_robin"])
def test_of_much_work_a_worker_whose_attempts_are_short_gets_a_run_at_once(strategy: Strategy) -> None:
    workers = [worker(name, free=204, capacity=4, ahead=200) for name in "abc"]
    round_ = RoutingRound(workers, strategy=strategy)
    round_.run_count_max = 30
    assert runs_of(round_, 100) == [("a", 30), ("b", 30), ("c", 30), ("a", 10)]


def test_a_run_is_what_a_worker_does_in_ten_milliseconds_at_most() -> None:
    workers = [worker("a", free=29, capacity=4, ahead=25), worker("b", free=29, capacity=4, ahead=25)]
    round_ = RoutingRound(workers, strategy="least_loaded")
    round_.run_count_max = 30
    assert runs_of(round_, 10) == [("a", 5), ("b", 5)]


def test_without_places_ahead_work_is_spread_one_by_one_however_much_there_is() -> None:
    round_ = RoutingRound([worker("a", free=4), worker("b", free=4)], strategy="least_loaded")
    round_.run_count_max = 30
    assert runs_of(round_, 6) == [("a", 1), ("b", 1)] * 3


def test_a_run_ends_with_the_credits_of_its_worker() -> None:
    workers = [worker("a", free=3, capacity=4, ahead=50), worker("b", free=2, capacity=4, ahead=50)]
    round_ = RoutingRound(workers, strategy="least_loaded")
    round_.run_count_max = 30
    assert runs_of(round_, 5) == [("a", 3), ("b", 2)]


def test_a_retry_amid_a_run_avoids_the_worker_that_failed_while_another_is_free() -> None:
    workers = [worker("a", free=54, capacity=4, ahead=50), worker("b", free=1, capacity=4)]
    round_ = RoutingRound(workers, strategy="least_loaded")
    round_.run_count_max = 30
    shell = TaskDefinition("default", "t", ShellSpec("x"))
    assert runs_of(round_, 3) == [("a", 3)]
    assert chosen(round_.place(shell, avoid_worker_id="a")) == "b"
    assert chosen(round_.place(shell, avoid_worker_id="a")) == "a"


@pytest.mark.parametrize("strategy", ["least_loaded", "round_robin"])
@pytest.mark.parametrize("seed", range(20))
def test_each_choice_is_the_best_of_all_free_workers_at_that_moment(strategy: Strategy, seed: int) -> None:
    """Also where tasks with different workers take slots of each other, and retries avoid some."""
    rng = Random(seed)
    workers = [
        worker(
            f"w{number}",
            free=rng.randrange(6),
            capacity=rng.randrange(6, 9),
            labels={"site": rng.choice("ab")},
        )
        for number in range(rng.randrange(1, 7))
    ]
    round_ = RoutingRound(workers, strategy=strategy, first_turn=rng.randrange(3))
    for each in workers:
        each.turn = rng.randrange(3)
    tasks = [task(), task("t", labels={"site": "a"}), task("t", labels={"site": "b"})]
    # Eligibility is worked out once per task, so each of these is one of its own.
    definitions = [
        TaskDefinition("default", f"n{n}", ShellSpec("x"), labels=d.labels) for n, d in enumerate(tasks)
    ]
    for _ in range(40):
        definition = rng.choice(definitions)
        avoid = rng.choice(["", "", "w0", "w1"])
        free = [
            each
            for each in workers
            if each.free["process"] > 0 and (not definition.labels or each.labels == definition.labels)
        ]
        loads = {
            each.worker_id: -each.free["process"] / each.capacity["process"]
            if strategy == "least_loaded"
            else 0
            for each in free
        }
        best = min(
            free, key=lambda each: (each.worker_id == avoid, loads[each.worker_id], each.turn), default=None
        )
        answer = round_.place(definition, avoid_worker_id=avoid)
        assert (chosen(answer) if best is not None else "") == (best.worker_id if best is not None else "")
        assert isinstance(answer, Unplaced) == (best is None)
