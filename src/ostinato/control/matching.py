"""Acts on all instances that a filter matches: which ones, and asking about them in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from ostinato.control.queries import collect_instances
from ostinato.control.requests import Asker, ask
from ostinato.core.model import Instance
from ostinato.core.states import State
from ostinato.errors import UnavailableError, UserError
from ostinato.store.batches import InstanceFilter, Request, RequestAnswer
from ostinato.store.protocol import Store

MATCH_DEFAULT = 1_000
MATCH_MAX = 100_000
#: Requests that are recorded and waited for at a time.
BATCH_COUNT = 500


class Matched(NamedTuple):
    """An instance as it was when it was found, without payload, and the owner's answer."""

    instance: Instance
    #: None: nothing was asked, to show first what would be.
    answer: RequestAnswer | None


async def find_matching(
    store: Store, where: InstanceFilter, *, states: tuple[State, ...], limit: int
) -> list[Instance]:
    """Up to `limit` instances that match, newest first; `states` where the filter names none.

    Raises ``INVALID_VALUE`` for a filter that says nothing (field ``filter``) and for a bad `limit`.
    """
    if where == InstanceFilter():
        raise UserError(
            "INVALID_VALUE",
            "the filter matches every instance of every namespace",
            field="filter",
            hint="give at least a namespace",
        )
    if type(limit) is not int or not 1 <= limit <= MATCH_MAX:
        raise UserError("INVALID_VALUE", f"{limit!r} is not within 1 to {MATCH_MAX}", field="limit")
    chosen = InstanceFilter(
        namespace=where.namespace,
        task=where.task,
        states=where.states or states,
        key=where.key,
        code=where.code,
        created_from_us=where.created_from_us,
        created_before_us=where.created_before_us,
    )
    return list((await collect_instances(store, chosen, limit=limit)).instances)


async def ask_about(
    store: Store, instances: Sequence[Instance], *, make: Callable[[Instance, int], Request], asker: Asker
) -> list[Matched]:
    """Ask about each instance, a batch after the other; `make` takes the time of the request too.

    One that has changed meanwhile is answered by its owner. Raises as `ask`; the message then says how many
    had been answered before.
    """
    matched: list[Matched] = []
    for first in range(0, len(instances), BATCH_COUNT):
        batch = instances[first : first + BATCH_COUNT]
        created_us = await store.now_us()
        try:
            answers = await ask(store, [make(instance, created_us) for instance in batch], asker=asker)
        except UnavailableError as error:
            if len(instances) <= BATCH_COUNT:
                raise
            not_asked = len(instances) - first - len(batch)
            raise UnavailableError(
                error.code,
                f"{error.message}; {first} were answered before, {not_asked} not asked",
                subject=error.subject,
                hint=error.hint,
            ) from error
        matched += [Matched(*pair) for pair in zip(batch, answers, strict=True)]
    return matched
