"""The worker's supervisor: it runs no task itself, but starts, watches, ends and reports them.

::

    node ──stream── Connection ─┐
    node ──stream── Connection ─┼──► Attempts ──► executors (slots, loop process, commands, requests)
    (Links knows them all)      │       │  ▲          │
                        Mail ◄──┴ Outbox◄┘ └──────────┘ what happened

Time comes from the injected clock alone, chance from the injected generator, so that the same code runs in
production and, with an in-process transport and an inline executor, on a virtual clock.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from random import Random

from ostinato.clock import Clock
from ostinato.core.ids import new_id
from ostinato.core.instants import SECOND, format_duration
from ostinato.errors import UserError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import TaskModuleFailed
from ostinato.wire.protocol import WorkerTransport
from ostinato.worker.attempts import Attempts
from ostinato.worker.config import WorkerConfig
from ostinato.worker.credits import Credits
from ostinato.worker.epochs import Epochs
from ostinato.worker.executors.protocol import ComesAndGoes, Executor, KeepsLeases, StopReason
from ostinato.worker.guardian import Guardian
from ostinato.worker.known_tasks import KnownTasks, KnowsTasks
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.links import LinkParts, Links
from ostinato.worker.outbox import Outbox
from ostinato.worker.spool import Spool
from ostinato.worker.waiting import Alarm, within

_log = logging.getLogger("ostinato.worker")

#: What an executor may take to end before the worker ends without it.
_CLOSE_US = 15 * SECOND
#: What killing may take beyond a grace before a drain stops waiting for it.
_KILL_US = 5 * SECOND


class Supervisor:
    """One worker. `run` it once; `drain` or `stop` end it, from its own event loop."""

    def __init__(
        self,
        config: WorkerConfig,
        *,
        clock: Clock,
        transport: WorkerTransport,
        executors: Sequence[Executor],
        rng: Random,
        hooks: Hooks | None = None,
        spool: Spool | None = None,
        guardian: Guardian | None = None,
    ) -> None:
        self._config = config.validate()
        self._clock = clock
        self._transport = transport
        self._executors = list(executors)
        # Asked once: to look for the methods of a protocol takes longer than all else at a heartbeat.
        self._lease_keepers = [executor for executor in self._executors if isinstance(executor, KeepsLeases)]
        self._rng = rng
        self._hooks = hooks if hooks is not None else Hooks()
        self._spool = spool
        self._guardian = guardian
        self.worker_id = new_id(clock.wall_us(), rng) if spool is None else spool.worker_id
        self._alarm = Alarm(clock)
        self._credits = Credits(config.capacity)
        self._outbox = Outbox(spool)
        self._lease = LeaseGuard()
        self._epochs = Epochs()
        self._attempts = Attempts(
            clock=clock,
            credits=self._credits,
            outbox=self._outbox,
            lease=self._lease,
            epochs=self._epochs,
            executors=self._executors,
            on_deadline=self._alarm.at_latest,
        )
        self._end_asked = asyncio.Event()
        self._drain_limit_us: int | None = None
        #: Set while any node serves a stream of the worker.
        self.is_connected = asyncio.Event()
        self.known_tasks = KnownTasks()

    @property
    def running_count(self) -> int:
        """Attempts that an executor has."""
        return len(self._attempts)

    def drain(self, reason: str = "the worker drains", *, limit_us: int | None = None) -> None:
        """Take no more work, give what runs `limit_us` to end, hand back the rest, then end `run`.

        Without a limit of its own: ``drain_timeout``. A later call may shorten it.
        """
        self._ask_end(reason, self._config.drain_timeout_us if limit_us is None else limit_us)

    def stop(self, reason: str = "the worker stops") -> None:
        """As `drain` without waiting: what runs is killed and handed back."""
        self._ask_end(reason, 0)

    def _ask_end(self, reason: str, limit_us: int) -> None:
        limit_us += self._clock.boot_us()
        if self._drain_limit_us is None:
            told: dict[str, object] = {"reason": reason, "running_count": self.running_count}
            if self.running_count and limit_us > self._clock.boot_us():
                left = format_duration(limit_us - self._clock.boot_us())
                tasks = "1 task" if self.running_count == 1 else f"{self.running_count} tasks"
                told["waits"] = f"up to {left} for {tasks}; the same signal again (Ctrl-C) ends them"
            _log.info("worker_drains", extra=told)
            self._attempts.refuse_new(reason)
            self._outbox.announce_drain(reason)
        if self._drain_limit_us is None or limit_us < self._drain_limit_us:
            self._drain_limit_us = limit_us
        self._end_asked.set()

    async def run(self) -> None:
        """Work until `drain` or `stop`. Raises what the first node says if it refuses this worker for good.

        Raises ``INVALID_APP`` if nothing of the app could be imported.
        A cancelled run ends at once: its attempts are killed, and what the spool holds is told by a later
        worker of the same data directory.
        """
        works = [asyncio.create_task(self._work()), asyncio.create_task(self._end_when_asked())]
        try:
            await asyncio.wait(works, return_when=asyncio.FIRST_COMPLETED)
            for work in works:
                if work.done():
                    work.result()
        finally:
            for work in works:
                work.cancel()
            await asyncio.wait(works)
            # What still runs is killed now, which is not the task's own end.
            self._attempts.stop_all(StopReason.DRAIN, grace_us_max=0)
            for executor in self._executors:
                await self._close(executor)
            if self._guardian is not None:
                await self._guardian.close()
            if self._spool is not None:
                await self._spool.close()
            await self._transport.close()

    async def _close(self, executor: Executor) -> None:
        try:
            await within(self._clock, executor.close(), limit_us=_CLOSE_US)
        except TimeoutError:
            # The guardian, which comes next, ends what is left.
            _log.error("executor_not_closed", extra={"kind": executor.kind})

    async def _work(self) -> None:
        if self._spool is not None:
            # First of all: its lock is what makes the worker's files its own.
            await self._spool.open(self._outbox, self._credits)
        if self._guardian is not None:
            await self._guardian.start(
                lock_descriptor=-1 if self._spool is None else self._spool.lock_descriptor
            )
        for executor in self._executors:
            await executor.open(self._attempts)
        self._gather_known_tasks()
        links = Links(
            LinkParts(
                config=self._config,
                worker_id=self.worker_id,
                clock=self._clock,
                transport=self._transport,
                rng=self._rng,
                attempts=self._attempts,
                outbox=self._outbox,
                credits=self._credits,
                lease=self._lease,
                epochs=self._epochs,
                known=self.known_tasks,
                executors=self._ready_kinds,
                on_drain=self.drain,
                on_leases_moved=self._tell_leases,
                on_nodes=self._tell_nodes,
                is_connected=self.is_connected,
                spool=self._spool,
            )
        )
        for executor in self._executors:
            if isinstance(executor, ComesAndGoes):
                executor.on_readiness(links.greet_again)
        watching = asyncio.create_task(self._limits_loop())
        connecting = asyncio.create_task(links.run())
        try:
            loops = [watching, connecting, *(self._spool.loops if self._spool is not None else [])]
            await asyncio.wait(loops, return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done():
                    loop.result()
        finally:
            watching.cancel()
            connecting.cancel()
            await asyncio.wait([watching, connecting])

    def _ready_kinds(self) -> list[str]:
        """What the worker can run now."""
        return [
            executor.kind
            for executor in self._executors
            if not isinstance(executor, ComesAndGoes) or executor.is_ready
        ]

    def _gather_known_tasks(self) -> None:
        for executor in self._executors:
            if isinstance(executor, KnowsTasks):
                known = executor.known_tasks
                self.known_tasks.tasks.extend(known.tasks)
                self.known_tasks.declarations.extend(known.declarations)
                self.known_tasks.problems.extend(known.problems)
        known = self.known_tasks
        if known.problems and not known.declarations:
            # It could run nothing of its app, now or later: better not started than idle.
            raise UserError("INVALID_APP", "; ".join(known.problems), field="app")
        for problem in known.problems:
            self._hooks.emit(TaskModuleFailed(worker_name=self._config.worker_name, problem=problem))

    def _tell_leases(self) -> None:
        """The guardian must know at any time how long what runs may go on, should this process freeze."""
        if self._guardian is None or self._lease.worker_lease_us is None:
            return
        self._guardian.lease(
            self._lease.newest_sequence,
            worker_lease_us=self._lease.worker_lease_us,
            last_end_us=self._lease.last_end_us,
        )
        for executor in self._lease_keepers:
            executor.leases_moved()

    def _tell_nodes(self, addresses: list[str]) -> None:
        if self._guardian is not None:
            self._guardian.nodes(addresses)

    async def _limits_loop(self) -> None:
        next_us: int | None = None
        while True:
            await self._alarm.wait(next_us)
            next_us = self._attempts.stop_overdue()

    async def _end_when_asked(self) -> None:
        """The drain: wait for what runs, stop it a little before the limit, see the outcomes acknowledged."""
        await self._end_asked.wait()
        # A tenth of the time is for ending what has not ended, so that the limit holds (C133).
        reserve_us = self._config.drain_timeout_us // 10
        while not self._attempts.is_idle.is_set():
            assert self._drain_limit_us is not None, "set before the event"
            left_us = self._drain_limit_us - reserve_us - self._clock.boot_us()
            if left_us <= 0:
                break
            self._end_asked.clear()
            await self._until_or_hastened(self._attempts.is_idle, left_us)
        hasty = self._drain_limit_us is not None and self._drain_limit_us <= self._clock.boot_us()
        handed_back_count = self.running_count
        self._attempts.stop_all(StopReason.DRAIN, grace_us_max=0 if hasty else reserve_us)
        await self._at_most(self._attempts.is_idle, reserve_us + _KILL_US)
        await self._until_nothing_comes(reserve_us)
        if self.is_connected.is_set():
            await self._at_most(self._outbox.all_acknowledged, max(reserve_us, SECOND))
        if self._spool is not None and not self._spool.is_safe.is_set():
            # On neither the disk nor the node: one of the two may come back as long as the drain may last.
            assert self._drain_limit_us is not None, "set before the event"
            await self._at_most(self._spool.is_safe, self._drain_limit_us - self._clock.boot_us())
        unacknowledged_count = len(self._outbox.unacknowledged)
        told = {"handed_back_count": handed_back_count, "unacknowledged_count": unacknowledged_count}
        _log.info("worker_drained", extra=told)

    async def _until_nothing_comes(self, reserve_us: int) -> None:
        """Every node has given back what it was promised: what it had assigned before has arrived, refused.

        Else an assignment that is on its way when the streams end would hang for a worker lease (I9). A node
        that does not answer holds this up to the limit, and not beyond a second once that was shortened.
        """
        is_over = self._credits.all_withdrawn
        while not is_over.is_set():
            assert self._drain_limit_us is not None, "set before the event"
            left_us = self._drain_limit_us - reserve_us - self._clock.boot_us()
            if left_us <= SECOND:
                await self._at_most(is_over, SECOND)
                return
            self._end_asked.clear()
            await self._until_or_hastened(is_over, left_us)

    async def _until_or_hastened(self, event: asyncio.Event, left_us: int) -> None:
        waiters: list[asyncio.Future[object]] = [
            asyncio.ensure_future(event.wait()),
            asyncio.ensure_future(self._end_asked.wait()),
        ]
        try:
            await within(self._clock, _first_of(waiters), limit_us=left_us)
        except TimeoutError:
            return
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _at_most(self, event: asyncio.Event, limit_us: int) -> None:
        try:
            await within(self._clock, event.wait(), limit_us=limit_us)
        except TimeoutError:
            _log.warning("drain_incomplete", extra={"running_count": self.running_count})


async def _first_of(waiters: Sequence[asyncio.Future[object]]) -> None:
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
