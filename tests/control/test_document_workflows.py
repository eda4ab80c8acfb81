"""Workflows in YAML: what is read, how it is written again, and each fault with its path and place."""

from __future__ import annotations

import re
from typing import Any

import pytest
from house.project import ROOT
from jsonschema import Draft202012Validator

from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.workflow_block import (
    NODE,
    read_workflow,
    read_workflows,
    read_workflows_yaml,
    workflows_schema,
    write_workflow,
)
from ostinato.control.document.yaml_text import write_yaml
from ostinato.core.workflow.definition import Compensation, MapOver, Node, WorkflowDefinition
from ostinato.errors import UserError

VALIDATOR = Draft202012Validator(workflows_schema())

NIGHTLY = """\
workflows:
  - name: nightly
    description: Every night
    nodes:
      - {name: fetch, task: fetch, payload: {day: {$run: payload, path: /day}}}
      - name: clean
        task: clean
        after: [fetch]
        map: {over: {$result: fetch, path: /chunks}, parameter: chunk}
      - name: load
        task: load
        after: [clean]
        payload: {parts: {$result: clean}}
        strategy: rollback
        compensate: {task: unload, payload: {id: {$own: result, path: /id}}, unfinished: true}
      - {name: alarm, workflow: alarms, after: [load], trigger_rule: one_failed}
    result: {$result: load, path: /count}
"""


def _read(text: str) -> list[WorkflowDefinition]:
    return read_workflows_yaml(text, name="flow.yaml", namespace="shop")


def _faults(text: str) -> list[UserError]:
    with pytest.raises(InvalidDocument) as caught:
        _read(text)
    return list(caught.value.errors)


def test_every_field_is_read() -> None:
    (nightly,) = _read(NIGHTLY)
    assert (nightly.namespace, nightly.name, nightly.description) == ("shop", "nightly", "Every night")
    fetch, clean, load, alarm = nightly.nodes
    assert bytes(fetch.payload) == b'{"day":{"$run":"payload","path":"/day"}}'
    assert isinstance(clean.map, MapOver)
    assert (bytes(clean.map.over), clean.map.parameter) == (b'{"$result":"fetch","path":"/chunks"}', "chunk")
    assert (load.after, load.strategy) == (("clean",), "rollback")
    assert isinstance(load.compensate, Compensation)
    assert (load.compensate.task, load.compensate.unfinished) == ("unload", True)
    assert (alarm.task, alarm.workflow, alarm.trigger_rule) == ("", "alarms", "one_failed")
    assert bytes(nightly.result) == b'{"$result":"load","path":"/count"}'


def test_what_is_left_out_has_its_default() -> None:
    (flow,) = _read("workflows: [{name: f, nodes: [{name: a, task: t}]}]")
    assert flow == WorkflowDefinition(namespace="shop", name="f", nodes=(Node(name="a", task="t"),))


def test_what_is_written_is_read_as_the_same() -> None:
    (nightly,) = _read(NIGHTLY)
    written = {"workflows": [write_workflow(nightly)]}
    assert _read(write_yaml(written)) == [nightly]
    assert read_workflows(written["workflows"], namespace="shop") == [nightly]


def test_the_example_of_the_page_is_a_workflow() -> None:
    page = (ROOT / "docs/workflows.md").read_text(encoding="utf-8")
    found = re.search(r"```yaml\n(workflows:.*?)```", page, re.DOTALL)
    assert found is not None
    (flow,) = _read(found[1])
    assert flow.name == "nightly"


def test_every_fault_has_its_path_and_place() -> None:
    faults = _faults(
        """\
workflows:
  - name: a
    nodes:
      - {name: x, task: t, trigger: all_done}
      - {name: y, task: t, after: x, strategy: hope}
      - {name: z, task: 5, map: [1]}
      - 7
  - name: b
    nodes:
      - {name: p, task: t, after: [r]}
      - {name: q, task: t, after: [p]}
      - {name: r, task: t, after: [q], payload: {v: {$result: p, pth: /a}}}
  - name: c
    nodes:
      - {name: p, task: t, payload: {v: [{$result: q, pth: /a}]}}
      - {name: q, task: t, compensate: undo}
"""
    )
    assert [(fault.place, fault.field) for fault in faults] == [
        ("flow.yaml:4:28", "workflows[0].nodes[0].trigger"),
        ("flow.yaml:5:28", "workflows[0].nodes[1].after"),
        ("flow.yaml:5:38", "workflows[0].nodes[1].strategy"),
        ("flow.yaml:6:19", "workflows[0].nodes[2].task"),
        ("flow.yaml:6:28", "workflows[0].nodes[2].map"),
        ("flow.yaml:7:9", "workflows[0].nodes[3]"),
        ("flow.yaml:10:28", "workflows[1].nodes[0].after"),
        ("flow.yaml:16:28", "workflows[2].nodes[1].compensate"),
    ]
    assert faults[6].message == "the nodes go round in a circle: p → q → r → p"
    assert faults[6].subject == "shop/b"
    assert faults[7].hint == "write compensate: {task: undo}"


@pytest.mark.parametrize(
    ("node", "field", "message"),
    [
        ("{name: a, task: t, after: [b]}", "nodes[0].after[0]", "comes after 'b', which is not there"),
        ("{name: a}", "nodes[0].task", "needs a task or a workflow"),
        ("{name: a, task: t, payload: {v: {$res: b}}}", "nodes[0].payload.v", "'$res' is no reference"),
        ("{name: a, task: t, payload: [1]}", "nodes[0].payload", "a JSON object is needed"),
        ("{name: a, task: t, map: {over: 3}}", "nodes[0].map.over", "a list of values is needed"),
        ("{name: a, task: t, map: {}}", "nodes[0].map.over", "is missing"),
        ("{name: a, task: t, trigger_rule: dummy}", "nodes[0].trigger_rule", "'dummy' is not known"),
    ],
)
def test_a_fault_of_the_graph_is_told_where_it_stands(node: str, field: str, message: str) -> None:
    (fault,) = _faults(f"workflows: [{{name: f, nodes: [{node}]}}]")
    assert fault.field == f"workflows[0].{field}"
    assert message in fault.message
    assert fault.place.startswith("flow.yaml:1:")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("workflows: 3", "3 is a number, not a list"),
        ("tasks: []", "holds no workflows"),
        ("workflows: [1]", "1 is a number, not a workflow"),
        ("{workflows: [], more: 1}", "'more' is not a field of a document of workflows"),
        ("workflows: [{name: f}]", "is missing"),
        ("workflows: [{name: f, nodes: []}]", "a workflow needs at least one node"),
        (
            "workflows: [{name: f, nodes: [{name: a, task: t}]}, {name: f, nodes: [{name: a, task: t}]}]",
            "twice",
        ),
    ],
)
def test_what_is_no_list_of_workflows_is_refused(text: str, message: str) -> None:
    assert message in _faults(text)[0].message


def test_one_entry_can_be_read_alone() -> None:
    with pytest.raises(InvalidDocument) as caught:
        read_workflow(
            {"name": "f", "nodes": [{"name": "a", "task": "t", "after": ["a"]}]}, namespace="n", field=""
        )
    assert caught.value.field == "nodes[0].after[0]"


def _plain(text: str) -> Any:
    return [write_workflow(flow) for flow in _read(text)]


def test_the_schema_accepts_what_is_read_and_refuses_what_its_form_shows() -> None:
    assert VALIDATOR.is_valid(_plain(NIGHTLY))
    Draft202012Validator.check_schema(workflows_schema())
    good = {"name": "a", "task": "t"}
    for wrong in (
        {"name": "a"},
        {**good, "workflow": "w"},
        {**good, "x": 1},
        {**good, "trigger_rule": "dummy"},
    ):
        assert not VALIDATOR.is_valid([{"name": "f", "nodes": [wrong]}])
    assert VALIDATOR.is_valid([{"name": "f", "nodes": [good]}])


def test_the_page_lists_every_field_of_a_node() -> None:
    page = (ROOT / "docs/workflows.md").read_text(encoding="utf-8")
    table = page[page.index("## A node") : page.index("### References")]
    listed = re.findall(r"`(\w+)`", "".join(re.findall(r"^\| (.*?) \|", table, re.MULTILINE)))
    assert set(listed) == set(NODE.names)
