"""How long a retry may wait for a token of its task's budget, worked out when somebody asks."""

from __future__ import annotations

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import HOUR, format_instant
from ostinato.core.model import Instance
from ostinato.core.retry.budget_words import floor_words
from ostinato.core.retry.policy_model import RetryBudget
from ostinato.core.states import Hold
from ostinato.store.batches import HeldQuery
from ostinato.store.protocol import Store

#: So many retries are counted that may stand before one; each is read whole.
AHEAD_COUNT_MAX = 100


async def budget_wait(store: Store, instance: Instance, *, newest: TaskDefinition, now_us: int) -> str:
    """Why an instance that is held for the budget waits, its place in the line, and by when it may start.

    The floor alone says when; what the task starts meanwhile makes it earlier, which nobody can know.
    """
    budget = newest.retry.budget
    if not isinstance(budget, RetryBudget):
        return instance.reason
    query = HeldQuery(instance.ref, (Hold.BUDGET,), AHEAD_COUNT_MAX + 1)
    found = await store.find_work([instance.partition], now_us=now_us, limit=0, held=[query])
    places = [row.id for row in found.instances]
    if instance.id not in places:
        more = f"more than {AHEAD_COUNT_MAX} retries stand before it" if len(places) == query.limit else ""
        return f"{instance.reason}; {more}" if more else instance.reason
    place = places.index(instance.id)
    said = f"{instance.reason}; {_ahead_words(place)}"
    if not budget.floor_per_hour:
        return f"{said}, and only what its task starts anew makes room"
    latest_us = now_us + -(-(place + 1) * HOUR // budget.floor_per_hour)
    return f"{said}; by {floor_words(budget)} it may start at {format_instant(latest_us)} at the latest"


def _ahead_words(count: int) -> str:
    if count == 0:
        return "it is the next"
    return "1 retry stands before it" if count == 1 else f"{count} retries stand before it"
