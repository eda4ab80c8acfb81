"""Parts of a worker that has one stream, which was welcomed."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.worker.credits import Credits
from ostinato.worker.mail import Mail
from ostinato.worker.outbox import Outbox

STREAM = 1


def nothing() -> None:
    """What nobody needs to hear."""


def credits_of(capacity: Mapping[str, int], *streams: int) -> Credits:
    """Credits whose streams, `STREAM` if none is named, have been welcomed in that order."""
    credits = Credits(capacity)
    for stream in streams or (STREAM,):
        credits.open(stream, on_granted=nothing, on_wanted=nothing)
        credits.welcomed(stream)
    return credits


def reopened(credits: Credits, old: int) -> int:
    """The stream that replaces an old one."""
    credits.close(old)
    credits.open(old + 1, on_granted=nothing, on_wanted=nothing)
    credits.welcomed(old + 1)
    return old + 1


def mail_of(outbox: Outbox, stream: int = STREAM) -> Mail:
    """A new stream of an outbox, on which nothing is granted."""
    return outbox.open(stream, dict)
