"""One run of a workflow over rows in memory: what docs/workflows.md wants of a store, and workers that do
as told.

Every commit is checked: nothing begins before its rule may be asked, every node ends once, no instance is
made twice, nothing runs beside a compensation.
"""

from __future__ import annotations

import json
from collections import ChainMap
from typing import Any

import msgspec

from ostinato.core.ids import id_within
from ostinato.core.states import LIVE_STATES, State
from ostinato.core.workflow.advance import advance
from ostinato.core.workflow.definition import Compensation, MapOver, Node, WorkflowDefinition
from ostinato.core.workflow.graph import Graph, compile_workflow
from ostinato.core.workflow.resume import resume
from ostinato.core.workflow.rollback import cancelled_run, rolled_back_run
from ostinato.core.workflow.rows import (
    Alert,
    Effects,
    EndedInstance,
    Facts,
    LiveInstance,
    NodeRow,
    ResultRead,
    RunRow,
    TooLarge,
    Undoable,
    Wanted,
)
from ostinato.core.workflow.rules import EARLY_RULES
from ostinato.core.workflow.states import LIVE_NODE_STATES, TERMINAL_NODE_STATES, NodeState, RunState

RUN_ID = "01hgw2bbg00000000000000000"


def node(
    name: str,
    *after: str,
    rule: str = "all_success",
    payload: object = None,
    over: object = None,
    parameter: str = "item",
    undo: str = "",
    unfinished: bool = False,
    undo_payload: object = None,
    **fields: Any,
) -> Node:
    """A node that runs the task of its own name, unless `workflow` is among the fields."""
    raw = msgspec.Raw(json.dumps({} if payload is None else payload).encode())
    mapped = None if over is None else MapOver(msgspec.Raw(json.dumps(over).encode()), parameter)
    own = {"$own": "payload"} if undo_payload is None else undo_payload
    compensate = Compensation(undo, msgspec.Raw(json.dumps(own).encode()), unfinished) if undo else None
    fields.setdefault("task", "" if "workflow" in fields else name)
    return Node(
        name=name, after=after, trigger_rule=rule, payload=raw, map=mapped, compensate=compensate, **fields
    )


def workflow(*nodes: Node, result: object = None) -> WorkflowDefinition:
    return WorkflowDefinition(
        namespace="default", name="flow", nodes=nodes, result=msgspec.Raw(json.dumps(result).encode())
    )


class Instance(msgspec.Struct, kw_only=True):
    """An instance of the run, or a child run."""

    id: str
    node: str
    item: int
    role: str
    state: State
    task: str = ""
    payload: bytes = b"{}"
    result: bytes | None = None
    missing: tuple[Any, ...] = ()
    reason: str = ""
    run_generation: int = 1
    generation: int = 1
    counted: bool = False
    undo_order: int | None = None
    cancel_asked: bool = False
    started: bool = False
    finished_us: int = 0
    is_child: bool = False

    @property
    def is_live(self) -> bool:
        return self.state in LIVE_STATES


class Run:
    """A run, its rows and its workers."""

    def __init__(self, definition: WorkflowDefinition, *, payload: object = None, chunk: int = 500) -> None:
        self.graph: Graph = compile_workflow(definition)
        self.now_us = 1_000
        self.row = RunRow(
            id=RUN_ID,
            namespace="default",
            workflow=definition.name,
            version=1,
            partition=0,
            open_count=len(definition.nodes),
            created_us=self.now_us,
            payload=json.dumps({} if payload is None else payload).encode(),
        )
        self.nodes: dict[str, NodeRow] = {}
        self.instances: dict[str, Instance] = {}
        #: What an index finds: ended and not counted, and nodes with something to do.
        self.uncounted: dict[str, Instance] = {}
        self.todo: dict[str, NodeRow] = {}
        self.alerts: list[Alert] = []
        #: Names, or name[item], in the order in which they began, and in which compensations began.
        self.begun: list[str] = []
        self.undone: list[str] = []
        self.chunk = chunk
        self.commit_count = 0
        self.rows_read = 0
        self.largest_commit = 0
        self.largest_bytes = 0
        self.most_reads = 0

    # ── the owner's loop ──────────────────────────────────────────────────────────────────────────────

    def settle(self) -> None:
        """Steps until there is nothing to do but to wait for workers."""
        for _ in range(100_000):
            if not self.step():
                return
        raise AssertionError("the run does not come to rest")

    def step(self, *, ended_max: int | None = None, ended_order: Any = None) -> bool:
        """One step with its commit; False where nothing was to be done."""
        if not self.has_work():
            return False
        effects = self.planned(ended_max=ended_max, ended_order=ended_order)
        if effects.run is None:
            return False
        assert self.commit(effects)
        return True

    def has_work(self) -> bool:
        """What the store's two indexes find."""
        live = self.row.finished_us is None
        return live and (self.row.due or bool(self.uncounted))

    def planned(self, *, ended_max: int | None = None, ended_order: Any = None, rounds: int = 50) -> Effects:
        """The effects of the next step, which has been told what it wanted."""
        facts = self._facts(ended_max, ended_order)
        before = msgspec.json.encode(facts.run), {name: repr(row) for name, row in facts.nodes.items()}
        for _ in range(rounds):
            effects = advance(self.graph, facts, now_us=self.now_us)
            if effects.wanted.is_empty():
                break
            self._tell(facts, effects.wanted)
        assert before[0] == msgspec.json.encode(facts.run), "a step changes what it was told"
        assert all(repr(facts.nodes[name]) == text for name, text in before[1].items())
        return effects

    def _facts(self, ended_max: int | None, ended_order: Any) -> Facts:
        uncounted = [*self.uncounted.values()]
        if ended_order is not None:
            ended_order(uncounted)
        todo = [*self.todo.values()]
        limit = self.chunk if ended_max is None else ended_max
        ended = [self._ended(instance) for instance in uncounted[:limit]]
        self.rows_read += len(todo[: self.chunk]) + len(ended)
        return Facts(
            run=msgspec.structs.replace(self.row),
            nodes={row.name: msgspec.structs.replace(row) for row in todo[: self.chunk]},
            ended=ended,
            more=len(todo) > self.chunk or len(uncounted) > limit,
        )

    @staticmethod
    def _ended(instance: Instance) -> EndedInstance:
        return EndedInstance(
            instance_id=instance.id,
            node=instance.node,
            state=instance.state,
            finished_us=instance.finished_us,
            item=instance.item,
            role=instance.role,  # type: ignore[arg-type]  # one of the two
            started=instance.started,
            run_generation=instance.run_generation,
            reason=instance.reason,
        )

    def _tell(self, facts: Facts, wanted: Wanted) -> None:
        self.most_reads = max(self.most_reads, len(wanted.results))
        for name in wanted.nodes:
            facts.nodes[name] = msgspec.structs.replace(self.nodes[name])
        if wanted.open_nodes:
            live = [row for row in self.nodes.values() if row.state in LIVE_NODE_STATES]
            for row in live[: self.chunk]:
                facts.nodes.setdefault(row.name, msgspec.structs.replace(row))
        for read in wanted.results:
            facts.results[read] = self._results(read)
            self.rows_read += read.high - read.low
        if wanted.live:
            forward = [item for item in self.instances.values() if item.is_live and item.role == "step"]
            left = [item for item in forward if not item.cancel_asked]
            facts.live = [LiveInstance(item.id, item.node) for item in left[: self.chunk]]
        if wanted.undo:
            facts.undo = self._undo()
        for name in wanted.redo:
            facts.redo[name] = self._redo(name)
        self.rows_read += len(wanted.nodes)

    def _results(self, read: ResultRead) -> list[bytes | None] | TooLarge:
        results: list[bytes | None] = [None] * (read.high - read.low)
        for item in range(read.low, read.high):
            found = self._instance_of(read.node, item)
            if found is not None and found.state is State.SUCCESS:
                results[item - read.low] = found.result
        size = sum(len(result) for result in results if result is not None)
        return TooLarge() if size > 1_048_576 else results

    def _instance_of(self, name: str, item: int) -> Instance | None:
        if self.graph.nodes[name].workflow:
            return self._child_of(name, item)
        return self.instances.get(id_within(RUN_ID, "step", name, str(item)))

    def _child_of(self, name: str, item: int) -> Instance | None:
        """One row an item: the newest child has taken the place of those before it."""
        children = (one for one in self.instances.values() if one.is_child)
        return next((one for one in children if (one.node, one.item) == (name, item)), None)

    def _undo(self) -> list[Undoable]:
        cursor = self.row.undo_cursor
        left = [
            item
            for item in self.instances.values()
            if item.undo_order is not None and (cursor is None or item.undo_order < cursor)
        ]
        left.sort(key=lambda item: item.undo_order or 0, reverse=True)
        return [
            Undoable(
                instance_id=item.id,
                node=item.node,
                item=item.item,
                undo_order=item.undo_order or 0,
                payload=item.payload,
                result=item.result,
            )
            for item in left[:1]
        ]

    def _redo(self, name: str) -> list[int]:
        row = self.nodes[name]
        bad = (State.FAILED, State.CANCELLED)
        found = [
            item.item
            for item in self.instances.values()
            if item.node == name and item.role == "step" and item.state in bad
            if item.item >= row.redo_cursor and item.run_generation < self.row.generation
        ]
        return sorted(found)[: self.chunk]

    # ── the store ─────────────────────────────────────────────────────────────────────────────────────

    def commit(self, effects: Effects) -> bool:
        """Write it where the run's revision is the expected one; False: nothing was written."""
        assert effects.run is not None
        if effects.run.revision != self.row.revision + 1:
            return False
        self._check(effects)
        self.row = effects.run
        self.commit_count += 1
        written = len(effects.nodes) + len(effects.inserts) + len(effects.unblocks) + len(effects.counted)
        self.largest_commit = max(self.largest_commit, written)
        payloads = [effects.inserts, effects.starts, effects.unblocks, effects.again]
        size = sum(len(one.payload or b"") for rows in payloads for one in rows)
        self.largest_bytes = max(self.largest_bytes, size)
        for row in effects.nodes:
            self.nodes[row.name] = row
            self.todo.pop(row.name, None)
            if row.todo:
                self.todo[row.name] = row
        for counted in effects.counted:
            instance = self.instances[counted.instance_id]
            assert not instance.counted
            instance.counted = True
            del self.uncounted[counted.instance_id]
            if counted.undo_order is not None:
                instance.undo_order = counted.undo_order
        self._insert(effects)
        for unblock in effects.unblocks:
            instance = self.instances[unblock.instance_id]
            if instance.state is State.BLOCKED:
                instance.state, instance.payload = State.PENDING, unblock.payload
                instance.missing = unblock.missing
                self.begun.append(self._label(instance))
        for end in effects.ended_blocked:
            instance = self.instances[end.instance_id]
            if instance.state is State.BLOCKED:
                instance.state, instance.reason, instance.counted = end.state, end.reason, True
        for cancel in effects.cancels:
            self._cancel(self.instances[cancel.instance_id])
        self.alerts += effects.alerts
        return True

    def _insert(self, effects: Effects) -> None:
        for new in effects.inserts:
            assert new.instance_id not in self.instances
            instance = Instance(
                id=new.instance_id,
                node=new.node,
                item=new.item,
                role=new.role,
                task=new.task,
                state=new.state,
                payload=new.payload,
                missing=new.missing,
                run_generation=new.run_generation,
                reason=new.reason,
                counted=new.state not in LIVE_STATES,
            )
            self.instances[new.instance_id] = instance
            if new.state is State.PENDING:
                log = self.begun if new.role == "step" else self.undone
                log.append(self._label(instance))
        for start in effects.starts:
            assert start.run_id not in self.instances
            old = self._child_of(start.node, start.item)
            if old is not None:
                assert not old.is_live
                assert old.counted
                del self.instances[old.id]
            child = Instance(
                id=start.run_id,
                node=start.node,
                item=start.item,
                role="step",
                task=start.workflow,
                state=State.PENDING,
                payload=start.payload,
                run_generation=start.run_generation,
                is_child=True,
                undo_order=None if old is None else old.undo_order,
            )
            self.instances[start.run_id] = child
            self.begun.append(self._label(child))
        for again in effects.again:
            instance = self.instances[again.instance_id]
            assert not instance.is_live
            assert instance.counted
            instance.state, instance.counted, instance.result = State.PENDING, False, None
            instance.generation += 1
            instance.run_generation = again.run_generation
            instance.cancel_asked = instance.started = False
            if again.payload is not None:
                instance.payload, instance.missing = again.payload, again.missing
            log = self.begun if instance.role == "step" else self.undone
            log.append(self._label(instance))

    def _cancel(self, instance: Instance) -> None:
        if not instance.is_live:
            return
        if instance.state in (State.RUNNING,) or (instance.is_child and instance.started):
            instance.cancel_asked = True
        else:
            self._finish(instance, State.CANCELLED, None, "")

    def _check(self, effects: Effects) -> None:
        assert effects.run is not None
        changed = {row.name: row for row in effects.nodes}
        after = ChainMap(changed, self.nodes)
        begins = [self.instances[unblock.instance_id].node for unblock in effects.unblocks]
        begins += [new.node for new in effects.inserts if new.state is State.PENDING and new.role == "step"]
        begins += [start.node for start in effects.starts]
        begins += [
            one.node
            for again in effects.again
            for one in [self.instances[again.instance_id]]
            if one.role == "step"
        ]
        for name in begins:
            spec = self.graph.nodes[name]
            assert effects.run.state is RunState.RUNNING
            assert spec.trigger_rule in EARLY_RULES or all(
                after[before].state in TERMINAL_NODE_STATES for before in spec.after
            ), f"{name} begins before its upstream has ended"
        for row in effects.nodes:
            old = self.nodes.get(row.name)
            if old is not None and old.state in TERMINAL_NODE_STATES:
                assert row.state is old.state or effects.run.generation > self.row.generation
        if any(new.role == "compensation" for new in effects.inserts):
            live = [item.node for item in self.instances.values() if item.is_live]
            assert live == [], f"{live} beside a compensation"
        if len(after) > 1_000:
            return  # the counts of large graphs are those of small ones
        open_count = sum(row.state in LIVE_NODE_STATES for row in after.values())
        assert effects.run.open_count == open_count + len(self.graph.nodes) - len(after)

    # ── workers and people ────────────────────────────────────────────────────────────────────────────

    def _label(self, instance: Instance) -> str:
        mapped = instance.node in self.graph.maps
        return f"{instance.node}[{instance.item}]" if mapped else instance.node

    def find(self, label: str, *, role: str = "step") -> Instance:
        found = [item for item in self.instances.values() if self._label(item) == label and item.role == role]
        return max(found, key=lambda item: (item.run_generation, item.is_child))

    def startable(self) -> list[Instance]:
        return [item for item in self.instances.values() if item.state is State.PENDING]

    def running(self) -> list[Instance]:
        return [item for item in self.instances.values() if item.state is State.RUNNING]

    def start(self, label: str, *, role: str = "step") -> None:
        self.start_instance(self.find(label, role=role))

    def start_instance(self, instance: Instance) -> None:
        assert instance.state is State.PENDING, f"{self._label(instance)} is {instance.state}"
        instance.state, instance.started = State.RUNNING, True

    def end(
        self, label: str, result: object = None, *, state: State = State.SUCCESS, role: str = "step"
    ) -> None:
        """Run it, if it does not run yet, to its end, and let the owner settle."""
        instance = self.find(label, role=role)
        if instance.state is State.PENDING:
            self.start_instance(instance)
        self.end_instance(instance, state, result)
        self.settle()

    def fail(self, label: str, *, role: str = "step") -> None:
        self.end(label, state=State.FAILED, role=role)

    def end_instance(self, instance: Instance, state: State, result: object = None) -> None:
        assert instance.state is State.RUNNING, f"{self._label(instance)} is {instance.state}"
        if instance.cancel_asked and state is State.FAILED:
            state = State.CANCELLED
        encoded = json.dumps(result, separators=(",", ":")).encode() if state is State.SUCCESS else None
        self._finish(instance, state, encoded, "boom" if state is State.FAILED else "")

    def _finish(self, instance: Instance, state: State, result: bytes | None, reason: str) -> None:
        self.now_us += 1
        instance.state, instance.result, instance.reason = state, result, reason
        instance.finished_us = self.now_us
        self.uncounted[instance.id] = instance

    def cancel(self) -> None:
        self.row = cancelled_run(self.row, reason="asked for", now_us=self.now_us)
        self.settle()

    def roll_back(self) -> None:
        self.row = rolled_back_run(self.row, reason="asked for")
        self.settle()

    def resume(self, *names: str) -> None:
        assert self.commit(resume(self.graph, self.row, rows=self.nodes, nodes=names))
        self.settle()

    # ── what is seen ──────────────────────────────────────────────────────────────────────────────────

    def states(self) -> dict[str, str]:
        return {name: str(self.nodes[name].state) for name in self.graph.order}

    def payload(self, label: str) -> Any:
        return json.loads(self.find(label).payload)

    def missing(self, label: str) -> list[tuple[str, str, int]]:
        return [(one.node, one.state, one.items) for one in self.find(label).missing]


def started(*nodes: Node, payload: object = None, result: object = None) -> Run:
    """A run of these nodes whose owner has done all that there is to do at its start."""
    run = Run(workflow(*nodes, result=result), payload=payload)
    run.settle()
    return run


__all__ = ["NodeState", "Run", "RunState", "node", "started", "workflow"]
