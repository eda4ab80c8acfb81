"""Circles through several definitions (C151)."""

from __future__ import annotations

import itertools

import msgspec
from support.workflow_runs import node, workflow

from ostinato.core.definition import TaskRef
from ostinato.core.workflow.circles import Startable, UpstreamTrigger, find_circle
from ostinato.core.workflow.definition import WorkflowDefinition


def _flow(name: str, *parts: str) -> WorkflowDefinition:
    """A workflow of tasks t…, and of workflows by any other name."""
    nodes = [
        node(f"n{i}", **{"task" if part[0] == "t" else "workflow": part}) for i, part in enumerate(parts)
    ]
    return msgspec.structs.replace(workflow(*nodes), name=name)


def _task(name: str) -> Startable:
    return Startable("task", TaskRef("default", name))


def _workflow(name: str) -> Startable:
    return Startable("workflow", TaskRef("default", name))


def test_a_workflow_that_runs_itself_is_a_circle() -> None:
    assert find_circle([_flow("a", "a")]) == [_workflow("a")]


def test_a_circle_through_workflows_is_found_in_any_order_and_always_the_same() -> None:
    flows = [_flow("a", "t1", "b"), _flow("b", "c"), _flow("c", "t2", "a"), _flow("d", "a")]
    for order in itertools.permutations(flows):
        assert find_circle(order) == [_workflow("a"), _workflow("b"), _workflow("c")]


def test_tasks_that_trigger_each_other_are_a_circle() -> None:
    triggers = [UpstreamTrigger(_task("t1"), _task("t2")), UpstreamTrigger(_task("t2"), _task("t1"))]
    assert find_circle([], triggers) == [_task("t1"), _task("t2")]


def test_a_workflow_that_is_triggered_by_a_task_of_its_own_is_a_circle() -> None:
    circle = find_circle([_flow("a", "t1")], [UpstreamTrigger(_task("t1"), _workflow("a"))])
    assert [str(part) for part in circle] == ["task default/t1", "workflow default/a"]


def test_a_compensation_causes_too() -> None:
    flow = workflow(node("n", task="t1", undo="t2"))
    circle = find_circle([flow], [UpstreamTrigger(_task("t2"), Startable("workflow", flow.ref))])
    assert circle == [_task("t2"), Startable("workflow", flow.ref)]


def test_what_only_meets_again_is_no_circle() -> None:
    flows = [_flow("a", "b", "c"), _flow("b", "d", "t1"), _flow("c", "d", "t1"), _flow("d", "t1")]
    assert find_circle(flows, [UpstreamTrigger(_task("t1"), _task("t2"))]) == []


def test_names_of_other_namespaces_are_others() -> None:
    other = msgspec.structs.replace(_flow("b", "a"), namespace="other")
    assert find_circle([_flow("a", "b"), other]) == []


def test_a_chain_of_five_thousand_is_no_trouble() -> None:
    flows = [_flow(f"w{index}", f"w{index + 1}") for index in range(5_000)]
    assert find_circle(flows) == []
    circle = find_circle([*flows, _flow("w5000", "w0")])
    assert len(circle) == 5_001
