"""Which process is meant: found as the scenario says, verified, and refused if it must not be touched.

A process is named by pid and start time and signalled through a handle of the kernel, so that a pid that was
given to somebody else meanwhile is never hit. Nothing is guessed: what is not found exactly once is refused.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ostinato.chaos.scenario import Process, Scenario
from ostinato.core.instants import MILLISECOND, SECOND, format_instant
from ostinato.errors import UserError
from ostinato.worker.process_tree import TreeProcess, open_handle, start_ticks_of

_PROC = Path("/proc")
#: ``ps`` shows whole seconds, and the system's own idea of its start is as coarse.
_STARTED_SLACK_US = 2 * SECOND
_PIDFILE_BYTES_MAX = 1_000
_INIT_PID = 1
#: Threads of the kernel never have a command line.
_EXEC_LOOKS_MAX = 20
_EXEC_LOOK_MS = 10


class Target(NamedTuple):
    """A process that was found and may be touched."""

    process: TreeProcess
    command_line: str
    started_us: int

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def words(self) -> str:
        """``pid 4711, since 2026-01-31T18:00:00Z: ostinato scheduler``."""
        return f"pid {self.pid}, since {format_instant(self.started_us)}: {self.command_line}"


def find_target(process: Process, scenario: Scenario) -> Target:
    """The process of an entry that runs already, as it is now.

    Raises ``CHAOS_REFUSED`` if there is none, if it is not the one that is described, and if it is process 1,
    chaos itself, one that chaos descends from, or another user's.
    """
    if not (_PROC / "self/stat").exists() or not hasattr(os, "pidfd_open"):
        _refuse(process, "processes can be told apart on Linux alone", hint="run chaos on Linux")
    if process.command_line:
        pid = _pid_by_command_line(process)
    else:
        pid = process.pid if process.pid is not None else _pid_of_file(process, scenario)
    _refuse_protected(process, pid)
    target = _after_exec(pid)
    if target is None:
        _refuse(process, f"there is no process {pid}", hint="look whether it runs: ps -p PID")
    _refuse_others(process, pid)
    if process.command not in target.command_line:
        message = f"the command line of {pid} has no {process.command!r} in it: {target.command_line}"
        _refuse(process, message, hint="the pid belongs to somebody else by now, or command is wrong")
    if process.started_us is not None and abs(target.started_us - process.started_us) > _STARTED_SLACK_US:
        message = (
            f"process {pid} was started at {format_instant(target.started_us)}, not when the scenario says"
        )
        _refuse(process, message, hint="the pid belongs to somebody else by now")
    return target


def is_alive(target: Target) -> bool:
    """Whether exactly this process goes on; a zombie does not."""
    now = _target_of(target.pid)
    return now is not None and now.process == target.process


def is_stopped(target: Target) -> bool:
    """Whether it has been stopped by a signal or a debugger."""
    return _state_of(target.pid) in ("T", "t")


def signal_target(target: Target, number: signal.Signals) -> bool:
    """Send a signal to exactly this process; whether it was there.

    A kill returns once the process has ended.
    """
    handle = open_handle(target.process)
    if handle is None:
        return False
    try:
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(handle, number)
            if number is signal.SIGKILL:
                poll = select.poll()
                poll.register(handle, select.POLLIN)
                poll.poll(10 * SECOND // MILLISECOND)
            return True
        return False
    finally:
        os.close(handle)


def _pid_of_file(process: Process, scenario: Scenario) -> int:
    path = scenario.path(process.pidfile)
    try:
        # Without waiting: a pipe would hold up every step, and no signal would end that.
        with open(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as file:
            found = os.fstat(file.fileno())
            text = file.read(_PIDFILE_BYTES_MAX) if stat.S_ISREG(found.st_mode) else None
            written_us = found.st_mtime_ns // 1000
    except OSError as error:
        _refuse(process, f"the pidfile {path} cannot be read: {error.strerror}", way="pidfile")
    if text is None:
        _refuse(process, f"the pidfile {path} is no regular file", way="pidfile")
    # PostgreSQL writes more lines than the pid.
    first = text.split(b"\n", 1)[0].strip()
    if not first.isdigit() or len(first) > 9 or int(first) < 1:
        _refuse(process, f"the pidfile {path} does not begin with a pid", way="pidfile")
    pid = int(first)
    target = _target_of(pid)
    if target is not None and written_us < target.started_us - _STARTED_SLACK_US:
        message = f"the pidfile {path} is older than process {pid}, so that it means another one"
        _refuse(process, message, way="pidfile", hint="remove it, and start the process that writes it")
    return pid


def _pid_by_command_line(process: Process) -> int:
    wanted = " ".join(process.command_line.split())
    found = [pid for pid in _own_pids() if _command_line_of(pid) == wanted]
    if len(found) != 1:
        count = f"{len(found)} processes of this user have" if found else "no process of this user has"
        hint = "write it as ps -o args= shows it; several need a pidfile each"
        _refuse(process, f"{count} this command line", way="command_line", hint=hint)
    return found[0]


def _own_pids() -> Iterator[int]:
    for entry in os.scandir(_PROC):
        if entry.name.isdigit():
            with suppress(FileNotFoundError):  # it has ended since the folder was read
                if entry.stat().st_uid == os.geteuid():
                    yield int(entry.name)


def _refuse_protected(process: Process, pid: int) -> None:
    if pid == _INIT_PID:
        _refuse(process, "process 1 holds the whole system up", hint="name the process that is to be broken")
    if pid == os.getpid():
        _refuse(process, f"{pid} is chaos itself")
    if pid in _ancestors():
        _refuse(process, f"chaos descends from process {pid}, and would end or stop with it")


def _ancestors() -> set[int]:
    found: set[int] = set()
    pid = os.getppid()
    while pid > 0 and pid not in found:
        found.add(pid)
        parent = _status_of(pid).get("PPid", "0").strip()
        pid = int(parent)
    return found


def _refuse_others(process: Process, pid: int) -> None:
    status = _status_of(pid)
    # Real and effective: one that has changed its user half is another's too.
    if set(status.get("Uid", "").split()[:2]) != {str(os.geteuid())}:
        message = f"process {pid} belongs to another user"
        _refuse(process, message, hint="run chaos as the user that the process runs as")
    if status.get("Tgid", "").strip() != str(pid):
        _refuse(process, f"{pid} is a thread, not a process")


def _after_exec(pid: int) -> Target | None:
    """As `_target_of`; one that is being started has no command line for a moment, which is waited for."""
    target = _target_of(pid)
    for _ in range(_EXEC_LOOKS_MAX):
        if target is None or target.command_line:
            break
        select.poll().poll(_EXEC_LOOK_MS)
        target = _target_of(pid)
    return target


def _target_of(pid: int) -> Target | None:
    """A living process, None if there is none; read twice, so that all is of one process."""
    start_ticks = start_ticks_of(pid)
    command_line = _command_line_of(pid)
    state = _state_of(pid)
    if not start_ticks or state in ("", "Z", "X") or start_ticks_of(pid) != start_ticks:
        return None
    started_us = _boot_wall_us() + start_ticks * SECOND // os.sysconf("SC_CLK_TCK")
    return Target(TreeProcess(pid, start_ticks), command_line, started_us)


def _command_line_of(pid: int) -> str:
    try:
        raw = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return ""
    return " ".join(raw.decode("utf-8", "replace").replace("\0", " ").split())


def _state_of(pid: int) -> str:
    return _status_of(pid).get("State", "").strip()[:1]


def _status_of(pid: int) -> dict[str, str]:
    try:
        text = (_PROC / str(pid) / "status").read_text("utf-8", "replace")
    except OSError:
        return {}
    return dict(line.split(":", 1) for line in text.splitlines() if ":" in line)


def _boot_wall_us() -> int:
    """When the system was started, by its wall clock."""
    text = (_PROC / "stat").read_text("utf-8", "replace")
    return next(int(line.split()[1]) * SECOND for line in text.splitlines() if line.startswith("btime "))


def _refuse(process: Process, message: str, *, way: str = "", hint: str = "") -> NoReturn:
    field = f"processes.{process.name}" + (f".{way}" if way else "")
    raise UserError("CHAOS_REFUSED", message, subject=process.name, field=field, hint=hint)
