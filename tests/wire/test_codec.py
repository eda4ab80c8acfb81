"""The codec: every message comes back equal, nothing malformed comes through, frames stay short."""

from __future__ import annotations

import importlib.util
import types
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ostinato.core.definition import ShellSpec, TaskRef
from ostinato.core.failure.failure import Cause, Failure
from ostinato.core.model import Outcome, OutputChunk
from ostinato.errors import UserError
from ostinato.testing.contracts.transport_messages import (
    NODE_KINDS,
    WORKER_KINDS,
    assignments,
    messages,
    outcomes,
)
from ostinato.wire.codec import decode_node, decode_worker, encode_node, encode_worker
from ostinato.wire.codec_checks import FRAME_BYTES_MAX, FRAME_BYTES_TARGET, FRAME_ITEM_COUNT_MAX
from ostinato.wire.generated import worker_pb2 as pb
from ostinato.wire.messages import (
    Accepted,
    Assignments,
    Cancel,
    Draining,
    GuardianHello,
    Heartbeat,
    Hello,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Output,
    Progress,
    Specs,
    TaskSpec,
    TreeEnded,
    TreeEndedRecorded,
    Welcome,
    WorkerMessage,
)


def through_worker_frames(batch: list[WorkerMessage]) -> list[WorkerMessage]:
    return [message for frame in encode_worker(batch) for message in decode_worker(frame)]


def through_node_frames(batch: list[NodeMessage]) -> list[NodeMessage]:
    return [message for frame in encode_node(batch) for message in decode_node(frame)]


def read_or_refused(decode: Callable[[bytes], object], frame: bytes) -> bool:
    """Whether `frame` gives messages or the one error; any other exception passes."""
    try:
        decode(frame)
    except UserError as error:
        return error.code == "PROTOCOL_MISMATCH"
    return True


# ── round trips ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", WORKER_KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_worker_message_comes_back_equal(kind: type[WorkerMessage], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    assert through_worker_frames([message]) == [message]


@pytest.mark.parametrize("kind", NODE_KINDS)
@given(data=st.data())
@settings(max_examples=60, deadline=None)
def test_every_node_message_comes_back_equal(kind: type[NodeMessage], data: st.DataObject) -> None:
    message = data.draw(messages(kind))
    assert through_node_frames([message]) == [message]


@pytest.mark.parametrize(
    "message",
    [Accepted([]), Outcomes([], {}), Output([]), Heartbeat(0, 0, {}), Draining(""), TreeEnded(None, "")],
    ids=lambda message: type(message).__name__,
)
def test_an_empty_worker_message_is_still_sent(message: WorkerMessage) -> None:
    assert through_worker_frames([message]) == [message]


@pytest.mark.parametrize(
    "message",
    [Specs([]), Assignments(0, []), OutcomesAcknowledged([]), TreeEndedRecorded()],
    ids=lambda message: type(message).__name__,
)
def test_an_empty_node_message_is_still_sent(message: NodeMessage) -> None:
    assert through_node_frames([message]) == [message]


def test_nothing_and_zero_and_empty_stay_apart() -> None:
    started_at_zero = Outcome(
        instance_id="i", attempt=1, attempt_id="a", started_us=0, finished_us=0, result=b""
    )
    never_started = Outcome(instance_id="i", attempt=1, attempt_id="b", started_us=None, finished_us=0)
    batch: list[WorkerMessage] = [
        Outcomes([started_at_zero, never_started], {"async": 0}, {"process": 7}),
        Heartbeat(1, 2, {"process": 3}, {"async": 4}, {"process": 5}),
        TreeEnded(0, "a lease has ended"),
        TreeEnded(None, "the supervisor is gone"),
    ]
    assert through_worker_frames(batch) == batch


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_long_batch_is_cut_by_count() -> None:
    sent = assignments(2 * FRAME_ITEM_COUNT_MAX + 1)
    frames = list(encode_node([sent]))
    assert [len(_items(frame)) for frame in frames] == [FRAME_ITEM_COUNT_MAX, FRAME_ITEM_COUNT_MAX, 1]
    assert [item for frame in frames for item in _items(frame)] == sent.items


def test_a_heavy_batch_is_cut_by_bytes() -> None:
    sent = assignments(100, payload=b"x" * 256 * 1024)
    frames = list(encode_node([sent]))
    assert max(map(len, frames)) <= FRAME_BYTES_TARGET
    assert len(frames) < 10
    assert [item for frame in frames for item in _items(frame)] == sent.items


def test_an_item_longer_than_the_target_travels_alone() -> None:
    sent = outcomes(3, result=b"x" * (FRAME_BYTES_TARGET + 1))
    frames = list(encode_worker([sent]))
    assert len(frames) == 3
    assert all(len(frame) <= FRAME_BYTES_MAX for frame in frames)


def test_an_item_that_no_frame_can_hold_is_refused_by_name() -> None:
    with pytest.raises(UserError) as caught:
        list(encode_node([assignments(1, payload=b"x" * (FRAME_BYTES_MAX + 1))]))
    assert caught.value.code == "PAYLOAD_TOO_LARGE"
    assert "Assignments" in caught.value.message


def test_two_frames_joined_are_one_frame_with_the_messages_of_both() -> None:
    [first] = encode_node([Cancel("i", "a", "first")])
    [second] = encode_node([Cancel("i", "b", "second")])
    assert decode_node(first + second) == [Cancel("i", "a", "first"), Cancel("i", "b", "second")]


def test_no_messages_make_no_frame() -> None:
    assert list(encode_worker([])) == []
    assert decode_worker(b"") == []


# ── what protobuf cannot carry ────────────────────────────────────────────────────────────────────────


def test_c157_lone_surrogates_are_replaced_rather_than_never_sent() -> None:
    bad = "a\ud800b"
    outcome = Outcome(
        instance_id="i",
        attempt=1,
        attempt_id="a",
        started_us=None,
        finished_us=1,
        failure=Failure("EIO", "transient", bad, chain=(Cause("OSError", bad, (bad,)),), detail=bad),
    )
    chunk = OutputChunk(
        instance_id="i", attempt=1, attempt_id="a", sequence=0, at_us=0, stream="log", text=bad
    )
    healthy = Progress("i", "a", 0.5, "fine")
    received = through_worker_frames([healthy, Outcomes([outcome], {}), Output([chunk]), healthy])
    good = "a\ufffdb"
    expected = msgspec.structs.replace(
        outcome,
        failure=Failure("EIO", "transient", good, chain=(Cause("OSError", good, (good,)),), detail=good),
    )
    assert received == [
        healthy,
        Outcomes([expected], {}),
        Output([msgspec.structs.replace(chunk, text=good)]),
        healthy,
    ]


def test_a_number_beyond_64_bits_is_refused() -> None:
    with pytest.raises(UserError) as caught:
        list(encode_worker([Heartbeat(2**63, 0, {})]))
    assert caught.value.code == "INVALID_VALUE"
    assert "Heartbeat" in caught.value.message


# ── what others may send ──────────────────────────────────────────────────────────────────────────────


def test_a_message_of_a_newer_kind_is_skipped() -> None:
    unknown = pb.WorkerMessage.FromString(b"\xa2\x06\x02\x08\x01")  # field 100, a message
    frame = pb.WorkerFrame(messages=[unknown, pb.WorkerMessage(draining=pb.Draining(reason="known"))])
    assert decode_worker(frame.SerializeToString()) == [Draining("known")]
    assert decode_worker(pb.WorkerFrame(messages=[unknown]).SerializeToString()) == []


def test_a_newer_field_is_ignored() -> None:
    encoded = pb.Cancel(instance_id="i", attempt_id="a").SerializeToString() + b"\xa2\x06\x03new"
    message = pb.NodeMessage(cancel=pb.Cancel.FromString(encoded))
    assert decode_node(pb.NodeFrame(messages=[message]).SerializeToString()) == [Cancel("i", "a", "")]


def test_what_an_older_side_does_not_say_has_its_default() -> None:
    message = pb.NodeMessage(cancel=pb.Cancel(instance_id="i", attempt_id="a"))
    assert decode_node(pb.NodeFrame(messages=[message]).SerializeToString()) == [
        Cancel("i", "a", "", is_timeout=False)
    ]
    [assigned] = decode_node(pb.NodeFrame(messages=[_assignment(partition=0)]).SerializeToString())
    assert isinstance(assigned, Assignments)
    assert assigned.items[0].partition == 0


def test_newer_members_of_json_are_ignored() -> None:
    failure = b'{"code":"EIO","category":"transient","message":"m","newer":{"a":[1]}}'
    item = pb.Outcome(instance_id="i", attempt=1, attempt_id="a", failure=failure)
    frame = pb.WorkerFrame(messages=[pb.WorkerMessage(outcomes=pb.Outcomes(items=[item]))])
    [message] = decode_worker(frame.SerializeToString())
    assert isinstance(message, Outcomes)
    assert message.items[0].failure == Failure("EIO", "transient", "m")


_SPEC = TaskSpec(
    ref=TaskRef("n", "t"),
    version=1,
    executor=ShellSpec("true"),
    timeout_us=None,
    grace_us=0,
    heartbeat_timeout_us=None,
    exclusive="strict",
)


def _outcome(**changed: object) -> pb.WorkerMessage:
    fields = {"instance_id": "i", "attempt": 1, "attempt_id": "a", "finished_us": 1, **changed}
    return pb.WorkerMessage(outcomes=pb.Outcomes(items=[pb.Outcome(**fields)]))


def _chunk(**changed: object) -> pb.WorkerMessage:
    fields = {"instance_id": "i", "attempt": 1, "attempt_id": "a", "stream": "log", **changed}
    return pb.WorkerMessage(output=pb.Output(chunks=[pb.OutputChunk(**fields)]))


@pytest.mark.parametrize(
    "failure",
    [
        b"",
        b'{"code":"EIO"}',
        b'{"code":1,"category":"lost","message":""}',
        b'{"code":"A","category":"lost","message":"","x":' + b"[" * 5_000,
        b'{"code":"A","category":"lost","message":"\xff"}',
        b'{"code":"A","category":"lost","message":"\\ud800"}',
    ],
)
def test_a_failure_that_cannot_be_read_is_its_attempt_s_alone(failure: bytes) -> None:
    good = pb.Outcome(instance_id="i", attempt=1, attempt_id="a", result=b"1")
    bad = pb.Outcome(instance_id="j", attempt=1, attempt_id="b", failure=failure)
    message = pb.WorkerMessage(outcomes=pb.Outcomes(items=[good, bad]))
    ((first, second),) = [read.items for read in _read(message)]
    assert (first.result, first.failure) == (b"1", None)
    assert second.failure is not None
    assert second.failure.code in ("BAD_RESULT", "A")


def test_a_frame_of_a_million_empty_messages_is_refused_before_they_are_read() -> None:
    frame = pb.WorkerFrame(messages=[pb.WorkerMessage(heartbeat=pb.Heartbeat())] * 10_001)
    with pytest.raises(UserError, match="at most 10000"):
        decode_worker(frame.SerializeToString())


def _read(message: pb.WorkerMessage) -> list[Outcomes]:
    read = decode_worker(pb.WorkerFrame(messages=[message]).SerializeToString())
    return [item for item in read if isinstance(item, Outcomes)]


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.WorkerMessage(hello=pb.Hello(worker_id="w")), "protocol"),
        (pb.WorkerMessage(hello=pb.Hello(protocol=-1, worker_id="w")), "protocol"),
        (pb.WorkerMessage(hello=pb.Hello(protocol=1)), "worker_id"),
        (pb.WorkerMessage(hello=pb.Hello(protocol=1, worker_id="w", tasks=[pb.TaskRef()])), "namespace"),
        (
            pb.WorkerMessage(hello=pb.Hello(protocol=1, worker_id="w", running=[pb.RunningReport()])),
            "instance_id",
        ),
        (_outcome(instance_id=""), "instance_id"),
        (_outcome(attempt=0), "attempt"),
        (_outcome(attempt_id=""), "attempt_id"),
        (_chunk(stream="stdin"), "stdin"),
        (_chunk(attempt=0), "attempt"),
        (pb.WorkerMessage(progress=pb.Progress(instance_id="i")), "attempt_id"),
        (pb.WorkerMessage(guardian_hello=pb.GuardianHello(worker_id="w")), "protocol"),
        (pb.WorkerMessage(guardian_hello=pb.GuardianHello(protocol=1)), "worker_id"),
    ],
)
def test_a_malformed_worker_message_is_refused_naming_the_field(
    message: pb.WorkerMessage, words: str
) -> None:
    with pytest.raises(UserError, match=words) as caught:
        decode_worker(pb.WorkerFrame(messages=[message]).SerializeToString())
    assert caught.value.code == "PROTOCOL_MISMATCH"


def _spec(**changed: object) -> pb.NodeMessage:
    [frame] = encode_node([Specs([_SPEC])])
    message = pb.NodeFrame.FromString(frame).messages[0]
    for name, value in changed.items():
        setattr(message.specs.items[0], name, value)
    return message


def _assignment(**changed: object) -> pb.NodeMessage:
    [frame] = encode_node([assignments(1)])
    message = pb.NodeFrame.FromString(frame).messages[0]
    for name, value in changed.items():
        setattr(message.assignments.items[0], name, value)
    return message


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (pb.NodeMessage(welcome=pb.Welcome(node_id="n")), "protocol"),
        (pb.NodeMessage(welcome=pb.Welcome(protocol=1)), "node_id"),
        (pb.NodeMessage(rejected=pb.Rejected()), "code"),
        (_spec(exclusive="sometimes"), "sometimes"),
        (_spec(isolation="sometimes"), "sometimes"),
        (_spec(version=0), "version"),
        (_spec(executor=b'{"kind":"teleport"}'), "teleport"),
        (_spec(executor=b""), "executor"),
        (_assignment(instance_id=""), "instance_id"),
        (_assignment(attempt_id=""), "attempt_id"),
        (_assignment(namespace=""), "namespace"),
        (_assignment(task=""), "task"),
        (_assignment(version=0), "version"),
        (_assignment(generation=0), "generation"),
        (_assignment(attempt=-1), "attempt"),
        (_assignment(shard_total=0), "shard_total"),
        (pb.NodeMessage(cancel=pb.Cancel(attempt_id="a")), "instance_id"),
    ],
)
def test_a_malformed_node_message_is_refused_naming_the_field(message: pb.NodeMessage, words: str) -> None:
    with pytest.raises(UserError, match=words) as caught:
        decode_node(pb.NodeFrame(messages=[message]).SerializeToString())
    assert caught.value.code == "PROTOCOL_MISMATCH"


@given(frame=st.binary(max_size=200))
@settings(max_examples=300, deadline=None)
def test_noise_is_read_or_refused_and_never_crashes(frame: bytes) -> None:
    assert read_or_refused(decode_worker, frame)
    assert read_or_refused(decode_node, frame)


@given(cut=st.integers(0, 400), flip=st.integers(0, 399), bit=st.integers(0, 7))
@settings(max_examples=300, deadline=None)
def test_a_damaged_frame_is_read_or_refused_and_never_crashes(cut: int, flip: int, bit: int) -> None:
    [frame] = encode_worker(
        [Hello(protocol=1, worker_id="w", worker_name="n", labels={"zone": "a"}), outcomes(2)]
    )
    damaged = bytearray(frame)
    damaged[flip % len(damaged)] ^= 1 << bit
    assert read_or_refused(decode_worker, bytes(damaged[: max(1, cut)]))


def test_a_hello_of_another_version_can_be_read_so_that_it_can_be_refused() -> None:
    greetings: list[WorkerMessage] = [
        Hello(protocol=99, worker_id="w", worker_name="n"),
        GuardianHello(protocol=99, worker_id="w", worker_name="n"),
    ]
    assert through_worker_frames(greetings) == greetings
    assert through_node_frames([Welcome(protocol=98, node_id="n", worker_lease_us=1, heartbeat_us=1)])


# ── generated code ────────────────────────────────────────────────────────────────────────────────────


def test_the_generated_modules_are_current(request: pytest.FixtureRequest) -> None:
    """`make proto` has been run since worker.proto was changed."""
    assert _generator(request).stale_files() == []


def test_the_generated_modules_ask_for_no_particular_protobuf_runtime(
    request: pytest.FixtureRequest,
) -> None:
    module = _generator(request).generate()["worker_pb2.py"]
    assert "AddSerializedFile" in module
    assert "runtime_version" not in module


def _generator(request: pytest.FixtureRequest) -> types.ModuleType:
    path = request.config.rootpath / "tools" / "generate_proto.py"
    spec = importlib.util.spec_from_file_location("generate_proto", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _items(frame: bytes) -> list[msgspec.Struct]:
    [message] = decode_node(frame)
    assert isinstance(message, Assignments)
    return list(message.items)
