"""What is said to an engine and what its words mean: the parts that need none."""

from __future__ import annotations

import io
import tarfile
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.definition import ContainerSpec, Mount
from ostinato.testing.contracts.executor_harness import attempt_of, task_spec
from ostinato.worker.engine.failures import (
    create_failure,
    exit_failure,
    lost_failure,
    pull_failure,
    start_failure,
)
from ostinato.worker.engine.frames import BadFrame, LogFrames
from ostinato.worker.engine.output import OutputReader
from ostinato.worker.engine.request import create_body, labels_of, payload_archive, split_image
from ostinato.worker.engine.state import ContainerState, read_state
from ostinato.worker.engine.version import negotiated


def frame(stream: int, data: bytes) -> bytes:
    return bytes((stream, 0, 0, 0)) + len(data).to_bytes(4, "big") + data


# ── frames ────────────────────────────────────────────────────────────────────────────────────────────

PIECES = st.lists(st.tuples(st.sampled_from((1, 2)), st.binary(max_size=40)), max_size=8)


@given(PIECES, st.lists(st.integers(min_value=1, max_value=30), max_size=40))
def test_frames_are_the_same_wherever_the_stream_is_cut(
    pieces: list[tuple[int, bytes]], cuts: list[int]
) -> None:
    whole = b"".join(frame(stream, data) for stream, data in pieces)
    frames, found, position = LogFrames(), {"stdout": b"", "stderr": b""}, 0
    for length in [*cuts, len(whole)]:
        for stream, data in frames.feed(whole[position : position + length]):
            found[stream] += data
        position += length
    assert found == {
        name: b"".join(data for stream, data in pieces if stream == number)
        for number, name in ((1, "stdout"), (2, "stderr"))
    }


def test_what_is_not_made_of_frames_is_refused() -> None:
    with pytest.raises(BadFrame):
        LogFrames().feed(b"plain text of a terminal\n")


@given(PIECES, st.integers(min_value=0, max_value=400))
def test_output_that_is_read_again_is_passed_on_once(pieces: list[tuple[int, bytes]], cut: int) -> None:
    whole = b"".join(frame(stream, data) for stream, data in pieces)
    found: dict[str, bytes] = {"stdout": b"", "stderr": b""}

    def write(stream: str, data: bytes) -> None:
        found[stream] += data

    reader = OutputReader(write)
    for stream in (whole[:cut], whole):
        reader.begin()
        reader.feed(stream)
    assert found["stdout"] == b"".join(data for number, data in pieces if number == 1)
    assert found["stderr"] == b"".join(data for number, data in pieces if number == 2)


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("image", "parts"),
    [
        ("postgres", ("postgres", "latest")),
        ("postgres:17", ("postgres", "17")),
        ("registry.example.com:5000/shop/report", ("registry.example.com:5000/shop/report", "latest")),
        ("registry.example.com:5000/shop/report:1.4", ("registry.example.com:5000/shop/report", "1.4")),
        (f"shop/report:1.4@sha256:{'a' * 64}", ("shop/report", f"sha256:{'a' * 64}")),
    ],
)
def test_an_image_is_fetched_by_one_tag_or_digest(image: str, parts: tuple[str, str]) -> None:
    assert split_image(image) == parts


def body_of(spec: ContainerSpec, **limits: Any) -> dict[str, Any]:
    start = attempt_of(task_spec("boxed", spec, **limits))
    return create_body(start.assignment, start.spec, deadline_us=None, labels={"a": "b"})


def test_a_text_is_run_by_the_images_shell_and_words_by_its_own_program() -> None:
    text = body_of(ContainerSpec("image", "echo $HOME"))
    words = body_of(ContainerSpec("image", ("--day", "today")))
    program = body_of(ContainerSpec("image", ("-m", "report"), entrypoint=("python",)))
    own = body_of(ContainerSpec("image"))
    assert (text["Entrypoint"], text["Cmd"]) == (["/bin/sh", "-c"], ["echo $HOME"])
    assert ("Entrypoint" in words, words["Cmd"]) == (False, ["--day", "today"])
    assert (program["Entrypoint"], program["Cmd"]) == (["python"], ["-m", "report"])
    assert not {"Entrypoint", "Cmd", "User", "WorkingDir"} & own.keys()


def test_the_body_says_what_the_task_says_and_leaves_restarts_to_the_scheduler() -> None:
    mounts = (Mount("/srv/shop", "/data", read_only=True), Mount("cache", "/cache"))
    spec = ContainerSpec("image", mounts=mounts, directory="/app", user="1000:1000", network="none")
    body = body_of(spec, memory_limit_bytes=64 * 1024 * 1024, cpu_limit=0.5)
    host = body["HostConfig"]
    assert (body["Image"], body["WorkingDir"], body["User"], body["Labels"]) == (
        "image",
        "/app",
        "1000:1000",
        {"a": "b"},
    )
    assert host == {
        "RestartPolicy": {"Name": "no"},
        "AutoRemove": False,
        "Init": True,
        "NetworkMode": "none",
        "Memory": 67_108_864,
        "MemorySwap": 67_108_864,
        "NanoCpus": 500_000_000,
        "Mounts": [
            {"Type": "bind", "Source": "/srv/shop", "Target": "/data", "ReadOnly": True},
            {"Type": "volume", "Source": "cache", "Target": "/cache", "ReadOnly": False},
        ],
    }


def test_the_environment_is_the_tasks_own_and_the_fencing_token_which_it_cannot_forge() -> None:
    start = attempt_of(task_spec("boxed", ContainerSpec("image", env={"A": "1", "OSTINATO_ATTEMPT_ID": "x"})))
    body = create_body(start.assignment, start.spec, deadline_us=None, labels={})
    variables = dict(variable.split("=", 1) for variable in body["Env"])
    assert variables["A"] == "1"
    assert variables["OSTINATO_ATTEMPT_ID"] == start.assignment.attempt_id
    assert variables["OSTINATO_PAYLOAD_FILE"] == "/ostinato/payload.json"
    assert variables["OSTINATO_PAYLOAD"] == "{}"
    assert not {"PATH", "HOME", "LANG"} & variables.keys(), "the image has its own"


def test_labels_name_the_attempt_and_whoever_runs_it() -> None:
    assignment = attempt_of(task_spec("boxed", ContainerSpec("image"))).assignment
    assert labels_of(assignment, worker_id="w-1", worker_name="build-1") == {
        "ostinato.namespace": "default",
        "ostinato.task": "boxed",
        "ostinato.instance-id": assignment.instance_id,
        "ostinato.attempt": "1",
        "ostinato.attempt-id": assignment.attempt_id,
        "ostinato.worker-id": "w-1",
        "ostinato.worker-name": "build-1",
    }


def test_the_payload_comes_in_a_folder_that_any_user_may_write_to() -> None:
    with tarfile.open(fileobj=io.BytesIO(payload_archive(b'{"day": 1}'))) as archive:
        folder, file = archive.getmembers()
        assert (folder.name, folder.mode, folder.isdir()) == ("ostinato", 0o1777, True)
        assert (file.name, file.mode) == ("ostinato/payload.json", 0o444)
        content = archive.extractfile(file)
        assert content is not None
        assert content.read() == b'{"day": 1}'


@pytest.mark.parametrize(
    ("announced", "spoken"),
    [("1.41", "1.41"), ("1.47", "1.47"), ("1.52", "1.47"), ("2.0", "1.47"), ("", "1.47"), ("new", "1.47")],
)
def test_the_older_of_both_versions_is_spoken(announced: str, spoken: str) -> None:
    assert negotiated(announced) == spoken


# ── states and failures ───────────────────────────────────────────────────────────────────────────────

STARTED = "2026-01-01T00:00:00.123456789Z"
NEVER = "0001-01-01T00:00:00Z"


@pytest.mark.parametrize(
    ("state", "is_over", "was_started"),
    [
        ({"Status": "created", "StartedAt": NEVER}, False, False),
        ({"Status": "running", "Running": True, "StartedAt": STARTED}, False, True),
        # Podman says of these that they are not running.
        ({"Status": "paused", "Running": False, "Paused": True, "StartedAt": STARTED}, False, True),
        ({"Status": "stopping", "Running": False, "StartedAt": STARTED}, False, True),
        ({"Status": "stopped", "Running": False, "StartedAt": STARTED}, True, True),
        ({"Status": "exited", "Running": False, "StartedAt": STARTED}, True, True),
        ({"Status": "removing", "Running": False, "StartedAt": STARTED}, False, True),
        ({"Status": "", "Running": False, "StartedAt": STARTED}, True, True),
        ({"Status": "", "Running": False, "StartedAt": NEVER}, False, False),
    ],
)
def test_over_is_only_what_the_engine_says_has_ended(
    state: dict[str, Any], is_over: bool, was_started: bool
) -> None:
    read = read_state({"State": state})
    assert (read.is_over, read.was_started) == (is_over, was_started)


@pytest.mark.parametrize("answer", [None, [], {}, {"State": 1}])
def test_an_answer_without_a_state_is_none(answer: object) -> None:
    with pytest.raises(ValueError, match="no State"):
        read_state(answer)


@pytest.mark.parametrize(
    ("code", "is_oom_killed", "expected"),
    [
        (3, False, ("EXIT_3", "transient")),
        (127, False, ("EXIT_127", "permanent")),
        (137, False, ("EXIT_137", "resource")),
        (137, True, ("OOM", "resource")),
        (-1, False, ("CONTAINER_NOT_STARTED", "transient")),
    ],
)
def test_an_exit_status_has_the_code_that_a_command_has(
    code: int, is_oom_killed: bool, expected: tuple[str, str]
) -> None:
    state = ContainerState(is_over=True, was_started=True, exit_code=code, is_oom_killed=is_oom_killed)
    failure = exit_failure(state, memory_limit_bytes=64 * 1024 * 1024)
    assert (failure.code, failure.category) == expected


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ("manifest for shop:9 not found: manifest unknown", ("IMAGE_NOT_FOUND", "permanent")),
        ("pull access denied for shop, repository does not exist", ("IMAGE_NOT_FOUND", "permanent")),
        ("unauthorized: authentication required", ("IMAGE_NOT_FOUND", "permanent")),
        ("toomanyrequests: You have reached your pull rate limit", ("IMAGE_PULL_FAILED", "transient")),
        ("net/http: TLS handshake timeout", ("IMAGE_PULL_FAILED", "transient")),
    ],
)
def test_an_image_that_cannot_be_had_is_told_from_one_that_cannot_be_had_now(
    message: str, expected: tuple[str, str]
) -> None:
    failure = pull_failure("shop:9", message)
    assert (failure.code, failure.category) == expected
    assert message in failure.message


@pytest.mark.parametrize(
    ("status", "message", "code"),
    [
        (400, "invalid mount config: bind source path does not exist: /nowhere", "CONTAINER_REFUSED"),
        (404, "network backend not found", "CONTAINER_REFUSED"),
        (404, "No such image: shop:9", "CONTAINER_NOT_STARTED"),
        (409, "Conflict. The container name is already in use", "CONTAINER_NOT_STARTED"),
        (500, "no space left on device", "CONTAINER_NOT_STARTED"),
    ],
)
def test_a_container_that_is_refused_is_told_from_one_that_cannot_be_made_now(
    status: int, message: str, code: str
) -> None:
    assert create_failure(status, message).code == code


@pytest.mark.parametrize(
    ("message", "code"),
    [
        ('exec: "reprot": executable file not found in $PATH: unknown', "EXIT_127"),
        ('exec: "/app/run": permission denied: unknown', "EXIT_126"),
        ("exec /app/run: exec format error", "EXIT_126"),
        ("driver failed programming external connectivity", "CONTAINER_NOT_STARTED"),
    ],
)
def test_a_command_that_is_not_there_has_the_code_that_a_shell_gives(message: str, code: str) -> None:
    assert start_failure(message).code == code


def test_a_lost_engine_says_what_is_known_of_the_container() -> None:
    known, unknown = lost_failure("gone", is_gone=True), lost_failure("gone", is_gone=False)
    assert (known.code, known.category) == ("ENGINE_LOST", "lost")
    assert "has ended" in known.message
    assert "is not known" in unknown.message
