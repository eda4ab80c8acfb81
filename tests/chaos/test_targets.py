"""Which processes chaos touches: the one that is described, and never one that must not be."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.chaos import MakeVictim

from ostinato.chaos.scenario import Process, Scenario
from ostinato.chaos.targets import find_target, is_alive, signal_target
from ostinato.core.instants import SECOND
from ostinato.errors import UserError


def find(folder: Path, **entry: Any) -> Any:
    return find_target(Process(name="node-a", **entry), Scenario(folder=folder, steps=()))


def refusal(folder: Path, **entry: Any) -> str:
    with pytest.raises(UserError) as refused:
        find(folder, **entry)
    assert refused.value.code == "CHAOS_REFUSED"
    assert refused.value.field.startswith("processes.node-a")
    return refused.value.message


def test_a_process_is_found_by_pid_start_pidfile_and_command_line(
    make_victim: MakeVictim, tmp_path: Path
) -> None:
    victim = make_victim()
    started_us = int(psutil.Process(victim.pid).create_time() * SECOND)
    # PostgreSQL's has more lines than the pid.
    (tmp_path / "node.pid").write_text(f"{victim.pid}\n/var/lib/data\n")
    found = [
        find(tmp_path, pid=victim.pid, command=victim.mark),
        find(tmp_path, pid=victim.pid, command=victim.mark, started_us=started_us),
        find(tmp_path, pidfile="node.pid", command=victim.mark),
        find(tmp_path, command_line=" ".join(victim.words)),
    ]
    assert {target.pid for target in found} == {victim.pid}
    assert len(set(found)) == 1


def test_a_process_that_is_just_being_started_is_found(make_victim: MakeVictim, tmp_path: Path) -> None:
    """In the midst of its exec a process has no command line."""
    for _ in range(20):
        victim = make_victim(words=["/bin/sleep", "600"])
        assert find(tmp_path, pid=victim.pid, command="sleep 600").pid == victim.pid


def test_process_1_chaos_itself_and_its_ancestors_are_refused(tmp_path: Path) -> None:
    assert "process 1" in refusal(tmp_path, pid=1, command="")
    assert "is chaos itself" in refusal(tmp_path, pid=os.getpid(), command="")
    assert "chaos descends from" in refusal(tmp_path, pid=os.getppid(), command="")


def test_a_process_of_another_user_is_refused(make_victim: MakeVictim, tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pid = make_victim(user=65_534, cwd="/", words=["/bin/sleep", "600"]).pid
    else:
        pid = next(each.pid for each in psutil.process_iter() if each.pid > 1 and each.uids().real == 0)
    assert "belongs to another user" in refusal(tmp_path, pid=pid, command="")


def test_a_thread_is_refused(tmp_path: Path) -> None:
    go = threading.Event()
    thread = threading.Thread(target=go.wait)
    thread.start()
    try:
        assert "is a thread" in refusal(tmp_path, pid=thread.native_id, command="")
    finally:
        go.set()
        thread.join()


def test_a_process_with_another_command_line_or_start_is_refused(
    make_victim: MakeVictim, tmp_path: Path
) -> None:
    victim = make_victim()
    assert "has no 'ostinato scheduler' in it" in refusal(
        tmp_path, pid=victim.pid, command="ostinato scheduler"
    )
    later_us = int(psutil.Process(victim.pid).create_time() * SECOND) + 60 * SECOND
    assert "was started at" in refusal(tmp_path, pid=victim.pid, command=victim.mark, started_us=later_us)


def test_a_process_that_has_ended_is_refused_also_as_a_zombie(
    make_victim: MakeVictim, tmp_path: Path
) -> None:
    victim = make_victim()
    target = find(tmp_path, pid=victim.pid, command=victim.mark)
    # A kill has ended it when it returns, and nobody has waited for it yet.
    assert signal_target(target, signal.SIGKILL)
    assert not is_alive(target)
    assert "there is no process" in refusal(tmp_path, pid=victim.pid, command=victim.mark)
    victim.end()
    assert not signal_target(target, signal.SIGKILL)


@pytest.mark.parametrize("text", ["", "node", "-1", "0", "99999999999"])
def test_a_pidfile_without_a_pid_is_refused(text: str, tmp_path: Path) -> None:
    (tmp_path / "node.pid").write_text(text)
    assert "does not begin with a pid" in refusal(tmp_path, pidfile="node.pid", command="x")


def test_a_pidfile_that_is_missing_or_older_than_its_process_is_refused(
    make_victim: MakeVictim, tmp_path: Path
) -> None:
    assert "cannot be read: No such file" in refusal(tmp_path, pidfile="node.pid", command="x")
    os.mkfifo(tmp_path / "pipe")
    assert "pipe is no regular file" in refusal(tmp_path, pidfile="pipe", command="x")
    victim = make_victim()
    path = tmp_path / "node.pid"
    path.write_text(str(victim.pid))
    before_s = psutil.Process(victim.pid).create_time() - 60
    os.utime(path, (before_s, before_s))
    assert "is older than process" in refusal(tmp_path, pidfile="node.pid", command=victim.mark)


def test_a_command_line_of_none_or_of_two_processes_is_refused(
    make_victim: MakeVictim, tmp_path: Path
) -> None:
    victim = make_victim()
    # Whole, not a part: an editor or a log reader may have the same words in its own.
    assert "no process of this user has" in refusal(tmp_path, command_line=" ".join(victim.words[:-1]))
    twin = make_victim()
    words = [*twin.words[:-1], victim.mark]
    with psutil.Popen(words) as other:
        try:
            line = " ".join(words)
            wait_for_command_line(other, line)
            assert "2 processes of this user have" in refusal(tmp_path, command_line=line)
        finally:
            other.kill()


def wait_for_command_line(process: psutil.Popen, line: str) -> None:
    """Until the exec is over."""
    while " ".join(process.cmdline()) != line:
        assert process.is_running()
