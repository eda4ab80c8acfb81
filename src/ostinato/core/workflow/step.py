"""What the parts of one step share: the rows as the step changes them, its effects, and what it still wants
to know.

A part does a piece of work whole or not at all. It leaves a piece undone where a fact is missing, having
noted which, or where the step's bound is reached; the rows still say that it is to be done.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable

import msgspec

from ostinato.core.ids import id_within
from ostinato.core.states import State
from ostinato.core.workflow.definition import Node
from ostinato.core.workflow.graph import Graph
from ostinato.core.workflow.payload import (
    Missing,
    Reference,
    UnresolvedError,
    default_of,
    is_index,
    result_nodes,
    value_at,
)
from ostinato.core.workflow.rows import (
    Effects,
    EndBlocked,
    Facts,
    NewInstance,
    NodeRow,
    ResultRead,
    RunAgain,
    StartRun,
    TooLarge,
    Unblock,
)
from ostinato.core.workflow.rules import EARLY_RULES
from ostinato.core.workflow.states import (
    NodeState,
    RunState,
    require_node_move,
    require_run_move,
)

#: Rows that one step writes at most, give or take a node: a transaction of some milliseconds.
WORK_MAX = 500
#: Payloads that one step writes at most, give or take one: 500 may each be as long as a result.
PAYLOAD_BYTES_MAX = 8 * 1_048_576
#: Results that one call wants read at most, but for those of one node: each may be as long as a result.
READS_MAX = 32
#: Added to the sequence of an instance that did not end in success: those are undone first (I10).
UNFINISHED_FIRST = 1 << 48

_MOVE_NAMES = {
    NodeState.SUCCESS: "succeed",
    NodeState.FAILED: "fail",
    NodeState.SKIPPED: "skip",
    NodeState.UPSTREAM_FAILED: "give_up",
    NodeState.CANCELLED: "cancel",
}
_RUN_MOVE_NAMES = {
    RunState.SUCCESS: "succeed",
    RunState.FAILED: "fail",
    RunState.CANCELLED: "cancel",
    RunState.ROLLED_BACK: "finish_rollback",
    RunState.ROLLBACK_FAILED: "fail_rollback",
}


class Step:
    """One step under way. `rows` are copies: the facts stay as they were told."""

    def __init__(self, graph: Graph, facts: Facts, *, now_us: int) -> None:
        self.graph = graph
        self.facts = facts
        self.now_us = now_us
        self.run = msgspec.structs.replace(facts.run)
        # In the graph's order: what a step does is not to depend on how its facts were found.
        told = sorted(facts.nodes, key=graph.places.__getitem__)
        self.rows = {name: msgspec.structs.replace(facts.nodes[name]) for name in told}
        self.effects = Effects()
        self.wanted = self.effects.wanted
        self.changed: dict[str, NodeRow] = {}
        self.work_left = WORK_MAX
        self.bytes_left = PAYLOAD_BYTES_MAX
        #: The bound was reached with work left.
        self.more = facts.more
        self._cascades = False
        #: Places of this step's own inserts: one row is written once.
        self._born: dict[str, int] = {}
        self._decoded: dict[ResultRead, list[object]] = {}

    # ── rows ──────────────────────────────────────────────────────────────────────────────────────────

    def row(self, name: str) -> NodeRow | None:
        """The node's row; None, and wanted, where it was not told."""
        row = self.rows.get(name)
        if row is None:
            self.wanted.nodes.add(name)
        return row

    def change(self, row: NodeRow) -> None:
        """The row is written at the end of the step, as it is then."""
        if row.name not in self.changed:
            self.changed[row.name] = row
            self.work_left -= 1

    def has_room(self) -> bool:
        """Whether the step may take on another piece of work; if not, the next one goes on."""
        if self.work_left > 0 and self.bytes_left > 0:
            return True
        self.more = True
        return False

    def release(self, row: NodeRow) -> None:
        """waiting → ready."""
        require_node_move("release", row.state, target=NodeState.READY, subject=row.name)
        row.state = NodeState.READY
        self.change(row)

    def begin(self, row: NodeRow) -> None:
        """ready → running."""
        require_node_move("begin", row.state, target=NodeState.RUNNING, subject=row.name)
        row.state = NodeState.RUNNING
        self.change(row)

    def end(self, row: NodeRow, state: NodeState, *, reason: str = "") -> None:
        """Live → `state`: counts it, and what it means for the run."""
        require_node_move(_MOVE_NAMES[state], row.state, target=state, subject=f"{self.run.id}/{row.name}")
        self._cascades |= row.state is NodeState.READY
        row.state = state
        row.reason = reason
        row.sequence = self.run.sequence
        row.told = not self.graph.successors[row.name]
        self.run.open_count -= 1
        if fails_run(self.graph.nodes[row.name], state):
            self.run.failed_count += 1
            # The first says most: the others follow from it, or are one of several.
            self.run.reason = self.run.reason or f"node {row.name} {_ended_words(state)}{_because(reason)}"
        self.change(row)

    def end_run(self, state: RunState, *, reason: str = "") -> None:
        """Live → `state`."""
        name = _RUN_MOVE_NAMES[state]
        require_run_move(name, self.run.state, target=state, subject=self.run.id)
        self.run.state = state
        self.run.finished_us = self.now_us
        self.run.reason = reason or self.run.reason

    def instance_id(self, name: str, item: int) -> str:
        """Id of an instance of the node: the same whichever step makes it."""
        return id_within(self.run.id, "step", name, str(item))

    # ── instances ─────────────────────────────────────────────────────────────────────────────────────

    def insert(self, instance: NewInstance) -> None:
        """A new instance; what the step decides of it later is how it is born."""
        self.bytes_left -= len(instance.payload)
        self._born[instance.instance_id] = len(self.effects.inserts)
        self.effects.inserts.append(instance)

    def unblock(self, unblock: Unblock) -> None:
        """blocked → pending."""
        self.bytes_left -= len(unblock.payload)
        place = self._born.get(unblock.instance_id)
        if place is None:
            self.effects.unblocks.append(unblock)
            return
        self.effects.inserts[place] = msgspec.structs.replace(
            self.effects.inserts[place],
            state=State.PENDING,
            payload=unblock.payload,
            missing=unblock.missing,
        )

    def run_again(self, again: RunAgain) -> None:
        """terminal → pending, in the run's generation; it is live again."""
        self.bytes_left -= len(again.payload or b"")
        self.run.live_count += 1
        self.effects.again.append(again)

    def start_run(self, start: StartRun) -> None:
        """A child run, which is live from now on."""
        self.bytes_left -= len(start.payload)
        self.run.live_count += 1
        self.effects.starts.append(start)

    def end_blocked(self, end: EndBlocked) -> None:
        """blocked → skipped | failed."""
        place = self._born.get(end.instance_id)
        if place is None:
            self.effects.ended_blocked.append(end)
            return
        self.effects.inserts[place] = msgspec.structs.replace(
            self.effects.inserts[place], state=end.state, reason=end.reason, failure=end.failure
        )

    # ── what references stand for ─────────────────────────────────────────────────────────────────────

    def know(self, references: Iterable[Reference]) -> bool:
        """Whether everything that `references` need was told; what was not is wanted."""
        known = True
        reads: set[ResultRead] = set()
        for reference in references:
            if reference.kind != "result":
                continue
            source = self.row(reference.source)
            read = None if source is None else self._read_of(source, reference)
            known = known and source is not None
            if read is not None and read not in self.facts.results:
                reads.add(read)
        return self.want_results(reads) and known

    def want_results(self, reads: set[ResultRead]) -> bool:
        """Whether nothing is left to be read of `reads`; too many at once are left to a later call."""
        if self.wanted.results and len(self.wanted.results | reads) > READS_MAX:
            self.more = True
        else:
            self.wanted.results |= reads
        return not reads

    def has_result(self, row: NodeRow) -> bool:
        """Whether the node has a result to refer to: a mapped one that failed has that of its other items."""
        if row.state is NodeState.SUCCESS:
            return True
        return row.state is NodeState.FAILED and row.name in self.graph.maps and row.created > 0

    def lookup(self, reference: Reference) -> object:
        """Value of a reference that is known. Raises `UnresolvedError` where there is none and no default."""
        if reference.kind == "run":
            return value_at(msgspec.json.decode(self.run.payload), reference)
        row = self.rows[reference.source]
        if not self.has_result(row):
            return default_of(reference)
        read = self._read_of(row, reference)
        if read is None:
            # Of a mapped node, and the path does not begin with an item that it has.
            return value_at([], reference)
        results = self.facts.results[read]
        if isinstance(results, TooLarge):
            raise UnresolvedError(f"{reference} is too large to be handed on; hand on where it is stored")
        values = self._decoded.get(read)
        if values is None:
            values = [None if result is None else msgspec.json.decode(result) for result in results]
            self._decoded[read] = values
        if row.name in self.graph.maps and not reference.path:
            return values
        if results[0] is None:
            return default_of(reference)
        return value_at(values[0], reference, skip=1 if row.name in self.graph.maps else 0)

    def _read_of(self, row: NodeRow, reference: Reference) -> ResultRead | None:
        """What has to be read for a reference to `row`; None where nothing is there to be read."""
        if not self.has_result(row):
            return None
        if row.name not in self.graph.maps:
            return ResultRead(row.name, 0, 1)
        if not reference.path:
            return ResultRead(row.name, 0, row.total) if row.total else None
        first = reference.path[0]
        if is_index(first) and int(first) < row.total:
            return ResultRead(row.name, int(first), int(first) + 1)
        return None

    def missing(self, row: NodeRow, references: tuple[Reference, ...]) -> tuple[Missing, ...] | None:
        """Which nodes, direct upstream or referred to, have no result; None: more has to be known.

        Where all upstream succeeded only those that are referred to are looked at, for items without a
        result.
        """
        node = self.graph.nodes[row.name]
        all_succeeded = row.up_success == len(node.after)
        names = dict.fromkeys(() if all_succeeded or node.trigger_rule in EARLY_RULES else node.after)
        names.update(dict.fromkeys(result_nodes(references)))
        rows = [self.row(name) for name in names]
        found = []
        for source in rows:
            if source is None:
                return None
            without = source.total - source.success if self.has_result(source) else 0
            if source.state is not NodeState.SUCCESS or without:
                found.append(Missing(source.name, source.state, without))
        return tuple(found)

    # ── the end of the step ───────────────────────────────────────────────────────────────────────────

    def finish(self) -> Effects:
        """The effects. Without a change there is nothing to write, and `Effects.run` is None."""
        if self._cascades and self.wanted.nodes:
            self._want_further()
        self.run.due = self.run.finished_us is None and (self.more or not self.wanted.is_empty())
        self.effects.nodes = [*self.changed.values()]
        if self.effects == Effects(wanted=self.wanted) and (
            self.run == self.facts.run or self.run == msgspec.structs.replace(self.facts.run, due=True)
        ):
            # What is wanted was not told, or there was nothing to do: what led here leads here again.
            return self.effects
        self.run.revision += 1
        self.effects.run = self.run
        return self.effects

    def _want_further(self) -> None:
        """Nodes end without having run, one after the other: the rows after those that are wanted, too."""
        left = deque(sorted(self.wanted.nodes))
        while left and len(self.wanted.nodes) < WORK_MAX:
            for name in self.graph.successors[left.popleft()]:
                if name not in self.wanted.nodes and name not in self.rows:
                    self.wanted.nodes.add(name)
                    left.append(name)


def fails_run(node: Node, state: NodeState) -> bool:
    """Whether a run in which `node` ended in `state` cannot succeed any more."""
    if state is NodeState.FAILED:
        return node.strategy != "skip"
    return state in (NodeState.UPSTREAM_FAILED, NodeState.CANCELLED)


def _ended_words(state: NodeState) -> str:
    words = {NodeState.UPSTREAM_FAILED: "could not run", NodeState.CANCELLED: "was cancelled"}
    return words.get(state, str(state))


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""
