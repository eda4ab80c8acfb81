"""The workload of a scenario: a task of the user's, submitted at a steady rate, and what became of it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from random import Random
from typing import Any, TypeVar
from urllib.parse import quote

import msgspec

from ostinato.chaos.scenario import Workload
from ostinato.chaos.verdict import Outcome
from ostinato.clock import Clock
from ostinato.control.queries import get_task
from ostinato.core.definition import TaskRef
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.states import TERMINAL_STATES
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.sdk.app import App
from ostinato.sdk.gateway.address import require_database, said_url
from ostinato.sdk.gateway.transport import Transport
from ostinato.sdk.handle import Handle
from ostinato.sdk.submission import Submission
from ostinato.store.administration import administrator_of
from ostinato.store.from_url import open_store_from_url

T = TypeVar("T")

_BATCH_US = 100 * MILLISECOND
_PAUSE_US = 200 * MILLISECOND
_LOOK_US = 500 * MILLISECOND
#: Questions under way at a time.
_ASKED_COUNT = 8


async def require_task(workload: Workload, *, clock: Clock) -> None:
    """Ask whether the workload's task is known there; nothing is submitted or made.

    Raises ``TASK_NOT_FOUND``, ``SCHEMA_VERSION``, and what an address where nobody answers raises.
    """
    said = said_url(workload.url)
    ref = TaskRef(workload.namespace, workload.task)
    if said.is_http:
        transport = Transport(said, clock=clock)
        place = f"/api/v1/namespaces/{quote(ref.namespace, safe='')}/tasks/{quote(ref.name, safe='')}"
        try:
            await transport.get(place)
        finally:
            await transport.close()
        return
    require_database(said)
    # Opening a file of an older schema would migrate it.
    facts = await administrator_of(said.value, clock=clock).facts()
    if not facts.is_current:
        message = f"{facts.database} has schema {facts.revision or 'none'}, not that of this version"
        hint = "ostinato db status says what to do about it"
        raise UserError("SCHEMA_VERSION", message, field="workload.url", hint=hint)
    store = open_store_from_url(said.value, clock=clock)
    try:
        await store.open()
        await get_task(store, ref)
    finally:
        await store.close()


class Submitter:
    """Submits until it is told to stop. A call without an answer is repeated under the same keys.

    So what is not in `accepted` was never accepted, but for the last `unanswered` submissions, of which
    nobody can tell.
    """

    def __init__(self, workload: Workload, *, clock: Clock, rng: Random) -> None:
        self._workload = workload
        self._clock = clock
        self._app = App("chaos", workload.url, namespace=workload.namespace)
        self._run = new_id(clock.wall_us(), rng)
        self._payload = msgspec.json.decode(bytes(workload.payload))
        self._handles: list[Handle[Any]] = []
        self._ending = asyncio.Event()
        self.unanswered = 0
        #: Why submissions were refused in the midst of the run, which ended them; empty: they were not.
        self.refusal = ""
        #: How often a call had no answer and was repeated.
        self.repeated = 0

    @property
    def accepted_count(self) -> int:
        return len(self._handles)

    async def check(self, limit_us: int) -> None:
        """Submit the first one, before anything is broken.

        Raises what an unknown task or address raises, if it is not known within the limit either: the worker
        that brings a task may just have been started.
        """
        end_us = self._clock.boot_us() + limit_us
        while True:
            try:
                self._handles += await self._submit([0])
            except OstinatoError as error:
                is_early = isinstance(error, UnavailableError) or error.code == "TASK_NOT_FOUND"
                if not is_early or self._clock.boot_us() >= end_us:
                    raise
                await self._pause()
            else:
                return

    async def run(self) -> None:
        """Submit at the rate until `stop`; nothing is made up for if the cluster was away."""
        began_us = self._clock.boot_us()
        number = due = 1
        while not self._ending.is_set():
            elapsed_us = self._clock.boot_us() - began_us + _BATCH_US
            due = int(elapsed_us * self._workload.rate / SECOND) + 1
            if due > number:
                numbers = list(range(number, due))
                number = due
                await self._submit_surely(numbers)
            await self._clock.sleep_until_us(self._clock.boot_us() + _BATCH_US)

    def stop(self) -> None:
        """Submit nothing new; what has no answer yet is still repeated."""
        self._ending.set()

    async def close(self) -> None:
        """End the connection."""
        await asyncio.to_thread(self._app.close)

    async def outcomes(self, limit_us: int) -> list[Outcome]:
        """Wait until all have ended, at most so long, and read what happened to each."""
        end_us = self._clock.boot_us() + limit_us
        waiting = list(self._handles)
        while waiting and self._clock.boot_us() < end_us:
            ended = await self._each(waiting, self._has_ended)
            waiting = [handle for handle, has_ended in zip(waiting, ended, strict=True) if not has_ended]
            if waiting:
                await self._clock.sleep_until_us(min(end_us, self._clock.boot_us() + _LOOK_US))
        return await self._each(self._handles, self._outcome)

    async def _submit_surely(self, numbers: list[int]) -> None:
        """Submit, again and again while nobody answers, but not for ever."""
        end_us = self._clock.boot_us() + self._workload.settle_us
        while True:
            try:
                self._handles += await self._submit(numbers)
            except UnavailableError:
                if self._clock.boot_us() >= end_us:
                    self.unanswered += len(numbers)
                    return
                self.repeated += 1
                await self._pause()
            except OstinatoError as error:
                # No submission of the same is better, and what it says is a finding.
                self.refusal = str(error)
                self._ending.set()
                return
            else:
                return

    async def _submit(self, numbers: list[int]) -> list[Handle[Any]]:
        entries = [Submission(payload=self._payload, key=f"chaos-{self._run}-{number}") for number in numbers]
        return await self._app.submit_many_async(self._workload.task, entries)

    async def _pause(self) -> None:
        await self._clock.sleep_until_us(self._clock.boot_us() + _PAUSE_US)

    async def _has_ended(self, handle: Handle[Any]) -> bool:
        """Whether nothing more will happen to it, also because there is none; False while nobody answers."""
        try:
            return await handle.status_async() in TERMINAL_STATES
        except OstinatoError as error:
            return error.code == "INSTANCE_NOT_FOUND"

    async def _outcome(self, handle: Handle[Any]) -> Outcome:
        try:
            story = await handle.story_async()
        except OstinatoError as error:
            is_missing = error.code == "INSTANCE_NOT_FOUND"
            return Outcome(handle.id, None, None, error="" if is_missing else str(error))
        return Outcome(handle.id, story.state, story)

    async def _each(
        self, handles: Sequence[Handle[Any]], ask: Callable[[Handle[Any]], Awaitable[T]]
    ) -> list[T]:
        """Answers in the same order, a few asked at a time."""
        slots = asyncio.Semaphore(_ASKED_COUNT)

        async def one(handle: Handle[Any]) -> T:
            async with slots:
                return await ask(handle)

        return list(await asyncio.gather(*map(one, handles)))
