"""The fan-out of records to hooks: a hook that fails never breaks the work that it observes."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from ostinato.observe.records import Record

_log = logging.getLogger("ostinato.observe")


class Hook(Protocol):
    """Sees every record; called on the event loop, so it must not block."""

    def on(self, record: Record) -> None: ...


class Hooks:
    """Hands each record to every hook.

    A hook that raises is counted in `failures` and logged the first time with its traceback; the others
    still get the record, and so does the same hook the next time.
    """

    def __init__(self, hooks: Iterable[Hook] = ()) -> None:
        self._hooks = tuple(hooks)
        #: Failed calls by class name of the hook.
        self.failures: dict[str, int] = {}

    def emit(self, record: Record) -> None:
        for hook in self._hooks:
            try:
                hook.on(record)
            except Exception as error:  # noqa: BLE001 - whatever a hook raises, the scheduler goes on
                self._count(hook, record, error=error)

    def _count(self, hook: Hook, record: Record, *, error: Exception) -> None:
        name = type(hook).__name__
        self.failures[name] = self.failures.get(name, 0) + 1
        if self.failures[name] == 1:
            _log.error("hook_failed", exc_info=error, extra={"hook": name, "record": type(record).__name__})
