"""One line that says how an instance stands, drawn over and over on a terminal and nowhere else."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

import typer

from ostinato.cli.output import cut, is_terminal, note, output_width
from ostinato.cli.views import shown_instant
from ostinato.core.instants import SECOND, format_duration
from ostinato.core.states import State

if TYPE_CHECKING:
    from ostinato.core.model import Instance

_CLEAR = "\r\x1b[K"


class StatusLine:
    """A line at the bottom of `stream`; where that is no terminal, `draw` and `clear` write nothing."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        #: Whether the line is ever seen.
        self.is_drawn = is_terminal(stream)
        self._text = ""

    def draw(self, text: str) -> None:
        """Show `text`, cut to the width that the terminal has now, in place of what was shown."""
        # The last column stays free: a terminal may wrap once it is filled.
        fitting = cut(text, max((output_width(self._stream) or 80) - 1, 1), stream=self._stream)
        if self.is_drawn and fitting != self._text:
            typer.echo(_CLEAR + fitting, nl=False, file=self._stream)
            self._text = fitting

    def clear(self) -> None:
        """Take the line away."""
        if self._text:
            typer.echo(_CLEAR, nl=False, file=self._stream)
            self._text = ""

    def note(self, text: str) -> None:
        """A remark that stays, above the line."""
        self.clear()
        note(text)


def status_of(instance: Instance, *, now_us: int, words: str) -> str:
    """State, attempt, how long, why it waits or when it is due, and the newest `words` that it wrote."""
    if instance.state is State.RUNNING:
        began_us = instance.started_us or instance.assigned_us or now_us
        asked = ", asked to end" if instance.cancel_requested_us is not None else ""
        where = f" on {instance.worker_name}" if instance.worker_name else ""
        status = f"running: attempt {instance.attempt} for {_whole(now_us - began_us)}{where}{asked}"
        return f"{status}: {words}" if words else status
    status = f"{instance.state}: attempt {instance.attempt + 1}"
    since_us = instance.created_us if instance.attempt == 0 else instance.due_us
    if instance.hold is not None:
        return f"{status} waits for {_whole(now_us - since_us)}: {instance.reason or instance.hold}"
    if instance.due_us > now_us:
        return f"{status} is due in {_whole(instance.due_us - now_us)}, at {shown_instant(instance.due_us)}"
    return f"{status} is due; it waits for {_whole(now_us - since_us)}"


def _whole(duration_us: int) -> str:
    return format_duration(max(duration_us, 0) // SECOND * SECOND)
