"""An entry of ``workflows``: one description of its fields reads it, writes it and gives its JSON Schema.

``apply`` does not take it yet: nothing runs a workflow so far (docs/workflows.md).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from ostinato.control.document.block import Block, Field
from ostinato.control.document.errors import InvalidDocument, joined, unknown_field
from ostinato.control.document.kinds import NAME_PATTERN, ListOf, Text, Truth, Word
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.control.document.yaml_nodes import plain_value
from ostinato.control.document.yaml_text import read_roots
from ostinato.core.payload import encode_payload
from ostinato.core.workflow.definition import (
    STRATEGIES,
    Compensation,
    MapOver,
    Node,
    WorkflowDefinition,
)
from ostinato.core.workflow.graph import DEFINITION_BYTES_MAX, EDGES_MAX, NODES_MAX, workflow_faults
from ostinato.core.workflow.rules import RULES
from ostinato.errors import UserError, restated

WORKFLOWS_COUNT_MAX = 10_000
_ROOT_HINT = "write workflows: with a list of workflows"
_HINT = "write {name: …, nodes: [{name: …, task: …}]}"


class Template(msgspec.Struct, frozen=True):
    """A value in which objects such as ``{$result: node, path: /a}`` stand for others; kept encoded."""

    types: tuple[str, ...] = ()

    def read(self, value: object, field: str, *, reading: Reading) -> msgspec.Raw:
        plain = dict(value) if isinstance(value, Mapping) else value
        return msgspec.Raw(encode_payload(plain, field=field, limit_bytes=DEFINITION_BYTES_MAX))

    def write(self, value: Any) -> Any:
        return msgspec.json.decode(bytes(value))

    def schema(self) -> dict[str, Any]:
        schemas: list[dict[str, Any]] = [{"type": name} for name in self.types]
        return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


_ANYTHING = ("object", "array", "string", "number", "boolean")
_NAME = Text(NAME_PATTERN)

MAP = Block(
    type=MapOver,
    thing="a map",
    bare_hint=lambda value: "write map: {over: …}",
    fields=(
        Field(
            name="over",
            attribute="over",
            kind=Template(("array", "object")),
            description="The list, or a reference to one.",
            required=True,
            examples=([1, 2], {"$result": "fetch", "path": "/ids"}),
        ),
        Field(
            name="parameter",
            attribute="parameter",
            kind=_NAME,
            description="Name under which an instance is given its item.",
            default="item",
        ),
    ),
)

COMPENSATE = Block(
    type=Compensation,
    thing="a compensation",
    bare_hint=lambda value: f"write compensate: {{task: {value if isinstance(value, str) else '…'}}}",
    fields=(
        Field(
            name="task",
            attribute="task",
            kind=_NAME,
            description="Task that undoes what an instance of the node has done.",
            required=True,
            examples=("refund",),
        ),
        Field(
            name="payload",
            attribute="payload",
            kind=Template(("object",)),
            description="May refer to $own: payload and $own: result of that instance.",
            default={"$own": "payload"},
        ),
        Field(
            name="unfinished",
            attribute="unfinished",
            kind=Truth(),
            description="Undo also, and first, what had started and did not end in success.",
            default=False,
        ),
    ),
)

NODE = Block(
    type=Node,
    thing="a node",
    fields=(
        Field(
            name="name",
            attribute="name",
            kind=_NAME,
            description="Name of the node, unique in the workflow.",
            required=True,
            examples=("load",),
        ),
        Field(
            name="task", attribute="task", kind=_NAME, description="Task that it runs.", examples=("load",)
        ),
        Field(
            name="workflow",
            attribute="workflow",
            kind=_NAME,
            description="Workflow that it runs, instead of a task.",
        ),
        Field(
            name="after",
            attribute="after",
            kind=ListOf(_NAME, EDGES_MAX, "[fetch]"),
            description="Nodes that have to end before it begins.",
        ),
        Field(
            name="trigger_rule",
            attribute="trigger_rule",
            kind=Word(tuple(RULES)),
            description="How those before it have to end for it to run.",
            default="all_success",
        ),
        Field(
            name="payload",
            attribute="payload",
            kind=Template(("object",)),
            description="What it runs with; {$result: node, path: /a/0} stands for a result.",
            examples=({"rows": {"$result": "fetch"}},),
        ),
        Field(name="map", attribute="map", kind=MAP, description="One instance per item of a list."),
        Field(
            name="strategy",
            attribute="strategy",
            kind=Word(STRATEGIES),
            description="What becomes of the run when the node has used up its retries.",
            default="fail",
        ),
        Field(name="compensate", attribute="compensate", kind=COMPENSATE, description="How it is undone."),
    ),
)


class NodeKind:
    """One node."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, Mapping):
            raise wrong_type(value, "a node", field=field, hint="write {name: …, task: …}")
        return NODE.read(value, field, reading=reading)

    def write(self, value: Any) -> dict[str, Any]:
        return NODE.write(value)

    def schema(self) -> dict[str, Any]:
        return {"$ref": "#/$defs/node"}


WORKFLOW = Block(
    type=WorkflowDefinition,
    thing="a workflow",
    fields=(
        Field(
            name="name",
            attribute="name",
            kind=_NAME,
            description="Name of the workflow, unique in its namespace.",
            required=True,
            examples=("nightly",),
        ),
        Field(
            name="description", attribute="description", kind=Text(), description="For people.", default=""
        ),
        Field(
            name="nodes",
            attribute="nodes",
            kind=ListOf(NodeKind(), NODES_MAX, "[{name: …, task: …}]"),
            description="What runs, in any order.",
            required=True,
        ),
        Field(
            name="result",
            attribute="result",
            kind=Template(_ANYTHING),
            description="Result of a run that succeeds; may refer to the results of nodes.",
            examples=({"$result": "load"},),
        ),
    ),
)


def read_workflow(said: object, *, namespace: str, field: str) -> WorkflowDefinition:
    """Definition of one entry of ``workflows``; paths of faults begin with `field`, which may be empty.

    Raises ``InvalidDocument`` with every fault. The graph is judged once all of its fields can be read: codes
    of that are those of ``graph.workflow_faults``.
    """
    reading = Reading()
    if not isinstance(said, Mapping):
        raise InvalidDocument([wrong_type(said, "a workflow", field=field, hint=_HINT)])
    members = WORKFLOW.read_members(said, field, reading=reading)
    if not reading.faults and FAULTY not in members.values():
        definition = WorkflowDefinition(namespace=namespace, **members)
        for fault in workflow_faults(definition):
            reading.refuse(restated(fault, field=joined(field, fault.field)))
    if reading.faults:
        subject = f"{namespace}/{members['name']}" if isinstance(members["name"], str) else ""
        raise InvalidDocument([restated(fault, subject=subject) for fault in reading.faults])
    return definition


def read_workflows(value: object, *, namespace: str, field: str = "workflows") -> list[WorkflowDefinition]:
    """Definitions of a list of entries, all of whose faults are told at once. Raises ``InvalidDocument``."""
    if not isinstance(value, list | tuple):
        raise InvalidDocument([wrong_type(value, "a list", field=field, hint=f"write [{_HINT[6:]}]")])
    if len(value) > WORKFLOWS_COUNT_MAX:
        message = f"holds {len(value)} entries, at most {WORKFLOWS_COUNT_MAX}"
        raise InvalidDocument([UserError("INVALID_VALUE", message, field=field)])
    definitions: list[WorkflowDefinition] = []
    first: dict[str, int] = {}
    faults: list[UserError] = []
    for index, entry in enumerate(value):
        try:
            definition = read_workflow(entry, namespace=namespace, field=f"{field}[{index}]")
        except InvalidDocument as invalid:
            faults += invalid.errors
            continue
        definitions.append(definition)
        earlier = first.setdefault(definition.name, index)
        if earlier != index:
            message = f"workflow {definition.ref} is given twice"
            hint = f"first at {field}[{earlier}]; take one away, or give it another name"
            at = f"{field}[{index}].name"
            faults.append(
                UserError("INVALID_VALUE", message, subject=str(definition.ref), field=at, hint=hint)
            )
    if faults:
        raise InvalidDocument(faults)
    return definitions


def read_workflows_yaml(text: str | bytes, *, name: str, namespace: str) -> list[WorkflowDefinition]:
    """Workflows of a YAML text ``workflows: […]``; `name` stands in the place of each fault.

    Raises ``InvalidDocument`` with every fault and its line and column.
    """

    def read(root: object) -> list[WorkflowDefinition]:
        if not isinstance(root, Mapping) or "workflows" not in root:
            raise InvalidDocument([UserError("INVALID_DOCUMENT", "holds no workflows", hint=_ROOT_HINT)])
        faults = [
            unknown_field(key, ("workflows",), field="", thing="a document of workflows")
            for key in root
            if key != "workflows"
        ]
        if faults:
            raise InvalidDocument(faults)
        return read_workflows(root["workflows"], namespace=namespace)

    roots = read_roots(text, lambda root: read(plain_value(root)), name=name, hint=_ROOT_HINT)
    return [definition for definitions in roots for definition in definitions]


def write_workflow(definition: WorkflowDefinition) -> dict[str, Any]:
    """What `read_workflow` reads as the same definition."""
    return WORKFLOW.write(definition)


def workflows_schema() -> dict[str, Any]:
    """Schema of a list of workflows, JSON Schema draft 2020-12; it accepts every valid one.

    What only the whole graph shows (circles, references to what is not upstream) is beyond it.
    """
    one_of = [{"required": ["task"]}, {"required": ["workflow"]}]
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ostinato:schema:workflows",
        "title": "Workflows of Ostinato",
        "type": "array",
        "items": {"$ref": "#/$defs/workflow"},
        "$defs": {"workflow": WORKFLOW.schema(), "node": {**NODE.schema(), "oneOf": one_of}},
    }
