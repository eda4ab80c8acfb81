"""Sends what the worker has to say, also where the transport cannot carry all of it.

Texts are cut where they arise, so this is the last line: a message that no frame holds is sent in smaller
pieces, then shortened, then left out with a log line. It never ends the worker with all that runs there.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from msgspec.structs import replace

from ostinato.core.failure.failure import safe_failure
from ostinato.core.failure.text import cut_text
from ostinato.core.model import Outcome, OutputChunk
from ostinato.errors import UserError
from ostinato.wire.messages import Hello, Outcomes, Output, Progress, WorkerMessage
from ostinato.wire.protocol import WorkerStream

_log = logging.getLogger("ostinato.worker")

_MESSAGE_BYTES_MAX = 1024


async def send_what_fits(stream: WorkerStream, messages: Sequence[WorkerMessage]) -> None:
    """Send `messages`, in order. Raises ``UnavailableError`` when the stream is over."""
    try:
        await stream.send(messages)
    except UserError as error:
        # Frames before the one that failed may have left. The node knows what comes twice by its ids.
        reason = str(error)
    else:
        return
    pieces = list(messages) if len(messages) > 1 else _pieces(messages[0])
    if len(pieces) > 1:
        for piece in pieces:
            await send_what_fits(stream, [piece])
    else:
        await _send_shortened(stream, messages[0], reason)


async def _send_shortened(stream: WorkerStream, message: WorkerMessage, reason: str) -> None:
    told = {"message_kind": type(message).__name__, "reason": reason}
    shortened = _shortened(message, reason)
    if shortened is not None:
        try:
            await stream.send([shortened])
        except UserError as error:
            told["reason"] = str(error)
        else:
            _log.warning("message_shortened", extra=told)
            return
    _log.error("message_dropped", extra=told)


def _pieces(message: WorkerMessage) -> list[WorkerMessage]:
    """`message` item by item."""
    if isinstance(message, Outcomes):
        return [Outcomes([outcome], message.granted, message.ahead) for outcome in message.items]
    if isinstance(message, Output):
        return [Output([chunk]) for chunk in message.chunks]
    return [message]


def _shortened(message: WorkerMessage, reason: str) -> WorkerMessage | None:
    """The least of `message` that is still worth sending; None if there is nothing to leave out."""
    if isinstance(message, Outcomes):
        items = [_shortened_outcome(outcome, reason) for outcome in message.items]
        return Outcomes(items, message.granted, message.ahead)
    if isinstance(message, Output):
        return Output([_shortened_chunk(chunk) for chunk in message.chunks])
    if isinstance(message, Progress):
        return replace(message, text="")
    if isinstance(message, Hello):
        return replace(message, declarations=[], problems=[f"what the app declares was not sent: {reason}"])
    return None


def _shortened_outcome(outcome: Outcome, reason: str) -> Outcome:
    failure = outcome.failure
    if failure is None:
        return replace(
            outcome, result=None, failure=safe_failure("BAD_RESULT", f"the result was not sent: {reason}")
        )
    return replace(
        outcome,
        failure=safe_failure(
            failure.code,
            cut_text(failure.message, _MESSAGE_BYTES_MAX),
            category=failure.category,
            retry_after_us=failure.retry_after_us,
            retry_at_us=failure.retry_at_us,
            detail="its causes and traceback were too large to send",
        ),
    )


def _shortened_chunk(chunk: OutputChunk) -> OutputChunk:
    notice = f"… [{len(chunk.text)} characters of output lost: too large to send]\n"
    return replace(chunk, text=notice)
