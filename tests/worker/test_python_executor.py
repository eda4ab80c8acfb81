"""Python tasks in real processes: results, failures, kills, output, what the app declares."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import psutil
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import PythonSpec, TaskRef, decode_definition
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import MINUTE, SECOND
from ostinato.testing.contracts.executor_harness import RecordingSink, attempt_of, opened, task_spec
from ostinato.wire.messages import TaskSpec
from ostinato.worker.executors.protocol import AttemptFinished, StopReason
from ostinato.worker.executors.python import PythonExecutor, build_python_executor


def a_def(name: str) -> TaskSpec:
    return task_spec(name, PythonSpec(call=""))


def an_async(name: str) -> TaskSpec:
    return task_spec(name, PythonSpec(call="", is_async=True))


@asynccontextmanager
async def python(app: Path | str, *, slots: int = 1) -> AsyncIterator[tuple[PythonExecutor, RecordingSink]]:
    executor = build_python_executor(app=str(app), clock=SystemClock(), process_slots=slots)
    async with opened(executor) as sink:
        yield executor, sink


async def end(
    pair: tuple[PythonExecutor, RecordingSink], spec: TaskSpec, payload: bytes = b"{}"
) -> AttemptFinished:
    executor, sink = pair
    start = attempt_of(spec, payload)
    executor.start([start])
    return await sink.end_of(start.assignment.attempt_id)


async def text_in(path: Path) -> str:
    """Wait until a task has written its note."""
    clock = SystemClock()
    while not (text := _text_now(path)):
        await clock.sleep_until_us(clock.boot_us() + 10_000)
    return text


def _text_now(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def failure_of(finished: AttemptFinished) -> Failure:
    assert finished.failure is not None
    assert finished.result is None
    return finished.failure


# ── results, arguments, failures ──────────────────────────────────────────────────────────────────────────


async def test_arguments_come_from_the_payload_and_the_result_is_json(app_file: Path) -> None:
    async with python(app_file) as pair:
        for spec in (a_def("add"), an_async("async_add")):
            finished = await end(pair, spec, b'{"a": 2, "b": 3}')
            assert finished.result == b"5"


@pytest.mark.parametrize("payload", [b'{"a": 2}', b'{"a": 2, "b": 3, "c": 4}', b'{"a": 2, "b": "x"}', b"[]"])
async def test_a_payload_that_does_not_fit_is_bad_payload_and_permanent(
    app_file: Path, payload: bytes
) -> None:
    async with python(app_file) as pair:
        for spec in (a_def("add"), an_async("async_add")):
            failure = failure_of(await end(pair, spec, payload))
            assert failure.code == "BAD_PAYLOAD"
            assert failure.category == "permanent"


@pytest.mark.parametrize("name", ["bad_result", "huge_result"])
async def test_c161_a_result_that_json_cannot_carry_is_refused(app_file: Path, name: str) -> None:
    async with python(app_file) as pair:
        failure = failure_of(await end(pair, a_def(name)))
    assert failure.code == "BAD_RESULT"
    assert failure.category == "permanent"
    assert "result" in failure.message


async def test_an_unknown_task_is_a_permanent_failure(app_file: Path) -> None:
    async with python(app_file) as pair:
        failure = failure_of(await end(pair, a_def("unheard_of")))
    assert failure.code == "TASK_NOT_FOUND"
    assert "default/unheard_of" in failure.message


async def test_a_function_named_by_its_definition_runs_without_an_app(
    app_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = app_file.parent / "plain_functions.py"
    module.write_text("def double(n: int) -> int:\n    return 2 * n\n")
    monkeypatch.setenv("PYTHONPATH", str(app_file.parent))
    async with python(app_file) as pair:
        spec = task_spec("doubled", PythonSpec(call="plain_functions:double"))
        finished = await end(pair, spec, b'{"n": 21}')
        missing = failure_of(await end(pair, task_spec("gone", PythonSpec(call="no_such_module:f"))))
    assert finished.result == b"42"
    assert missing.code == "TASK_IMPORT"
    assert "no_such_module" in missing.message


@pytest.mark.parametrize(
    ("name", "says"), [("raise_unprintable", "Unprintable"), ("raise_huge", "ValueError")]
)
async def test_c069_an_exception_that_cannot_be_shown_fails_only_its_own_attempt(
    app_file: Path, name: str, says: str
) -> None:
    async with python(app_file) as pair:
        before = await end(pair, a_def("process_id"))
        failure = failure_of(await end(pair, a_def(name)))
        after = await end(pair, a_def("process_id"))
    assert says in failure.message
    assert len(msgspec.json.encode(failure)) < 400_000
    assert after.result == before.result


async def test_a_coroutine_that_is_cancelled_or_exits_by_itself_fails_alone(app_file: Path) -> None:
    async with python(app_file, slots=0) as pair:
        before = await end(pair, an_async("async_process_id"))
        cancelled = failure_of(await end(pair, an_async("async_cancel_itself")))
        exited = failure_of(await end(pair, an_async("async_exit")))
        after = await end(pair, an_async("async_process_id"))
    assert "CancelledError" in cancelled.message
    assert exited.code == "EXIT_4"
    assert after.result == before.result


async def test_the_context_names_the_attempt(app_file: Path) -> None:
    async with python(app_file) as pair:
        start = attempt_of(a_def("whoami"), attempt=3)
        pair[0].start([start])
        finished = await pair[1].end_of(start.assignment.attempt_id)
    assert finished.result is not None
    told = msgspec.json.decode(finished.result)
    assert told == [start.assignment.instance_id, 3, start.assignment.attempt_id, True]


async def test_progress_and_heartbeats_arrive_but_not_each_of_a_thousand(app_file: Path) -> None:
    async with python(app_file) as pair:
        await end(pair, a_def("progress"))
        beats = pair[1].beats
        written = "".join(chunk.text for chunk in pair[1].chunks)
    assert (beats[0].fraction, beats[0].text) == (0.25, "loading")
    assert (beats[-1].fraction, beats[-1].text) == (1.0, "done")
    assert len(beats) < 50
    assert written.startswith("progress 25%: loading\n")
    assert written.endswith("progress 100%: done\n")


# ── processes that end ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["endless_loop", "sleep_long", "socket_read", "c_loop"])
async def test_c127_a_timeout_kills_at_once_whatever_the_function_is_stuck_in(
    app_file: Path, name: str
) -> None:
    async with python(app_file, slots=2) as pair:
        executor, sink = pair
        stuck, neighbour = attempt_of(a_def(name)), attempt_of(a_def("wait_for_cancel"))
        executor.start([stuck, neighbour])
        for start in (stuck, neighbour):
            await sink.start_of(start.assignment.attempt_id)
        executor.stop(stuck.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=10 * MINUTE)
        killed = failure_of(await sink.end_of(stuck.assignment.attempt_id))
        assert neighbour.assignment.attempt_id not in sink.ends
        assert killed.code == "SIGNAL_9"


async def test_c127_twenty_stuck_attempts_on_two_slots_leave_two_free_slots(app_file: Path) -> None:
    async with python(app_file, slots=2) as pair:
        executor, sink = pair
        starts = [attempt_of(a_def("sleep_long")) for _ in range(20)]
        executor.start(starts)
        for start in starts:
            await sink.start_of(start.assignment.attempt_id)
            executor.stop(start.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=0)
        for start in starts:
            await sink.end_of(start.assignment.attempt_id)
        both = [attempt_of(a_def("wait_for_cancel")) for _ in range(2)]
        executor.start(both)
        for start in both:
            await sink.start_of(start.assignment.attempt_id)
        assert len(executor.slot_process_ids) == 2


async def test_a_cancelled_function_may_end_in_its_own_way_and_keeps_its_process(app_file: Path) -> None:
    async with python(app_file) as pair:
        executor, sink = pair
        before = await end(pair, a_def("process_id"))
        start = attempt_of(a_def("tidy_up_when_cancelled"))
        executor.start([start])
        await sink.start_of(start.assignment.attempt_id)
        executor.stop(start.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        finished = await sink.end_of(start.assignment.attempt_id)
        after = await end(pair, a_def("process_id"))
    assert finished.result == b'"asked to end"'
    assert after.result == before.result


async def test_c071_a_slot_killed_from_outside_is_a_resource_failure_that_says_so(app_file: Path) -> None:
    async with python(app_file) as pair:
        executor, sink = pair
        start = attempt_of(a_def("sleep_long"))
        executor.start([start])
        await sink.start_of(start.assignment.attempt_id)
        os.kill(executor.slot_process_ids[0], signal.SIGKILL)
        finished = await sink.end_of(start.assignment.attempt_id)
        failure = failure_of(finished)
        again = await end(pair, a_def("add"), b'{"a": 1, "b": 1}')
    assert (failure.code, failure.category) == ("SIGNAL_9", "resource")
    assert "from outside" in failure.message
    assert not finished.collateral
    assert again.result == b"2"


async def test_c133_a_sigterm_for_every_process_of_the_worker_ends_no_attempt(app_file: Path) -> None:
    async with python(app_file) as pair:
        executor, sink = pair
        function, coroutine = attempt_of(a_def("tidy_up_when_cancelled")), attempt_of(an_async("async_wait"))
        executor.start([function, coroutine])
        for start in (function, coroutine):
            await sink.start_of(start.assignment.attempt_id)
        for pid in (*executor.slot_process_ids, executor.loop_process_id):
            os.kill(pid, signal.SIGTERM)
        assert (await end(pair, an_async("async_add"), b'{"a": 1, "b": 1}')).result == b"2"
        assert sink.ends.keys().isdisjoint({function.assignment.attempt_id, coroutine.assignment.attempt_id})
        executor.stop(function.assignment.attempt_id, reason=StopReason.CANCELLED, grace_us=MINUTE)
        assert (await sink.end_of(function.assignment.attempt_id)).result == b'"asked to end"'


async def test_a_task_that_leaves_its_process_fails_with_the_exit_status(app_file: Path) -> None:
    async with python(app_file) as pair:
        assert failure_of(await end(pair, a_def("leave"))).code == "EXIT_3"
        assert failure_of(await end(pair, a_def("kill_self"))).code == "SIGNAL_9"
        assert (await end(pair, a_def("add"), b'{"a": 1, "b": 1}')).result == b"2"


async def test_c125_a_killed_slot_takes_its_children_with_it_even_in_other_sessions(
    app_file: Path, tmp_path: Path
) -> None:
    note = tmp_path / "pid"
    async with python(app_file) as pair:
        executor, sink = pair
        start = attempt_of(a_def("spawn_and_hang"), msgspec.json.encode({"path": str(note)}))
        executor.start([start])
        child = psutil.Process(int(await text_in(note)))
        assert child.is_running()
        executor.stop(start.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=0)
        await sink.end_of(start.assignment.attempt_id)
        assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE


async def test_neighbours_of_a_killed_coroutine_end_as_collateral_and_the_next_one_runs(
    app_file: Path, tmp_path: Path
) -> None:
    note = tmp_path / "note"
    async with python(app_file, slots=0) as pair:
        executor, sink = pair
        blocker = attempt_of(an_async("async_block"), msgspec.json.encode({"path": str(note)}))
        neighbour = attempt_of(an_async("async_wait"))
        executor.start([neighbour, blocker])
        await text_in(note)
        executor.stop(blocker.assignment.attempt_id, reason=StopReason.TIMEOUT, grace_us=SECOND // 10)
        killed = await sink.end_of(blocker.assignment.attempt_id)
        bystander = await sink.end_of(neighbour.assignment.attempt_id)
        again = await end(pair, an_async("async_add"), b'{"a": 1, "b": 1}')
    assert not killed.collateral
    assert bystander.collateral
    assert again.result == b"2"


async def test_a_loop_process_killed_from_outside_fails_all_that_ran_in_it(app_file: Path) -> None:
    async with python(app_file, slots=0) as pair:
        executor, sink = pair
        starts = [attempt_of(an_async("async_wait")) for _ in range(3)]
        executor.start(starts)
        for start in starts:
            await sink.start_of(start.assignment.attempt_id)
        os.kill(executor.loop_process_id, signal.SIGKILL)
        for start in starts:
            finished = await sink.end_of(start.assignment.attempt_id)
            assert (failure_of(finished).code, failure_of(finished).category) == ("SIGNAL_9", "lost")
            assert not finished.collateral
        assert (await end(pair, an_async("async_add"), b'{"a": 1, "b": 1}')).result == b"2"


async def test_processes_end_when_the_supervisor_is_gone(app_file: Path, tmp_path: Path) -> None:
    program = tmp_path / "supervisor.py"
    program.write_text(
        "import asyncio, os, sys\n"
        "from ostinato.clock import SystemClock\n"
        "from ostinato.testing.contracts.executor_harness import RecordingSink\n"
        "from ostinato.worker.executors.python import build_python_executor\n"
        "async def main():\n"
        "    executor = build_python_executor(app=sys.argv[1], clock=SystemClock(), process_slots=1)\n"
        "    await executor.open(RecordingSink())\n"
        "    print(*executor.slot_process_ids, executor.loop_process_id, flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    supervisor = await asyncio.create_subprocess_exec(
        sys.executable,
        str(program),
        str(app_file),
        stdout=asyncio.subprocess.PIPE,
    )
    assert supervisor.stdout is not None
    pids = [int(word) for word in (await supervisor.stdout.readline()).split()]
    children = [psutil.Process(pid) for pid in pids]
    supervisor.kill()
    await supervisor.wait()
    gone, alive = psutil.wait_procs(children, timeout=10)
    assert len(children) == 2
    assert not alive
    assert len(gone) == 2


# ── output ────────────────────────────────────────────────────────────────────────────────────────────────


async def test_everything_that_a_function_and_its_children_write_is_captured(app_file: Path) -> None:
    async with python(app_file) as pair:
        executor, sink = pair
        start = attempt_of(a_def("talk_everywhere"))
        executor.start([start])
        await sink.end_of(start.assignment.attempt_id)
    texts = {name: sink.text_of(start.assignment.attempt_id, name) for name in ("stdout", "stderr", "log")}
    assert texts["stdout"].splitlines() == ["printed", "from a child", "raw \\xff\u2400 bytes"]
    assert texts["stderr"] == "to stderr\n"
    assert "INFO shop.orders: logged" in texts["log"]
    assert "through the context" in texts["log"]


async def test_output_of_coroutines_that_interleave_goes_to_the_right_attempt(app_file: Path) -> None:
    async with python(app_file, slots=0) as pair:
        executor, sink = pair
        starts = {
            name: attempt_of(an_async("async_talk_as"), msgspec.json.encode({"name": name}))
            for name in ("anna", "bert")
        }
        executor.start(list(starts.values()))
        for name, start in starts.items():
            finished = await sink.end_of(start.assignment.attempt_id)
            assert finished.failure is None
            text = sink.text_of(start.assignment.attempt_id, "stdout")
            expected = [f"{name} {number}" for number in range(20)] + [f"{name} in a thread"]
            assert text.splitlines() == expected
            logged = sink.text_of(start.assignment.attempt_id, "log").splitlines()
            assert logged == [f"INFO shop: {name} logs"] * 20


# ── what the app declares ─────────────────────────────────────────────────────────────────────────────────


async def test_tasks_and_definitions_are_read_in_a_process_of_their_own(app_file: Path) -> None:
    async with python(f"{app_file}:app") as (executor, _):
        known = executor.known_tasks
    assert TaskRef("default", "add") in known.tasks
    assert TaskRef("default", "async_add") in known.tasks
    assert {decode_definition(encoded).ref for encoded in known.declarations} == set(known.tasks)
    assert known.problems == []


@pytest.fixture
def broken_app(tmp_path: Path) -> Path:
    path = tmp_path / "broken_tasks.py"
    path.write_text("import ostinato\n\nimport no_such_library\n")
    return path


async def test_an_app_that_cannot_be_imported_is_named_with_the_reason_and_the_rest_runs(
    app_file: Path, broken_app: Path
) -> None:
    async with python(f"{broken_app}:app,{app_file}:app") as pair:
        problems = pair[0].known_tasks.problems
        finished = await end(pair, a_def("add"), b'{"a": 1, "b": 1}')
    (problem,) = problems
    assert "broken_tasks.py" in problem
    assert "no_such_library" in problem
    assert "line 3" in problem
    assert finished.result == b"2"


async def test_a_wrong_declaration_is_placed_in_the_users_file_not_in_ours(tmp_path: Path) -> None:
    path = tmp_path / "wrong_tasks.py"
    path.write_text(
        "from ostinato import App\n\napp = App('wrong')\napp.shell('backup', 'true', priority=17)\n"
    )
    async with python(path, slots=0) as (executor, _):
        (problem,) = executor.known_tasks.problems
    assert problem.endswith(f"({path}, line 4)")


@pytest.mark.parametrize(
    ("suffix", "says"),
    [(":nothing_here", "nothing_here"), (":asyncio", "not an App"), (":add", "not an App")],
)
async def test_a_name_that_is_no_app_is_a_problem_that_says_so(
    app_file: Path, suffix: str, says: str
) -> None:
    async with python(f"{app_file}{suffix}", slots=0) as (executor, _):
        (problem,) = executor.known_tasks.problems
    assert says in problem


async def test_an_app_whose_import_kills_the_process_leaves_a_worker_that_says_so(tmp_path: Path) -> None:
    path = tmp_path / "deadly.py"
    path.write_text("import os\nos._exit(7)\n")
    async with python(path) as pair:
        assert any("before it was ready" in problem for problem in pair[0].known_tasks.problems)
        failure = failure_of(await end(pair, a_def("anything")))
        shared = failure_of(await end(pair, an_async("anything")))
    assert failure.code == "SPAWN_FAILED"
    assert shared.code == "SPAWN_FAILED"
