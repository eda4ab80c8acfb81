"""The base of every background loop: rounds that run when due or woken, and never die of an error."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from traceback import format_exception

from ostinato.clock import Clock
from ostinato.core.instants import DAY, SECOND
from ostinato.errors import InternalError, OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import InvariantBroken, LoopFailed, LoopTurned
from ostinato.scheduler.database_state import DatabaseState, Voice

#: Wait after a failed round: doubled from the first to the last.
RETRY_FIRST_US = SECOND // 10
RETRY_LAST_US = 5 * SECOND
#: A round is a bounded batch: one that is under way for longer waits for a database that does not answer.
ROUND_US_MAX = 5 * SECOND


class Loop:
    """Calls `run_once` at the monotonic time that the last call returned, or as soon as woken.

    Subclasses set `name` and `poll_us`, the longest time between two rounds, and `retry_last_us`, the longest
    pause after failures. The safety poll for other nodes' and clients' work is the watch loop's, which wakes
    the others.
    """

    name = "loop"
    poll_us = DAY
    retry_last_us = RETRY_LAST_US
    #: A longer round is a stalled one; None: its rounds wait by their nature.
    round_us_max: int | None = ROUND_US_MAX

    def __init__(self, clock: Clock, hooks: Hooks) -> None:
        self._clock = clock
        self._hooks = hooks
        self._event = asyncio.Event()
        self._is_woken = True
        self._next_boot_us = 0
        self._task: asyncio.Task[None] | None = None
        #: One for all loops of a node.
        self.database = DatabaseState(clock, hooks)
        #: Called with the subject of a rule that was broken in a round; stops its partition.
        self.on_broken: Callable[[str], Awaitable[None]] = _nobody_is_told
        #: For what is not the database's to say.
        self._voice = Voice(clock)
        self._began_boot_us: int | None = None

    async def run_once(self) -> int | None:
        """One round, a bounded batch. Returns the monotonic time of the next; None: when woken or polled."""
        raise NotImplementedError

    def start(self) -> None:
        """Run in the background until `stop`."""
        self._task = asyncio.create_task(self._run(), name=f"ostinato-{self.name}")

    async def stop(self) -> None:
        """End after the current await; idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def stalled_us(self) -> int:
        """How long the present round has been under way, where that is too long; else 0."""
        if self._began_boot_us is None or self.round_us_max is None:
            return 0
        round_us = self._clock.boot_us() - self._began_boot_us
        return round_us if round_us >= self.round_us_max else 0

    def wake(self) -> None:
        """Run a round as soon as possible."""
        self._is_woken = True
        self._event.set()

    def wake_at(self, boot_us: int) -> None:
        """Run a round no later than at a monotonic time."""
        if boot_us < self._next_boot_us:
            self._next_boot_us = boot_us
            self._event.set()

    async def _run(self) -> None:
        retry_us = RETRY_FIRST_US
        while True:
            await self._wait()
            began_us = self._clock.boot_us()
            lag_us = 0 if self._is_woken else max(0, began_us - self._next_boot_us)
            self._is_woken = False
            self._next_boot_us = began_us + self.poll_us
            try:
                next_boot_us = await self._round(began_us)
            except OstinatoError as error:
                self._report(error)
                if error.code == "INVARIANT":
                    await self._tell_broken(error)
                retry_us = await self._back_off(retry_us)
                continue
            except Exception as error:  # noqa: BLE001 - a bug in one round must not end the loop for ever
                unforeseen = InternalError("INTERNAL", f"{type(error).__name__}: {error}")
                self._report(unforeseen, traceback="".join(format_exception(error)))
                retry_us = await self._back_off(retry_us)
                continue
            retry_us = RETRY_FIRST_US
            self.database.succeeded(self.name)
            if next_boot_us is not None:
                self._next_boot_us = min(self._next_boot_us, next_boot_us)
            ended_us = self._clock.boot_us()
            self._hooks.emit(LoopTurned(loop=self.name, lag_us=lag_us, duration_us=ended_us - began_us))

    async def _round(self, began_us: int) -> int | None:
        self._began_boot_us = began_us
        try:
            return await self.run_once()
        finally:
            self._began_boot_us = None

    async def _wait(self) -> None:
        while not self._is_woken:
            target_us = self._next_boot_us
            if self._clock.boot_us() >= target_us:
                return
            self._event.clear()
            sleeper = asyncio.ensure_future(self._clock.sleep_until_us(target_us))
            sleeper.add_done_callback(self._slept)
            try:
                await self._event.wait()
            finally:
                # Its cancellation must not count as a wake-up.
                sleeper.remove_done_callback(self._slept)
                sleeper.cancel()

    def _slept(self, _: asyncio.Future[None]) -> None:
        self._event.set()

    async def _back_off(self, retry_us: int) -> int:
        # Wakes do not cut this short: what fails for everyone must not be tried by every event.
        await self._clock.sleep_until_us(self._clock.boot_us() + retry_us)
        self._is_woken = True
        return min(retry_us * 2, self.retry_last_us)

    async def _tell_broken(self, error: OstinatoError) -> None:
        try:
            await self.on_broken(error.subject)
        except OstinatoError as failure:
            # The next round breaks the rule again, and this is tried again.
            self._report(failure)

    def _report(self, error: OstinatoError, *, traceback: str = "") -> None:
        if error.code == "INVARIANT":
            self._hooks.emit(
                InvariantBroken(name=self.name, error_message=error.message, subject=error.subject)
            )
        if error.code.startswith("DATABASE_"):
            self.database.failed(self.name, error)
            return
        # What goes on failing for hours must not fill the log too (C123).
        count = self._voice.heard(error.code)
        self._hooks.emit(
            LoopFailed(
                loop=self.name,
                error_code=error.code,
                error_message=str(error),
                traceback=traceback,
                is_repeated=count == 0,
                count=max(1, count),
            )
        )


async def _nobody_is_told(_: str) -> None:
    """What follows a broken rule until the node says otherwise."""
