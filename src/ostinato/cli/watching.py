"""Showing an answer once, or with ``--watch`` again and again: drawn over on a terminal, anew elsewhere."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, TypeAlias

import msgspec

from ostinato.cli.output import (
    cut,
    flush_output,
    is_terminal,
    note,
    note_json,
    output_width,
    print_json,
    say,
    say_lines,
    write,
)
from ostinato.errors import UserError

if TYPE_CHECKING:
    from ostinato.cli.session import Session
    from ostinato.settings import Settings

_INTERVAL_US = 1_000_000
_INTERVAL_US_MIN = 100_000
_INTERVAL_US_MAX = 86_400_000_000
#: To the beginning of the line so many lines up, and everything from there on cleared.
_REDRAW = "\x1b[{}F\x1b[J"
_CLEAR_BELOW = "\r\x1b[J"


class Answer(msgspec.Struct, kw_only=True):
    """What a question was answered with, for programs and for people."""

    #: Makes what JSON carries.
    data: Callable[[], object]
    #: Lines for people at so many columns, safe to show; None: any width.
    lines: Callable[[int | None], list[str]]
    #: Remarks for people, and facts for programs, which go to stderr.
    notes: list[str] = []
    facts: dict[str, object] | None = None
    #: Nothing will change any more, so that watching it on would be of no use.
    is_final: bool = False


Look: TypeAlias = "Callable[[Session], Awaitable[Answer]]"


def interval_us(text: str | None) -> int:
    """How often to look. Raises ``INVALID_DURATION`` for what is no duration of 100ms to 1d."""
    from ostinato.core.instants import format_duration, parse_duration

    if text is None:
        return _INTERVAL_US
    said_us = parse_duration(text, field="--interval")
    if not _INTERVAL_US_MIN <= said_us <= _INTERVAL_US_MAX:
        raise UserError(
            "INVALID_DURATION",
            f"{text} is out of range",
            field="--interval",
            hint=f"from {format_duration(_INTERVAL_US_MIN)} to {format_duration(_INTERVAL_US_MAX)}",
        )
    return said_us


def show(
    settings: Settings, look: Look, *, in_json: bool, watch: bool = False, interval: str | None = None
) -> None:
    """Ask with `look` and show the answer; with `watch` until Ctrl-C, or until nothing changes any more."""
    from ostinato.cli.session import in_session

    every_us = interval_us(interval)
    if interval is not None and not watch:
        raise UserError("INVALID_VALUE", "is of no use without --watch", field="--interval")
    if not watch:
        _show_once(in_session(settings, look), in_json=in_json)
        return
    screen = _Screen(in_json=in_json)

    async def look_on(session: Session) -> None:
        while True:
            answer = await look(session)
            screen.show(answer)
            if answer.is_final:
                return
            await session.clock.sleep_until_us(session.clock.boot_us() + every_us)

    try:
        in_session(settings, look_on)
    except KeyboardInterrupt:
        # A watch has no other end, so that this is a good one.
        screen.leave()


def _show_once(answer: Answer, *, in_json: bool) -> None:
    if in_json:
        print_json(answer.data())
        if answer.facts is not None:
            note_json(answer.facts)
        return
    say_lines(answer.lines(output_width()))
    flush_output()
    for remark in answer.notes:
        note(remark)


class _Screen:
    """Where the answers of a watch appear."""

    def __init__(self, *, in_json: bool) -> None:
        self._in_json = in_json
        self._redraws = not in_json and is_terminal(sys.stdout)
        self._line_count = 0
        self._has_shown = False

    def show(self, answer: Answer) -> None:
        """Show `answer` in place of the one before, or after it where nothing can be drawn over."""
        if self._in_json:
            print_json(answer.data(), on_one_line=True)
        elif self._redraws:
            self._redraw(answer)
        else:
            if self._has_shown:
                say()
            say_lines([*answer.lines(output_width()), *answer.notes])
        self._has_shown = True
        flush_output()

    def leave(self) -> None:
        """Leave the last answer standing, with the cursor below it and over the ``^C`` of the terminal."""
        if self._redraws and self._has_shown:
            write(_CLEAR_BELOW)
            flush_output()

    def _redraw(self, answer: Answer) -> None:
        width = output_width() or 80
        lines = fitted([*answer.lines(width), *answer.notes], width=width, height=_height())
        if self._line_count:
            write(_REDRAW.format(self._line_count))
        # In one piece, so that nobody sees half of it.
        write("".join(f"{line}\n" for line in lines))
        self._line_count = len(lines)


def fitted(lines: list[str], *, width: int, height: int) -> list[str]:
    """`lines` cut to `width` columns and `height` rows, of which the last says how many are not shown."""
    if len(lines) > height:
        hidden = len(lines) - height + 1
        lines = [*lines[: height - 1], f"... {hidden} more lines; without --watch all are shown"]
    return [cut(line, width, stream=sys.stdout) for line in lines]


def _height() -> int:
    """Rows for an answer: those of the terminal but the one that the cursor is left in, at least two."""
    said = os.environ.get("LINES", "")
    rows = (
        int(said) if said.isascii() and said.isdigit() and len(said) < 9 else shutil.get_terminal_size().lines
    )
    return max(rows - 1, 2)
