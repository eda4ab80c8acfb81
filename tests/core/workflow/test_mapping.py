"""Maps: how many instances a node becomes, in what order its results stand, and what that costs."""

from __future__ import annotations

import json

from support.workflow_runs import Run, RunState, node, started, workflow

from ostinato.core.states import State


def test_one_instance_per_item_and_the_join_gets_their_results_in_order() -> None:
    run = started(
        node("m", over=[{"a": 1}, 2, None], parameter="row", payload={"k": "v"}),
        node("join", "m", payload={"all": {"$result": "m"}, "second": {"$result": "m", "path": "/1/x"}}),
    )
    assert run.begun == ["m[0]", "m[1]", "m[2]"]
    assert run.payload("m[0]") == {"k": "v", "row": {"a": 1}}
    run.end("m[2]", "c")
    run.end("m[0]", "a")
    run.end("m[1]", {"x": "b"})
    assert run.payload("join") == {"all": ["a", {"x": "b"}, "c"], "second": "b"}
    assert run.nodes["m"].success == 3


def test_a_list_is_mapped_over_that_a_node_returns() -> None:
    run = started(node("list"), node("m", "list", over={"$result": "list", "path": "/ids"}))
    run.end("list", {"ids": [7, 8]})
    assert run.payload("m[1]") == {"item": 8}


def test_an_empty_list_is_a_success_with_an_empty_list() -> None:
    run = started(
        node("list"),
        node("m", "list", over={"$result": "list"}),
        node("join", "m", payload={"all": {"$result": "m"}}),
    )
    run.end("list", [])
    assert run.states()["m"] == "success"
    assert run.payload("join") == {"all": []}
    run.end("join")
    assert run.row.state is RunState.SUCCESS


def test_maps_over_empty_lists_chain() -> None:
    run = started(
        node("m", over=[]), node("n", "m", over={"$result": "m"}), node("o", "n", over={"$result": "n"})
    )
    assert run.row.state is RunState.SUCCESS


def test_a_map_over_the_result_of_a_map_keeps_the_places_of_its_items() -> None:
    """C147: and is not skipped before its input exists."""
    run = started(
        node("list"),
        node("m", "list", over={"$result": "list"}, strategy="skip"),
        node("n", "m", over={"$result": "m"}),
        node("join", "n", payload={"all": {"$result": "n"}}),
    )
    run.end("list", ["a", "b", "c"])
    run.end("m[0]", 10)
    run.fail("m[1]")
    assert run.states()["n"] == "waiting"
    run.end("m[2]", 30)
    assert run.find("n[1]").state is State.SKIPPED
    assert run.find("n[1]").reason == "item 1 of the result of m is missing"
    assert run.missing("n[0]") == [("m", "failed", 1)]
    run.end("n[0]", 100)
    run.end("n[2]", 300)
    assert run.payload("join") == {"all": [100, None, 300]}
    assert run.missing("join") == [("n", "success", 1)]
    run.end("join")
    assert run.row.state is RunState.SUCCESS


def test_one_failed_item_fails_the_node_once_all_have_ended() -> None:
    run = started(node("m", over=[1, 2, 3]), node("n", "m"))
    run.fail("m[1]")
    assert run.states()["m"] == "running"
    run.end("m[0]")
    run.end("m[2]")
    assert run.states() == {"m": "failed", "n": "upstream_failed"}
    assert run.nodes["m"].reason == "1 of 3 items failed"


def test_what_is_no_list_fails_the_node() -> None:
    run = started(node("a"), node("m", "a", over={"$result": "a"}))
    run.end("a", {"x": 1})
    assert run.states()["m"] == "failed"
    assert run.nodes["m"].reason == "the result of a is no list, so it cannot be mapped over"
    assert run.row.state is RunState.FAILED


def test_a_list_that_is_missing_skips_the_node_or_passes_the_failure_on() -> None:
    run = started(
        node("a", strategy="skip"),
        node("b"),
        node("over_a", "a", over={"$result": "a"}),
        node("over_b", "b", over={"$result": "b"}, rule="all_done"),
        node("with_default", "b", over={"$result": "b", "default": [1]}, rule="all_done"),
    )
    run.fail("a")
    run.fail("b")
    assert run.states()["over_a"] == "skipped"
    assert run.states()["over_b"] == "upstream_failed"
    assert run.nodes["over_b"].reason == "it maps over the result of b, which ended as failed"
    assert run.payload("with_default[0]") == {"item": 1}


def test_an_item_that_is_too_large_fails_alone() -> None:
    run = started(
        node("m", over=[1, 2], strategy="skip"),
        node("n", "m", over={"$result": "m"}, payload={"pad": "x" * 100}, strategy="skip"),
    )
    run.end("m[0]", "y" * 1_048_500)
    run.end("m[1]", "z")
    assert run.find("n[0]").state is State.FAILED
    assert "the limit is 1,048,576" in run.find("n[0]").reason
    assert run.find("n[1]").state is State.PENDING
    run.end("n[1]")
    assert run.row.state is RunState.SUCCESS


def test_results_that_are_too_large_together_are_handed_down_in_smaller_chunks() -> None:
    run = started(node("m", over=[1, 2, 3, 4]), node("n", "m", over={"$result": "m"}))
    for index in range(4):
        run.end(f"m[{index}]", str(index) * 400_000)
    assert [len(run.find(f"n[{index}]").payload) > 400_000 for index in range(4)] == [True] * 4
    assert run.nodes["n"].created == 4


def test_a_hundred_thousand_items_are_made_and_counted_in_pieces_of_one_size() -> None:
    """C121: each commit costs the same, and so does each step's reading."""
    count = 100_000
    run = Run(workflow(node("list"), node("m", "list", over={"$result": "list"}), node("end", "m")))
    run.settle()
    run.end("list", list(range(count)))
    assert run.nodes["m"].created == count
    assert run.largest_commit <= 1_100
    assert run.commit_count <= count / 500 + 10
    for instance in run.startable():
        run.start_instance(instance)
        run.end_instance(instance, State.SUCCESS, 1)
    commits, read, run.largest_commit = run.commit_count, run.rows_read, 0
    run.settle()
    assert run.nodes["m"].success == count
    assert run.largest_commit <= 600
    assert run.commit_count - commits <= count / 499 + 10
    assert run.rows_read - read <= count * 1.1
    assert run.find("end").state is State.PENDING


def test_a_large_payload_for_many_is_written_in_pieces() -> None:
    """Each of 100 instances is given the same 900 KB: no commit holds more than some of them."""
    big = {"$result": "a"}
    run = started(
        node("a"),
        node("m", "a", over=list(range(50)), payload={"x": big}),
        *(node(f"n{index}", "a", payload={"x": big}) for index in range(50)),
    )
    run.largest_bytes = 0
    run.end("a", "x" * 900_000)
    assert len(run.startable()) == 100
    assert run.largest_bytes <= 10 * 1_048_576


def test_few_results_are_read_at_once() -> None:
    sources = [f"s{index}" for index in range(60)]
    run = started(
        *(node(name) for name in sources),
        *(node(f"t{index}", *sources, payload={"x": {"$result": f"s{index}"}}) for index in range(60)),
        node("all", *sources, payload={"all": [{"$result": name} for name in sources]}),
    )
    for name in sources[:-1]:
        run.end(name, name)
    run.most_reads = 0
    run.end(sources[-1], "last")
    assert run.payload("all") == {"all": [*sources[:-1], "last"]}
    assert len(run.startable()) == 61
    assert run.most_reads <= 60


def test_a_short_map_is_not_held_up_by_a_long_one() -> None:
    run = Run(workflow(node("long", over=list(range(20_000))), node("short", over=[1, 2])))
    while "short[1]" not in run.begun:
        assert run.step()
    assert run.nodes["long"].created <= 1_000


def test_child_workflows_can_be_mapped() -> None:
    run = started(
        node("m", over=["x", "y"], workflow="other"), node("j", "m", payload={"r": {"$result": "m"}})
    )
    assert json.loads(run.find("m[1]").payload) == {"item": "y"}
    run.end("m[1]", 2)
    run.end("m[0]", 1)
    assert run.payload("j") == {"r": [1, 2]}
