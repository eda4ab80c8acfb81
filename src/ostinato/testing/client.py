"""How an app of a test calls its cluster: on the cluster's loop, with no thread and no polling."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from contextvars import ContextVar
from random import Random
from typing import Any, TypeVar

from ostinato.clock import Clock
from ostinato.control.submit import SubmitRequest
from ostinato.core.instants import DAY, format_duration
from ostinato.errors import InternalError
from ostinato.sdk.client import Client
from ostinato.sdk.gateway.address import SaidUrl
from ostinato.sdk.gateway.database import DatabaseGateway
from ostinato.sdk.gateway.protocol import Gateway
from ostinato.sdk.handle import InstanceFailed
from ostinato.store.batches import SubmitReceipt
from ostinato.store.protocol import Store
from ostinato.testing.driver import Driver
from ostinato.testing.engine import Engine, NotEnded, of_this_cluster
from ostinato.testing.instance import users_frames
from ostinato.testing.script import Script

T = TypeVar("T")

#: Longest wait for anything, unless it has a limit of its own.
WITHIN_US = 30 * DAY

#: When the present call gives up (boot time).
_gives_up_us: ContextVar[int] = ContextVar("ostinato_gives_up_us")


class InlineGateway(DatabaseGateway):
    """The gateway of a test: tasks that submit each other without end at one instant are refused."""

    def __init__(self, store: Store, *, clock: Clock, rng: Random, by: str, script: Script) -> None:
        super().__init__(store, SaidUrl("", ""), clock=clock, rng=rng, by=by)
        self._now = clock
        self._script = script

    async def submit(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        length = self._script.chain_length(now_us=self._now.wall_us())
        receipts = await super().submit(requests)
        self._script.note_chain([each.instance_id for each in receipts], length + 1)
        return receipts


class InlineClient(Client[Gateway]):
    """Calls of a gateway to the cluster's store, run by the driver."""

    def __init__(self, gateway: Gateway, *, driver: Driver, engine: Engine, script: Script) -> None:
        super().__init__(_open, clock=engine.clock)
        self._gateway = gateway
        self._driver = driver
        self._engine = engine
        self._script = script

    def call(self, verb: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        try:
            return self._driver.run(lambda: self._run(verb))
        except InstanceFailed as error:
            self._tell_cause(error)
            raise

    async def call_async(self, verb: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        try:
            return await self._driver.run_async(lambda: self._run(verb))
        except InstanceFailed as error:
            self._tell_cause(error)
            raise

    async def pause(self, until_us: int, *, deadline_us: int | None) -> None:
        """Wait for the next end of an instance; nothing else can change what is looked at."""
        gives_up_us = _gives_up_us.get()
        if deadline_us is None and self.clock.boot_us() >= gives_up_us:
            raise NotEnded(f"no result came within {format_duration(WITHIN_US)} of virtual time")
        await self._engine.next_end(gives_up_us if deadline_us is None else deadline_us)

    def close(self) -> None:
        """Nothing to close: the cluster ends with its own ``close``."""

    async def _run(self, verb: Callable[[Gateway], Coroutine[Any, Any, T]]) -> T:
        token = _gives_up_us.set(self.clock.boot_us() + WITHIN_US)
        try:
            await self._engine.catch_up()
            with of_this_cluster():
                return await verb(self._gateway)
        finally:
            _gives_up_us.reset(token)

    def _tell_cause(self, error: InstanceFailed) -> None:
        raised = self._script.raised.get(error.subject)
        if raised is not None:
            error.__cause__ = raised.with_traceback(users_frames(raised.__traceback__))


async def _open(_: Clock) -> Gateway:
    raise InternalError("INTERNAL", "the client of a test opens nothing")
