"""The tables of the in-memory store and their indexes, kept in step by one `put` and one `drop`."""

from __future__ import annotations

from collections import defaultdict
from copy import copy

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef, TaskRow
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.core.states import LIVE_STATES, TERMINAL_STATES, WAITING_STATES, State
from ostinato.store.batches import NodeRow, Proof, Request, RequestAnswer, TriggerRow, WorkerRow
from ostinato.store.memory.ordered import OrderedKeys


class KeyRow(msgspec.Struct):
    """A live or expired idempotency key of a task."""

    instance_id: str
    request_hash: str
    expires_us: int


class Tables:
    """Everything that a database would hold. Rows that go in or come out are copies."""

    def __init__(self, partition_count: int) -> None:
        self.nodes: dict[str, NodeRow] = {}
        #: By worker id and node id.
        self.workers: dict[tuple[str, str], WorkerRow] = {}
        self.owners: list[Proof] = [Proof(number, "", 0) for number in range(partition_count)]
        self.tasks: dict[TaskRef, TaskRow] = {}
        self.definitions: dict[tuple[TaskRef, int], TaskDefinition] = {}
        #: Of every task that ever was.
        self.newest_versions: dict[TaskRef, int] = {}
        self.triggers: dict[str, TriggerRow] = {}
        self.triggers_by_task: dict[TaskRef, set[str]] = defaultdict(set)
        self.requests: dict[str, Request] = {}
        self.open_requests: OrderedKeys[tuple[int, str]] = OrderedKeys()
        self.answers: dict[str, RequestAnswer] = {}
        self.keys: dict[tuple[str, str, str], KeyRow] = {}
        self.history: dict[str, list[HistoryRow]] = defaultdict(list)
        self.output: dict[str, dict[tuple[int, int, str], OutputChunk]] = defaultdict(dict)

        self.instances: dict[str, Instance] = {}
        self.by_id: OrderedKeys[str] = OrderedKeys()
        self.fires: dict[tuple[str, int, int], str] = {}
        #: Unheld waiting, by priority: (due_us, id).
        self.due: dict[int, OrderedKeys[tuple[int, str]]] = defaultdict(OrderedKeys)
        #: Held, by task: (due_us, id).
        self.held: dict[TaskRef, OrderedKeys[tuple[int, str]]] = defaultdict(OrderedKeys)
        #: Not terminal, by task: (created_us, id).
        self.live: dict[TaskRef, OrderedKeys[tuple[int, str]]] = defaultdict(OrderedKeys)
        self.running: OrderedKeys[str] = OrderedKeys()
        #: Waiting with an end: (expires_us, id).
        self.expiring: OrderedKeys[tuple[int, str]] = OrderedKeys()
        #: Terminal, by whether it is a success: (finished_us, id).
        self.finished: dict[bool, OrderedKeys[tuple[int, str]]] = defaultdict(OrderedKeys)

    def put_node(self, node: NodeRow) -> None:
        """Insert or replace."""
        self.nodes[node.id] = node

    def drop_node(self, node_id: str) -> None:
        """Nothing where it has gone already."""
        self.nodes.pop(node_id, None)

    def set_owner(self, proof: Proof) -> None:
        """Give the partition of `proof` to its owner; an empty one: nobody."""
        self.owners[proof.partition] = proof

    def add_request(self, request: Request) -> None:
        """Of an id that is not there yet."""
        self.requests[request.id] = request
        self.open_requests.add((request.created_us, request.id))

    def answer_request(self, request: Request, answer: RequestAnswer) -> None:
        """The first answer to `request`."""
        self.answers[request.id] = answer
        self.open_requests.discard((request.created_us, request.id))

    def add_history(self, row: HistoryRow) -> None:
        """`row` itself is kept."""
        self.history[row.instance_id].append(row)

    def put_task(self, task: TaskRow) -> None:
        """Insert or replace."""
        self.tasks[task.ref] = task

    def drop_task(self, ref: TaskRef) -> None:
        del self.tasks[ref]

    def put_trigger(self, trigger: TriggerRow) -> None:
        """Insert or replace."""
        self.triggers[trigger.id] = trigger
        self.triggers_by_task[trigger.ref].add(trigger.id)

    def drop_trigger(self, trigger: TriggerRow) -> None:
        del self.triggers[trigger.id]
        self.triggers_by_task[trigger.ref].discard(trigger.id)

    def triggers_of(self, ref: TaskRef) -> list[TriggerRow]:
        """Triggers in force of a task, by id."""
        return [self.triggers[identifier] for identifier in sorted(self.triggers_by_task.get(ref, ()))]

    def put(self, instance: Instance) -> None:
        """Insert or replace; `instance` itself is kept, so nobody may change it afterwards."""
        before = self.instances.get(instance.id)
        if before is None:
            self.by_id.add(instance.id)
            if instance.fire_us is not None:
                self.fires[fire_key(instance)] = instance.id
        else:
            self._unindex(before)
        self.instances[instance.id] = instance
        self._index(instance)

    def drop(self, instance: Instance) -> None:
        """Delete with history and output."""
        self._unindex(instance)
        self.by_id.discard(instance.id)
        del self.instances[instance.id]
        self.history.pop(instance.id, None)
        self.output.pop(instance.id, None)
        if instance.fire_us is not None:
            del self.fires[fire_key(instance)]

    def _index(self, instance: Instance) -> None:
        state = instance.state
        if state in LIVE_STATES:
            self.live[instance.ref].add((instance.created_us, instance.id))
        if state is State.RUNNING:
            self.running.add(instance.id)
        elif state in WAITING_STATES:
            queue = self.due[instance.priority] if instance.hold is None else self.held[instance.ref]
            queue.add((instance.due_us, instance.id))
            if instance.expires_us is not None:
                self.expiring.add((instance.expires_us, instance.id))
        elif state in TERMINAL_STATES:
            self.finished[state is State.SUCCESS].add((instance.finished_us or 0, instance.id))

    def _unindex(self, instance: Instance) -> None:
        state = instance.state
        if state in LIVE_STATES:
            self.live[instance.ref].discard((instance.created_us, instance.id))
        if state is State.RUNNING:
            self.running.discard(instance.id)
        elif state in WAITING_STATES:
            queue = self.due[instance.priority] if instance.hold is None else self.held[instance.ref]
            queue.discard((instance.due_us, instance.id))
            if instance.expires_us is not None:
                self.expiring.discard((instance.expires_us, instance.id))
        elif state in TERMINAL_STATES:
            self.finished[state is State.SUCCESS].discard((instance.finished_us or 0, instance.id))


def fire_key(instance: Instance) -> tuple[str, int, int]:
    """What is unique about an instance that a fire made (I8)."""
    return instance.fire_trigger, instance.fire_us or 0, instance.shard


def without_payload(instance: Instance) -> Instance:
    """Copy for lists: payload and result left out."""
    brief = copy(instance)
    brief.payload = b""
    brief.result = None
    return brief
