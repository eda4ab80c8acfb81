"""Circles that no single workflow shows: through workflows that run workflows, and ends that trigger starts
(C151).

What counts is who causes whom to run. A workflow causes its nodes' tasks and workflows; where an upstream
trigger is set, the end of its source causes its target. A circle among these never ends, and no one
definition is at fault, so the set is looked at whenever one of them changes.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from ostinato.core.definition import TaskRef
from ostinato.core.workflow.definition import WorkflowDefinition


class Startable(NamedTuple):
    """A task or a workflow."""

    kind: Literal["task", "workflow"]
    ref: TaskRef

    def __str__(self) -> str:
        return f"{self.kind} {self.ref}"


class UpstreamTrigger(NamedTuple):
    """The end of `source` starts `target`."""

    source: Startable
    target: Startable


def find_circle(
    workflows: Iterable[WorkflowDefinition], triggers: Iterable[UpstreamTrigger] = ()
) -> list[Startable]:
    """One circle among `workflows` and `triggers`, each causing the next and the last the first; empty: none.

    Names that nothing defines cause nothing. Of several circles it is always the same one that is found,
    whatever the order of the arguments.
    """
    causes: dict[Startable, set[Startable]] = {}
    for definition in workflows:
        caused = causes.setdefault(Startable("workflow", definition.ref), set())
        for node in definition.nodes:
            caused |= _of_node(definition.namespace, node.task, node.workflow)
            if node.compensate is not None:
                caused |= _of_node(definition.namespace, node.compensate.task, "")
    for trigger in triggers:
        causes.setdefault(trigger.source, set()).add(trigger.target)
    return _first_circle({source: sorted(caused) for source, caused in sorted(causes.items())})


def _of_node(namespace: str, task: str, workflow: str) -> set[Startable]:
    if task:
        return {Startable("task", TaskRef(namespace, task))}
    return {Startable("workflow", TaskRef(namespace, workflow))} if workflow else set()


def _first_circle(causes: dict[Startable, list[Startable]]) -> list[Startable]:
    """Depth first with a stack of its own: the walk that stands on it is the circle once it meets itself."""
    done: set[Startable] = set()
    for start in causes:
        walk: dict[Startable, list[Startable]] = {}
        if start not in done:
            walk[start] = list(reversed(causes[start]))
        while walk:
            here = next(reversed(walk))
            if not walk[here]:
                done.add(here)
                del walk[here]
                continue
            following = walk[here].pop()
            if following in walk:
                path = [*walk]
                return path[path.index(following) :]
            if following not in done:
                walk[following] = list(reversed(causes.get(following, [])))
    return []
