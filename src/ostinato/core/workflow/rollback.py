"""Stopping a run, and undoing what it has done (I10, C153).

A run is stopped by a node with strategy ``rollback`` that failed, or by a person who cancels it or rolls it
back. From then on nothing of it begins. What waits is cancelled, what runs is asked to end, and *the end of
all of it is awaited*. Only then a rollback compensates, one instance after the other: first those that had
started and did not end in success, where their node declares ``unfinished``, then those that did, both from
the last to the first.

A compensation that fails for good stops the rollback: what is left was done before it, and undoing it may
rely on that the later has been undone. The run ends ``rollback_failed``, somebody is alerted, and a resume
goes on from exactly there.
"""

from __future__ import annotations

import msgspec

from ostinato.core.ids import id_within
from ostinato.core.states import State
from ostinato.core.workflow.payload import (
    Reference,
    UnresolvedError,
    default_of,
    encode_resolved,
    resolve,
    value_at,
)
from ostinato.core.workflow.rows import Alert, Cancel, Counted, EndedInstance, NewInstance, RunRow, Undoable
from ostinato.core.workflow.states import LIVE_NODE_STATES, NodeState, RunState, require_run_move
from ostinato.core.workflow.step import Step
from ostinato.errors import ConflictError


def cancelled_run(run: RunRow, *, reason: str, now_us: int) -> RunRow:
    """The row once somebody has asked for a cancel, which compensates nothing; it ends with what is live.

    A repeated wish changes nothing. Raises ``RUN_STATE`` for a run that has ended or is rolling back.
    """
    if run.state is not RunState.RUNNING:
        message = f"the run is {run.state}, so it cannot be cancelled"
        raise ConflictError("RUN_STATE", message, subject=run.id)
    if run.cancel_requested_us is not None:
        return run
    return msgspec.structs.replace(
        run, cancel_requested_us=now_us, reason=reason, due=True, revision=run.revision + 1
    )


def rolled_back_run(run: RunRow, *, reason: str) -> RunRow:
    """The row once somebody has asked for a rollback, also one for whom a cancel is under way.

    A repeated wish changes nothing. Raises ``RUN_STATE`` for a run that has ended.
    """
    if run.state is RunState.ROLLING_BACK:
        return run
    if run.state is not RunState.RUNNING:
        message = f"the run is {run.state}, so it cannot be rolled back"
        raise ConflictError("RUN_STATE", message, subject=run.id)
    row = msgspec.structs.replace(run, due=True, revision=run.revision + 1)
    begin_rollback(row, reason=reason)
    return row


def begin_rollback(run: RunRow, *, reason: str) -> None:
    """running → rolling_back, in place."""
    require_run_move("roll_back", run.state, target=RunState.ROLLING_BACK, subject=run.id)
    run.state = RunState.ROLLING_BACK
    run.reason = reason


def stop(step: Step) -> None:
    """Carry on a run that nothing may begin of: end what is live, then what never began, then the run."""
    run = step.run
    if step.effects.inserts:
        # Of this step's own start: they are in no fact yet that says what is live.
        step.more = True
        return
    if run.live_count:
        _end_live(step)
        return
    for row in [*step.rows.values()]:
        if row.state in LIVE_NODE_STATES and step.has_room():
            step.end(row, NodeState.FAILED if row.failed else NodeState.CANCELLED)
    if run.open_count:
        step.wanted.open_nodes = True
    elif run.state is RunState.ROLLING_BACK:
        _compensate(step)


def _end_live(step: Step) -> None:
    if step.facts.live is None:
        step.wanted.live = True
        return
    for live in step.facts.live:
        step.effects.cancels.append(Cancel(live.instance_id, live.node, step.run.reason))
    # Those that were asked are not told again: the next step finds the others, or that there are none.
    step.more |= bool(step.facts.live)


def _compensate(step: Step) -> None:
    """Begin the next compensation, unless one is under way; without a next one the rollback is over."""
    run = step.run
    if run.compensation_id:
        return
    if any(counted.undo_order is not None for counted in step.effects.counted):
        # What this step has only now put in the order is in no fact yet, and may be the first to undo.
        step.more = True
        return
    if step.facts.undo is None:
        step.wanted.undo = True
        return
    left = [undo for undo in step.facts.undo if run.undo_cursor is None or undo.undo_order < run.undo_cursor]
    if not left:
        step.end_run(RunState.ROLLED_BACK)
        return
    undo = max(left, key=lambda candidate: candidate.undo_order)
    compensate = step.graph.nodes[undo.node].compensate
    assert compensate is not None  # else its end would have got no order
    try:
        payload = encode_resolved(
            resolve(step.graph.compensations[undo.node], lambda reference: _own(step, undo, reference))
        )
    except UnresolvedError as error:
        _fail(step, f"the compensation of node {undo.node} has no payload: {error}")
        return
    run.compensation_id = id_within(run.id, "compensation", undo.node, str(undo.item))
    run.undo_cursor = undo.undo_order
    step.insert(
        NewInstance(
            instance_id=run.compensation_id,
            node=undo.node,
            item=undo.item,
            role="compensation",
            task=compensate.task,
            state=State.PENDING,
            payload=payload,
            run_generation=run.generation,
        )
    )


def _own(step: Step, undo: Undoable, reference: Reference) -> object:
    if reference.kind == "run":
        return value_at(msgspec.json.decode(step.run.payload), reference)
    encoded = undo.payload if reference.source == "payload" else undo.result
    return default_of(reference) if encoded is None else value_at(msgspec.json.decode(encoded), reference)


def count_compensation(step: Step, ended: EndedInstance) -> None:
    """A compensation has ended: the next one may begin, or the rollback has failed."""
    step.effects.counted.append(Counted(ended.instance_id))
    step.work_left -= 1
    if ended.instance_id != step.run.compensation_id or step.run.state is not RunState.ROLLING_BACK:
        return
    if ended.state is State.SUCCESS:
        step.run.compensation_id = ""
        return
    because = f": {ended.reason}" if ended.reason else ""
    _fail(step, f"the compensation of node {ended.node} ended as {ended.state}{because}")


def _fail(step: Step, reason: str) -> None:
    step.end_run(RunState.ROLLBACK_FAILED, reason=reason)
    step.effects.alerts.append(Alert(step.run.id, reason))
