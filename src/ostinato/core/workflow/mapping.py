"""Nodes that are many instances: how many they become, and the next chunk of them.

The list is known when the node begins: written down, in a result, or the results of another mapped node, of
which item i makes item i here. Items are made in chunks from the cursor in the node's row, so a step costs
the same whatever the list's length, and a crash between two chunks loses and doubles nothing. A node that
runs one child workflow is made here as well: a list of one.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from ostinato.core.failure.failure import safe_failure
from ostinato.core.ids import id_within
from ostinato.core.states import State
from ostinato.core.workflow.graph import MapSource
from ostinato.core.workflow.payload import (
    Missing,
    Reference,
    UnresolvedError,
    default_of,
    encode_resolved,
    resolve,
)
from ostinato.core.workflow.rows import NewInstance, NodeRow, ResultRead, RunAgain, StartRun, TooLarge
from ostinato.core.workflow.rules import counted_as
from ostinato.core.workflow.states import NodeState
from ostinato.core.workflow.step import Step
from ostinato.errors import invariant

#: Items of one node that one step makes at most.
CHUNK_MAX = 500


class _NoItem(msgspec.Struct, frozen=True):
    """In place of an item that there is none for."""

    state: State
    reason: str


def references_of(step: Step, name: str) -> tuple[Reference, ...]:
    """All references that an instance of the node is made of."""
    source = step.graph.maps.get(name)
    over = () if source is None or source.reference is None else (source.reference,)
    return (*over, *step.graph.payloads[name].references)


def begin_many(step: Step, row: NodeRow) -> None:
    """Find how many instances the node becomes; without an item it succeeds, with an empty list.

    Raises `UnresolvedError` if what is mapped over is no list, or no payload can be made for any item.
    """
    source = step.graph.maps.get(row.name)
    references = step.graph.payloads[row.name].references
    known = step.know(references)
    if not (source is None or _know_list(step, source)) or not known:
        return
    if source is not None and _is_missing(step, source):
        _end_without_list(step, row, source)
        return
    total = 1 if source is None else _length(step, source)
    if total:
        _as_object(resolve(step.graph.payloads[row.name], step.lookup))
    row.total = total
    if total == 0:
        step.end(row, NodeState.SUCCESS, reason="it maps over an empty list")
    else:
        step.begin(row)


def create_items(step: Step, row: NodeRow) -> bool:
    """Make the next chunk of the node's instances; False where a fact is missing."""
    items = _items(step, row, low=row.created, high=min(row.total, row.created + CHUNK_MAX))
    made = None if items is None else _create_all(step, row, dict(enumerate(items, start=row.created)))
    if not made:
        return False
    row.created += made
    row.existing = max(row.existing, row.created)
    return True


def _create_all(step: Step, row: NodeRow, items: dict[int, object]) -> int:
    """Make `items`, by index; 0 where a fact is missing, else how many of them were made."""
    template = step.graph.payloads[row.name]
    missing = step.missing(row, references_of(step, row.name))
    if not step.know(template.references) or missing is None:
        return 0
    base = resolve(template, step.lookup)
    made = 0
    for index, item in items.items():
        if made and step.bytes_left <= 0:
            break
        _create(step, row, index, item=item, base=base, missing=missing)
        made += 1
    step.change(row)
    step.work_left -= made
    return made


def run_items_again(step: Step, row: NodeRow) -> bool:
    """Run items again that ended badly before the run was resumed; False where a fact is missing."""
    items = step.facts.redo.get(row.name)
    if items is None:
        step.wanted.redo.add(row.name)
        return False
    invariant(bool(items), "resume", "items are to run again and none is there", subject=step.run.id)
    items = items[: row.redo]
    found = {item: _items(step, row, low=item, high=item + 1) for item in items}
    known = {item: values[0] for item, values in found.items() if values is not None}
    made = _create_all(step, row, known) if len(known) == len(items) else 0
    if not made:
        return False
    row.redo -= made
    row.redo_cursor = items[made - 1] + 1
    return True


# ── the list ──────────────────────────────────────────────────────────────────────────────────────────


def _know_list(step: Step, source: MapSource) -> bool:
    if source.reference is None:
        return True
    if _is_whole_map(step, source):
        return step.row(source.reference.source) is not None
    return step.know([source.reference])


def _is_whole_map(step: Step, source: MapSource) -> bool:
    """It maps over all results of a mapped node, which are never read at once."""
    reference = source.reference
    return (
        reference is not None
        and reference.kind == "result"
        and not reference.path
        and reference.source in step.graph.maps
    )


def _is_missing(step: Step, source: MapSource) -> bool:
    reference = source.reference
    if reference is None or reference.kind != "result" or reference.default is not None:
        return False
    return not step.has_result(step.rows[reference.source])


def _end_without_list(step: Step, row: NodeRow, source: MapSource) -> None:
    """The node that was to give the list has none: its failure is passed on, anything else is a skip."""
    assert source.reference is not None  # else nothing could be missing
    upstream = step.rows[source.reference.source]
    excused = step.graph.nodes[upstream.name].strategy == "skip"
    failed = counted_as(upstream.state, excused=excused) in ("failed", "cancelled")
    state = NodeState.UPSTREAM_FAILED if failed else NodeState.SKIPPED
    step.end(
        row, state, reason=f"it maps over the result of {upstream.name}, which ended as {upstream.state}"
    )


def _length(step: Step, source: MapSource) -> int:
    """Raises `UnresolvedError` if what is mapped over is no list."""
    if source.items is not None:
        return len(source.items)
    assert source.reference is not None  # the other of the two
    if _is_whole_map(step, source):
        upstream = step.rows[source.reference.source]
        return (
            upstream.total
            if step.has_result(upstream)
            else len(_as_list(default_of(source.reference), source))
        )
    return len(_as_list(step.lookup(source.reference), source))


def _items(step: Step, row: NodeRow, *, low: int, high: int) -> Sequence[object] | None:
    """Items [low, high) of the list; None: more has to be known."""
    source = step.graph.maps.get(row.name)
    if source is None:
        return [None]
    if source.items is not None:
        return source.items[low:high]
    assert source.reference is not None  # the other of the two
    if not _know_list(step, source):
        return None
    if not _is_whole_map(step, source) or not step.has_result(step.rows[source.reference.source]):
        return _as_list(step.lookup(source.reference), source)[low:high]
    return _results_as_items(step, source.reference, low=low, high=high)


def _results_as_items(step: Step, reference: Reference, *, low: int, high: int) -> Sequence[object] | None:
    """Items of as many results from `low` on as may be read at once; None: they have to be read."""
    while True:
        read = ResultRead(reference.source, low, high)
        results = step.facts.results.get(read)
        if results is None:
            step.want_results({read})
            return None
        if not isinstance(results, TooLarge):
            break
        if high - low == 1:
            return [_NoItem(State.FAILED, f"item {low} of {reference} is too large to be handed on")]
        high = low + (high - low) // 2
    return [
        _NoItem(State.SKIPPED, f"item {index} of {reference} is missing")
        if result is None
        else msgspec.json.decode(result)
        for index, result in enumerate(results, start=low)
    ]


def _as_list(value: object, source: MapSource) -> list[object]:
    if not isinstance(value, list):
        raise UnresolvedError(f"{source.reference} is no list, so it cannot be mapped over")
    return value


# ── one item ──────────────────────────────────────────────────────────────────────────────────────────


def _create(
    step: Step, row: NodeRow, index: int, *, item: object, base: object, missing: tuple[Missing, ...]
) -> None:
    if isinstance(item, _NoItem):
        _born_ended(step, row, index, state=item.state, reason=item.reason)
        return
    source = step.graph.maps.get(row.name)
    try:
        payload = base if source is None else {**_as_object(base), source.parameter: item}
        encoded = encode_resolved(payload)
    except UnresolvedError as error:
        _born_ended(step, row, index, state=State.FAILED, reason=str(error))
        return
    node = step.graph.nodes[row.name]
    generation = step.run.generation
    if node.workflow:
        run_id = id_within(step.run.id, "run", row.name, str(index), str(generation))
        started = StartRun(
            run_id=run_id,
            node=row.name,
            item=index,
            workflow=node.workflow,
            payload=encoded,
            run_generation=generation,
        )
        step.start_run(started)
        return
    instance_id = step.instance_id(row.name, index)
    if index < row.existing:
        again = RunAgain(instance_id=instance_id, run_generation=generation, payload=encoded, missing=missing)
        step.run_again(again)
        return
    step.run.live_count += 1
    step.insert(
        NewInstance(
            instance_id=instance_id,
            node=row.name,
            item=index,
            task=node.task,
            state=State.PENDING,
            payload=encoded,
            missing=missing,
            run_generation=generation,
        )
    )


def _as_object(base: object) -> dict[str, object]:
    if not isinstance(base, dict):
        raise UnresolvedError("the payload is not an object")
    return base


def _born_ended(step: Step, row: NodeRow, index: int, *, state: State, reason: str) -> None:
    """An item that cannot run: it keeps its place in the list, and is counted at once."""
    if state is State.FAILED:
        row.failed += 1
    else:
        row.skipped += 1
    if index < row.existing or step.graph.nodes[row.name].workflow:
        return  # a row there tells of an earlier generation, and stays as that ended (I7)
    failure = safe_failure("BAD_PAYLOAD", reason) if state is State.FAILED else None
    step.insert(
        NewInstance(
            instance_id=step.instance_id(row.name, index),
            node=row.name,
            item=index,
            task=step.graph.nodes[row.name].task,
            state=state,
            run_generation=step.run.generation,
            reason=reason,
            failure=failure,
        )
    )
