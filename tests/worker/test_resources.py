"""Limits of memory and CPU: how a worker finds out what it can enforce, and what an attempt gets of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from ostinato.clock import SystemClock
from ostinato.core.definition import ShellSpec
from ostinato.core.failure.failure import safe_failure
from ostinato.core.sizes import GIB, MIB
from ostinato.testing.contracts.executor_harness import attempt_of, opened, task_spec
from ostinato.worker.delegation import CgroupUnavailable, find_delegated_cgroup
from ostinato.worker.executors.protocol import AttemptFinished
from ostinato.worker.executors.shell import ShellExecutor
from ostinato.worker.resources import (
    CgroupFiles,
    CgroupResources,
    Limits,
    LimitsUnavailable,
    Resources,
    RlimitResources,
)
from tests.worker.python_worker import PythonWorker, python_worker

TASKS = """
import asyncio
import os
import resource
import signal
from pathlib import Path


@app.task
def take(size: int) -> int:
    return len(bytearray(size))


@app.task
async def async_take(size: int) -> int:
    await asyncio.sleep(0)
    return len(bytearray(size))


@app.task
def look() -> list:
    return [len(os.sched_getaffinity(0)), resource.getrlimit(resource.RLIMIT_AS)[0]]


@app.task
def look_in_a_child() -> str:
    import subprocess
    return subprocess.run(["/bin/sh", "-c", "nproc; ulimit -v"], capture_output=True, text=True).stdout


@app.task
def be_killed_by_the_kernel(groups: str) -> None:
    (group,) = Path(groups).glob("ostinato-attempt-*")
    assert (group / "cgroup.procs").read_text() == "0", "it has joined before user code"
    (group / "memory.events").write_text("low 0\\noom 1\\noom_kill 1\\n")
    os.kill(os.getpid(), signal.SIGKILL)


@app.task
def large_result() -> str:
    return "x" * 500_000
"""


# ── what a machine has ────────────────────────────────────────────────────────────────────────────────────


class FakeKernel(CgroupFiles):
    """Answers as the kernel does to what is written into a directory that stands for a hierarchy."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.removed: dict[str, dict[str, str]] = {}
        root.mkdir()
        _fill(root, {"cgroup.type": "domain\n", "cgroup.controllers": "cpuset cpu io memory pids\n"})
        _fill(root, {"cgroup.procs": "17\n18\n", "cgroup.subtree_control": ""})

    def make(self, group: Path) -> None:
        super().make(group)
        _fill(group, {"cgroup.procs": "", "cgroup.kill": "", "memory.swap.max": "max\n"})
        _fill(group, {"cgroup.events": "populated 0\n", "memory.events": "oom_kill 0\n"})

    def write(self, file: Path, text: str) -> None:
        if file.name == "cgroup.subtree_control":
            # The rule of no internal processes.
            assert (file.parent / "cgroup.procs").read_text() == ""
        if file.name == "cgroup.procs":
            others = [pid for pid in (self.root / file.name).read_text().split() if pid != text]
            (self.root / file.name).write_text("".join(f"{pid}\n" for pid in others))
            text = f"{file.read_text()}{text}\n"
        if file.name == "cgroup.kill":
            (file.parent / "cgroup.events").write_text("populated 0\n")
        super().write(file, text)

    def remove(self, group: Path) -> None:
        assert "populated 0" in (group / "cgroup.events").read_text()
        self.removed[group.name] = {file.name: file.read_text().strip() for file in group.iterdir()}
        for file in group.iterdir():
            file.unlink()
        super().remove(group)


def _fill(group: Path, texts: dict[str, str]) -> None:
    for name, text in texts.items():
        (group / name).write_text(text)


@pytest.fixture
def kernel(tmp_path: Path) -> FakeKernel:
    return FakeKernel(tmp_path / "cgroup")


def process_of(folder: Path, *, mount: Path, group: str = "/", mount_root: str = "/") -> Path:
    """What ``/proc/self`` says of a process in `group`."""
    proc = folder / "proc"
    proc.mkdir(exist_ok=True)
    line = f"30 23 0:26 {mount_root} {mount} rw,nosuid - cgroup2 cgroup2 rw"
    (proc / "mountinfo").write_text(f"22 1 8:1 / / rw - ext4 /dev/sda rw\n{line}\n")
    (proc / "cgroup").write_text(f"1:name=systemd:/elsewhere\n0::{group}\n")
    return proc


def test_the_root_that_a_container_sees_is_delegated(tmp_path: Path, kernel: FakeKernel) -> None:
    assert find_delegated_cgroup(process_of(tmp_path, mount=kernel.root)) == kernel.root


def test_a_worker_in_the_leaf_of_another_takes_the_same_directory(tmp_path: Path, kernel: FakeKernel) -> None:
    kernel.make(kernel.root / "ostinato-worker")
    proc = process_of(tmp_path, mount=kernel.root, group="/ostinato-worker")
    assert find_delegated_cgroup(proc) == kernel.root


def test_the_machines_own_root_is_left_alone(tmp_path: Path, kernel: FakeKernel) -> None:
    (kernel.root / "cgroup.type").unlink()
    _refused(process_of(tmp_path, mount=kernel.root), "the machine's own root")


def test_a_directory_that_nobody_has_delegated_is_left_alone(tmp_path: Path, kernel: FakeKernel) -> None:
    service = kernel.root / "system.slice"
    kernel.make(service)
    _fill(service, {"cgroup.controllers": "cpu memory\n", "cgroup.subtree_control": ""})
    proc = process_of(tmp_path, mount=kernel.root, group="/system.slice")
    if service.stat().st_uid == 0:
        _refused(proc, "is not delegated to it")
        os.chown(service, 12345, -1)
        _refused(proc, "is not delegated to it")
    else:
        assert find_delegated_cgroup(proc) == service, "what a user owns is delegated"


@pytest.mark.parametrize("controllers", ["", "cpuset io", "cpu pids", "memory"])
def test_without_both_controllers_there_are_no_groups(
    tmp_path: Path, kernel: FakeKernel, controllers: str
) -> None:
    (kernel.root / "cgroup.controllers").write_text(controllers)
    _refused(process_of(tmp_path, mount=kernel.root), "controller")


def test_a_group_outside_of_what_is_mounted_is_not_used(tmp_path: Path, kernel: FakeKernel) -> None:
    _refused(process_of(tmp_path, mount=kernel.root, mount_root="/docker/1", group="/docker/2"), "not below")


def test_a_mount_of_a_part_of_the_hierarchy_is_understood(tmp_path: Path, kernel: FakeKernel) -> None:
    proc = process_of(tmp_path, mount=kernel.root, mount_root="/docker/1", group="/docker/1")
    assert find_delegated_cgroup(proc) == kernel.root


def test_without_version_2_there_are_no_groups(tmp_path: Path) -> None:
    proc = process_of(tmp_path, mount=tmp_path)
    (proc / "mountinfo").write_text("22 1 8:1 / / rw - ext4 /dev/sda rw\n")
    _refused(proc, "not mounted")
    proc = process_of(tmp_path, mount=tmp_path)
    (proc / "cgroup").write_text("1:memory:/\n")
    _refused(proc, "no control group of version 2")


def _refused(proc: Path, words: str) -> None:
    with pytest.raises(CgroupUnavailable, match=words):
        find_delegated_cgroup(proc)


# ── control groups ────────────────────────────────────────────────────────────────────────────────────────


def test_the_workers_own_processes_move_to_a_leaf_before_controllers_are_passed_on(
    kernel: FakeKernel,
) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    assert (kernel.root / "ostinato-worker" / "cgroup.procs").read_text() == "17\n18\n"
    assert (kernel.root / "cgroup.subtree_control").read_text() == "+cpu +memory"
    assert resources.how == "cgroup"
    assert str(kernel.root) in resources.why


def test_a_group_has_the_limits_of_its_attempt_and_is_killed_and_removed_with_it(kernel: FakeKernel) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    holding = resources.hold("a1", Limits(512 * MIB, 0.5))
    group = kernel.root / "ostinato-attempt-a1"
    assert holding.process_limits is not None
    assert holding.process_limits.cgroup == str(group)
    (group / "cgroup.events").write_text("populated 1\n")
    holding.release()
    holding.release()
    assert not group.exists()
    told = kernel.removed[group.name]
    assert told["memory.max"] == str(512 * MIB)
    assert told["memory.oom.group"] == "1"
    assert told["memory.swap.max"] == "0"
    assert told["cpu.max"] == "50000 100000"
    assert told["cgroup.kill"] == "1"


def test_each_limit_is_set_alone(kernel: FakeKernel) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    resources.hold("a1", Limits(memory_bytes=GIB)).release()
    resources.hold("a2", Limits(cpu_cores=3.0)).release()
    assert "cpu.max" not in kernel.removed["ostinato-attempt-a1"]
    assert "memory.max" not in kernel.removed["ostinato-attempt-a2"]
    assert kernel.removed["ostinato-attempt-a2"]["cpu.max"] == "300000 100000"
    assert kernel.removed["ostinato-attempt-a1"]["cgroup.kill"] == "", "nothing was left to kill"


def test_a_task_without_limits_has_no_group(kernel: FakeKernel) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    assert resources.hold("a1", Limits()).process_limits is None
    assert not list(kernel.root.glob("ostinato-attempt-*"))


def test_groups_that_a_killed_worker_has_left_are_removed_and_those_in_use_stay(kernel: FakeKernel) -> None:
    for name, events in (("old", "populated 0\n"), ("used", "populated 1\n")):
        group = kernel.root / f"ostinato-attempt-{name}"
        kernel.make(group)
        (group / "cgroup.events").write_text(events)
    CgroupResources(kernel.root, files=kernel)
    assert list(kernel.removed) == ["ostinato-attempt-old"]
    assert (kernel.root / "ostinato-attempt-used").is_dir()


def test_a_group_that_cannot_be_made_is_said_to_be_the_machines_trouble(kernel: FakeKernel) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    (kernel.root / "ostinato-attempt-a1").write_text("in the way")
    with pytest.raises(LimitsUnavailable) as caught:
        resources.hold("a1", Limits(GIB))
    assert (caught.value.failure.code, caught.value.failure.category) == ("SPAWN_FAILED", "resource")


async def test_c071_an_attempt_killed_over_its_groups_limit_is_out_of_memory(
    tmp_path: Path, kernel: FakeKernel
) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    async with python_worker(tmp_path, TASKS, resources=resources) as worker:
        start = worker.start(
            "be_killed_by_the_kernel",
            isolation="process",
            memory_limit_bytes=64 * MIB,
            groups=str(kernel.root),
        )
        failure = await worker.failure(start)
    assert (failure.code, failure.category) == ("OOM", "resource")
    assert "memory_limit 64MiB (cgroup" in failure.message
    assert f"ostinato-attempt-{start.assignment.attempt_id}" in kernel.removed


async def test_a_command_joins_its_group_before_it_runs(tmp_path: Path, kernel: FakeKernel) -> None:
    resources = CgroupResources(kernel.root, files=kernel)
    finished = await shell(tmp_path, f"cat {kernel.root}/ostinato-attempt-*/cgroup.procs", resources)
    assert finished.result == b'{"exit_code":0,"stdout_tail":"0"}'
    assert len(kernel.removed) == 1


# ── rlimits ───────────────────────────────────────────────────────────────────────────────────────────────


async def shell(
    folder: Path,
    command: str,
    resources: Resources,
    *,
    memory_limit_bytes: int | None = 64 * MIB,
    cpu_limit: float | None = None,
) -> AttemptFinished:
    executor = ShellExecutor(clock=SystemClock(), data_dir=folder, resources=resources)
    spec = task_spec(
        "command", ShellSpec(command), memory_limit_bytes=memory_limit_bytes, cpu_limit=cpu_limit
    )
    async with opened(executor) as sink:
        start = attempt_of(spec)
        executor.start([start])
        return await sink.end_of(start.assignment.attempt_id)


RLIMITS = RlimitResources("a test says so")


async def _take(worker: PythonWorker, name: str, size: int) -> AttemptFinished:
    return await worker.end(worker.start(name, isolation="process", memory_limit_bytes=64 * MIB, size=size))


@pytest.mark.parametrize("name", ["take", "async_take"])
async def test_c071_a_function_over_its_memory_limit_fails_as_out_of_memory_and_says_how_that_is_counted(
    tmp_path: Path, name: str
) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        failure = (await _take(worker, name, GIB)).failure
        assert failure is not None
        assert (failure.code, failure.category) == ("OOM", "resource")
        assert "memory_limit 64MiB (rlimits: of address space, in each process)" in failure.message
        assert (await _take(worker, name, MIB)).result == str(MIB).encode()
        assert await worker.result(worker.start("take", size=128 * MIB)) == 128 * MIB, "others have no limit"


async def test_a_limited_function_and_its_children_have_the_cpus_and_memory_they_may_use(
    tmp_path: Path,
) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        free_count, free_memory = await worker.result(worker.start("look"))
        start = worker.start("look", isolation="process", memory_limit_bytes=64 * MIB, cpu_limit=0.5)
        count, memory = await worker.result(start)
        start = worker.start("look_in_a_child", isolation="process", cpu_limit=1.0)
        assert await worker.result(start) == "1\nunlimited\n"
    assert free_count == len(os.sched_getaffinity(0))
    assert free_memory == -1
    assert count == 1
    # What the process had before the attempt does not count.
    assert 64 * MIB < memory < 64 * MIB + GIB


async def test_the_result_of_a_limited_function_may_be_encoded_beyond_its_limit(tmp_path: Path) -> None:
    async with python_worker(tmp_path, TASKS) as worker:
        start = worker.start("large_result", isolation="process", memory_limit_bytes=16 * MIB)
        assert await worker.result(start) == "x" * 500_000


async def test_a_command_has_the_limits_of_its_task(tmp_path: Path) -> None:
    command = "ulimit -v; nproc"
    finished = await shell(tmp_path, command, RLIMITS, cpu_limit=0.2)
    assert finished.result is not None
    assert msgspec.json.decode(finished.result)["stdout_tail"] == f"{64 * 1024}\n1"


async def test_a_crash_under_a_limit_names_the_limit(tmp_path: Path) -> None:
    finished = await shell(tmp_path, "kill -SEGV $$", RLIMITS)
    assert finished.failure is not None
    assert finished.failure.code == "SIGNAL_11"
    assert "memory_limit 64MiB (rlimits" in finished.failure.message
    finished = await shell(tmp_path, "exit 3", RLIMITS)
    assert finished.failure is not None
    assert "memory_limit" not in finished.failure.message


def test_a_failure_that_has_nothing_to_do_with_memory_is_told_as_it_is() -> None:
    failure = safe_failure("NO_CUSTOMER", "no such customer")
    assert RLIMITS.hold("a1", Limits(GIB, 1.0)).explain(failure) is failure


# ── this machine ──────────────────────────────────────────────────────────────────────────────────────────

_LIMITED = """
import asyncio, json, sys
from pathlib import Path
from tests.worker.python_worker import python_worker
from ostinato.worker.resources import find_resources

async def main() -> None:
    resources = find_resources()
    async with python_worker(Path(sys.argv[1]), sys.stdin.read(), resources=resources) as worker:
        start = worker.start("take", isolation="process", memory_limit_bytes=64 * 2**20, size=2**30)
        failure = await worker.failure(start)
    print(json.dumps([resources.how, resources.why, failure.code, failure.message]))

asyncio.run(main())
"""


async def test_limits_hold_on_this_machine_by_whichever_way_it_has(tmp_path: Path) -> None:
    """Control groups where this machine delegates them to its tests; else rlimits, for a reason that is told.

    In a process of its own, as it may be moved to another group.
    """
    finished = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", _LIMITED, str(tmp_path)],
        input=TASKS,
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[2],
    )
    assert finished.returncode == 0, finished.stderr
    how, why, code, message = msgspec.json.decode(finished.stdout)
    assert code == "OOM"
    assert f"memory_limit 64MiB ({how}: " in message
    if how == "cgroup":
        assert "is delegated to the worker" in why
    else:
        assert how == "rlimits"
        with pytest.raises((CgroupUnavailable, OSError)) as refused:
            CgroupResources(find_delegated_cgroup())
        assert why == str(refused.value)
