"""What a workflow is: a named, versioned graph of nodes, each of which runs a task or another workflow.

A definition is immutable, like a task's. A changed one becomes the next version; a run pins the version
that it was started with. Nothing here is checked: ``graph.workflow_faults`` refuses what could not run.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import msgspec

from ostinato.core.definition import TaskRef

#: What becomes of the run when a node has used up its retries.
Strategy: TypeAlias = Literal["fail", "skip", "rollback"]
STRATEGIES: tuple[Strategy, ...] = ("fail", "skip", "rollback")


class MapOver(msgspec.Struct, frozen=True, omit_defaults=True):
    """One instance per item of a list, each told its item as parameter `parameter`."""

    #: JSON: a list, or a reference to one (``payload``).
    over: msgspec.Raw
    parameter: str = "item"


class Compensation(msgspec.Struct, frozen=True, omit_defaults=True):
    """The task that undoes what an instance of the node has done."""

    task: str
    #: May refer to the payload and the result of the instance that it undoes (``{"$own": "result"}``).
    payload: msgspec.Raw = msgspec.Raw(b'{"$own":"payload"}')
    #: Undo it, and first, also where it had started and did not end in success.
    unfinished: bool = False


class Node(msgspec.Struct, frozen=True, omit_defaults=True):
    """One node of the graph: exactly one of `task` and `workflow`, both of the workflow's own namespace."""

    name: str
    task: str = ""
    workflow: str = ""
    #: Names of the direct upstream nodes.
    after: tuple[str, ...] = ()
    trigger_rule: str = "all_success"
    #: JSON object with references in place of values (``payload``).
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    map: MapOver | None = None
    strategy: Strategy = "fail"
    compensate: Compensation | None = None


class WorkflowDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named, versioned graph of nodes."""

    namespace: str
    name: str
    nodes: tuple[Node, ...]
    #: JSON with references: result of a run that succeeds, which a workflow above is given.
    result: msgspec.Raw = msgspec.Raw(b"null")
    description: str = ""

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.namespace, self.name)


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(WorkflowDefinition)


def encode_workflow(definition: WorkflowDefinition) -> bytes:
    """Canonical JSON: equal definitions give equal bytes, so that an unchanged one makes no new version."""
    return _encoder.encode(definition)


def decode_workflow(encoded: bytes) -> WorkflowDefinition:
    """Definition of bytes made by `encode_workflow`."""
    return _decoder.decode(encoded)
