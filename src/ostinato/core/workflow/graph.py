"""The graph of a workflow: refused where it could not run, laid out where it can.

Nothing here recurses over nodes, so the depth of a graph is bounded by its size alone (C151). A graph
without a cycle has no node that cannot be reached, since every walk against the edges ends at a node
without upstream. What is refused as *unreachable* is a node whose trigger rule needs somebody upstream and
who has nobody.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Container, Iterator
from typing import Any, NamedTuple

import msgspec

from ostinato.core.names import validate_name
from ostinato.core.workflow.definition import STRATEGIES, Node, WorkflowDefinition, encode_workflow
from ostinato.core.workflow.payload import Reference, Template, parse_template, result_nodes
from ostinato.core.workflow.rules import EARLY_RULES, RULES, needs_upstream
from ostinato.errors import UserError, restated

NODES_MAX = 10_000
EDGES_MAX = 100_000
DEFINITION_BYTES_MAX = 4 * 1_048_576
#: Nodes of a cycle that a message names before it says how many more there are.
_NAMES_SHOWN = 20


class MapSource(NamedTuple):
    """What a mapped node maps over: items written down, or a reference to a list."""

    items: tuple[Any, ...] | None
    reference: Reference | None
    parameter: str


class Graph(NamedTuple):
    """A definition laid out for `advance`; made once per version, never changed."""

    definition: WorkflowDefinition
    nodes: dict[str, Node]
    #: Every node after all of its upstream; those of equal standing as they are written.
    order: tuple[str, ...]
    #: Place of each node in `order`.
    places: dict[str, int]
    successors: dict[str, tuple[str, ...]]
    payloads: dict[str, Template]
    maps: dict[str, MapSource]
    compensations: dict[str, Template]
    result: Template


def compile_workflow(
    definition: WorkflowDefinition,
    *,
    tasks: Container[str] | None = None,
    workflows: Container[str] | None = None,
) -> Graph:
    """The graph of `definition`.

    `tasks` and `workflows` are the names that the namespace has; None: not asked. Raises the first fault of
    `workflow_faults`.
    """
    graph, faults = _laid_out(definition, tasks=tasks, workflows=workflows)
    if faults:
        raise faults[0]
    assert graph is not None  # without a fault it was laid out
    return graph


def workflow_faults(
    definition: WorkflowDefinition,
    *,
    tasks: Container[str] | None = None,
    workflows: Container[str] | None = None,
) -> list[UserError]:
    """Everything that keeps `definition` from being registered, in order of its fields; empty: nothing.

    Codes are ``INVALID_WORKFLOW``, ``INVALID_NAME``, ``INVALID_VALUE``, ``INVALID_PAYLOAD`` and
    ``PAYLOAD_TOO_LARGE``; the field is a path such as ``nodes[3].after[0]``.
    """
    return _laid_out(definition, tasks=tasks, workflows=workflows)[1]


def _laid_out(
    definition: WorkflowDefinition, *, tasks: Container[str] | None, workflows: Container[str] | None
) -> tuple[Graph | None, list[UserError]]:
    faults = [*_size_faults(definition)]
    if faults:
        return None, faults
    nodes = {node.name: node for node in definition.nodes}
    faults += _name_faults(definition)
    for index, node in enumerate(definition.nodes):
        faults += _node_faults(node, f"nodes[{index}]", tasks=tasks, workflows=workflows)
        faults += _edge_faults(node, f"nodes[{index}]", nodes)
    if faults:
        return None, faults
    successors = _successors(definition)
    order = _order(definition, successors)
    if len(order) < len(nodes):
        cycle = _cycle(nodes, set(nodes) - set(order))
        field = f"nodes[{[*nodes].index(cycle[0])}].after"
        return None, [_invalid(f"the nodes go round in a circle: {_arrows(cycle)}", field)]
    places = {name: place for place, name in enumerate(order)}
    graph = Graph(definition, nodes, order, places, successors, {}, {}, {}, Template(None, ()))
    return _with_payloads(graph, faults), faults


# ── fields ────────────────────────────────────────────────────────────────────────────────────────────


def _size_faults(definition: WorkflowDefinition) -> Iterator[UserError]:
    if not definition.nodes:
        yield _invalid("a workflow needs at least one node", "nodes")
    if len(definition.nodes) > NODES_MAX:
        yield _invalid(f"{len(definition.nodes):,} nodes, at most {NODES_MAX:,}", "nodes")
    edge_count = sum(len(node.after) for node in definition.nodes)
    if edge_count > EDGES_MAX:
        yield _invalid(f"{edge_count:,} edges (`after`), at most {EDGES_MAX:,}", "nodes")
    try:
        size_bytes = len(encode_workflow(definition))
    except (TypeError, msgspec.MsgspecError, RecursionError) as error:
        yield _invalid(f"JSON cannot carry it: {error}", "nodes")
        return
    if size_bytes > DEFINITION_BYTES_MAX:
        message = f"{size_bytes:,} bytes of JSON, the limit is {DEFINITION_BYTES_MAX:,}"
        hint = "let a node return the list that is mapped over"
        yield UserError("PAYLOAD_TOO_LARGE", message, field="nodes", hint=hint)


def _name_faults(definition: WorkflowDefinition) -> Iterator[UserError]:
    yield from _refusal_of_name(definition.namespace, "namespace")
    yield from _refusal_of_name(definition.name, "name")
    seen: set[str] = set()
    for index, node in enumerate(definition.nodes):
        yield from _refusal_of_name(node.name, f"nodes[{index}].name")
        if node.name in seen:
            yield _invalid(f"there are two nodes {node.name!a}", f"nodes[{index}].name")
        seen.add(node.name)


def _refusal_of_name(name: str, field: str) -> Iterator[UserError]:
    try:
        validate_name(name, field=field)
    except UserError as error:
        yield error


def _node_faults(
    node: Node, field: str, *, tasks: Container[str] | None, workflows: Container[str] | None
) -> Iterator[UserError]:
    if bool(node.task) == bool(node.workflow):
        yield _invalid(f"node {node.name!a} needs a task or a workflow, and not both", f"{field}.task")
    uses = [("task", node.task, tasks), ("workflow", node.workflow, workflows)]
    if node.compensate is not None:
        uses.append(("compensate.task", node.compensate.task, tasks))
        if not node.compensate.task:
            yield _invalid(f"the compensation of node {node.name!a} needs a task", f"{field}.compensate.task")
    for part, name, known in uses:
        if not name:
            continue
        yield from _refusal_of_name(name, f"{field}.{part}")
        if known is not None and name not in known:
            kind = part.rpartition(".")[2]
            yield _invalid(f"there is no {kind} {name!a} in the namespace", f"{field}.{part}")
    if node.trigger_rule not in RULES:
        yield _unknown(node.trigger_rule, f"{field}.trigger_rule", tuple(RULES))
    elif not node.after and needs_upstream(node.trigger_rule):
        message = f"node {node.name!a} is unreachable: {node.trigger_rule} needs somebody in `after`"
        yield _invalid(message, f"{field}.trigger_rule")
    if node.strategy not in STRATEGIES:
        yield _unknown(node.strategy, f"{field}.strategy", STRATEGIES)


def _edge_faults(node: Node, field: str, nodes: dict[str, Node]) -> Iterator[UserError]:
    seen: set[str] = set()
    for index, name in enumerate(node.after):
        at = f"{field}.after[{index}]"
        if name == node.name:
            yield _invalid(f"node {name!a} comes after itself", at)
        elif name not in nodes:
            yield _invalid(f"node {node.name!a} comes after {name!a}, which is not there", at)
        elif name in seen:
            yield _invalid(f"node {node.name!a} comes after {name!a} twice", at)
        seen.add(name)


# ── order and cycles ──────────────────────────────────────────────────────────────────────────────────


def _successors(definition: WorkflowDefinition) -> dict[str, tuple[str, ...]]:
    lists: dict[str, list[str]] = {node.name: [] for node in definition.nodes}
    for node in definition.nodes:
        for name in node.after:
            lists[name].append(node.name)
    return {name: tuple(names) for name, names in lists.items()}


def _order(definition: WorkflowDefinition, successors: dict[str, tuple[str, ...]]) -> tuple[str, ...]:
    """Kahn's order; nodes on a cycle or after one are missing."""
    left = {node.name: len(node.after) for node in definition.nodes}
    ready = deque(name for name, count in left.items() if count == 0)
    order = []
    while ready:
        name = ready.popleft()
        order.append(name)
        for successor in successors[name]:
            left[successor] -= 1
            if left[successor] == 0:
                ready.append(successor)
    return tuple(order)


def _cycle(nodes: dict[str, Node], unordered: set[str]) -> list[str]:
    """Names of one cycle, each before the next; each of `unordered` has an upstream among them.

    Walking against the edges from any of them comes back to where it has been.
    """
    name = next(name for name in nodes if name in unordered)
    walk: dict[str, int] = {}
    while name not in walk:
        walk[name] = len(walk)
        name = next(before for before in nodes[name].after if before in unordered)
    cycle = [*walk][walk[name] :][::-1]
    places = {name: place for place, name in enumerate(nodes)}
    first = min(range(len(cycle)), key=lambda index: places[cycle[index]])
    return cycle[first:] + cycle[:first]


def _arrows(cycle: list[str]) -> str:
    shown = cycle[:_NAMES_SHOWN]
    more = len(cycle) - len(shown)
    return " → ".join([*shown, *([f"… {more:,} more …"] if more else []), cycle[0]])


# ── payloads ──────────────────────────────────────────────────────────────────────────────────────────


def _with_payloads(graph: Graph, faults: list[UserError]) -> Graph:
    """The graph with its templates; what is wrong with them is added to `faults`."""
    needed: list[tuple[str | None, str, Template]] = []
    # Most nodes have a payload that others have, too: none.
    seen: dict[tuple[bytes, tuple[str, ...]], Template] = {}

    def template(encoded: msgspec.Raw, field: str, *, kinds: tuple[str, ...], node: str | None) -> Template:
        key = (bytes(encoded), kinds)
        try:
            parsed = seen.get(key) or parse_template(key[0], field=field, kinds=kinds)
        except UserError as error:
            faults.append(error)
            return Template({}, ())
        seen[key] = parsed
        if parsed.references:
            needed.append((node, field, parsed))
        return parsed

    for index, node in enumerate(graph.definition.nodes):
        field = f"nodes[{index}]"
        payload = template(node.payload, f"{field}.payload", kinds=("result", "run"), node=node.name)
        if not isinstance(payload.tree, dict | Reference):
            message = "a JSON object is needed, or a reference to one"
            faults.append(UserError("INVALID_PAYLOAD", message, field=f"{field}.payload"))
        graph.payloads[node.name] = payload
        if node.map is not None:
            over = template(node.map.over, f"{field}.map.over", kinds=("result", "run"), node=node.name)
            graph.maps[node.name] = _map_source(node, over, payload, field=field, faults=faults)
        if node.compensate is not None:
            undo = template(
                node.compensate.payload, f"{field}.compensate.payload", kinds=("own", "run"), node=node.name
            )
            graph.compensations[node.name] = undo
    result = template(graph.definition.result, "result", kinds=("result", "run"), node=None)
    faults += _reference_faults(graph, needed)
    return graph._replace(result=result)


def _map_source(
    node: Node, over: Template, payload: Template, *, field: str, faults: list[UserError]
) -> MapSource:
    assert node.map is not None  # asked by the caller
    parameter = node.map.parameter
    faults += _refusal_of_name(parameter, f"{field}.map.parameter")
    if isinstance(payload.tree, dict) and parameter in payload.tree:
        message = f"parameter {parameter!a} is given by the map and by the payload"
        faults.append(_invalid(message, f"{field}.map.parameter"))
    if isinstance(over.tree, Reference):
        return MapSource(None, over.tree, parameter)
    if not isinstance(over.tree, list) or over.references:
        message = "a list of values is needed, or a reference to a list"
        faults.append(_invalid(message, f"{field}.map.over"))
        return MapSource((), None, parameter)
    return MapSource(tuple(over.tree), None, parameter)


def _reference_faults(graph: Graph, needed: list[tuple[str | None, str, Template]]) -> Iterator[UserError]:
    """References to nodes whose end is not certain to be known when the node that refers to them begins."""
    settled: dict[str, int] | None = None
    bits = {name: 1 << place for name, place in graph.places.items()}
    for name, field, parsed in needed:
        for source in result_nodes(parsed.references):
            if source not in graph.nodes:
                yield _invalid(f"it refers to node {source!a}, which is not there", field)
            elif name is not None and not _waits_for(graph, name, source):
                settled = _settled(graph, bits) if settled is None else settled
                if not settled[name] & bits[source]:
                    hint = f"add {source!a} to its `after`" if source != name else ""
                    message = f"node {name!a} refers to {source!a}, which is not upstream of it"
                    if graph.nodes[name].trigger_rule in EARLY_RULES:
                        rule = graph.nodes[name].trigger_rule
                        message, hint = (
                            f"with {rule} node {name!a} waits for nobody, so not for {source!a}",
                            "",
                        )
                    yield restated(_invalid(message, field), hint=hint)


def _waits_for(graph: Graph, name: str, source: str) -> bool:
    node = graph.nodes[name]
    return node.trigger_rule not in EARLY_RULES and source in node.after


def _settled(graph: Graph, bits: dict[str, int]) -> dict[str, int]:
    """For each node the set, as bits, of those that have ended when it begins.

    Past a node that waits for nobody nothing is certain, whatever its `after` says.
    """
    settled: dict[str, int] = {}
    for name in graph.order:
        node = graph.nodes[name]
        known = 0
        if node.trigger_rule not in EARLY_RULES:
            for before in node.after:
                known |= settled[before] | bits[before]
        settled[name] = known
    return settled


def _invalid(message: str, field: str) -> UserError:
    return UserError("INVALID_WORKFLOW", message, field=field)


def _unknown(value: str, field: str, allowed: tuple[str, ...]) -> UserError:
    return UserError(
        "INVALID_VALUE", f"{value!a} is not known", field=field, hint=f"one of {', '.join(allowed)}"
    )
