"""Rows of tasks that submissions have read, kept for the next submission of the same task."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.core.definition import TaskRef, TaskRow

#: Rows kept; beyond it all are read afresh.
_COUNT_MAX = 1_000


class SeenTasks:
    """What is kept may be out of date: whoever uses a row has the database say that it is not."""

    def __init__(self) -> None:
        self._rows: dict[TaskRef, TaskRow] = {}

    def get(self, ref: TaskRef) -> TaskRow | None:
        """As it was last seen; None if it has not been."""
        return self._rows.get(ref)

    def note(self, rows: Mapping[TaskRef, TaskRow]) -> None:
        """These were just read."""
        if len(self._rows) + len(rows) > _COUNT_MAX:
            self._rows.clear()
        if len(rows) <= _COUNT_MAX:
            self._rows.update(rows)

    def forget(self, ref: TaskRef) -> None:
        """It is no longer what it was."""
        self._rows.pop(ref, None)
