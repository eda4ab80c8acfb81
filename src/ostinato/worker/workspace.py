"""The scratch directory of an attempt, and the clean environment of its processes."""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from ostinato.core.instants import format_instant
from ostinato.wire.messages import Assignment
from ostinato.worker.process_tree import MARKER_VARIABLE

#: All that a command gets of the worker's own environment.
KEPT_VARIABLES = ("PATH", "HOME", "LANG")
#: Linux refuses a single variable of 128 KiB; a larger payload is only in the file.
PAYLOAD_VARIABLE_BYTES_MAX = 100 * 1024
PAYLOAD_FILE = "payload.json"
#: Errors that end when there is room again, and are nobody's fault but the disk's.
FULL_DISK = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})


def scratch_path(data_dir: Path | str, attempt_id: str) -> Path:
    """Where an attempt has its scratch directory, absolute; whether or not there is one."""
    return Path(data_dir, "attempts", attempt_id).resolve()


def make_scratch(path: Path) -> None:
    """Create a scratch directory that only this user can enter; one that is there stays."""
    path.mkdir(parents=True, mode=0o700, exist_ok=True)


def remove_scratch(path: Path) -> None:
    """Delete a scratch directory; what cannot be deleted stays, as a process may still write there."""
    shutil.rmtree(path, ignore_errors=True)


class Workspace:
    """A directory of one attempt's own; removed with everything in it."""

    def __init__(self, data_dir: Path, assignment: Assignment) -> None:
        """Create it. Raises ``OSError``, and then nothing is left of it."""
        self.directory = scratch_path(data_dir, assignment.attempt_id)
        make_scratch(self.directory)
        self.payload_file = self.directory / PAYLOAD_FILE
        try:
            self.payload_file.write_bytes(assignment.payload)
        except OSError:
            self.remove()
            raise

    def remove(self) -> None:
        """Delete the directory."""
        remove_scratch(self.directory)


def attempt_environment(
    assignment: Assignment, workspace: Workspace, *, own: dict[str, str], deadline_us: int | None
) -> dict[str, str]:
    """Environment of a command: a few variables of the worker, ``TMPDIR``, the task's own, then ours."""
    environment = {name: os.environ[name] for name in KEPT_VARIABLES if name in os.environ}
    environment["TMPDIR"] = str(workspace.directory)
    environment.update(own)
    environment[MARKER_VARIABLE] = assignment.attempt_id
    environment |= context_variables(
        assignment,
        scratch=str(workspace.directory),
        payload_file=str(workspace.payload_file),
        deadline_us=deadline_us,
    )
    return environment


def context_variables(
    assignment: Assignment, *, scratch: str, payload_file: str, deadline_us: int | None
) -> dict[str, str]:
    """What every command is told of its attempt: what runs, its fencing token, where its payload is."""
    variables = {
        "OSTINATO_NAMESPACE": assignment.ref.namespace,
        "OSTINATO_TASK": assignment.ref.name,
        "OSTINATO_INSTANCE_ID": assignment.instance_id,
        "OSTINATO_ATTEMPT": str(assignment.attempt),
        "OSTINATO_ATTEMPT_ID": assignment.attempt_id,
        "OSTINATO_RETRY_COUNT": str(assignment.retry_count),
        "OSTINATO_SHARD": str(assignment.shard),
        "OSTINATO_SHARD_TOTAL": str(assignment.shard_total),
        "OSTINATO_DUE": format_instant(assignment.due_us),
        "OSTINATO_SCRATCH": scratch,
        "OSTINATO_PAYLOAD_FILE": payload_file,
    }
    if len(assignment.payload) <= PAYLOAD_VARIABLE_BYTES_MAX:
        variables["OSTINATO_PAYLOAD"] = assignment.payload.decode("utf-8", "replace")
    if assignment.fire_us is not None:
        variables["OSTINATO_FIRE"] = format_instant(assignment.fire_us)
    if deadline_us is not None:
        variables["OSTINATO_DEADLINE"] = format_instant(deadline_us)
    return variables
