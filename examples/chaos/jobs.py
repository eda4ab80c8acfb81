"""A task that is safe to run often and more than once, and that writes down what it does."""

from __future__ import annotations

import os
import time

from ostinato import App, Context, Retry
from ostinato.chaos.witness import note

app = App("chaos-example")


@app.task(retry=Retry.fixed("200ms", max_retry=5, max_lost=20), timeout="30s")
def probe(context: Context) -> int:
    """Half a second of work."""
    for turn in range(5):
        _note("tick" if turn else "start", context)
        time.sleep(0.1)
    _note("end", context)
    return context.attempt


def _note(word: str, context: Context) -> None:
    note(word, folder=os.environ["WITNESS"], of=context.instance_id, attempt=context.attempt)
