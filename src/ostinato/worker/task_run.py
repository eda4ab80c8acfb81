"""One attempt inside a process of tasks: its context, its arguments, its result or failure."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable
from pathlib import Path

from ostinato.clock import Clock
from ostinato.core.definition import TaskRef
from ostinato.core.failure.classify import failure_from_exception
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.errors import UserError
from ostinato.sdk.context import Context, ContextBackend
from ostinato.sdk.signature import Call
from ostinato.worker.executors.protocol import AttemptBeat, AttemptFinished
from ostinato.worker.frames import RunItem
from ostinato.worker.lease_guard import DRIFT_US
from ostinato.worker.task_modules import Callee
from ostinato.worker.workspace import make_scratch, remove_scratch, scratch_path

#: Least time between two signs of life of one attempt; what is said in between waits.
BEAT_INTERVAL_US = 100_000

#: Function of a task and of its definition's `call`. Raises ``TASK_NOT_FOUND``, or what an import raises.
FindCallee = Callable[[TaskRef, str], Callee]

_formatter = logging.Formatter("%(levelname)s %(name)s: %(message)s")


class AttemptRun:
    """State of one attempt; the backend of its context. May be used from several threads."""

    def __init__(
        self,
        item: RunItem,
        *,
        clock: Clock,
        send_beat: Callable[[AttemptBeat], None],
        write_log: Callable[[bytes], None],
        data_dir: str = "",
    ) -> None:
        self.item = item
        self.attempt_id = item.assignment.attempt_id
        self.started_us: int | None = None
        self.stop_reason = ""
        #: Whether its coroutine has begun: cancelled before that, it would never run and so never report.
        self.is_entered = False
        self._clock = clock
        self._send_beat = send_beat
        self._write_log = write_log
        self._data_dir = data_dir or tempfile.gettempdir()
        self._scratch: Path | None = None
        self._next_beat_us = 0
        self._held_beat: AttemptBeat | None = None

    def enter(self) -> AttemptFinished | None:
        """The coroutine of the attempt begins; its end, if it was stopped before."""
        self.is_entered = True
        return self.stopped() if self.stop_reason else None

    def context(self) -> Context:
        """The context that the task sees."""
        assignment, timeout_us = self.item.assignment, self.item.timeout_us
        backend: ContextBackend = self
        return Context(
            instance_id=assignment.instance_id,
            task=assignment.ref.name,
            namespace=assignment.ref.namespace,
            attempt=assignment.attempt,
            attempt_id=assignment.attempt_id,
            retry_count=assignment.retry_count,
            deadline_us=None if timeout_us is None else self._clock.wall_us() + timeout_us,
            fire_us=assignment.fire_us,
            shard=assignment.shard,
            shard_total=assignment.shard_total,
            backend=backend,
        )

    def prepare(self, find: FindCallee, context: Context) -> tuple[Callee, Call] | AttemptFinished:
        """Function and arguments, or the end of an attempt that cannot be called."""
        assignment = self.item.assignment
        try:
            callee = find(assignment.ref, self.item.call)
        except UserError as error:
            if error.code == "TASK_NOT_FOUND":
                return self.failed(safe_failure("TASK_NOT_FOUND", str(error)))
            return self.failed(_import_failure(self.item.call, error))
        except BaseException as error:  # noqa: BLE001 - the user's code may raise anything
            return self.failed(_import_failure(self.item.call, error))
        try:
            return callee, callee.bind_payload(assignment.payload, context)
        except UserError as error:
            return self.failed(safe_failure("BAD_PAYLOAD", str(error)))
        except BaseException as error:  # noqa: BLE001 - the user's types are built there
            return self.raised(error)

    def begin(self) -> AttemptFinished | None:
        """User code begins; the attempt's end, if its lease is over and it must not (I1)."""
        lease_ends_us = self.item.lease_ends_us
        if lease_ends_us is not None and self._clock.boot_us() >= lease_ends_us - DRIFT_US:
            return AttemptFinished(
                attempt_id=self.attempt_id,
                started_us=None,
                finished_us=self._clock.wall_us(),
                refused="its lease was over just before its start",
            )
        self.started_us = self._clock.wall_us()
        return None

    def returned(self, callee: Callee, value: object) -> AttemptFinished:
        """The task has returned."""
        try:
            result = callee.encode_result(value)
        except UserError as error:
            return self.failed(safe_failure("BAD_RESULT", str(error)))
        except BaseException as error:  # noqa: BLE001 - the user's types are taken apart there
            return self.raised(error)
        return AttemptFinished(
            attempt_id=self.attempt_id,
            started_us=self.started_us,
            finished_us=self._clock.wall_us(),
            result=result,
        )

    def raised(self, error: BaseException) -> AttemptFinished:
        """The task has raised."""
        return self.failed(failure_from_exception(error))

    def ended_by_neighbour(self) -> AttemptFinished:
        """The attempt ends because another one in its process ended it: lost, uncounted."""
        finished = self.failed(
            safe_failure("COLLATERAL", "another task in the loop process cancelled the attempt")
        )
        finished.collateral = True
        return finished

    def stopped(self) -> AttemptFinished:
        """The attempt ends because it was told to."""
        return self.failed(safe_failure("CANCELLED", "the attempt was stopped"))

    def failed(self, failure: Failure) -> AttemptFinished:
        """The attempt ends with a failure."""
        return AttemptFinished(
            attempt_id=self.attempt_id,
            started_us=self.started_us,
            finished_us=self._clock.wall_us(),
            failure=failure,
        )

    @property
    def has_scratch(self) -> bool:
        """Whether the task has asked for its scratch directory."""
        return self._scratch is not None

    def remove_scratch(self) -> None:
        """Delete the scratch directory, if the task has asked for it."""
        if self._scratch is not None:
            remove_scratch(self._scratch)

    def last_beat(self) -> AttemptBeat | None:
        """Progress that still waits to be told when the attempt ends."""
        if self._held_beat is not None:
            self._tell_progress(self._held_beat)
        return self._held_beat

    # ── ContextBackend ────────────────────────────────────────────────────────────────────────────────

    def progress(self, fraction: float, text: str) -> None:
        self._beat(AttemptBeat(self.attempt_id, fraction, text))

    def heartbeat(self) -> None:
        self._beat(self._held_beat if self._held_beat is not None else AttemptBeat(self.attempt_id))

    def is_cancelled(self) -> bool:
        return bool(self.stop_reason)

    def log(self, record: logging.LogRecord) -> None:
        self.write_record(record)

    def scratch_directory(self) -> Path:
        if self._scratch is None:
            scratch = scratch_path(self._data_dir, self.attempt_id)
            make_scratch(scratch)
            self._scratch = scratch
        return self._scratch

    def write_record(self, record: logging.LogRecord) -> None:
        """Keep a log line with the attempt's output."""
        self._write_log(f"{_text_of_record(record)}\n".encode("utf-8", "backslashreplace"))

    def _beat(self, beat: AttemptBeat) -> None:
        now_us = self._clock.boot_us()
        if now_us < self._next_beat_us:
            # A task may call this in every turn of a tight loop.
            self._held_beat = beat if beat.fraction >= 0 else self._held_beat
            return
        self._held_beat = None
        self._next_beat_us = now_us + BEAT_INTERVAL_US
        self._tell_progress(beat)
        self._send_beat(beat)

    def _tell_progress(self, beat: AttemptBeat) -> None:
        """Progress stands in the attempt's output too, where `instance logs` shows it while it runs."""
        if beat.fraction < 0 and not beat.text:
            return
        amount = f" {beat.fraction:.0%}" if beat.fraction >= 0 else ""
        line = f"progress{amount}{': ' if beat.text else ''}{beat.text}\n"
        self._write_log(line.encode("utf-8", "backslashreplace"))


def _text_of_record(record: logging.LogRecord) -> str:
    try:
        return _formatter.format(record)
    except Exception as error:  # noqa: BLE001 - as logging itself has it, a bad log line ends no program
        what = failure_from_exception(error).message
    try:
        said = f"{record.msg!r} with arguments {record.args!r}"
    except Exception as error:  # noqa: BLE001 - nor does one whose parts cannot be shown
        said = f"a message that cannot be shown ({type(error).__name__})"
    return f"{record.levelname} {record.name}: {said} [not a log line: {what}]"


def _import_failure(call: str, error: BaseException) -> Failure:
    inner = failure_from_exception(error)
    return safe_failure(
        "TASK_IMPORT",
        f"{call} could not be imported: {inner.message}",
        classes=inner.classes,
        chain=inner.chain,
        traceback=inner.traceback,
    )
