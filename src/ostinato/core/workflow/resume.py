"""Resume: a run that failed or was cancelled goes on, from what failed.

Runs again: what failed, was cancelled or could not run, the nodes that the person names, and everything
downstream of all of these, since what it was given changes. Everything else keeps its end and its result.
Of a mapped node that failed while nothing before it runs again, only the items that failed or were
cancelled run again; where something before it does, its list may be another: it is mapped anew, over
exactly the current list. Instances that an earlier, longer list has left stay as they ended and are in no
count and no join (C149).

An instance that runs again gets its next generation when its node begins, not before: until then, and for
ever where the node is skipped this time, it stays as it ended (I7).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec

from ostinato.core.workflow.graph import Graph
from ostinato.core.workflow.rows import Effects, NodeRow, RunAgain, RunRow
from ostinato.core.workflow.rules import EARLY_RULES, counted_as
from ostinato.core.workflow.states import (
    RESUMABLE_RUN_STATES,
    NodeState,
    RunState,
    require_node_move,
    require_run_move,
)
from ostinato.core.workflow.step import fails_run
from ostinato.errors import ConflictError, UserError


def resume(
    graph: Graph, run: RunRow, *, rows: Mapping[str, NodeRow], nodes: Collection[str] = (), by: str = ""
) -> Effects:
    """The effects of a person's resume; `rows` are all of the run's, `nodes` those to run again in any case.

    Of a run whose rollback failed the rollback goes on, with the compensation that failed. Raises
    ``RUN_STATE`` for a run in a state that nothing is resumed from, or in which nothing failed and no node
    is named, and ``INVALID_VALUE`` (field ``nodes``) for a name that the workflow does not have.
    """
    if run.state not in RESUMABLE_RUN_STATES:
        message = f"the run is {run.state}; only one that failed or was cancelled can be resumed"
        raise ConflictError("RUN_STATE", message, subject=run.id)
    if run.state is RunState.ROLLBACK_FAILED:
        return _rollback_resumed(run, nodes, by=by)
    for name in nodes:
        if name not in graph.nodes:
            message = f"the workflow has no node {name!a}"
            raise UserError("INVALID_VALUE", message, subject=run.id, field="nodes")
    failed = {name for name, row in rows.items() if fails_run(graph.nodes[name], row.state)}
    if not failed and not nodes:
        message = "no node of the run failed; name those that shall run again"
        raise ConflictError("RUN_STATE", message, subject=run.id)
    again = _downstream(graph, failed | set(nodes))
    behind = set(nodes) | {successor for name in again for successor in graph.successors[name]}
    some = {name for name in again - behind if name in graph.maps and rows[name].created}
    anew = again - some
    resumed = _resumed_run(run, RunState.RUNNING, open_count=len(again), by=by)
    effects = Effects(run=resumed)
    for name in graph.order:
        if name in anew:
            row = _begun_anew(graph, rows, name, again=again, generation=resumed.generation)
        elif name in some:
            row = _some_again(rows[name])
        elif rows[name].told:
            continue
        else:
            # The run ended before its successors were told; theirs are counted afresh above.
            row = msgspec.structs.replace(rows[name], told=True)
        effects.nodes.append(row)
    return effects


def _downstream(graph: Graph, names: Collection[str]) -> set[str]:
    """`names` and all that stands behind them."""
    found = set(names)
    left = [*names]
    while left:
        for successor in graph.successors[left.pop()]:
            if successor not in found:
                found.add(successor)
                left.append(successor)
    return found


def _resumed_run(run: RunRow, state: RunState, *, open_count: int, by: str) -> RunRow:
    require_run_move("resume", run.state, target=state, subject=run.id)
    return msgspec.structs.replace(
        run,
        state=state,
        revision=run.revision + 1,
        generation=run.generation + 1,
        due=True,
        open_count=open_count,
        failed_count=0,
        cancel_requested_us=None,
        finished_us=None,
        reason="" if state is RunState.RUNNING else f"resumed by {by or 'a client'}",
    )


def _rollback_resumed(run: RunRow, nodes: Collection[str], *, by: str) -> Effects:
    if nodes:
        message = "its rollback failed, which can only go on; no node of it runs again"
        raise ConflictError("RUN_STATE", message, subject=run.id)
    resumed = _resumed_run(run, RunState.ROLLING_BACK, open_count=0, by=by)
    resumed.failed_count = run.failed_count
    effects = Effects(run=resumed)
    if run.compensation_id:
        effects.again.append(
            RunAgain(instance_id=run.compensation_id, run_generation=resumed.generation, payload=None)
        )
    return effects


def _begun_anew(
    graph: Graph, rows: Mapping[str, NodeRow], name: str, *, again: set[str], generation: int
) -> NodeRow:
    node = graph.nodes[name]
    old = rows[name]
    row = NodeRow(
        name=name, generation=generation, total=0 if node.map is not None else 1, existing=old.existing
    )
    for before in node.after:
        if before not in again:
            excused = graph.nodes[before].strategy == "skip"
            row.count_upstream(counted_as(rows[before].state, excused=excused))
    if row.upstream.total == len(node.after) or node.trigger_rule in EARLY_RULES:
        row.state = NodeState.READY
    require_node_move("resume", old.state, target=row.state, subject=name)
    return row


def _some_again(old: NodeRow) -> NodeRow:
    require_node_move("resume", old.state, target=NodeState.RUNNING, subject=old.name)
    return msgspec.structs.replace(
        old,
        state=NodeState.RUNNING,
        redo=old.redo + old.failed + old.cancelled,
        redo_cursor=0,
        failed=0,
        cancelled=0,
        reason="",
        told=False,
        tell_cursor=0,
    )
