"""Containers at an engine that works: results, output, environment, images, limits, stops."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.fake_engine import IMAGE, FakeEngine, fake_engine

from ostinato.core.definition import Mount
from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import attempt_of, opened
from ostinato.worker.executors.protocol import StopReason
from tests.worker.containers import (
    WORKER_ID,
    container_task,
    end_of,
    failure_of,
    make_executor,
    running,
    until,
)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[FakeEngine]:
    with fake_engine(tmp_path) as engine:
        yield engine


def marker(folder: Path) -> Path:
    return folder / "workers" / WORKER_ID / "engine"


async def test_the_result_holds_the_end_of_the_standard_output(engine: FakeEngine, tmp_path: Path) -> None:
    finished, sink, start = await end_of(engine, tmp_path, container_task("seq 3; echo hush >&2"))
    assert finished.failure is None
    assert json.loads(finished.result or b"") == {"exit_code": 0, "stdout_tail": "1\n2\n3"}
    assert sink.text_of(start.assignment.attempt_id, "stderr") == "hush\n"
    assert engine.containers == {}
    assert not marker(tmp_path).exists(), "nothing is left to look for"


async def test_a_failure_says_its_status_and_the_last_words(engine: FakeEngine, tmp_path: Path) -> None:
    finished, _, _ = await end_of(engine, tmp_path, container_task("echo no such table >&2; exit 4"))
    failure = failure_of(finished)
    assert (failure.code, failure.category) == ("EXIT_4", "transient")
    assert failure.message == "the container ended with exit status 4; stderr ends with: no such table"


async def test_a_container_that_ran_out_of_memory_says_so(engine: FakeEngine, tmp_path: Path) -> None:
    spec = container_task("kill -9 $$", env={"FAKE_OOM": "1"}, memory_limit_bytes=64 * 1024 * 1024)
    finished, _, _ = await end_of(engine, tmp_path, spec)
    failure = failure_of(finished)
    assert (failure.code, failure.category) == ("OOM", "resource")
    assert "64MiB" in failure.message


async def test_a_container_that_somebody_killed_has_the_shells_code(
    engine: FakeEngine, tmp_path: Path
) -> None:
    finished, _, _ = await end_of(engine, tmp_path, container_task("kill -9 $$"))
    assert (failure_of(finished).code, failure_of(finished).category) == ("EXIT_137", "resource")


async def test_it_has_its_payload_in_a_variable_and_in_a_file(engine: FakeEngine, tmp_path: Path) -> None:
    command = 'cat "$OSTINATO_PAYLOAD_FILE"; echo; echo "$OSTINATO_PAYLOAD"; touch "$OSTINATO_SCRATCH/mine"'
    finished, _, _ = await end_of(engine, tmp_path, container_task(command), b'{"day": "today"}')
    assert json.loads(finished.result or b"")["stdout_tail"] == '{"day": "today"}\n{"day": "today"}'


async def test_a_payload_too_large_for_a_variable_is_in_the_file_alone(
    engine: FakeEngine, tmp_path: Path
) -> None:
    payload = json.dumps({"text": "x" * 200_000}).encode()
    command = 'wc -c < "$OSTINATO_PAYLOAD_FILE"; echo "${OSTINATO_PAYLOAD-unset}"'
    finished, _, _ = await end_of(engine, tmp_path, container_task(command), payload)
    assert json.loads(finished.result or b"")["stdout_tail"] == f"{len(payload)}\nunset"


async def test_it_is_told_what_runs_and_by_which_fencing_token(engine: FakeEngine, tmp_path: Path) -> None:
    command = 'echo "$OSTINATO_INSTANCE_ID $OSTINATO_ATTEMPT $OSTINATO_ATTEMPT_ID"'
    finished, _, start = await end_of(engine, tmp_path, container_task(command))
    named = start.assignment
    shown = f"{named.instance_id} {named.attempt} {named.attempt_id}"
    assert json.loads(finished.result or b"")["stdout_tail"] == shown


async def test_it_is_found_by_its_name_and_labels_while_it_runs(engine: FakeEngine, tmp_path: Path) -> None:
    async with running(engine, tmp_path, container_task(("sleep", "600"))) as (executor, sink, start):
        (container,) = engine.containers.values()
        assert container.name == f"ostinato-{start.assignment.attempt_id}"
        assert container.body["Labels"]["ostinato.worker-id"] == WORKER_ID
        assert container.body["Labels"]["ostinato.instance-id"] == start.assignment.instance_id
        assert marker(tmp_path).read_text() == str(engine.socket)
        executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=10 * SECOND)
        await sink.end_of(start.assignment.attempt_id)


async def test_output_arrives_while_it_runs(engine: FakeEngine, tmp_path: Path) -> None:
    spec = container_task("echo ready; sleep 600")
    async with running(engine, tmp_path, spec) as (_, sink, start):
        await sink.until(lambda: sink.text_of(start.assignment.attempt_id) == "ready\n")
        assert start.assignment.attempt_id not in sink.ends


async def test_c159_a_line_without_an_end_is_cut_and_output_is_capped(
    engine: FakeEngine, tmp_path: Path
) -> None:
    command = "head -c 200000 /dev/zero | tr '\\0' x; echo; echo end"
    _, sink, start = await end_of(engine, tmp_path, container_task(command))
    text = sink.text_of(start.assignment.attempt_id)
    assert "bytes of this line cut]\nend\n" in text
    assert len(text) < 70_000


# ── images ────────────────────────────────────────────────────────────────────────────────────────────


async def test_an_image_that_is_missing_is_fetched_once(engine: FakeEngine, tmp_path: Path) -> None:
    spec = container_task("true", image="registry.example.com/shop:2")
    for _ in range(2):
        finished, _, _ = await end_of(engine, tmp_path, spec)
        assert finished.failure is None
    assert engine.requests.count("POST /images/create") == 1


@pytest.mark.parametrize(
    ("said", "code", "pull_count"),
    [
        ({"image": "missing/image:1"}, "IMAGE_NOT_FOUND", 1),
        ({"image": "broken/image:1"}, "IMAGE_PULL_FAILED", 1),
        ({"image": "registry/image:1", "pull": "never"}, "IMAGE_NOT_FOUND", 0),
        ({"image": IMAGE, "pull": "always", "mounts": (Mount("/nowhere", "/data"),)}, "CONTAINER_REFUSED", 1),
    ],
)
async def test_what_cannot_be_made_is_a_failure_before_the_start(
    engine: FakeEngine, tmp_path: Path, said: dict[str, Any], code: str, pull_count: int
) -> None:
    finished, sink, _ = await end_of(engine, tmp_path, container_task("true", **said))
    assert failure_of(finished).code == code
    assert finished.started_us is None
    assert sink.started_ids == []
    assert engine.requests.count("POST /images/create") == pull_count
    assert engine.containers == {}


async def test_a_fetch_that_says_nothing_more_is_given_up(engine: FakeEngine, tmp_path: Path) -> None:
    finished, _, _ = await end_of(engine, tmp_path, container_task("true", image="stuck/image:1"))
    assert finished.started_us is None
    assert "no answer in 0.3 s" in finished.refused


async def test_a_program_that_the_image_does_not_have(engine: FakeEngine, tmp_path: Path) -> None:
    finished, _, _ = await end_of(engine, tmp_path, container_task(("no-such-program",)))
    failure = failure_of(finished)
    assert (failure.code, failure.category) == ("EXIT_127", "permanent")
    assert engine.containers == {}


# ── stops ─────────────────────────────────────────────────────────────────────────────────────────────


async def test_a_stop_gives_it_time_to_tidy_up(engine: FakeEngine, tmp_path: Path) -> None:
    spec = container_task("trap 'echo tidied; exit 0' TERM; echo ready; while true; do sleep 0.05; done")
    async with running(engine, tmp_path, spec) as (executor, sink, start):
        attempt_id = start.assignment.attempt_id
        await sink.until(lambda: "ready" in sink.text_of(attempt_id))
        executor.stop(attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        finished = await sink.end_of(attempt_id)
    assert sink.text_of(attempt_id) == "ready\ntidied\n"
    assert json.loads(finished.result or b"")["exit_code"] == 0


async def test_what_is_stopped_while_its_image_is_fetched_never_starts(
    engine: FakeEngine, tmp_path: Path
) -> None:
    executor = make_executor(engine, tmp_path)
    async with opened(executor) as sink:
        start = attempt_of(container_task("true", image="stuck/image:1"))
        executor.start([start])
        await until(lambda: "POST /images/create" in engine.requests)
        executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        finished = await sink.end_of(start.assignment.attempt_id)
    assert finished.started_us is None
    assert sink.started_ids == []
    assert engine.containers == {}


async def test_one_that_is_over_its_lease_before_its_start_is_handed_back(
    engine: FakeEngine, tmp_path: Path
) -> None:
    executor = make_executor(engine, tmp_path)
    async with opened(executor) as sink:
        start = attempt_of(container_task("true"))
        start.lease_ends_us = 0
        executor.start([start])
        finished = await sink.end_of(start.assignment.attempt_id)
    assert "its lease was over" in finished.refused
    assert not any(request.endswith("/start") for request in engine.requests)
    assert engine.containers == {}
