"""A run, step by step: order, rules, results handed down, strategies, cancels."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from support.workflow_runs import Run, RunState, node, started, workflow

from ostinato.core.states import State
from ostinato.core.workflow.advance import advance
from ostinato.core.workflow.rows import Facts


def test_a_node_begins_when_all_of_its_upstream_has_ended() -> None:
    run = started(node("a"), node("b"), node("c", "a", "b"))
    assert run.begun == ["a", "b"]
    run.end("a")
    assert run.begun == ["a", "b"]
    run.end("b")
    assert run.begun == ["a", "b", "c"]
    run.end("c")
    assert run.row.state is RunState.SUCCESS
    assert run.states() == {"a": "success", "b": "success", "c": "success"}
    assert run.row.finished_us == run.now_us


def test_a_plain_node_stands_blocked_from_the_start_of_the_run() -> None:
    run = started(node("a"), node("b", "a"))
    assert run.find("b").state is State.BLOCKED
    run.end("a")
    assert run.find("b").state is State.PENDING


def test_results_are_handed_down_where_the_payload_refers_to_them() -> None:
    run = started(
        node("fetch", payload={"day": {"$run": "payload", "path": "/day"}}),
        node("load", "fetch", payload={"first": {"$result": "fetch", "path": "/rows/0"}, "n": 1}),
        payload={"day": "2026-11-30"},
        result={"loaded": {"$result": "load"}},
    )
    assert run.payload("fetch") == {"day": "2026-11-30"}
    run.end("fetch", {"rows": ["x", "y"]})
    assert run.payload("load") == {"first": "x", "n": 1}
    run.end("load", 7)
    assert json.loads(run.row.result or b"") == {"loaded": 7}


def test_a_reference_that_leads_nowhere_fails_the_node_and_says_where() -> None:
    run = started(node("a"), node("b", "a", payload={"x": {"$result": "a", "path": "/rows/9"}}))
    run.end("a", {"rows": []})
    assert run.find("b").state is State.FAILED
    assert run.find("b").reason == "there is nothing at '9' in the result of a at /rows/9"
    assert run.row.state is RunState.FAILED
    assert run.row.reason.startswith("node b failed: there is nothing at '9'")


def test_a_default_stands_in_for_what_is_not_there() -> None:
    run = started(node("a"), node("b", "a", payload={"x": {"$result": "a", "path": "/y", "default": [1]}}))
    run.end("a", {})
    assert run.payload("b") == {"x": [1]}


def test_a_payload_that_grows_beyond_the_limit_fails_the_node() -> None:
    run = started(node("a"), node("b", "a", payload={"x": {"$result": "a"}}))
    run.end("a", "x" * 1_048_570)
    assert run.find("b").state is State.FAILED
    assert "the limit is 1,048,576" in run.find("b").reason


def test_without_a_success_one_success_does_not_look_green() -> None:
    """C145: a and b fail, c wants one success: c does not run, and the run fails."""
    run = started(node("a"), node("b"), node("c", "a", "b", rule="one_success"))
    run.fail("a")
    assert run.states()["c"] == "waiting"
    run.fail("b")
    assert run.states() == {"a": "failed", "b": "failed", "c": "upstream_failed"}
    assert run.find("c").state is State.SKIPPED
    assert run.find("c").reason == "one_success does not hold: of 2 upstream 2 failed"
    assert run.row.state is RunState.FAILED


def test_without_a_success_one_success_fails_the_run_also_where_each_failure_is_excused() -> None:
    """C145: strategy `skip` excuses a failure; it is no success for who asks for one."""
    run = started(
        node("a", strategy="skip"), node("b", strategy="skip"), node("c", "a", "b", rule="one_success")
    )
    run.fail("a")
    run.fail("b")
    assert run.states()["c"] == "upstream_failed"
    assert run.row.state is RunState.FAILED


def test_one_success_is_skipped_where_all_upstream_was_skipped() -> None:
    """C145: then nothing has failed, and the run is green."""
    run = started(node("a"), node("b"), node("c", "a", "b", rule="one_success"))
    run.end("a", state=State.SKIPPED)
    run.end("b", state=State.SKIPPED)
    assert run.states()["c"] == "skipped"
    assert run.row.state is RunState.SUCCESS


def test_a_join_decides_only_when_all_of_its_direct_upstream_has_ended() -> None:
    """C147: branch1 → {branch2, p}, branch2 → {x, dead}, x → p."""
    run = started(
        node("branch1"),
        node("branch2", "branch1"),
        node("x", "branch2"),
        node("dead", "branch2"),
        node("p", "branch1", "x", rule="none_failed_min_one_success"),
    )
    run.end("branch1")
    run.end("branch2")
    run.end("dead", state=State.SKIPPED)
    assert run.states()["p"] == "waiting"
    run.end("x")
    assert run.find("p").state is State.PENDING
    run.end("p")
    assert run.row.state is RunState.SUCCESS


def test_strategy_skip_lets_downstream_run_and_tells_it_what_is_missing() -> None:
    """C155: b is failed, d runs and is told that b is missing, and the run succeeds."""
    run = started(
        node("a"),
        node("b", strategy="skip"),
        node("d", "a", "b", payload={"a": {"$result": "a"}, "b": {"$result": "b"}}),
    )
    run.end("a", 1)
    run.fail("b")
    assert run.states()["b"] == "failed"
    assert run.payload("d") == {"a": 1, "b": None}
    assert run.missing("d") == [("b", "failed", 0)]
    run.end("d")
    assert run.row.state is RunState.SUCCESS


def test_a_handler_runs_on_an_excused_failure_too() -> None:
    run = started(
        node("a", strategy="skip"),
        node("instead", "a", rule="all_failed"),
        node("join", "a", "instead", rule="one_success"),
    )
    run.fail("a")
    run.end("instead")
    run.end("join")
    assert run.row.state is RunState.SUCCESS


def test_a_handler_does_not_make_a_failed_run_green() -> None:
    run = started(node("a"), node("alarm", "a", rule="one_failed"), node("b", "a"))
    run.fail("a")
    assert run.states() == {"a": "failed", "alarm": "running", "b": "upstream_failed"}
    run.end("alarm")
    assert run.row.state is RunState.FAILED
    assert run.row.reason == "node a failed: boom"


def test_always_waits_for_nobody() -> None:
    run = started(node("a"), node("b", "a", rule="always"), node("c", "b"))
    assert run.begun == ["a", "b"]
    run.end("b")
    assert run.begun == ["a", "b", "c"]
    run.end("c")
    run.end("a")
    assert run.row.state is RunState.SUCCESS


def test_a_cancelled_instance_fails_the_run_and_its_strategy_is_not_asked() -> None:
    run = started(node("a", strategy="rollback", undo="undo"), node("b", "a"))
    run.end("a", state=State.CANCELLED)
    assert run.states() == {"a": "cancelled", "b": "upstream_failed"}
    assert run.row.state is RunState.FAILED
    assert run.row.reason == "node a was cancelled"


def test_an_instance_that_is_cancelled_while_blocked_does_not_run_later() -> None:
    run = started(node("a"), node("b", "a"), node("c", "b"))
    run._finish(run.find("b"), State.CANCELLED, None, "")
    run.settle()
    assert run.states() == {"a": "running", "b": "cancelled", "c": "upstream_failed"}
    run.end("a")
    assert run.row.state is RunState.FAILED


def test_a_cancel_ends_what_waits_and_awaits_what_runs() -> None:
    run = started(node("a"), node("b"), node("c", "a"), node("d", "b", over=[1, 2]))
    run.start("a")
    run.cancel()
    assert run.row.state is RunState.RUNNING
    assert run.find("a").cancel_asked
    assert {name: str(item.state) for name, item in ((i.node, i) for i in run.instances.values())} == {
        "a": "running",
        "b": "cancelled",
        "c": "cancelled",
    }
    run.end("a", state=State.CANCELLED)
    assert run.row.state is RunState.CANCELLED
    assert set(run.states().values()) == {"cancelled"}
    assert run.row.reason == "asked for"


def test_a_run_whose_last_node_succeeds_before_the_cancel_stops_it_has_succeeded() -> None:
    run = started(node("a"))
    run.start("a")
    run.cancel()
    run.end("a", 1)
    assert run.row.state is RunState.SUCCESS


def test_a_run_starts_in_pieces_and_nothing_runs_before_the_last() -> None:
    run = Run(workflow(*(node(f"n{index}") for index in range(1200))))
    pending = []
    while run.step():
        pending.append(len(run.startable()))
    assert pending[0] == pending[1] == 0
    assert pending[-1] == 1200
    assert run.largest_commit <= 1600


def test_a_chain_of_ten_thousand_costs_a_few_rows_per_end() -> None:
    names = [f"n{index}" for index in range(10_000)]
    chain = [node(names[0]), *(node(name, before) for before, name in pairwise(names))]
    run = started(*chain)
    read = run.rows_read
    for name in names[:200]:
        run.end(name)
    assert run.rows_read - read <= 200 * 6
    assert run.begun[-1] == "n200"


def test_a_chain_behind_a_failure_ends_in_pieces() -> None:
    names = [f"n{index}" for index in range(3_000)]
    chain = [node(names[0]), *(node(name, before) for before, name in pairwise(names))]
    run = started(*chain)
    commits = run.commit_count
    run.fail("n0")
    assert run.row.state is RunState.FAILED
    assert run.commit_count - commits <= 20
    assert set(run.states().values()) == {"failed", "upstream_failed"}


def test_ten_thousand_successors_are_unblocked_in_pieces() -> None:
    run = started(node("a"), *(node(f"n{index}", "a") for index in range(5_000)))
    run.largest_commit = 0
    run.end("a")
    assert len(run.startable()) == 5_000
    assert run.largest_commit <= 1_600


def test_a_step_without_news_writes_nothing() -> None:
    run = started(node("a"), node("b", "a"))
    facts = Facts(run=run.row, nodes={}, ended=[])
    assert advance(run.graph, facts, now_us=5).run is None


def test_a_step_that_is_told_nothing_says_what_it_wants() -> None:
    run = started(node("a"), node("b", "a"))
    run.start("a")
    run.end_instance(run.find("a"), State.SUCCESS)
    facts = run._facts(None, None)
    effects = advance(run.graph, facts, now_us=run.now_us)
    assert effects.run is None
    assert effects.wanted.nodes == {"a"}


@pytest.mark.parametrize("times", [2, 3])
def test_a_step_that_was_written_twice_counts_once(times: int) -> None:
    run = started(node("a"), node("b", "a"))
    run.start("a")
    run.end_instance(run.find("a"), State.SUCCESS)
    effects = run.planned()
    assert [run.commit(effects) for _ in range(times)] == [True] + [False] * (times - 1)
    assert run.nodes["a"].success == 1


def test_a_child_run_is_started_and_its_end_is_the_nodes() -> None:
    run = started(node("a"), node("sub", "a", workflow="other", payload={"x": {"$result": "a"}}))
    run.end("a", 3)
    child = run.find("sub")
    assert (child.task, child.is_child, run.payload("sub")) == ("other", True, {"x": 3})
    run.end("sub", {"y": 1})
    assert run.row.state is RunState.SUCCESS
