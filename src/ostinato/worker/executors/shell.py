"""Runs commands: a session of their own, a clean environment, output captured, the whole tree ended.

What an attempt is told to end gets SIGTERM as a group, and SIGKILL as a whole tree after its grace. Whatever
the command leaves behind when it has ended, in the background or in a session of its own, is killed too: an
ended attempt has nothing left. After a stop the rest of the tree still has what remains of the grace.
"""

from __future__ import annotations

import asyncio
import errno
import signal
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from ostinato.clock import Clock
from ostinato.core.definition import ShellSpec
from ostinato.core.failure.codes import CATALOGUE
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import SECOND
from ostinato.worker.child import ChildProcess, PipeReader
from ostinato.worker.command_output import CommandOutput
from ostinato.worker.executors.protocol import AttemptFinished, AttemptStart, EventSink, StopReason
from ostinato.worker.executors.task_based import AttemptTasks, StopRequest, until_stopped_or
from ostinato.worker.guardian import Guardian
from ostinato.worker.guardian_process import NotStartedError
from ostinato.worker.output import CHUNK_BYTES_MAX
from ostinato.worker.process_limits import ProcessLimits
from ostinato.worker.resources import Holding, Limits, LimitsUnavailable, Resources, RlimitResources
from ostinato.worker.workspace import FULL_DISK, Workspace, attempt_environment

#: How long a slot whose disk is full waits before it takes other work.
_FULL_DISK_REST_US = 2 * SECOND


class ShellExecutor:
    """Executor of kind ``shell``. `data_dir` holds the scratch directories."""

    kind = "shell"

    def __init__(
        self,
        *,
        clock: Clock,
        data_dir: Path,
        guardian: Guardian | None = None,
        resources: Resources | None = None,
    ) -> None:
        """`guardian` starts the commands; without one the executor has one of its own.

        `resources` enforces limits.
        """
        self._resources = resources or RlimitResources("no control group was looked for")
        self._guardian = guardian if guardian is not None else Guardian(clock=clock)
        self._owns_guardian = guardian is None
        self._running: dict[str, _RunningCommand] = {}
        self._clock = clock
        self._data_dir = data_dir
        self._sink: EventSink | None = None
        self._attempts: AttemptTasks | None = None

    async def open(self, sink: EventSink) -> None:
        await self._guardian.start()
        self._sink = sink
        self._attempts = AttemptTasks(self._run, clock=self._clock, sink=sink, kind="command")

    def start(self, attempts: Sequence[AttemptStart]) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.start(attempts)

    def stop(self, attempt_id: str, *, reason: StopReason, grace_us: int) -> None:
        assert self._attempts is not None, "open() comes first"
        self._attempts.stop(attempt_id, reason=reason, grace_us=grace_us)

    async def close(self) -> None:
        if self._attempts is not None:
            await self._attempts.close()
        if self._owns_guardian:
            await self._guardian.close()

    def leases_moved(self) -> None:
        for command in self._running.values():
            command.lease_moved()

    async def _run(self, start: AttemptStart, stop: StopRequest) -> AttemptFinished:
        assert self._sink is not None, "open() comes first"
        attempt_id = start.assignment.attempt_id
        try:
            workspace = Workspace(self._data_dir, start.assignment)
        except OSError as error:
            if error.errno in FULL_DISK:
                return await self._refused_for_room(attempt_id, error, stop=stop)
            return self._finished(attempt_id, None, failure=_spawn_failure(error, directory=""))
        holding = Holding()
        try:
            holding = self._resources.hold(attempt_id, Limits.of(start.spec))
            command = _RunningCommand(
                start, workspace, limits=holding.process_limits, clock=self._clock, sink=self._sink
            )
            try:
                child = await command.spawn(self._guardian)
            except NotStartedError as error:
                return self._finished(attempt_id, None, refused=str(error))
            except (OSError, ValueError) as error:
                spec = start.spec.executor
                assert isinstance(spec, ShellSpec)
                return self._finished(attempt_id, None, failure=_spawn_failure(error, spec.directory))
            self._running[attempt_id] = command
            started_us = self._clock.wall_us()
            self._sink.started([attempt_id])
            return_code = await command.to_end(child, stop)
            if return_code:
                failure = holding.explain(child.failure_of_exit(return_code, what="the command"))
                if child.fate is None:
                    failure = command.output.explain(failure)
                return self._finished(attempt_id, started_us, failure=failure)
        except LimitsUnavailable as error:
            return self._finished(attempt_id, None, failure=error.failure)
        finally:
            self._running.pop(attempt_id, None)
            await asyncio.get_running_loop().run_in_executor(None, _clean_up, holding, workspace)
        result = msgspec.json.encode({"exit_code": 0, "stdout_tail": command.output.stdout_tail})
        return self._finished(attempt_id, started_us, result=result)

    async def _refused_for_room(
        self, attempt_id: str, error: OSError, *, stop: StopRequest
    ) -> AttemptFinished:
        """Hand an attempt back that the disk has no room for: the task is not to blame.

        Its slot rests meanwhile, or the same attempt would come back at once, again and again (C123).
        """
        rested = asyncio.ensure_future(self._clock.sleep_until_us(self._clock.boot_us() + _FULL_DISK_REST_US))
        try:
            await until_stopped_or(stop, rested)
        finally:
            rested.cancel()
        refused = f"the worker has no room for its scratch directory: {error.strerror}"
        return self._finished(attempt_id, None, refused=refused)

    def _finished(
        self,
        attempt_id: str,
        started_us: int | None,
        *,
        result: bytes | None = None,
        failure: Failure | None = None,
        refused: str = "",
    ) -> AttemptFinished:
        return AttemptFinished(
            attempt_id=attempt_id,
            started_us=started_us,
            finished_us=self._clock.wall_us(),
            result=result,
            failure=failure,
            refused=refused,
        )


class _RunningCommand:
    """One command with its pipes, from start to the end of its tree."""

    def __init__(
        self,
        start: AttemptStart,
        workspace: Workspace,
        *,
        limits: ProcessLimits | None,
        clock: Clock,
        sink: EventSink,
    ) -> None:
        self._limits = limits
        self._start = start
        self._workspace = workspace
        self._clock = clock
        self._sink = sink
        self.output = CommandOutput(start.assignment, clock=clock, sink=sink)
        self._stdout = PipeReader(self._on_stdout, size_bytes=CHUNK_BYTES_MAX)
        self._stderr = PipeReader(self._on_stderr, size_bytes=CHUNK_BYTES_MAX)
        self._mark: Callable[[int | None], None]

    async def spawn(self, guardian: Guardian) -> ChildProcess:
        """Start the command. Raises as ``Guardian.spawn``, and then has given the pipes back."""
        spec = self._start.spec.executor
        assert isinstance(spec, ShellSpec)
        command = ("/bin/sh", "-c", spec.command) if isinstance(spec.command, str) else spec.command
        environment = attempt_environment(
            self._start.assignment,
            self._workspace,
            own=spec.env,
            deadline_us=self._start.deadline_us,
        )
        try:
            child = await guardian.spawn(
                command,
                env=environment,
                marker=self._start.assignment.attempt_id,
                directory=spec.directory or str(self._workspace.directory),
                stdout=self._stdout.write_end,
                stderr=self._stderr.write_end,
                lease_ends_us=self._start.lease_ends_us,
                limits=self._limits,
            )
        except BaseException:
            self._close_pipes()
            raise
        self._mark = partial(guardian.mark, child.pid)
        self.lease_moved()
        self._stdout.child_started()
        self._stderr.child_started()
        return child

    def lease_moved(self) -> None:
        """Tell the guardian how long the command may go on now."""
        self._mark(self._start.lease_ends_us)

    async def to_end(self, child: ChildProcess, stop: StopRequest) -> int:
        """Wait for the end of the command and its tree; returns the return code of the command itself."""
        try:
            if await until_stopped_or(stop, child.exited):
                await self._stop(child, stop)
            # Also kills what the command has left behind; then nobody holds the pipes any more.
            await child.kill_tree()
        except BaseException:
            child.signal_group(signal.SIGKILL)
            raise
        finally:
            self._stdout.drain()
            self._stderr.drain()
            self._close_pipes()
            self.output.finish()
        return child.exited.result()

    async def _stop(self, child: ChildProcess, stop: StopRequest) -> None:
        child.signal_group(signal.SIGTERM)
        while (left := await child.members()) and self._clock.boot_us() < stop.kill_us:
            stop.changed.clear()
            gone = asyncio.ensure_future(child.wait_for_one(left))
            expired = asyncio.ensure_future(self._clock.sleep_until_us(stop.kill_us))
            try:
                await until_stopped_or(stop, gone, expired)
            finally:
                gone.cancel()
                expired.cancel()

    def _on_stdout(self, data: bytes) -> None:
        self.output.write("stdout", data)

    def _on_stderr(self, data: bytes) -> None:
        self.output.write("stderr", data)

    def _close_pipes(self) -> None:
        self._stdout.close()
        self._stderr.close()


def _clean_up(holding: Holding, workspace: Workspace) -> None:
    holding.release()
    workspace.remove()


def _spawn_failure(error: OSError | ValueError, directory: str) -> Failure:
    """Why a command could not be started; codes as a shell would give them where there are such."""
    if isinstance(error, ValueError):
        return safe_failure("SPAWN_FAILED", f"the command cannot be started: {error}", category="permanent")
    if directory and error.filename == directory:
        return safe_failure(_errno_code(error), f"the directory {directory} cannot be used: {error.strerror}")
    if error.errno == errno.ENOENT:
        return safe_failure("EXIT_127", f"the command was not found: {error.filename}")
    if error.errno in (errno.EACCES, errno.ENOEXEC):
        return safe_failure("EXIT_126", f"the command cannot be executed: {error}")
    return safe_failure(_errno_code(error), f"the command could not be started: {error}")


def _errno_code(error: OSError) -> str:
    name = errno.errorcode.get(error.errno or 0, "")
    return name if name in CATALOGUE else "SPAWN_FAILED"
