"""A whole worker with real processes, against a scripted node."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from random import Random

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import PythonSpec, ShellSpec
from ostinato.core.instants import SECOND
from ostinato.core.model import Outcome
from ostinato.testing.contracts.executor_harness import task_spec
from ostinato.wire.inprocess import InProcessNetwork
from ostinato.wire.messages import Accepted, Hello
from ostinato.worker.config import WorkerConfig
from ostinato.worker.executors.http import HttpExecutor
from ostinato.worker.executors.python import build_python_executor
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.supervisor import Supervisor
from tests.worker.python_worker import text_in
from tests.worker.scripted_node import ADDRESS, ScriptedNode, assignment, specs


@asynccontextmanager
async def worker(app: Path, folder: Path) -> AsyncIterator[tuple[ScriptedNode, Supervisor]]:
    clock, network = SystemClock(), InProcessNetwork()
    node = ScriptedNode(network)
    await node.start()
    config = WorkerConfig(
        worker_name="worker-1",
        scheduler=ADDRESS,
        capacity={"process": 3, "async": 10},
        data_dir=folder,
        app=str(app),
    )
    supervisor = Supervisor(
        config,
        clock=clock,
        transport=network.worker_transport(),
        executors=[
            build_python_executor(app=str(app), clock=clock, process_slots=3),
            ShellExecutor(clock=clock, data_dir=folder),
            HttpExecutor(clock=clock),
        ],
        rng=Random(1),
    )
    running = asyncio.create_task(supervisor.run())
    try:
        await asyncio.wait_for(node.connected(), 30)
        yield node, supervisor
        supervisor.stop()
        await asyncio.wait_for(running, 30)
    finally:
        running.cancel()
        await asyncio.wait([running])
        await node.kill()


async def outcome_of(node: ScriptedNode, attempt_id: str) -> Outcome:
    return await asyncio.wait_for(node.outcome_of(attempt_id), 30)


async def test_a_worker_says_which_tasks_it_found_without_importing_them(
    app_file: Path, tmp_path: Path
) -> None:
    async with worker(app_file, tmp_path) as (node, _):
        (hello,) = node.all(Hello)
    assert {"add", "async_add"} <= {ref.name for ref in hello.tasks}
    assert hello.executors == ["python", "shell", "http"]
    assert len(hello.declarations) == len(hello.tasks)
    assert app_file.stem not in sys.modules


async def test_an_endless_loop_is_killed_at_its_timeout_and_its_neighbours_are_unharmed(
    app_file: Path, tmp_path: Path
) -> None:
    async with worker(app_file, tmp_path) as (node, _):
        await node.send(
            specs(
                task_spec("endless_loop", PythonSpec(call=""), timeout_us=2 * SECOND),
                task_spec("tidy_up_when_cancelled", PythonSpec(call="")),
                task_spec("async_wait", PythonSpec(call="", is_async=True)),
                task_spec("command", ShellSpec(command="sleep 600"), timeout_us=2 * SECOND),
            )
        )
        await node.assign(
            assignment("endless_loop", "loop"),
            assignment("tidy_up_when_cancelled", "def-neighbour"),
            assignment("async_wait", "async-neighbour"),
            assignment("command", "command"),
        )
        for attempt_id in ("loop", "command"):
            outcome = await outcome_of(node, attempt_id)
            assert outcome.failure is not None
            assert outcome.failure.code == "TIMEOUT"
            assert "2s" in outcome.failure.message
            assert outcome.started_us is not None
            assert 1.9 * SECOND < outcome.finished_us - outcome.started_us < 3.5 * SECOND
        assert {outcome.attempt_id for outcome in node.outcomes} == {"loop", "command"}


async def test_a_stopped_worker_hands_back_what_runs_and_leaves_nothing(
    app_file: Path, tmp_path: Path
) -> None:
    async with worker(app_file, tmp_path) as (node, supervisor):
        await node.send(
            specs(
                task_spec("sleep_long", PythonSpec(call="")),
                task_spec("async_stubborn", PythonSpec(call="", is_async=True)),
                task_spec("command", ShellSpec(command="trap '' TERM; sleep 600; sleep 600")),
            )
        )
        names = {"sleep_long": "a1", "async_stubborn": "a2", "command": "a3"}
        await node.assign(*(assignment(name, attempt_id) for name, attempt_id in names.items()))
        await node.until(lambda: bool(node.all(Accepted)))
        supervisor.stop()
        for attempt_id in names.values():
            outcome = await outcome_of(node, attempt_id)
            assert outcome.unstarted_reason or (
                outcome.failure is not None and outcome.failure.code == "HANDED_BACK"
            )


async def test_coroutines_and_functions_all_report_their_own_result(app_file: Path, tmp_path: Path) -> None:
    async with worker(app_file, tmp_path) as (node, _):
        await node.send(
            specs(
                task_spec("async_add", PythonSpec(call="", is_async=True)),
                task_spec("add", PythonSpec(call="")),
            )
        )
        for number in range(30):
            payload = msgspec.json.encode({"a": number, "b": 1})
            name = "add" if number % 3 == 0 else "async_add"
            await node.assign(assignment(name, f"n{number}", payload))
            outcome = await outcome_of(node, f"n{number}")
            assert outcome.result == str(number + 1).encode()


@pytest.mark.parametrize("kind", ["def", "async"])
async def test_a_heartbeat_timeout_ends_a_silent_task(app_file: Path, tmp_path: Path, kind: str) -> None:
    name = "sleep_long" if kind == "def" else "async_wait"
    async with worker(app_file, tmp_path) as (node, _):
        spec = PythonSpec(call="", is_async=kind == "async")
        await node.send(specs(task_spec(name, spec, heartbeat_timeout_us=SECOND // 5)))
        await node.assign(assignment(name, "silent"))
        outcome = await outcome_of(node, "silent")
        assert outcome.failure is not None
        assert outcome.failure.code == "HEARTBEAT_TIMEOUT"


async def test_a_slot_killed_from_outside_fails_its_attempt_alone_and_not_those_that_wait_ahead(
    tmp_path: Path,
) -> None:
    app = tmp_path / "ahead_tasks.py"
    app.write_text(
        "import os, signal\nfrom pathlib import Path\nfrom ostinato import App\napp = App('ahead')\n"
        "@app.task\ndef own_pid() -> int:\n    return os.getpid()\n"
        "@app.task\ndef hang(note: str) -> None:\n"
        "    Path(note).write_text(str(os.getpid()))\n    signal.pause()\n"
    )
    async with worker(app, tmp_path) as (node, _):
        await node.send(specs(task_spec("own_pid", PythonSpec("")), task_spec("hang", PythonSpec(""))))
        waiting = [f"short-{number}" for number in range(60)]
        given: list[str] = []
        while waiting:
            await asyncio.wait_for(node.until(lambda: node.ledger.available("process") > 0), 30)
            count = min(node.ledger.available("process"), len(waiting))
            node.ledger.use("process", count)
            given, waiting = waiting[:count], waiting[count:]
            await node.assign(*(assignment("own_pid", attempt_id) for attempt_id in given))
        for attempt_id in given:
            assert (await outcome_of(node, attempt_id)).failure is None
        notes = [tmp_path / f"note-{number}" for number in range(3)]
        hanging = [
            assignment("hang", f"hang-{number}", msgspec.json.encode({"note": str(note)}))
            for number, note in enumerate(notes)
        ]
        node.ledger.use("process", 7)
        await node.assign(*hanging, *(assignment("own_pid", f"after-{number}") for number in range(4)))
        killed_pid = int(await text_in(notes[1]))
        os.kill(killed_pid, signal.SIGKILL)
        killed = await outcome_of(node, "hang-1")
        assert killed.failure is not None
        assert killed.failure.code == "SIGNAL_9"
        for number in range(4):
            outcome = await outcome_of(node, f"after-{number}")
            # Whatever has not found the new process in time is somebody else's to run.
            assert outcome.failure is None
            assert outcome.unstarted_reason in ("", "its slot was not free in time")
            assert outcome.result != str(killed_pid).encode()
        assert "hang-0" not in {outcome.attempt_id for outcome in node.outcomes}
