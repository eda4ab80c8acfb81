"""Which due work goes before which: the order in which an owner takes it from the queue."""

from __future__ import annotations

from ostinato.core.model import Instance
from ostinato.store.rules import AGEING_US_PER_PRIORITY


def rank_us(waiting: Instance) -> int:
    """Whatever has less goes first: one priority more counts as being due so much earlier."""
    return waiting.due_us - waiting.priority * AGEING_US_PER_PRIORITY
