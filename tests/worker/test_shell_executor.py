"""Commands in real processes: environment, exit codes, output, and trees that are ended whole."""

from __future__ import annotations

import json
import resource
import signal
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec
from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import RecordingSink, attempt_of, opened, task_spec
from ostinato.worker.executors.protocol import AttemptFinished, StopReason
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.process_tree import (
    Tree,
    TreeProcess,
    find_trees,
    kill_trees,
    signal_process,
    start_ticks_of,
)


@asynccontextmanager
async def shell(folder: Path) -> AsyncIterator[tuple[ShellExecutor, RecordingSink]]:
    executor = ShellExecutor(clock=SystemClock(), data_dir=folder)
    async with opened(executor) as sink:
        yield executor, sink


async def run(
    folder: Path, spec: ShellSpec, payload: bytes = b"{}"
) -> tuple[AttemptFinished, RecordingSink, str]:
    async with shell(folder) as (executor, sink):
        start = attempt_of(task_spec("command", spec), payload)
        executor.start([start])
        finished = await sink.end_of(start.assignment.attempt_id)
    return finished, sink, start.assignment.attempt_id


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def test_the_result_holds_the_end_of_the_standard_output(tmp_path: Path) -> None:
    finished, _, _ = await run(tmp_path, ShellSpec(command="seq 1 5000"))
    assert finished.result is not None
    result = msgspec.json.decode(finished.result)
    assert result["exit_code"] == 0
    assert result["stdout_tail"].endswith("4999\n5000")
    assert len(result["stdout_tail"]) <= 4096


async def test_the_environment_is_clean_and_tells_of_the_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SECRET_OF_THE_WORKER", "hidden")
    monkeypatch.setenv("LANG", "C.UTF-8")
    _, sink, attempt_id = await run(
        tmp_path, ShellSpec(command="env; pwd; cat payload.json", env={"MINE": "yes"}), b'{"day": "monday"}'
    )
    text = sink.text_of(attempt_id, "stdout")
    told = dict(line.split("=", 1) for line in text.splitlines() if "=" in line)
    assert "SECRET_OF_THE_WORKER" not in told
    assert told["MINE"] == "yes"
    assert told["LANG"] == "C.UTF-8"
    assert told["OSTINATO_ATTEMPT_ID"] == attempt_id
    assert told["OSTINATO_ATTEMPT"] == "1"
    assert json.loads(told["OSTINATO_PAYLOAD"]) == {"day": "monday"}
    assert told["PWD"] == told["OSTINATO_SCRATCH"]
    assert text.endswith('{"day": "monday"}\n')


async def test_a_payload_too_large_for_a_variable_is_in_its_file(tmp_path: Path) -> None:
    payload = msgspec.json.encode({"text": "x" * 200_000})
    spec = ShellSpec(command='test -z "$OSTINATO_PAYLOAD" && wc -c < "$OSTINATO_PAYLOAD_FILE"')
    finished, _, _ = await run(tmp_path, spec, payload)
    assert finished.result is not None
    assert int(msgspec.json.decode(finished.result)["stdout_tail"]) == len(payload)


async def test_the_scratch_directory_is_gone_afterwards(tmp_path: Path) -> None:
    await run(tmp_path, ShellSpec(command="mkdir -p a/b; touch a/b/c"))
    assert list((tmp_path / "attempts").iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "code", "category"),
    [
        (ShellSpec(command="exit 3"), "EXIT_3", "transient"),
        (ShellSpec(command="exit 137"), "EXIT_137", "resource"),
        (ShellSpec(command="kill -9 $$"), "SIGNAL_9", "resource"),
        (ShellSpec(command="kill -15 $$"), "SIGNAL_15", "transient"),
        (ShellSpec(command="no-such-command-at-all"), "EXIT_127", "permanent"),
        (ShellSpec(command=("no-such-command-at-all",)), "EXIT_127", "permanent"),
        (ShellSpec(command=("/etc/passwd",)), "EXIT_126", "permanent"),
        (ShellSpec(command=("true", "nul\0byte")), "SPAWN_FAILED", "permanent"),
        (ShellSpec(command="true", directory="/no/such/place"), "ENOENT", "transient"),
    ],
)
async def test_c071_how_a_command_ended_is_its_code(
    tmp_path: Path, spec: ShellSpec, code: str, category: str
) -> None:
    finished, _, _ = await run(tmp_path, spec)
    assert finished.failure is not None
    assert (finished.failure.code, finished.failure.category) == (code, category)


async def test_c157_nul_and_other_bytes_are_made_visible(tmp_path: Path) -> None:
    finished, sink, attempt_id = await run(tmp_path, ShellSpec(command=r"printf 'a\0b\377c\n'"))
    assert sink.text_of(attempt_id) == "a\u2400b\\xffc\n"
    assert finished.result is not None
    assert b"\\u0000" not in finished.result


@pytest.mark.parametrize(
    "command",
    [
        "sleep 600 & sleep 600",
        "setsid sleep 600 & sleep 600",
        "(setsid sh -c 'sleep 600 & sleep 600' &) ; sleep 600",
        "trap '' TERM; sleep 600 & while true; do sleep 1; done",
        "setsid sh -c \"trap '' TERM; while true; do sleep 1; done\" & exec sleep 600",
    ],
)
async def test_c125_a_timeout_ends_the_whole_tree_within_the_grace(tmp_path: Path, command: str) -> None:
    async with shell(tmp_path) as (executor, sink):
        start = attempt_of(task_spec("tree", ShellSpec(command=f"echo ready; {command}")))
        attempt_id = start.assignment.attempt_id
        executor.start([start])
        await sink.until(lambda: "ready" in sink.text_of(attempt_id))
        marked = [p for p in psutil.process_iter() if _has_marker(p, attempt_id)]
        assert marked
        begin = time.monotonic()
        executor.stop(attempt_id, reason=StopReason.TIMEOUT, grace_us=SECOND)
        await sink.end_of(attempt_id)
        assert time.monotonic() - begin < 3
        assert not any(_has_marker(process, attempt_id) for process in psutil.process_iter())


def _has_marker(process: psutil.Process, attempt_id: str) -> bool:
    try:
        return (
            process.environ().get("OSTINATO_TREE", "").endswith(f".{attempt_id}")
            and process.status() != "zombie"
        )
    except psutil.Error:
        return False


async def test_c125_a_background_child_that_holds_the_pipe_does_not_hold_up_the_end(tmp_path: Path) -> None:
    spec = ShellSpec(command="setsid sh -c 'echo $$; exec sleep 600' & sleep 0.2; echo done")
    finished, sink, attempt_id = await run(tmp_path, spec)
    assert finished.failure is None
    child, _ = sink.text_of(attempt_id, "stdout").split()
    assert not is_alive(int(child))


async def test_what_ends_within_its_grace_may_tidy_up(tmp_path: Path) -> None:
    async with shell(tmp_path) as (executor, sink):
        spec = ShellSpec(
            command="trap 'echo tidied; exit 5' TERM; echo ready; while true; do sleep 0.05; done"
        )
        start = attempt_of(task_spec("tidy", spec))
        attempt_id = start.assignment.attempt_id
        executor.start([start])
        await sink.until(lambda: "ready" in sink.text_of(attempt_id))
        executor.stop(attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        finished = await sink.end_of(attempt_id)
    assert finished.failure is not None
    assert finished.failure.code == "EXIT_5"
    assert "tidied" in sink.text_of(attempt_id)


async def test_a_child_that_tidies_up_longer_than_its_parent_has_the_rest_of_the_grace(
    tmp_path: Path,
) -> None:
    async with shell(tmp_path) as (executor, sink):
        child = (
            "trap 'sleep 0.3; echo child tidied; exit 0' TERM; echo ready; while true; do sleep 0.05; done"
        )
        start = attempt_of(task_spec("tidy", ShellSpec(command=f'sh -c "{child}" & wait')))
        attempt_id = start.assignment.attempt_id
        executor.start([start])
        await sink.until(lambda: "ready" in sink.text_of(attempt_id))
        executor.stop(attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        await sink.end_of(attempt_id)
    assert "child tidied" in sink.text_of(attempt_id)


async def test_c159_a_gigabyte_without_a_line_break_costs_no_memory(tmp_path: Path) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spec = ShellSpec(command="head -c 1000000000 /dev/zero | tr '\\0' x; echo; echo after")
    finished, sink, attempt_id = await run(tmp_path, spec)
    grown_kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    assert finished.failure is None
    text = sink.text_of(attempt_id, "stdout")
    assert "bytes of this line cut" in text
    assert text.endswith("after\n")
    assert grown_kilobytes < 50_000


async def test_c159_a_flood_of_lines_keeps_head_and_tail_and_says_what_was_cut(tmp_path: Path) -> None:
    spec = ShellSpec(command="echo first; yes 0123456789abcde | head -c 100000000; echo last")
    finished, sink, attempt_id = await run(tmp_path, spec)
    text = sink.text_of(attempt_id)
    assert finished.failure is None
    assert text.startswith("first\n")
    assert text.endswith("last\n")
    assert "bytes of output cut here" in text
    assert len(text) < 11 * 1024 * 1024


async def test_c135_a_process_with_another_start_time_is_never_signalled() -> None:
    witness = psutil.Popen(["sleep", "600"])
    try:
        wrong = TreeProcess(witness.pid, start_ticks_of(witness.pid) + 1)
        signal_process(wrong, signal.SIGKILL)
        assert find_trees([Tree(wrong, "nobody's marker")]) == []
        assert kill_trees([Tree(wrong, "nobody's marker")]) == set()
        assert witness.is_running()
        right = TreeProcess(witness.pid, start_ticks_of(witness.pid))
        assert kill_trees([Tree(right, "nobody's marker")]) == {right}
    finally:
        witness.kill()
        witness.wait()


async def test_many_commands_at_once_each_end_with_their_own_output(tmp_path: Path) -> None:
    async with shell(tmp_path) as (executor, sink):
        starts = {n: attempt_of(task_spec("echo", ShellSpec(command=f"echo {n}"))) for n in range(20)}
        executor.start(list(starts.values()))
        for number, start in starts.items():
            await sink.end_of(start.assignment.attempt_id)
            assert sink.text_of(start.assignment.attempt_id) == f"{number}\n"


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo first >&2; echo 'no prices yet' >&2; echo >&2; exit 7", "; stderr ends with: no prices yet"),
        ("echo out; exit 7", ""),
        ("printf 'half\\rwhole' >&2; exit 7", "; stderr ends with: whole"),
        ("printf 'a\\0b\\n' >&2; exit 7", "; stderr ends with: a\u2400b"),
        ("head -c 20000 /dev/zero | tr '\\0' x >&2; exit 7", f"; stderr ends with: {'x' * 300}…"),
    ],
)
async def test_failure_says_what_the_command_said_last_and_stays_what_it_is(
    command: str, message: str, tmp_path: Path
) -> None:
    finished, _, _ = await run(tmp_path, ShellSpec(command=command))
    silent, _, _ = await run(tmp_path, ShellSpec(command="exit 7"))
    assert finished.failure is not None
    assert silent.failure is not None
    assert finished.failure.message == f"the command ended with exit status 7{message}"
    assert msgspec.structs.replace(finished.failure, message=silent.failure.message) == silent.failure


async def test_last_words_of_a_success_are_no_failure(tmp_path: Path) -> None:
    finished, _, _ = await run(tmp_path, ShellSpec(command="echo warning >&2"))
    assert finished.failure is None
