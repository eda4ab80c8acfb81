"""The step: what is stored of a run and what has ended since, in; what is to be written, out.

::

    facts ──► advance ──► effects ──► one transaction, written only where the run's row is as it was read
                 │
                 └──► effects.wanted: facts that let the step go further; read them, and call it again

One step does, in this order and within a bound (`step.WORK_MAX`):

1. *start*: rows and ``blocked`` instances of the next nodes, until the graph is complete. Nothing runs
   before.
2. *count*: each ended instance, once. A node whose instances have all ended ends itself.
3. *stop* (``rollback``), where the run is cancelled or rolling back; otherwise
4. *tell*: the end of a node goes into the counts of its direct successors. Whose last upstream it was is
   ``ready``.
5. *begin*: the rule of a ``ready`` node is asked; its instance is unblocked, or the node ends without
   running.
6. *create*: the next chunk of items of mapped nodes, those that are furthest behind first.
7. *end*: the run, once every node has ended.

So the cost of a step is what has ended and its direct successors, however large the graph and the maps. The
step decides by rows alone, and all that it decides is in rows again: a crash loses nothing, a repetition
counts nothing twice.
"""

from __future__ import annotations

import msgspec

from ostinato.core.failure.failure import safe_failure
from ostinato.core.states import State
from ostinato.core.workflow.graph import Graph
from ostinato.core.workflow.mapping import begin_many, create_items, references_of, run_items_again
from ostinato.core.workflow.payload import UnresolvedError, encode_bounded, encode_resolved, resolve
from ostinato.core.workflow.rollback import begin_rollback, count_compensation, stop
from ostinato.core.workflow.rows import (
    Counted,
    Effects,
    EndBlocked,
    EndedInstance,
    Facts,
    NewInstance,
    NodeRow,
    RunAgain,
    Unblock,
)
from ostinato.core.workflow.rules import EARLY_RULES, Decision, Ends, counted_as, decide_rule
from ostinato.core.workflow.states import TERMINAL_NODE_STATES, NodeState, RunState
from ostinato.core.workflow.step import UNFINISHED_FIRST, Step


def advance(graph: Graph, facts: Facts, *, now_us: int) -> Effects:
    """One step of a run of `graph` at the instant `now_us`; the facts are left as they are.

    What the effects say is right whatever facts were left out. Without anything to write `Effects.run` is
    None.
    """
    step = Step(graph, facts, now_us=now_us)
    if step.run.finished_us is None:
        if step.run.start_cursor < len(graph.order):
            _start(step)
        if step.run.start_cursor == len(graph.order):
            _carry_on(step)
    return step.finish()


def _carry_on(step: Step) -> None:
    _count(step)
    if step.run.finished_us is None and step.run.is_stopping:
        stop(step)
    elif step.run.finished_us is None:
        _tell(step)
        _begin(step)
        _create(step)
    if step.run.finished_us is None and step.run.state is RunState.RUNNING and not step.run.open_count:
        _end_run(step)


# ── start ─────────────────────────────────────────────────────────────────────────────────────────────


def _start(step: Step) -> None:
    while step.run.start_cursor < len(step.graph.order) and step.has_room():
        node = step.graph.nodes[step.graph.order[step.run.start_cursor]]
        step.run.start_cursor += 1
        waits = bool(node.after) and node.trigger_rule not in EARLY_RULES
        row = NodeRow(name=node.name, state=NodeState.WAITING if waits else NodeState.READY)
        step.rows[node.name] = row
        step.change(row)
        if node.map is None:
            row.total = 1
        if node.map is not None or node.workflow:
            continue
        row.created = row.existing = 1
        step.run.live_count += 1
        instance_id = step.instance_id(node.name, 0)
        step.insert(
            NewInstance(instance_id=instance_id, node=node.name, item=0, task=node.task, state=State.BLOCKED)
        )


# ── count ─────────────────────────────────────────────────────────────────────────────────────────────


def _count(step: Step) -> None:
    """In order of their ends, which is the order that a rollback goes back."""
    for ended in sorted(step.facts.ended, key=lambda ended: (ended.finished_us, ended.instance_id)):
        if ended.role == "compensation":
            count_compensation(step, ended)
            continue
        row = step.row(ended.node)
        if row is None or not step.has_room():
            continue
        if row.state in TERMINAL_NODE_STATES or ended.run_generation < row.generation:
            # Its row did not match when the node ended without it: it was counted then.
            step.effects.counted.append(Counted(ended.instance_id))
            continue
        _count_one(step, row, ended)
        settle(step, row, reason=ended.reason)


def _count_one(step: Step, row: NodeRow, ended: EndedInstance) -> None:
    node = step.graph.nodes[row.name]
    order = None
    if ended.state is State.SUCCESS:
        row.success += 1
        step.run.sequence += 1
        order = step.run.sequence if node.compensate is not None else None
    elif ended.state is State.SKIPPED:
        row.skipped += 1
    else:
        if ended.state is State.FAILED:
            row.failed += 1
        else:
            row.cancelled += 1
        if node.compensate is not None and node.compensate.unfinished and ended.started:
            step.run.sequence += 1
            order = UNFINISHED_FIRST + step.run.sequence
    step.run.live_count -= 1
    step.effects.counted.append(Counted(ended.instance_id, order))
    step.work_left -= 1
    step.change(row)
    if ended.state is State.FAILED:
        _consider_rollback(step, row, reason=ended.reason)


def _consider_rollback(step: Step, row: NodeRow, *, reason: str) -> None:
    if step.graph.nodes[row.name].strategy == "rollback" and not step.run.is_stopping:
        because = f": {reason}" if reason else ""
        begin_rollback(step.run, reason=f"node {row.name} failed{because}")


def settle(step: Step, row: NodeRow, *, reason: str = "") -> None:
    """End the node if all of its instances have."""
    complete = row.created == row.total and not row.redo
    if row.ended + row.redo < row.created or not (complete or step.run.is_stopping):
        return
    if row.failed:
        step.end(row, NodeState.FAILED, reason=_items_words(step, row, reason))
    elif row.cancelled or not complete:
        step.end(row, NodeState.CANCELLED, reason=reason)
    elif row.skipped == row.total:
        step.end(row, NodeState.SKIPPED, reason=reason)
    else:
        step.end(row, NodeState.SUCCESS)


def _items_words(step: Step, row: NodeRow, reason: str) -> str:
    if row.name not in step.graph.maps:
        return reason
    return f"{row.failed} of {row.total} items failed{f', the last: {reason}' if reason else ''}"


# ── tell ──────────────────────────────────────────────────────────────────────────────────────────────


def _tell(step: Step) -> None:
    """A node that begins and ends within the step is told by the next one, or by `_begin`."""
    for row in [*step.rows.values()]:
        if row.state in TERMINAL_NODE_STATES and not row.told:
            _tell_successors(step, row)


def _tell_successors(step: Step, row: NodeRow) -> list[NodeRow]:
    """Those that became ready by it."""
    successors = step.graph.successors[row.name]
    excused = step.graph.nodes[row.name].strategy == "skip"
    count = counted_as(row.state, excused=excused)
    ready: list[NodeRow] = []
    while row.tell_cursor < len(successors) and step.has_room():
        successor = step.row(successors[row.tell_cursor])
        if successor is None:
            step.wanted.nodes.update(
                name
                for name in successors[row.tell_cursor :][: max(step.work_left, 1)]
                if name not in step.rows
            )
            return ready
        successor.count_upstream(count)
        row.tell_cursor += 1
        step.change(row)
        step.change(successor)
        last = successor.upstream.total == len(step.graph.nodes[successor.name].after)
        if last and successor.state is NodeState.WAITING:
            step.release(successor)
            ready.append(successor)
    if row.tell_cursor == len(successors):
        row.told = True
        step.change(row)
    return ready


# ── begin ─────────────────────────────────────────────────────────────────────────────────────────────


def _begin(step: Step) -> None:
    """Nodes that end without running tell their successors at once, who may end in the same way."""
    ready = [row for row in step.rows.values() if row.state is NodeState.READY]
    while ready and step.has_room():
        row = ready.pop(0)
        _begin_one(step, row)
        if step.run.is_stopping:
            step.more = True
            return
        if row.state in TERMINAL_NODE_STATES and not row.told:
            ready += _tell_successors(step, row)
    step.more |= bool(ready)


def _begin_one(step: Step, row: NodeRow) -> None:
    node = step.graph.nodes[row.name]
    decision = decide_rule(node.trigger_rule, row.upstream)
    if decision is not Decision.RUN:
        state = NodeState.SKIPPED if decision is Decision.SKIP else NodeState.UPSTREAM_FAILED
        reason = f"{node.trigger_rule} does not hold: {_ends_words(row.upstream)}"
        step.end(row, state, reason=reason)
    else:
        try:
            if node.map is not None or node.workflow:
                begin_many(step, row)
            else:
                _unblock(step, row)
        except UnresolvedError as error:
            row.failed = max(row.failed, 1)
            step.end(row, NodeState.FAILED, reason=str(error))
            _consider_rollback(step, row, reason=str(error))
    if row.state in TERMINAL_NODE_STATES:
        _end_blocked(step, row)


def _unblock(step: Step, row: NodeRow) -> None:
    references = references_of(step, row.name)
    missing = step.missing(row, references)
    if not step.know(references) or missing is None:
        return
    payload = encode_resolved(resolve(step.graph.payloads[row.name], step.lookup))
    instance_id = step.instance_id(row.name, 0)
    if row.generation == 1:
        step.unblock(Unblock(instance_id=instance_id, payload=payload, missing=missing))
    else:
        row.created = 1
        again = RunAgain(
            instance_id=instance_id, run_generation=step.run.generation, payload=payload, missing=missing
        )
        step.run_again(again)
    step.begin(row)


def _end_blocked(step: Step, row: NodeRow) -> None:
    """The node has ended without having run. An instance of an earlier generation stays as it ended (I7)."""
    node = step.graph.nodes[row.name]
    if node.map is not None or node.workflow or row.generation > 1:
        return
    failed = row.state is NodeState.FAILED
    row.failed, row.skipped = int(failed), int(not failed)
    step.run.live_count -= 1
    step.work_left -= 1
    step.end_blocked(
        EndBlocked(
            instance_id=step.instance_id(row.name, 0),
            state=State.FAILED if failed else State.SKIPPED,
            reason=row.reason,
            failure=safe_failure("BAD_PAYLOAD", row.reason) if failed else None,
        )
    )


def _ends_words(ends: Ends) -> str:
    counts = [f"{count} {name}" for name, count in msgspec.structs.asdict(ends).items() if count]
    return f"of {ends.total} upstream {', '.join(counts)}"


# ── create ────────────────────────────────────────────────────────────────────────────────────────────


def _create(step: Step) -> None:
    """Chunks of items; the node with the fewest comes first, so that a long list holds up no short one."""
    rows = [row for row in step.rows.values() if row.todo in ("create", "redo")]
    for row in sorted(rows, key=lambda row: (row.created, row.name)):
        if step.run.is_stopping or not step.has_room():
            step.more = True
            return
        failed = row.failed
        done = run_items_again(step, row) if row.redo else create_items(step, row)
        if done and row.failed > failed:
            _consider_rollback(step, row, reason=f"item of {row.name} has no payload")
        if done:
            settle(step, row)
        step.more |= row.todo in ("create", "redo") and done
        step.more |= row.todo == "tell"


# ── end ───────────────────────────────────────────────────────────────────────────────────────────────


def _end_run(step: Step) -> None:
    """Every node has ended: so does the run, with its result if it succeeded."""
    if step.run.failed_count:
        step.end_run(RunState.CANCELLED if step.run.cancel_requested_us is not None else RunState.FAILED)
        return
    if not step.know(step.graph.result.references):
        return
    try:
        result = encode_bounded(resolve(step.graph.result, step.lookup), what="the result")
    except UnresolvedError as error:
        step.end_run(RunState.FAILED, reason=f"the run has no result: {error}")
        return
    step.run.result = result
    step.end_run(RunState.SUCCESS)
