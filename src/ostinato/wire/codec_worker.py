"""Messages from worker to node as protobuf: cutting, writing and reading of each kind."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import assert_never

import msgspec

from ostinato.core.definition import TaskRef
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.model import Outcome, OutputChunk
from ostinato.core.secret import Secret
from ostinato.wire.codec_checks import ITEM_BYTES_OVERHEAD, Part, cut, malformed, require, text_bytes
from ostinato.wire.generated import worker_pb2 as pb
from ostinato.wire.messages import (
    Accepted,
    Draining,
    GuardianHello,
    Heartbeat,
    Hello,
    Outcomes,
    Output,
    Progress,
    Report,
    RunningReport,
    TreeEnded,
    WorkerMessage,
)

_OUTPUT_STREAMS = frozenset({"stdout", "stderr", "log"})

_failure_encoder = msgspec.json.Encoder()
_failure_decoder = msgspec.json.Decoder(Failure)


def parts_of(message: WorkerMessage) -> Iterator[Part[WorkerMessage]]:
    """`message` in pieces that fit into frames. What holds no list of items stays whole."""
    match message:
        case Outcomes():
            for outcomes, size in cut(message.items, _outcome_bytes):
                yield Part(Outcomes(outcomes, message.granted, message.ahead), len(outcomes), size)
        case Output():
            for chunks, size in cut(message.chunks, _chunk_bytes):
                yield Part(Output(chunks), len(chunks), size)
        case Accepted():
            for ids, size in cut(message.attempt_ids, len):
                yield Part(Accepted(ids), len(ids), size)
        case Hello():
            yield Part(message, 1, ITEM_BYTES_OVERHEAD + sum(map(len, message.declarations)))
        case _:
            yield Part(message, 1, ITEM_BYTES_OVERHEAD)


def write(message: WorkerMessage, target: pb.WorkerMessage) -> None:
    """Fill `target`. Raises ``ValueError`` for text or numbers that protobuf cannot carry."""
    match message:
        case Heartbeat():
            target.heartbeat.MergeFrom(
                pb.Heartbeat(
                    sequence=message.sequence,
                    sent_boot_us=message.sent_boot_us,
                    granted=message.granted,
                    wanted=message.wanted,
                    ahead=message.ahead,
                )
            )
        case Outcomes():
            _write_outcomes(message, target.outcomes)
        case Accepted():
            target.accepted.SetInParent()
            target.accepted.attempt_ids.extend(message.attempt_ids)
        case Output():
            _write_output(message, target.output)
        case Progress():
            target.progress.MergeFrom(
                pb.Progress(
                    instance_id=message.instance_id,
                    attempt_id=message.attempt_id,
                    fraction=message.fraction,
                    text=message.text,
                )
            )
        case Draining():
            target.draining.SetInParent()
            target.draining.reason = message.reason
        case Hello():
            _write_hello(message, target.hello)
        case GuardianHello():
            target.guardian_hello.MergeFrom(
                pb.GuardianHello(
                    protocol=message.protocol,
                    worker_id=message.worker_id,
                    worker_name=message.worker_name,
                    token=message.token,
                )
            )
        case TreeEnded():
            target.tree_ended.MergeFrom(
                pb.TreeEnded(heartbeat_sequence=message.heartbeat_sequence, reason=message.reason)
            )
            target.tree_ended.SetInParent()
        case Report():
            target.report.SetInParent()
            target.report.sequence = message.sequence
            target.report.running.extend(_reports(message.running))
        case _:
            assert_never(message)


def _write_hello(message: Hello, target: pb.Hello) -> None:
    target.MergeFrom(
        pb.Hello(
            protocol=message.protocol,
            worker_id=message.worker_id,
            worker_name=message.worker_name,
            token=message.token,
            labels=message.labels,
            capacity=message.capacity,
            tasks=[pb.TaskRef(namespace=ref.namespace, name=ref.name) for ref in message.tasks],
            executors=message.executors,
            running=_reports(message.running),
            problems=message.problems,
            declarations=message.declarations,
            granted=message.granted,
            ended_workers=message.ended_workers,
            stream=message.stream,
            open_streams=message.open_streams,
        )
    )


def _reports(running: list[RunningReport]) -> list[pb.RunningReport]:
    return [
        pb.RunningReport(instance_id=report.instance_id, attempt=report.attempt, attempt_id=report.attempt_id)
        for report in running
    ]


def _write_outcomes(message: Outcomes, target: pb.Outcomes) -> None:
    target.SetInParent()
    target.granted.update(message.granted)
    target.ahead.update(message.ahead)
    add = target.items.add
    for outcome in message.items:
        add(
            instance_id=outcome.instance_id,
            attempt=outcome.attempt,
            attempt_id=outcome.attempt_id,
            started_us=outcome.started_us,
            finished_us=outcome.finished_us,
            result=outcome.result,
            failure=None if outcome.failure is None else _failure_encoder.encode(outcome.failure),
            unstarted_reason=outcome.unstarted_reason,
        )


def _write_output(message: Output, target: pb.Output) -> None:
    target.SetInParent()
    add = target.chunks.add
    for chunk in message.chunks:
        add(
            instance_id=chunk.instance_id,
            attempt=chunk.attempt,
            attempt_id=chunk.attempt_id,
            sequence=chunk.sequence,
            at_us=chunk.at_us,
            stream=chunk.stream,
            text=chunk.text,
        )


# ── reading ───────────────────────────────────────────────────────────────────────────────────────────


def read(source: pb.WorkerMessage) -> WorkerMessage | None:
    """Message in `source`; None for a kind of a newer version. Raises ``PROTOCOL_MISMATCH``."""
    kind = source.WhichOneof("kind")
    reader = None if kind is None else _READERS.get(kind)
    return None if reader is None else reader(source)


def _read_hello(message: pb.WorkerMessage) -> Hello:
    source = message.hello
    require("hello", protocol=source.protocol, worker_id=source.worker_id)
    for ref in source.tasks:
        require("hello", namespace=ref.namespace, name=ref.name)
    return Hello(
        protocol=source.protocol,
        worker_id=source.worker_id,
        worker_name=source.worker_name,
        token=Secret(source.token),
        labels=dict(source.labels),
        capacity=dict(source.capacity),
        tasks=[TaskRef(ref.namespace, ref.name) for ref in source.tasks],
        executors=list(source.executors),
        running=[_read_running("hello", report) for report in source.running],
        problems=list(source.problems),
        declarations=list(source.declarations),
        granted=dict(source.granted),
        ended_workers=list(source.ended_workers),
        stream=source.stream,
        open_streams=list(source.open_streams),
    )


def _read_running(kind: str, source: pb.RunningReport) -> RunningReport:
    require(kind, instance_id=source.instance_id, attempt=source.attempt, attempt_id=source.attempt_id)
    return RunningReport(source.instance_id, source.attempt, source.attempt_id)


def _read_heartbeat(message: pb.WorkerMessage) -> Heartbeat:
    source = message.heartbeat
    return Heartbeat(
        source.sequence,
        source.sent_boot_us,
        dict(source.granted),
        dict(source.wanted),
        dict(source.ahead),
    )


def _read_report(message: pb.WorkerMessage) -> Report:
    running = [_read_running("report", report) for report in message.report.running]
    return Report(message.report.sequence, running)


def _read_accepted(message: pb.WorkerMessage) -> Accepted:
    return Accepted(list(message.accepted.attempt_ids))


def _read_outcomes(message: pb.WorkerMessage) -> Outcomes:
    source = message.outcomes
    return Outcomes([_read_outcome(item) for item in source.items], dict(source.granted), dict(source.ahead))


def _read_outcome(source: pb.Outcome) -> Outcome:
    outcome = Outcome(
        instance_id=source.instance_id,
        attempt=source.attempt,
        attempt_id=source.attempt_id,
        started_us=source.started_us if source.HasField("started_us") else None,
        finished_us=source.finished_us,
        result=source.result if source.HasField("result") else None,
        failure=_read_failure(source.failure) if source.HasField("failure") else None,
        unstarted_reason=source.unstarted_reason,
    )
    if not (outcome.instance_id and outcome.attempt_id and outcome.attempt > 0):
        require(
            "outcomes", instance_id=source.instance_id, attempt_id=source.attempt_id, attempt=source.attempt
        )
    return outcome


def _read_failure(encoded: bytes) -> Failure:
    """One that cannot be read is a failure nevertheless, and no reason to refuse what came along with it."""
    try:
        return _failure_decoder.decode(encoded)
    except (msgspec.DecodeError, RecursionError, UnicodeError) as error:
        said = f"the worker reported a failure that cannot be read: {error}"
        return safe_failure("BAD_RESULT", said)


def _read_output(message: pb.WorkerMessage) -> Output:
    return Output([_read_chunk(chunk) for chunk in message.output.chunks])


def _read_chunk(source: pb.OutputChunk) -> OutputChunk:
    require("output", instance_id=source.instance_id, attempt_id=source.attempt_id, attempt=source.attempt)
    if source.stream not in _OUTPUT_STREAMS:
        raise malformed("output", f"stream is {source.stream!r}, not one of stdout, stderr, log")
    return OutputChunk(
        instance_id=source.instance_id,
        attempt=source.attempt,
        attempt_id=source.attempt_id,
        sequence=source.sequence,
        at_us=source.at_us,
        stream=source.stream,
        text=source.text,
    )


def _read_progress(message: pb.WorkerMessage) -> Progress:
    source = message.progress
    require("progress", instance_id=source.instance_id, attempt_id=source.attempt_id)
    return Progress(source.instance_id, source.attempt_id, source.fraction, source.text)


def _read_draining(message: pb.WorkerMessage) -> Draining:
    return Draining(message.draining.reason)


def _read_guardian_hello(message: pb.WorkerMessage) -> GuardianHello:
    source = message.guardian_hello
    require("guardian_hello", protocol=source.protocol, worker_id=source.worker_id)
    return GuardianHello(
        protocol=source.protocol,
        worker_id=source.worker_id,
        worker_name=source.worker_name,
        token=Secret(source.token),
    )


def _read_tree_ended(message: pb.WorkerMessage) -> TreeEnded:
    source = message.tree_ended
    sequence = source.heartbeat_sequence if source.HasField("heartbeat_sequence") else None
    return TreeEnded(sequence, source.reason)


_READERS: dict[str, Callable[[pb.WorkerMessage], WorkerMessage]] = {
    "hello": _read_hello,
    "heartbeat": _read_heartbeat,
    "accepted": _read_accepted,
    "outcomes": _read_outcomes,
    "output": _read_output,
    "progress": _read_progress,
    "draining": _read_draining,
    "guardian_hello": _read_guardian_hello,
    "tree_ended": _read_tree_ended,
    "report": _read_report,
}


def _outcome_bytes(outcome: Outcome) -> int:
    size = ITEM_BYTES_OVERHEAD + text_bytes(outcome.unstarted_reason)
    if outcome.result is not None:
        size += len(outcome.result)
    if outcome.failure is not None:
        size += _failure_bytes(outcome.failure)
    return size


def _failure_bytes(failure: Failure) -> int:
    """Estimate of the JSON's length, from the texts that can be long."""
    texts = [failure.message, failure.traceback, failure.detail, *(cause.message for cause in failure.chain)]
    return ITEM_BYTES_OVERHEAD * (1 + len(failure.chain)) + sum(map(text_bytes, texts))


def _chunk_bytes(chunk: OutputChunk) -> int:
    return ITEM_BYTES_OVERHEAD + text_bytes(chunk.text)
