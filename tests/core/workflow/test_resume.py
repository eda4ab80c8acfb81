"""Resume: what runs again, what keeps its result, and what a list of another length means (C149)."""

from __future__ import annotations

import pytest
from support.workflow_runs import Run, RunState, node, started, workflow

from ostinato.core.states import State
from ostinato.errors import ConflictError, UserError


def _mapped() -> Run:
    """A producer, a map over its list, a join."""
    return started(
        node("make"),
        node("m", "make", over={"$result": "make"}),
        node("join", "m", payload={"all": {"$result": "m"}}),
        node("beside"),
    )


def _six_with_one_failure() -> Run:
    run = _mapped()
    run.end("beside", "kept")
    run.end("make", [0, 1, 2, 3, 4, 5])
    for index in (5, 0, 1, 3, 4):
        run.end(f"m[{index}]", f"old {index}")
    run.fail("m[2]")
    assert run.row.state is RunState.FAILED
    return run


@pytest.mark.parametrize("count", [5, 8, 0, 6])
def test_a_producer_that_is_run_again_maps_exactly_its_new_list(count: int) -> None:
    """C149: 6 items, then 5, or 8: all of these run, the old ones beyond are in no count and no join."""
    run = _six_with_one_failure()
    run.resume("make")
    assert run.states() == {"make": "running", "m": "waiting", "join": "waiting", "beside": "success"}
    run.end("make", [f"n{index}" for index in range(count)])
    for index in range(count):
        assert run.payload(f"m[{index}]") == {"item": f"n{index}"}
        assert run.find(f"m[{index}]").generation == (2 if index < 6 else 1)
        run.end(f"m[{index}]", f"new {index}")
    assert run.nodes["m"].total == count
    assert run.nodes["m"].success == count
    assert run.payload("join") == {"all": [f"new {index}" for index in range(count)]}
    run.end("join")
    assert run.row.state is RunState.SUCCESS
    assert run.row.generation == 2
    for index in range(count, 6):
        old = run.find(f"m[{index}]")
        assert (old.generation, old.state) == (1, State.FAILED if index == 2 else State.SUCCESS)


def test_three_lists_after_each_other() -> None:
    """C149: 6, then 5, then 8: each join would get exactly its own list."""
    run = _six_with_one_failure()
    run.resume("make")
    run.end("make", [0] * 5)
    run.fail("m[0]")
    for index in range(1, 5):
        run.end(f"m[{index}]", "second")
    run.resume("make")
    run.end("make", [0] * 8)
    for index in range(8):
        run.end(f"m[{index}]", index)
    assert run.payload("join") == {"all": list(range(8))}


def test_only_the_items_that_failed_run_again_where_nothing_before_them_does() -> None:
    run = _six_with_one_failure()
    begun = len(run.begun)
    run.resume()
    assert run.begun[begun:] == ["m[2]"]
    assert run.payload("m[2]") == {"item": 2}
    run.end("m[2]", "again")
    assert run.payload("join") == {"all": ["old 0", "old 1", "again", "old 3", "old 4", "old 5"]}
    run.end("join")
    assert run.row.state is RunState.SUCCESS


def test_an_item_may_fail_again_and_be_resumed_again() -> None:
    run = _six_with_one_failure()
    run.resume()
    run.fail("m[2]")
    assert run.row.state is RunState.FAILED
    run.resume()
    run.end("m[2]", "third")
    run.end("join")
    assert run.row.state is RunState.SUCCESS
    assert run.find("m[2]").generation == 3


def test_what_stands_behind_runs_again_and_what_stands_beside_keeps_its_result() -> None:
    run = started(
        node("a"),
        node("b", "a"),
        node("c", "b"),
        node("alarm", "b", rule="all_done"),
        node("d", "a", payload={}),
    )
    run.end("a")
    run.end("d")
    run.fail("b")
    run.end("alarm")
    assert run.row.reason == "node b failed: boom"
    run.resume()
    assert run.row.reason == ""
    run.end("b")
    run.end("alarm")
    run.end("c")
    assert run.begun == ["a", "b", "d", "alarm", "b", "c", "alarm"]
    assert run.row.state is RunState.SUCCESS


def test_an_instance_that_is_skipped_this_time_stays_as_it_ended() -> None:
    """I7: nothing leaves its end unless it runs again."""
    run = started(node("a"), node("alarm", "a", rule="one_failed"))
    run.fail("a")
    run.end("alarm", "told")
    run.resume()
    run.end("a")
    assert run.states() == {"a": "success", "alarm": "skipped"}
    assert (run.find("alarm").state, run.find("alarm").generation) == (State.SUCCESS, 1)
    assert run.row.state is RunState.SUCCESS


def test_what_succeeded_once_is_undone_even_if_it_fails_in_its_next_generation() -> None:
    run = started(node("a", undo="undo_a", strategy="rollback"), node("b", "a"))
    run.end("a")
    run.fail("b")
    run.resume("a")
    run.fail("a")
    assert run.row.state is RunState.ROLLING_BACK
    assert run.undone == ["a"]


def test_a_cancelled_run_goes_on_where_it_was() -> None:
    run = started(node("a"), node("b", "a"), node("m", "b", over=[1, 2]))
    run.end("a")
    run.cancel()
    assert run.states() == {"a": "success", "b": "cancelled", "m": "cancelled"}
    run.resume()
    assert run.row.state is RunState.RUNNING
    run.end("b")
    run.end("m[0]")
    run.end("m[1]")
    assert run.row.state is RunState.SUCCESS
    assert run.begun.count("a") == 1


def test_a_map_that_was_cancelled_halfway_makes_the_rest_of_its_items() -> None:
    run = Run(workflow(node("m", over=list(range(1200)))))
    while not run.startable():
        assert run.step()
    run.start("m[0]")
    run.cancel()
    run.end("m[0]", "kept")
    assert run.row.state is RunState.CANCELLED
    assert run.nodes["m"].created == 500
    run.resume()
    assert run.nodes["m"].created == 1200
    for instance in run.startable():
        run.start_instance(instance)
        run.end_instance(instance, State.SUCCESS, 1)
    run.settle()
    assert run.row.state is RunState.SUCCESS
    assert run.nodes["m"].success == 1200
    assert run.begun.count("m[0]") == 1


def test_an_excused_failure_is_run_again_only_by_name() -> None:
    run = started(node("a", strategy="skip"), node("b", "a"), node("c"))
    run.fail("a")
    run.end("b")
    run.fail("c")
    run.resume()
    assert run.begun == ["a", "c", "b", "c"]
    run.fail("c")
    run.resume("a")
    assert run.begun[-2:] == ["a", "c"]


def test_a_child_run_is_replaced_by_another() -> None:
    run = started(node("sub", workflow="other"))
    first = run.find("sub").id
    run.fail("sub")
    run.resume()
    assert run.find("sub").id != first
    run.end("sub")
    assert run.row.state is RunState.SUCCESS


def test_mapped_child_runs_that_failed_are_replaced_by_others() -> None:
    run = started(node("m", over=[1, 2], workflow="other"), node("j", "m", payload={"r": {"$result": "m"}}))
    run.end("m[0]", "a")
    run.fail("m[1]")
    run.resume()
    assert run.payload("m[1]") == {"item": 2}
    run.end("m[1]", "b")
    assert run.payload("j") == {"r": ["a", "b"]}


def test_a_run_is_resumed_only_where_there_is_something_to_resume() -> None:
    run = started(node("a"))
    with pytest.raises(ConflictError, match="the run is running"):
        run.resume()
    run.end("a")
    with pytest.raises(ConflictError, match="the run is success"):
        run.resume()


def test_a_name_that_the_workflow_lacks_is_refused() -> None:
    run = started(node("a"))
    run.fail("a")
    with pytest.raises(UserError, match="no node 'zz'") as caught:
        run.resume("zz")
    assert caught.value.field == "nodes"


def test_a_run_whose_result_could_not_be_made_is_resumed_by_naming_a_node() -> None:
    run = started(node("a"), result={"x": {"$result": "a", "path": "/x"}})
    run.end("a", {})
    assert run.row.state is RunState.FAILED
    with pytest.raises(ConflictError, match="name those"):
        run.resume()
    run.resume("a")
    run.end("a", {"x": 1})
    assert run.row.result == b'{"x":1}'


def test_the_nodes_of_a_rollback_do_not_run_again() -> None:
    run = started(node("a", undo="undo"), node("b", "a", strategy="rollback"))
    run.end("a")
    run.fail("b")
    run.fail("a", role="compensation")
    with pytest.raises(ConflictError, match="can only go on"):
        run.resume("b")
