"""Messages from node to worker as protobuf: cutting, writing and reading of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import msgspec

from ostinato.core.definition import ExecutorSpec, Isolation, TaskRef
from ostinato.wire.codec_checks import ITEM_BYTES_OVERHEAD, Part, cut, malformed, require
from ostinato.wire.generated import worker_pb2 as pb
from ostinato.wire.messages import (
    Assignment,
    Assignments,
    Cancel,
    Drain,
    HeartbeatAcknowledged,
    NodeMessage,
    OutcomesAcknowledged,
    Rejected,
    Specs,
    TaskSpec,
    TreeEndedRecorded,
    Welcome,
)

_EXCLUSIVE = frozenset({"strict", "relaxed"})

# Sorted and without defaults: the form that the executor has in a definition's canonical JSON.
_executor_encoder = msgspec.json.Encoder(order="sorted")
_executor_decoder: msgspec.json.Decoder[ExecutorSpec] = msgspec.json.Decoder(ExecutorSpec)


def parts_of(message: NodeMessage) -> Iterator[Part[NodeMessage]]:
    """`message` in pieces that fit into frames. What holds no list of items stays whole."""
    match message:
        case Assignments():
            for assignments, size in cut(message.items, _assignment_bytes):
                yield Part(Assignments(message.heartbeat_sequence, assignments), len(assignments), size)
        case Specs():
            for specs, size in cut(message.items, _spec_bytes):
                yield Part(Specs(specs), len(specs), size)
        case OutcomesAcknowledged():
            # All that is not theirs stands in the first part, so that most messages stay whole.
            unowned = message.unowned
            for ids, size in cut(message.attempt_ids, len):
                yield Part(OutcomesAcknowledged(ids, unowned), len(ids), size + sum(map(len, unowned)))
                unowned = []
        case _:
            yield Part(message, 1, ITEM_BYTES_OVERHEAD)


def write(message: NodeMessage, target: pb.NodeMessage) -> None:
    """Fill `target`. Raises ``ValueError`` for text or numbers that protobuf cannot carry."""
    match message:
        case Assignments():
            _write_assignments(message, target.assignments)
        case HeartbeatAcknowledged():
            target.heartbeat_acknowledged.MergeFrom(
                pb.HeartbeatAcknowledged(
                    sequence=message.sequence,
                    sent_boot_us=message.sent_boot_us,
                    partitions=message.partitions,
                    nodes=message.nodes,
                    returned=message.returned,
                    demand=message.demand,
                    asks_report=message.asks_report,
                    epochs=message.epochs,
                )
            )
        case OutcomesAcknowledged():
            target.outcomes_acknowledged.SetInParent()
            target.outcomes_acknowledged.attempt_ids.extend(message.attempt_ids)
            target.outcomes_acknowledged.unowned.extend(message.unowned)
        case Specs():
            target.specs.SetInParent()
            target.specs.items.extend([_spec(spec) for spec in message.items])
        case Cancel():
            target.cancel.MergeFrom(
                pb.Cancel(
                    instance_id=message.instance_id,
                    attempt_id=message.attempt_id,
                    reason=message.reason,
                    is_timeout=message.is_timeout,
                )
            )
        case Welcome():
            target.welcome.MergeFrom(
                pb.Welcome(
                    protocol=message.protocol,
                    node_id=message.node_id,
                    worker_lease_us=message.worker_lease_us,
                    heartbeat_us=message.heartbeat_us,
                    nodes=message.nodes,
                )
            )
        case Rejected():
            target.rejected.MergeFrom(
                pb.Rejected(code=message.code, message=message.message, node_id=message.node_id)
            )
        case Drain():
            target.drain.SetInParent()
            target.drain.reason = message.reason
        case TreeEndedRecorded():
            target.tree_ended_recorded.SetInParent()
        case _:
            assert_never(message)


def _write_assignments(message: Assignments, target: pb.Assignments) -> None:
    target.SetInParent()
    target.heartbeat_sequence = message.heartbeat_sequence
    add = target.items.add
    for item in message.items:
        add(
            instance_id=item.instance_id,
            namespace=item.ref.namespace,
            task=item.ref.name,
            version=item.version,
            generation=item.generation,
            attempt=item.attempt,
            attempt_id=item.attempt_id,
            retry_count=item.retry_count,
            payload=item.payload,
            due_us=item.due_us,
            fire_us=item.fire_us,
            shard=item.shard,
            shard_total=item.shard_total,
            partition=item.partition,
            epoch=item.epoch,
        )


def _spec(spec: TaskSpec) -> pb.TaskSpec:
    return pb.TaskSpec(
        ref=pb.TaskRef(namespace=spec.ref.namespace, name=spec.ref.name),
        version=spec.version,
        executor=_executor_encoder.encode(spec.executor),
        timeout_us=spec.timeout_us,
        grace_us=spec.grace_us,
        heartbeat_timeout_us=spec.heartbeat_timeout_us,
        exclusive=spec.exclusive,
        isolation=spec.isolation,
        memory_limit_bytes=spec.memory_limit_bytes,
        cpu_limit=spec.cpu_limit,
    )


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────


def read(source: pb.NodeMessage) -> NodeMessage | None:
    """Message in `source`; None for a kind of a newer version. Raises ``PROTOCOL_MISMATCH``."""
    kind = source.WhichOneof("kind")
    reader = None if kind is None else _READERS.get(kind)
    return None if reader is None else reader(source)


def _read_welcome(message: pb.NodeMessage) -> Welcome:
    source = message.welcome
    require("welcome", protocol=source.protocol, node_id=source.node_id)
    return Welcome(
        protocol=source.protocol,
        node_id=source.node_id,
        worker_lease_us=source.worker_lease_us,
        heartbeat_us=source.heartbeat_us,
        nodes=list(source.nodes),
    )


def _read_rejected(message: pb.NodeMessage) -> Rejected:
    require("rejected", code=message.rejected.code)
    return Rejected(message.rejected.code, message.rejected.message, message.rejected.node_id)


def _read_specs(message: pb.NodeMessage) -> Specs:
    return Specs([_read_spec(spec) for spec in message.specs.items])


def _read_spec(source: pb.TaskSpec) -> TaskSpec:
    require("specs", namespace=source.ref.namespace, name=source.ref.name, version=source.version)
    if source.exclusive not in _EXCLUSIVE:
        raise malformed("specs", f"exclusive is {source.exclusive!r}, not one of strict, relaxed")
    try:
        executor = _executor_decoder.decode(source.executor)
    except (msgspec.DecodeError, RecursionError) as error:
        raise malformed("specs", f"executor is not JSON of one this worker knows: {error}") from None
    return TaskSpec(
        ref=TaskRef(source.ref.namespace, source.ref.name),
        version=source.version,
        executor=executor,
        timeout_us=source.timeout_us if source.HasField("timeout_us") else None,
        grace_us=source.grace_us,
        heartbeat_timeout_us=(
            source.heartbeat_timeout_us if source.HasField("heartbeat_timeout_us") else None
        ),
        exclusive=source.exclusive,
        isolation=_isolation(source.isolation),
        memory_limit_bytes=source.memory_limit_bytes if source.HasField("memory_limit_bytes") else None,
        cpu_limit=source.cpu_limit if source.HasField("cpu_limit") else None,
    )


def _isolation(text: str) -> Isolation:
    if text in ("", "shared"):
        return "shared"
    if text == "process":
        return "process"
    raise malformed("specs", f"isolation is {text!r}, not one of shared, process")


def _read_assignments(message: pb.NodeMessage) -> Assignments:
    source = message.assignments
    return Assignments(source.heartbeat_sequence, [_read_assignment(item) for item in source.items])


def _read_assignment(source: pb.Assignment) -> Assignment:
    assignment = Assignment(
        instance_id=source.instance_id,
        ref=TaskRef(source.namespace, source.task),
        version=source.version,
        generation=source.generation,
        attempt=source.attempt,
        attempt_id=source.attempt_id,
        retry_count=source.retry_count,
        payload=source.payload,
        due_us=source.due_us,
        fire_us=source.fire_us if source.HasField("fire_us") else None,
        shard=source.shard,
        shard_total=source.shard_total,
        partition=source.partition,
        epoch=source.epoch,
    )
    _require_assignment(assignment)
    return assignment


def _require_assignment(assignment: Assignment) -> None:
    """Raise ``PROTOCOL_MISMATCH`` unless every required field is there."""
    if (
        assignment.instance_id
        and assignment.attempt_id
        and assignment.ref.namespace
        and assignment.ref.name
        and assignment.version > 0
        and assignment.generation > 0
        and assignment.attempt > 0
        and assignment.shard_total > 0
    ):
        return
    require(
        "assignments",
        instance_id=assignment.instance_id,
        attempt_id=assignment.attempt_id,
        namespace=assignment.ref.namespace,
        task=assignment.ref.name,
        version=assignment.version,
        generation=assignment.generation,
        attempt=assignment.attempt,
        shard_total=assignment.shard_total,
    )


def _read_cancel(message: pb.NodeMessage) -> Cancel:
    source = message.cancel
    require("cancel", instance_id=source.instance_id, attempt_id=source.attempt_id)
    return Cancel(source.instance_id, source.attempt_id, source.reason, source.is_timeout)


def _read_heartbeat_acknowledged(message: pb.NodeMessage) -> HeartbeatAcknowledged:
    source = message.heartbeat_acknowledged
    return HeartbeatAcknowledged(
        sequence=source.sequence,
        sent_boot_us=source.sent_boot_us,
        partitions=list(source.partitions),
        nodes=list(source.nodes),
        returned=dict(source.returned),
        demand=dict(source.demand),
        asks_report=source.asks_report,
        epochs=list(source.epochs),
    )


def _read_outcomes_acknowledged(message: pb.NodeMessage) -> OutcomesAcknowledged:
    source = message.outcomes_acknowledged
    return OutcomesAcknowledged(list(source.attempt_ids), list(source.unowned))


def _read_drain(message: pb.NodeMessage) -> Drain:
    return Drain(message.drain.reason)


def _read_tree_ended_recorded(message: pb.NodeMessage) -> TreeEndedRecorded:
    return TreeEndedRecorded()


_READERS: dict[str, Callable[[pb.NodeMessage], NodeMessage]] = {
    "welcome": _read_welcome,
    "rejected": _read_rejected,
    "specs": _read_specs,
    "assignments": _read_assignments,
    "cancel": _read_cancel,
    "heartbeat_acknowledged": _read_heartbeat_acknowledged,
    "outcomes_acknowledged": _read_outcomes_acknowledged,
    "drain": _read_drain,
    "tree_ended_recorded": _read_tree_ended_recorded,
}


def _assignment_bytes(assignment: Assignment) -> int:
    return ITEM_BYTES_OVERHEAD + len(assignment.payload)


def _spec_bytes(spec: TaskSpec) -> int:
    return ITEM_BYTES_OVERHEAD + len(_executor_encoder.encode(spec.executor))
