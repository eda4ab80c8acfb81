"""What is broken at this moment and how each is restored; on every way out, the newest first."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable
from types import TracebackType
from typing import Any, NamedTuple, Self

from ostinato.chaos.commands import CommandFailed
from ostinato.chaos.keeper import Keeper
from ostinato.errors import OstinatoError


class Restored(NamedTuple):
    """Something that was restored on the way out; `error` is empty where that went well."""

    what: str
    error: str
    #: Whether a fault had broken it; otherwise it only ends with the run.
    is_fault: bool


class Held:
    """One thing that is broken. `restore` may be called from any thread, and does its work once."""

    def __init__(
        self, ledger: Ledger, number: int, *, what: str, undo: Callable[[], None], is_fault: bool
    ) -> None:
        self.what = what
        self.is_fault = is_fault
        self.number = number
        self._ledger = ledger
        self._undo: Callable[[], None] | None = undo
        self._lock = threading.Lock()

    def restore(self) -> bool:
        """Undo it; whether this call did. What raises `CommandFailed` or ``OSError`` is not tried again."""
        with self._lock:
            undo, self._undo = self._undo, None
            if undo is None:
                return False
            try:
                undo()
            finally:
                self._ledger.forget(self)
            return True


class Ledger:
    """All that is held. Leaving the block restores it; `restored` tells what was left to restore then."""

    def __init__(self) -> None:
        self.restored: list[Restored] = []
        self._held: dict[int, Held] = {}
        self._numbers = itertools.count(1)
        self._keeper = Keeper()

    def hold(
        self,
        what: str,
        undo: Callable[[], None],
        *,
        by_keeper: dict[str, Any] | None = None,
        is_fault: bool = True,
    ) -> Held:
        """Write down how something is restored, before it is broken.

        `by_keeper` is the same for the keeper (`keeper.restore`); None: it ends with this process anyway.
        `is_fault` is false for what is no fault and ends with the run.
        """
        number = next(self._numbers)
        if by_keeper is not None:
            self._keeper.hold(number, by_keeper)
        held = Held(self, number, what=what, undo=undo, is_fault=is_fault)
        self._held[number] = held
        return held

    def forget(self, held: Held) -> None:
        """It is restored."""
        self._held.pop(held.number, None)
        self._keeper.let_go(held.number)

    def restore_all(self) -> None:
        """Restore whatever is broken; what fails keeps nothing else from being restored."""
        for number in sorted(self._held, reverse=True):
            held = self._held.get(number)
            if held is None:
                continue
            try:
                did = held.restore()
            except (CommandFailed, OSError, OstinatoError) as error:
                self.restored.append(Restored(held.what, str(error), held.is_fault))
            else:
                if did:
                    self.restored.append(Restored(held.what, "", held.is_fault))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            self.restore_all()
        finally:
            self._keeper.close()
