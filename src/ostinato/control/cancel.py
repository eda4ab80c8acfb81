"""Cancel: ask the owners to end instances, waiting or running."""

from __future__ import annotations

from collections.abc import Sequence

from ostinato.control.matching import MATCH_DEFAULT, Matched, ask_about, find_matching
from ostinato.control.names import instance_not_found
from ostinato.control.queries import find_instances
from ostinato.control.requests import Asker, request_about, validate_reason
from ostinato.control.several import ask_each, refused_each
from ostinato.core.model import Instance
from ostinato.core.states import LIVE_STATES, State
from ostinato.errors import OstinatoError
from ostinato.store.batches import InstanceFilter, Request, RequestAnswer
from ostinato.store.protocol import Store

#: What a filter without states means, in the order of the enumeration.
_LIVE = tuple(state for state in State if state in LIVE_STATES)


async def cancel(
    store: Store, instance_ids: Sequence[str], *, asker: Asker, reason: str = ""
) -> list[RequestAnswer]:
    """Ask for the end of `instance_ids`; answers in the same order, none for none.

    What waits is ``cancelled`` at once; what runs is asked to end and becomes ``cancelled`` when its attempt
    has: the answer's message says which. One that was cancelled before is answered ``OK``; one that ended
    otherwise ``INSTANCE_TERMINAL``; an unknown one among several ``INSTANCE_NOT_FOUND``, which is raised
    where only one id is given. Raises as `ask`. Source: design section 11, Cancel.
    """
    validate_reason(reason)
    instances = await find_instances(store, instance_ids)

    def why_not(instance_id: str, instance: Instance | None) -> OstinatoError | None:
        return instance_not_found(instance_id) if instance is None else None

    def make(instance: Instance, created_us: int) -> Request:
        return request_about(instance, "cancel", asker=asker, created_us=created_us, body={"reason": reason})

    refused = refused_each(instances, instance_ids, why_not=why_not)
    return await ask_each(
        store, instances, instance_ids=instance_ids, refused=refused, make=make, asker=asker
    )


async def cancel_matching(
    store: Store,
    where: InstanceFilter,
    *,
    limit: int = MATCH_DEFAULT,
    asker: Asker,
    reason: str = "",
    dry_run: bool = False,
) -> list[Matched]:
    """As `cancel` for up to `limit` instances that match, newest first; those that have not ended by default.

    `dry_run` finds them and asks nothing. Whatever changes meanwhile is answered, not raised. Raises
    ``INVALID_VALUE`` for a filter that says nothing (field ``filter``) and for a bad `limit`, and as `ask`.
    """
    validate_reason(reason)
    found = await find_matching(store, where, states=_LIVE, limit=limit)
    if dry_run:
        return [Matched(instance, None) for instance in found]

    def make(instance: Instance, created_us: int) -> Request:
        return request_about(instance, "cancel", asker=asker, created_us=created_us, body={"reason": reason})

    return await ask_about(store, found, make=make, asker=asker)
