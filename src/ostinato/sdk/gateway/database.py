"""The gateway into the database itself: it inserts instances and requests, as I5 allows anyone."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from ostinato.clock import Clock
from ostinato.control.apply import apply
from ostinato.control.cancel import cancel
from ostinato.control.explain import Story, story
from ostinato.control.pressure import RETRY_AFTER_US, PressureGate, passing
from ostinato.control.queries import get_instance
from ostinato.control.requests import Asker, require_ok
from ostinato.control.seen_tasks import SeenTasks
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import TaskDefinition
from ostinato.errors import UnavailableError
from ostinato.sdk.gateway.address import SaidUrl, naming_source
from ostinato.sdk.gateway.protocol import Glimpse
from ostinato.store.batches import ApplyReceipt, SubmitReceipt
from ostinato.store.protocol import Store
from ostinato.store.sampled_time import SampledTime

#: As over HTTP: a submission that is refused for the moment is repeated then.
_TRIES = 3


class DatabaseGateway:
    """Calls control's verbs on an open store, which it closes at its end."""

    def __init__(
        self,
        store: Store,
        said: SaidUrl,
        *,
        clock: Clock,
        rng: Random,
        by: str,
        pressure: PressureGate | None = None,
    ) -> None:
        """`said` names the database in an error; `by` is what the history says of requests.

        `pressure` holds submissions back.
        """
        self._store = store
        self._clock = clock
        self._pressure = pressure
        self._time = SampledTime(store, clock)
        self._seen = SeenTasks()
        self._said = said
        self._rng = rng
        self._asker = Asker(clock=clock, rng=rng, by=by)

    async def apply(self, definitions: Sequence[TaskDefinition]) -> list[ApplyReceipt]:
        with naming_source(self._said):
            return await apply(self._store, definitions, now_us=await self._store.now_us())

    async def submit(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        with naming_source(self._said):
            tries_left = _TRIES
            while True:
                tries_left -= 1
                try:
                    return await self._submit(requests)
                except UnavailableError as error:
                    if error.code != "BACKPRESSURE" or not tries_left:
                        raise
                await self._clock.sleep_until_us(self._clock.boot_us() + RETRY_AFTER_US)

    async def _submit(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        async with passing(self._pressure, requests):
            now_us = await self._time.now_us()
            return await submit(self._store, requests, now_us=now_us, rng=self._rng, seen=self._seen)

    async def look(self, instance_id: str) -> Glimpse:
        with naming_source(self._said):
            instance = await get_instance(self._store, instance_id)
        return Glimpse(
            id=instance.id,
            ref=instance.ref,
            state=instance.state,
            reason=instance.reason,
            failure=instance.failure,
            result=instance.result,
        )

    async def cancel(self, instance_id: str, *, reason: str) -> None:
        with naming_source(self._said):
            require_ok((await cancel(self._store, [instance_id], asker=self._asker, reason=reason))[0])

    async def story(self, instance_id: str) -> Story:
        with naming_source(self._said):
            return await story(self._store, instance_id)

    async def close(self) -> None:
        await self._store.close()
