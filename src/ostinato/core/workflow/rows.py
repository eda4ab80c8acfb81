"""What is stored of a run, what a step is told of it, and what the step wants written.

A step reads rows and returns rows; it keeps nothing. All that one step wants is one transaction, written
only where the run's row still has the `revision` that the step has read. So a step that is repeated, or
that two owners take, counts once; one that was never written is taken again from what is stored.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import msgspec

from ostinato.core.failure.failure import Failure
from ostinato.core.states import State
from ostinato.core.workflow.payload import Missing
from ostinato.core.workflow.rules import Ends
from ostinato.core.workflow.states import TERMINAL_NODE_STATES, NodeState, RunState

#: ``step``: what a node runs; ``compensation``: what undoes one of its instances.
Role = Literal["step", "compensation"]


class RunRow(msgspec.Struct, kw_only=True):
    """One run of a workflow: the whole row. Times ``*_us`` are UTC instants of the database's clock."""

    id: str
    namespace: str
    workflow: str
    version: int
    partition: int
    #: Nodes that have not ended; begins as the number of the definition's nodes.
    open_count: int
    created_us: int
    #: JSON object that the run was started with.
    payload: bytes = b"{}"
    state: RunState = RunState.RUNNING
    #: Counts the steps; a step is written only where it finds the one that it has read.
    revision: int = 0
    #: Starts at 1; a resume begins the next.
    generation: int = 1
    #: The next step has something to do without anything else happening: a run that lives is found by it.
    due: bool = True
    #: Nodes, in the graph's order, whose rows and instances have been made.
    start_cursor: int = 0
    #: Instances and child runs that exist and whose end has not been counted.
    live_count: int = 0
    #: Nodes that ended so that the run cannot succeed.
    failed_count: int = 0
    #: Last completion sequence given (I10).
    sequence: int = 0
    #: Compensation that is under way; empty: none.
    compensation_id: str = ""
    #: Everything from this `undo_order` on is undone; None: the rollback has not begun to compensate.
    undo_cursor: int | None = None
    cancel_requested_us: int | None = None
    #: Why it is in its state, in words; empty on the uneventful path.
    reason: str = ""
    finished_us: int | None = None
    #: JSON; set on success.
    result: bytes | None = None
    #: Of a child run: the run and the node that wait for it.
    parent_run: str = ""
    parent_node: str = ""
    parent_item: int = 0

    @property
    def is_stopping(self) -> bool:
        """Whether nothing of it may begin any more, and what is live has to end."""
        return self.state is RunState.ROLLING_BACK or self.cancel_requested_us is not None


class NodeRow(msgspec.Struct, kw_only=True):
    """One node of one run: where it stands, and the counts that decide about it."""

    name: str
    state: NodeState = NodeState.WAITING
    #: Generation of the run in which it was made, or last put back to the beginning.
    generation: int = 1
    #: Instances that it has: 1, or of a mapped node the length of the list once that is known.
    total: int = 0
    #: Of these, made so far. The cursor of a map: items from here on are still to be made.
    created: int = 0
    success: int = 0
    failed: int = 0
    skipped: int = 0
    cancelled: int = 0
    #: Items that ended in an earlier generation and are still to be run again.
    redo: int = 0
    redo_cursor: int = 0
    #: Items whose rows exist, also those beyond `total` that an earlier generation has left.
    existing: int = 0
    #: The run's sequence when it ended; 0 until then.
    sequence: int = 0
    #: Whether its end stands in the counts of all of its direct successors, and in those of how many so far.
    told: bool = False
    tell_cursor: int = 0
    reason: str = ""
    #: How its direct upstream has ended so far.
    up_success: int = 0
    up_excused: int = 0
    up_failed: int = 0
    up_skipped: int = 0
    up_cancelled: int = 0

    @property
    def upstream(self) -> Ends:
        return Ends(self.up_success, self.up_excused, self.up_failed, self.up_skipped, self.up_cancelled)

    def count_upstream(self, name: str) -> None:
        """One more direct upstream has ended; `name` is a count of `Ends`."""
        setattr(self, f"up_{name}", getattr(self, f"up_{name}") + 1)

    @property
    def ended(self) -> int:
        """Instances whose end is counted."""
        return self.success + self.failed + self.skipped + self.cancelled

    @property
    def todo(self) -> str:
        """What a step can do about it without anything else happening; a column of its own, with an index.

        ``begin``: ask its rule. ``create``: the next chunk of its items. ``redo``: run old items again.
        ``tell``: its successors. Empty: nothing.
        """
        if self.state is NodeState.READY:
            return "begin"
        if self.state is NodeState.RUNNING:
            return "redo" if self.redo else "create" if self.created < self.total else ""
        return "tell" if self.state in TERMINAL_NODE_STATES and not self.told else ""


# ── facts ─────────────────────────────────────────────────────────────────────────────────────────────


class EndedInstance(msgspec.Struct, frozen=True, kw_only=True):
    """An instance of the run, or a child run, that has ended and is not counted yet."""

    instance_id: str
    node: str
    state: State
    finished_us: int
    item: int = 0
    role: Role = "step"
    #: An attempt of it has run.
    started: bool = True
    #: Generation of the run that it belongs to (`RunRow.generation` when it was made or run again).
    run_generation: int = 1
    #: Why it ended so, in words.
    reason: str = ""


class ResultRead(NamedTuple):
    """Results of the items [low, high) of a node; a node that is not mapped has one item, 0."""

    node: str
    low: int
    high: int


class TooLarge(msgspec.Struct, frozen=True):
    """Answer to a `ResultRead` whose results are together longer than ``payload.RESOLVED_BYTES_MAX``."""


class Undoable(msgspec.Struct, frozen=True, kw_only=True):
    """An instance that the rollback has to undo."""

    instance_id: str
    node: str
    item: int
    undo_order: int
    payload: bytes
    #: JSON; None where it did not end in success.
    result: bytes | None


class LiveInstance(msgspec.Struct, frozen=True):
    """An instance or child run that has not ended, and that nobody has asked to end."""

    instance_id: str
    node: str


class Facts(msgspec.Struct, kw_only=True):
    """What a step is told. Anything may be left out: the step then says that it wants it."""

    run: RunRow
    #: Those with something to do (`NodeRow.todo`), at most a chunk, and those that a step has wanted.
    nodes: dict[str, NodeRow] = {}
    #: There are more nodes with something to do, or more ended instances, than are here.
    more: bool = False
    #: Ended and not counted; any number, in any order.
    ended: list[EndedInstance] = []
    results: dict[ResultRead, list[bytes | None] | TooLarge] = {}
    #: Asked for by `Wanted.live`; of the whole run, at most a chunk.
    live: list[LiveInstance] | None = None
    #: Asked for by `Wanted.undo`: the next one to undo; an empty list: there is none.
    undo: list[Undoable] | None = None
    #: Asked for by `Wanted.redo`, in order, at most a chunk of each node's: items from its `redo_cursor` on
    #: that ended ``failed`` or ``cancelled`` in a generation before the run's.
    redo: dict[str, list[int]] = {}


class Wanted(msgspec.Struct):
    """Facts that would let the step go further. All empty: it has done all that there is to do now."""

    nodes: set[str] = set()
    results: set[ResultRead] = set()
    #: Rows of nodes that have not ended, at most a chunk.
    open_nodes: bool = False
    live: bool = False
    undo: bool = False
    redo: set[str] = set()

    def is_empty(self) -> bool:
        return self == Wanted()


# ── effects ───────────────────────────────────────────────────────────────────────────────────────────


class NewInstance(msgspec.Struct, frozen=True, kw_only=True):
    """Insert an instance: ``blocked``, ``pending``, or ended at birth (``skipped``, ``failed``), counted."""

    instance_id: str
    node: str
    item: int
    task: str
    state: State
    payload: bytes = b"{}"
    role: Role = "step"
    missing: tuple[Missing, ...] = ()
    run_generation: int = 1
    reason: str = ""
    failure: Failure | None = None


class StartRun(msgspec.Struct, frozen=True, kw_only=True):
    """Start the child run of a node that runs a workflow; of an item that had one it takes the place."""

    run_id: str
    node: str
    item: int
    workflow: str
    payload: bytes
    run_generation: int


class Unblock(msgspec.Struct, frozen=True, kw_only=True):
    """blocked → pending, with the payload that its references have made."""

    instance_id: str
    payload: bytes
    missing: tuple[Missing, ...] = ()


class RunAgain(msgspec.Struct, frozen=True, kw_only=True):
    """terminal → pending: the next generation of the instance, in a later generation of the run.

    `payload` None keeps the old one. A rollback undoes what it did before until it knows better (`Counted`).
    """

    instance_id: str
    run_generation: int
    payload: bytes | None
    missing: tuple[Missing, ...] = ()


class EndBlocked(msgspec.Struct, frozen=True, kw_only=True):
    """blocked → skipped | failed, and counted."""

    instance_id: str
    state: State
    reason: str
    failure: Failure | None = None


class Cancel(msgspec.Struct, frozen=True):
    """End it: at once if it waits, by asking its worker if it runs, by a request if it is a child run."""

    instance_id: str
    node: str
    reason: str


class Counted(msgspec.Struct, frozen=True):
    """The end of this instance stands in the counts.

    `undo_order` is when a rollback undoes it, the highest first; None leaves what is stored: nothing, or
    that it did something in an earlier generation.
    """

    instance_id: str
    undo_order: int | None = None


class Alert(msgspec.Struct, frozen=True):
    """Somebody has to look: a rollback could not be finished."""

    run_id: str
    reason: str


class Effects(msgspec.Struct, kw_only=True):
    """Everything that one step wants, for one transaction; `run` None: nothing at all.

    The whole is dropped where the run's row does not match. Where another row does not match, only what was
    wanted of it is: its own end, counted later, says what has happened to it.
    """

    #: The new row, whose revision is one above the one that the stored row must have.
    run: RunRow | None = None
    #: New rows, whole.
    nodes: list[NodeRow] = []
    counted: list[Counted] = []
    inserts: list[NewInstance] = []
    starts: list[StartRun] = []
    unblocks: list[Unblock] = []
    again: list[RunAgain] = []
    ended_blocked: list[EndBlocked] = []
    cancels: list[Cancel] = []
    alerts: list[Alert] = []
    #: What would have let the step go further; what is above is right without it.
    wanted: Wanted = msgspec.field(default_factory=Wanted)
