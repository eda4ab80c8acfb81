"""The guardian: parent of all processes of tasks, and what it does when supervisor, guardian or lease end."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from ostinato.clock import SystemClock
from ostinato.core.instants import MINUTE, SECOND
from ostinato.worker.child import ChildProcess
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_process import NotStartedError
from ostinato.worker.process_tree import MARKER_VARIABLE

DEADLINE_SECONDS = 30.0

#: Leaves its mother's tree by every way there is, then says its pid.
STRAY = (
    "env -i setsid /bin/sh -c '"
    '/bin/sh -c "echo \\$\\$ > {pid_file}; exec sleep 600" < /dev/null > /dev/null 2>&1 &'
    "'"
)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


async def until(condition: Callable[[], object], *, within_seconds: float = DEADLINE_SECONDS) -> None:
    async with asyncio.timeout(within_seconds):
        while not condition():  # noqa: ASYNC110 - processes have no events for us
            await asyncio.sleep(0.01)


def pid_in(path: Path) -> int:
    """The pid that a process has written there; 0 until it has."""
    text = path.read_text() if path.exists() else ""
    return int(text) if text.endswith("\n") else 0


@asynccontextmanager
async def guarded(clock: SystemClock | None = None) -> AsyncIterator[Guardian]:
    guardian = Guardian(clock=clock or SystemClock())
    await guardian.start()
    try:
        yield guardian
    finally:
        await guardian.close()


async def shell(guardian: Guardian, command: str, *, lease_ends_us: int | None = None) -> ChildProcess:
    marker = os.urandom(8).hex()
    return await guardian.spawn(
        ["/bin/sh", "-c", command],
        env={MARKER_VARIABLE: marker, "PATH": os.environ["PATH"]},
        marker=marker,
        stdout=2,
        stderr=2,
        lease_ends_us=lease_ends_us,
    )


async def test_it_tells_exit_status_and_signal_of_a_child() -> None:
    async with guarded() as guardian:
        ended, killed = await shell(guardian, "exit 7"), await shell(guardian, "kill -TERM $$; sleep 600")
        assert await ended.exited == 7
        assert await killed.exited == -signal.SIGTERM
        for child in (ended, killed):
            await child.kill_tree()


async def test_what_cannot_be_started_says_why_as_the_system_does() -> None:
    async with guarded() as guardian:
        for command, directory, error in (
            (["/no/such/program"], None, FileNotFoundError),
            (["/etc/passwd"], None, PermissionError),
            (["/bin/true"], "/no/such/directory", FileNotFoundError),
            (["/bin/true", "a\0b"], None, ValueError),
        ):
            with pytest.raises(error) as raised:
                await guardian.spawn(command, env={}, marker="m", directory=directory, stdout=2, stderr=2)
            if isinstance(raised.value, FileNotFoundError):
                assert raised.value.filename == (directory or command[0])


async def test_an_environment_of_a_megabyte_arrives_whole() -> None:
    async with guarded() as guardian:
        read_end, write_end = os.pipe()
        names = [f"VARIABLE_{number}" for number in range(10)]
        child = await guardian.spawn(
            [
                "/bin/sh",
                "-c",
                'for n in 0 1 2 3 4 5 6 7 8 9; do eval "printf %s \\"\\${#VARIABLE_$n} \\""; done',
            ],
            env={"PATH": os.environ["PATH"], **dict.fromkeys(names, "x" * 100_000)},
            marker="m",
            stdout=write_end,
            stderr=2,
        )
        os.close(write_end)
        await child.exited
        with os.fdopen(read_end) as output:
            assert output.read().split() == ["100000"] * 10
        await child.kill_tree()


async def test_c125_what_left_its_session_its_parents_and_its_environment_ends_with_its_tree(
    tmp_path: Path,
) -> None:
    async with guarded() as guardian:
        pid_file = tmp_path / "pid"
        child = await shell(guardian, f"{STRAY.format(pid_file=pid_file)}; sleep 600")
        await until(lambda: pid_in(pid_file))
        stray = pid_in(pid_file)
        await until(lambda: psutil.Process(stray).ppid() == child.pid)
        await child.kill_tree()
        assert not is_alive(stray)


async def test_a_stray_ends_with_its_own_command_and_with_no_other(tmp_path: Path) -> None:
    async with guarded() as guardian:
        before = await shell(guardian, "sleep 600")
        first, second = tmp_path / "first", tmp_path / "second"
        child = await shell(guardian, f"{STRAY.format(pid_file=first)}; sleep 600")
        other = await shell(guardian, f"{STRAY.format(pid_file=second)}; sleep 600")
        await until(lambda: pid_in(first) and pid_in(second))
        await child.kill_tree()
        assert not is_alive(pid_in(first))
        assert all(map(is_alive, (before.pid, other.pid, pid_in(second))))
        await other.kill_tree()
        assert not is_alive(pid_in(second))
        await before.kill_tree()


async def test_a_stray_of_a_command_that_has_ended_does_not_outlive_it(tmp_path: Path) -> None:
    async with guarded() as guardian:
        before, pid_file = await shell(guardian, "sleep 600"), tmp_path / "pid"
        child = await shell(
            guardian, f"{STRAY.format(pid_file=pid_file)}; until test -s {pid_file}; do :; done"
        )
        assert await child.exited == 0
        await child.kill_tree()
        assert not is_alive(pid_in(pid_file))
        assert is_alive(before.pid)
        await before.kill_tree()


async def test_a_command_that_starts_while_another_tree_is_ended_is_not_taken_for_a_stray() -> None:
    async with guarded() as guardian:
        for _ in range(30):
            first = await shell(guardian, "sleep 600")
            ending = asyncio.create_task(first.kill_tree())
            others = await asyncio.gather(*(shell(guardian, "exit 0") for _ in range(3)))
            await ending
            assert [await other.exited for other in others] == [0, 0, 0]
            for other in others:
                await other.kill_tree()


async def test_orphans_that_end_by_themselves_leave_no_zombies(tmp_path: Path) -> None:
    async with guarded() as guardian:
        child = await shell(guardian, f"(sleep 0.05 &) ; (true &) ; touch {tmp_path / 'ready'}; sleep 600")
        await until((tmp_path / "ready").exists)
        await until(lambda: len(psutil.Process(guardian.pid).children()) == 1)
        assert [left.pid for left in psutil.Process(guardian.pid).children()] == [child.pid]
        await child.kill_tree()


async def test_a_killed_guardian_takes_its_processes_with_it_and_is_replaced(tmp_path: Path) -> None:
    async with guarded() as guardian:
        first_pid, pid_file = guardian.pid, tmp_path / "pid"
        child = await shell(guardian, f"setsid sh -c 'echo $$ > {pid_file}; exec sleep 600'")
        await until(lambda: pid_in(pid_file))
        os.kill(first_pid, signal.SIGKILL)
        await child.exited
        assert child.failure_of_exit(-9, what="the command").category == "lost"
        await until(lambda: guardian.pid not in (0, first_pid))
        assert not is_alive(child.pid)
        assert not is_alive(pid_in(pid_file))
        again = await shell(guardian, "exit 4")
        assert await again.exited == 4
        await again.kill_tree()


async def test_the_children_of_a_killed_guardian_need_no_search_of_their_own() -> None:
    async with guarded() as guardian:
        children = [await shell(guardian, "sleep 600 & sleep 600") for _ in range(5)]
        os.kill(guardian.pid, signal.SIGKILL)
        for child in children:
            await child.exited
        assert [child.is_alone for child in children] == [True] * 5
        assert [await child.members() for child in children] == [[]] * 5
        for child in children:
            await child.kill_tree()


async def test_a_frozen_guardian_is_replaced() -> None:
    async with guarded() as guardian:
        first_pid = guardian.pid
        await (await shell(guardian, "exit 0")).kill_tree()
        child = await shell(guardian, "sleep 600")
        os.kill(first_pid, signal.SIGSTOP)
        await child.exited
        await until(lambda: guardian.pid not in (0, first_pid))
        assert not is_alive(child.pid)
        assert not is_alive(first_pid)


LEADERLESS = """
import ctypes, threading, time
def go_on():
    while True:
        time.sleep(0.01)
threading.Thread(target=go_on).start()
ctypes.CDLL(None).pthread_exit(None)
"""


async def test_a_process_whose_first_thread_has_ended_is_not_taken_for_dead() -> None:
    """I9: it looks like a zombie, and its other threads go on."""
    async with guarded() as guardian:
        child = await guardian.spawn(
            [sys.executable, "-c", LEADERLESS], env={}, marker="m", stdout=2, stderr=2
        )
        await until(lambda: psutil.Process(child.pid).status() == psutil.STATUS_ZOMBIE)
        assert not child.exited.done()
        await child.kill_tree()
        assert child.exited.result() == -signal.SIGKILL


async def test_a_tree_of_more_processes_than_there_are_descriptors_is_ended() -> None:
    """I9: each needs a handle, and the limit of open files is no reason to leave any."""
    async with guarded() as guardian:
        child = await shell(guardian, "for n in $(seq 150); do sleep 600 & done; wait")
        await until(lambda: len(psutil.Process(child.pid).children()) == 150)
        tree = [process.pid for process in psutil.Process(child.pid).children()]
        limits = resource.getrlimit(resource.RLIMIT_NOFILE)
        highest = max(int(name) for name in os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 90, limits[1]))
        try:
            await child.kill_tree()
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
        assert not any(map(is_alive, tree))


async def test_what_is_started_has_the_limits_of_the_worker_and_not_those_of_its_guardian() -> None:
    async with guarded() as guardian:
        read_end, write_end = os.pipe()
        child = await guardian.spawn(
            ["/bin/sh", "-c", "ulimit -Sn"], env={}, marker="m", stdout=write_end, stderr=2
        )
        os.close(write_end)
        await child.exited
        with os.fdopen(read_end) as output:
            assert int(output.read()) == resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        await child.kill_tree()


async def test_nothing_starts_whose_lease_is_over() -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        with pytest.raises(NotStartedError):
            await shell(guardian, "exit 0", lease_ends_us=clock.boot_us() + SECOND // 2)
        child = await shell(guardian, "exit 0", lease_ends_us=clock.boot_us() + MINUTE)
        assert await child.exited == 0
        await child.kill_tree()


async def test_a_lease_that_nobody_extends_ends_the_tree_less_than_a_second_before_its_end() -> None:
    clock = SystemClock()
    async with guarded(clock) as guardian:
        ends_us = clock.boot_us() + 2 * SECOND
        relaxed = await shell(guardian, "sleep 600")
        extended = await shell(guardian, "sleep 600", lease_ends_us=ends_us)
        strict = await shell(guardian, "trap '' TERM; sleep 600", lease_ends_us=ends_us)
        guardian.mark(extended.pid, clock.boot_us() + MINUTE)
        assert await strict.exited == -signal.SIGKILL
        assert ends_us - SECOND <= clock.boot_us() < ends_us
        assert is_alive(relaxed.pid)
        assert is_alive(extended.pid)
        for child in (relaxed, extended, strict):
            await child.kill_tree()


SUPERVISOR = f"""
import asyncio, json, os, sys
from ostinato.clock import SystemClock
from ostinato.worker.guardian import Guardian

async def main():
    clock = SystemClock()
    guardian = Guardian(clock=clock)
    await guardian.start()
    guardian.lease(1, worker_lease_us=6_000_000, last_end_us=0)

    async def shell(command, lease_ends_us):
        return await guardian.spawn(
            ["/bin/sh", "-c", command], env={{"{MARKER_VARIABLE}": command[:4], "PATH": "/usr/bin:/bin"}},
            marker=command[:4], stdout=2, stderr=2, lease_ends_us=lease_ends_us)

    stray = {STRAY!r}.format(pid_file=sys.argv[1])
    strict = await shell("setsid sleep 600 & " + stray + "; sleep 600", clock.boot_us() + 3_000_000)
    relaxed = await shell("exec sleep 600", None)
    print(json.dumps([guardian.pid, strict.pid, relaxed.pid]), flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


@asynccontextmanager
async def supervisor_process(stray_file: Path) -> AsyncIterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process of its own with a guardian and two commands; the pids of guardian, strict and relaxed one."""
    command = [sys.executable, "-c", SUPERVISOR, str(stray_file)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:  # noqa: ASYNC220 - at once
        assert process.stdout is not None
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


async def test_a_killed_supervisor_leaves_nothing(tmp_path: Path) -> None:
    async with supervisor_process(tmp_path / "pid") as (process, pids):
        await until(lambda: pid_in(tmp_path / "pid"))
        tree = [*pids, pid_in(tmp_path / "pid"), *(p.pid for p in psutil.Process(process.pid).children(True))]
        assert len(tree) > len(pids) + 1
        process.kill()
        process.wait()
        began = time.monotonic()
        await until(lambda: not any(map(is_alive, tree)))
        assert time.monotonic() - began < 2


async def test_c075_a_frozen_supervisor_loses_its_strict_processes_at_the_end_of_their_lease(
    tmp_path: Path,
) -> None:
    async with supervisor_process(tmp_path / "pid") as (process, (guardian, strict, relaxed)):
        await until(lambda: pid_in(tmp_path / "pid"))
        stray, began = pid_in(tmp_path / "pid"), time.monotonic()
        process.send_signal(signal.SIGSTOP)
        await until(lambda: not is_alive(strict))
        assert time.monotonic() - began < 3
        await until(lambda: not is_alive(stray), within_seconds=1)
        assert is_alive(relaxed)
        assert is_alive(guardian)
        process.send_signal(signal.SIGCONT)
        process.kill()
        process.wait()
        await until(lambda: not is_alive(relaxed) and not is_alive(guardian))
