"""Findings, and running checks so that none of them can hang or end the others."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

import msgspec

from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import OstinatoError

Status: TypeAlias = Literal["ok", "warn", "fail"]


class Finding(msgspec.Struct, frozen=True):
    """One line of the report: how it is, which check says so, what was found, what to do about it."""

    status: Status
    check: str
    what: str
    hint: str = ""


class Check(NamedTuple):
    """A check by name; `run` yields what it has found, and may block or raise."""

    name: str
    run: Callable[[], Iterable[tuple[Status, str, str]]]
    limit_us: int = 10 * SECOND


def shown_error(error: OstinatoError) -> str:
    """Where and what, without the hint; the message says neither again."""
    said = error.message
    for part in (error.field, error.place):
        said = prefixed(part, said)
    return said


def prefixed(part: str, text: str) -> str:
    """`text` after `part` and a colon, unless there is none or it begins so by itself."""
    return text if not part or text.startswith(f"{part}:") else f"{part}: {text}"


def run_checks(checks: Sequence[Check]) -> list[Finding]:
    """Findings of all checks in their order; they run beside each other.

    A check that raises, or does not end within its limit, is a failed finding of its own.
    """
    runs = [_Run(check) for check in checks]
    return [finding for run in runs for finding in run.findings()]


class _Run:
    """A check in a thread that nothing waits for longer than its limit."""

    def __init__(self, check: Check) -> None:
        self._check = check
        self._found: list[Finding] = []
        self._thread = threading.Thread(target=self._work, name=f"check {check.name}", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        name = self._check.name
        try:
            for status, what, hint in self._check.run():
                self._found.append(Finding(status, name, what, hint))
        except OstinatoError as error:
            self._found.append(Finding("fail", name, shown_error(error), error.hint))
        except Exception as error:  # noqa: BLE001 - a check that fails is a finding, whatever it raises
            self._found.append(
                Finding(
                    "fail",
                    name,
                    f"the check itself failed: {type(error).__name__}: {error}",
                    "this is a bug in Ostinato, please report it",
                )
            )

    def findings(self) -> list[Finding]:
        """What was found in time."""
        self._thread.join(self._check.limit_us / SECOND)
        found = list(self._found)
        if self._thread.is_alive():
            what = f"the check did not end within {format_duration(self._check.limit_us)}"
            found.append(Finding("fail", self._check.name, what, "look at what it is about: it hangs"))
        return found
