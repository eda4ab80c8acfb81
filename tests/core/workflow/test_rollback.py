"""Rollback: what runs is awaited, then compensations, one by one, from the last to the first (I10, C153)."""

from __future__ import annotations

import json

import pytest
from support.workflow_runs import Run, RunState, node, started, workflow

from ostinato.core.states import State
from ostinato.core.workflow.rollback import cancelled_run, rolled_back_run
from ostinato.errors import ConflictError


def _parallel() -> Run:
    """p, q, r side by side, each with a compensation; s after q rolls back."""
    return started(
        node("p", undo="undo_p"),
        node("q", undo="undo_q"),
        node("r", undo="undo_r"),
        node("s", "q", strategy="rollback"),
    )


def test_branches_that_run_are_cancelled_and_awaited_before_anything_is_undone() -> None:
    """C153: p ends, q ends, s fails while r runs: r's end is awaited, then q and p are undone."""
    run = _parallel()
    run.start("r")
    run.end("p")
    run.end("q")
    run.fail("s")
    assert run.row.state is RunState.ROLLING_BACK
    assert run.find("r").cancel_asked
    assert run.undone == []
    run.end("r", state=State.CANCELLED)
    assert run.undone == ["q"]
    run.end("q", role="compensation")
    assert run.undone == ["q", "p"]
    run.end("p", role="compensation")
    assert run.row.state is RunState.ROLLED_BACK
    assert run.row.reason == "node s failed: boom"
    assert run.states()["r"] == "cancelled"


def test_what_succeeds_while_its_end_is_awaited_is_undone_too_and_first() -> None:
    run = _parallel()
    run.start("r")
    run.end("p")
    run.end("q")
    run.fail("s")
    run.end("r", 1)
    for name in ("r", "q", "p"):
        assert run.undone[-1] == name
        run.end(name, role="compensation")
    assert run.row.state is RunState.ROLLED_BACK


def test_what_started_and_did_not_end_well_is_undone_only_where_declared_and_then_first() -> None:
    run = started(
        node("a", undo="undo_a"),
        node("b", "a", undo="undo_b", unfinished=True, strategy="rollback"),
        node("c", "a", undo="undo_c"),
    )
    run.end("a")
    run.end("c")
    run.fail("b")
    assert run.undone == ["b"]
    run.end("b", role="compensation")
    run.end("c", role="compensation")
    run.end("a", role="compensation")
    assert run.undone == ["b", "c", "a"]
    assert run.row.state is RunState.ROLLED_BACK


def test_what_never_started_is_not_undone() -> None:
    run = started(
        node("a", strategy="rollback"), node("b", undo="undo_b", unfinished=True), node("c", undo="undo_c")
    )
    run.fail("a")
    assert run.find("b").state is State.CANCELLED
    assert run.undone == []
    assert run.row.state is RunState.ROLLED_BACK


def test_a_compensation_is_told_payload_and_result_of_what_it_undoes() -> None:
    run = started(
        node(
            "pay",
            payload={"sum": {"$run": "payload", "path": "/sum"}},
            undo="refund",
            undo_payload={
                "id": {"$own": "result", "path": "/id"},
                "sum": {"$own": "payload", "path": "/sum"},
            },
        ),
        node("ship", "pay", strategy="rollback"),
        payload={"sum": 5},
    )
    run.end("pay", {"id": "x1"})
    run.fail("ship")
    refund = run.find("pay", role="compensation")
    assert refund.task == "refund"
    assert json.loads(refund.payload) == {"id": "x1", "sum": 5}


def test_the_first_failed_item_of_a_map_rolls_back_and_each_item_that_succeeded_is_undone() -> None:
    run = started(node("m", over=[1, 2, 3, 4], strategy="rollback", undo="undo_m"))
    run.start("m[0]")
    run.end("m[2]")
    run.end("m[1]")
    run.fail("m[3]")
    assert run.find("m[0]").cancel_asked
    run.end("m[0]", state=State.CANCELLED)
    run.end("m[1]", role="compensation")
    run.end("m[2]", role="compensation")
    assert run.undone == ["m[1]", "m[2]"]
    assert run.row.state is RunState.ROLLED_BACK


def test_items_that_were_not_made_yet_are_not_made_by_a_run_that_is_stopped() -> None:
    run = Run(workflow(node("m", over=list(range(1000)), strategy="rollback")))
    while not run.startable():
        assert run.step()
    run.start("m[0]")
    run.end_instance(run.find("m[0]"), State.FAILED)
    run.settle()
    assert len([item for item in run.instances.values() if item.node == "m"]) == 500
    assert run.nodes["m"].created == 500
    assert run.row.state is RunState.ROLLED_BACK


def test_a_compensation_that_fails_for_good_stops_the_rollback_and_alerts() -> None:
    run = _parallel()
    run.start("r")
    run.end("r")
    run.end("p")
    run.end("q")
    run.fail("s")
    run.end("q", role="compensation")
    run.fail("p", role="compensation")
    assert run.row.state is RunState.ROLLBACK_FAILED
    assert run.undone == ["q", "p"]
    assert [alert.reason for alert in run.alerts] == ["the compensation of node p ended as failed: boom"]


def test_a_rollback_that_failed_is_resumed_with_the_compensation_that_failed() -> None:
    run = _parallel()
    run.start("r")
    run.end("r")
    run.end("p")
    run.end("q")
    run.fail("s")
    run.fail("q", role="compensation")
    run.resume()
    assert run.row.state is RunState.ROLLING_BACK
    for name in ("q", "p", "r"):
        run.end(name, role="compensation")
    assert run.undone == ["q", "q", "p", "r"]
    assert run.row.state is RunState.ROLLED_BACK


def test_a_compensation_without_a_payload_fails_the_rollback() -> None:
    run = started(
        node("a", undo="undo", undo_payload={"x": {"$own": "result", "path": "/none"}}),
        node("b", "a", strategy="rollback"),
    )
    run.end("a", {})
    run.fail("b")
    assert run.row.state is RunState.ROLLBACK_FAILED
    assert "there is nothing at 'none' in the own result at /none" in run.row.reason
    assert run.undone == []


def test_what_did_not_end_well_has_no_result_to_be_told_of() -> None:
    run = started(
        node(
            "a",
            strategy="rollback",
            undo="undo",
            unfinished=True,
            undo_payload={
                "id": {"$own": "result", "path": "/id"},
                "n": {"$own": "result", "path": "/n", "default": 0},
            },
        )
    )
    run.fail("a")
    assert json.loads(run.find("a", role="compensation").payload) == {"id": None, "n": 0}


def test_a_person_can_roll_a_run_back() -> None:
    run = _parallel()
    run.end("p")
    run.roll_back()
    run.end("p", role="compensation")
    assert run.row.state is RunState.ROLLED_BACK
    assert run.row.reason == "asked for"


def test_a_cancel_undoes_nothing() -> None:
    run = _parallel()
    run.end("p")
    run.cancel()
    assert run.row.state is RunState.CANCELLED
    assert run.undone == []


def test_a_rollback_waits_for_the_end_of_a_child_run() -> None:
    run = started(node("sub", workflow="other", undo="undo_sub"), node("x", strategy="rollback"))
    run.start("sub")
    run.fail("x")
    assert run.find("sub").cancel_asked
    run.end("sub", {"k": 1})
    assert run.undone == ["sub"]


@pytest.mark.parametrize("state", [s for s in RunState if s is not RunState.RUNNING])
def test_only_a_run_that_goes_on_can_be_cancelled(state: RunState) -> None:
    run = started(node("a"))
    run.row.state = state
    with pytest.raises(ConflictError) as caught:
        cancelled_run(run.row, reason="", now_us=1)
    assert caught.value.code == "RUN_STATE"
    if state is not RunState.ROLLING_BACK:
        with pytest.raises(ConflictError, match="cannot be rolled back"):
            rolled_back_run(run.row, reason="")


def test_a_wish_that_is_repeated_changes_nothing() -> None:
    run = started(node("a"))
    once = cancelled_run(run.row, reason="x", now_us=5)
    assert cancelled_run(once, reason="y", now_us=6) is once
    back = rolled_back_run(once, reason="z")
    assert rolled_back_run(back, reason="w") is back
