"""A scheduler node: takes its partitions, warms up, runs the loops, hands over at the end."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from ostinato.clock import Clock
from ostinato.control.pressure import PressureGate
from ostinato.core.instants import SECOND
from ostinato.core.partition.effects import Effects
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import NodeStarted, NodeStopped
from ostinato.scheduler.backlog_loop import BacklogLoop
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.database_state import DatabaseState
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.membership_loop import MembershipLoop
from ostinato.scheduler.orphan_loop import OrphanLoop
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.output_loop import OutputLoop
from ostinato.scheduler.parts import build_parts
from ostinato.scheduler.pressure_loop import PressureLoop
from ostinato.scheduler.registry_loop import RegistryLoop
from ostinato.scheduler.renewal_loop import RenewalLoop
from ostinato.scheduler.request_loop import RequestLoop
from ostinato.scheduler.retention_loop import RetentionLoop
from ostinato.scheduler.retry_loop import RetryLoop
from ostinato.scheduler.time_loop import TimeLoop
from ostinato.scheduler.trigger_loop import TriggerLoop
from ostinato.scheduler.warm_up_loop import WarmUpLoop
from ostinato.scheduler.watch_loop import WatchLoop
from ostinato.scheduler.worker_streams import WorkerStreams
from ostinato.store.protocol import Store
from ostinato.wire.messages import Cancel
from ostinato.wire.protocol import NodeTransport


class SchedulerNode:
    """Builds the loops around one store and one transport; everything outside comes in by the constructor."""

    def __init__(
        self,
        config: NodeConfig,
        *,
        store: Store,
        transport: NodeTransport,
        clock: Clock,
        rng: Random,
        hooks: Hooks,
        pressure: PressureGate | None = None,
    ) -> None:
        """`pressure` is measured while the node runs; None: nothing is."""
        config.validate()
        self._transport = transport
        self._hooks = hooks
        self.address = ""
        self.parts = parts = build_parts(config, store=store, clock=clock, rng=rng, hooks=hooks)
        self.dispatch = DispatchLoop(parts)
        self.outcomes = OutcomeLoop(parts)
        self.triggers = TriggerLoop(parts)
        self.retries = RetryLoop(parts)
        self.registry = RegistryLoop(parts)
        self.requests = RequestLoop(
            parts, triggers=self.triggers, dispatch=self.dispatch, registry=self.registry
        )
        self.health = HealthLoop(parts, outcomes=self.outcomes, dispatch=self.dispatch)
        self.output = OutputLoop(parts)
        self.retention = RetentionLoop(parts)
        self.backlog = BacklogLoop(parts)
        self.membership = MembershipLoop(parts)
        self.warm_up = WarmUpLoop(parts)
        self._streams = WorkerStreams(
            parts,
            dispatch=self.dispatch,
            outcomes=self.outcomes,
            output=self.output,
            triggers=self.triggers,
            health=self.health,
            registry=self.registry,
        )
        woken = (self.dispatch, self.triggers, self.requests, self.retries)
        self._loops: tuple[Loop, ...] = (
            RenewalLoop(parts, (*woken, self.outcomes, self.health), membership=self.membership),
            TimeLoop(parts, woken),
            self.membership,
            self.warm_up,
            WatchLoop(parts, first=self.dispatch, then=woken[1:]),
            self.health,
            self.outcomes,
            *woken,
            self.output,
            self.retention,
            self.backlog,
            self.registry,
            OrphanLoop(parts, health=self.health),
            *(() if pressure is None else (PressureLoop(parts, pressure),)),
        )
        self.database = DatabaseState(clock, hooks)
        self._is_running = False
        self._tie_together()

    def _tie_together(self) -> None:
        """Who tells whom of what."""
        ownership = self.parts.ownership
        ownership.on_lost = self._lost
        self.parts.committer.after_commit = self._after_commit
        self.membership.on_taken = self.warm_up.wake
        self.membership.on_rejoined = self._rejoined
        self.warm_up.on_warm = self._warm
        self.parts.sessions.addresses = self.membership.addresses
        self.parts.committer.database = self.database
        for loop in self._loops:
            loop.database = self.database
            loop.on_broken = ownership.stop_partition_of

    @property
    def node_id(self) -> str:
        """Who this node is at present: a new one after it was declared dead."""
        return self.parts.ownership.node_id

    def _lost(self, partitions: Collection[int]) -> None:
        count = self.parts.store.partition_count
        for known in (self.parts.held, self.parts.budgets):
            known.forget_partitions(partitions, partition_count=count)

    def _warm(self) -> None:
        """Partitions are decided about from now on: everything there is new to this node."""
        self.outcomes.resume()
        loops = (self.dispatch, self.triggers, self.requests, self.retries, self.health)
        for loop in (*loops, self.retention, self.backlog):
            loop.wake()

    def _rejoined(self) -> None:
        """The node has another identity: its workers greet it anew, and say what they have."""
        for session in list(self.parts.sessions.by_id.values()):
            session.end_soon()

    def _after_commit(self, effects: Effects, dropped: frozenset[str]) -> None:
        """Tell workers of wishes that are on record now; wake the loops that a commit concerns."""
        batch = effects.batch
        for signal in effects.cancel_signals:
            session = self.parts.sessions.by_id.get(signal.worker_id)
            if session is not None and signal.instance_id not in dropped:
                session.post([Cancel(signal.instance_id, signal.attempt_id, signal.reason)])
        concerning = (effects.ended, effects.ended_waiting, batch.inserts, batch.replays, batch.flags)
        if any(concerning) or batch.deletions or batch.switches:
            self.dispatch.wake()
        due = [ended.due_us for ended in effects.ended if ended.due_us is not None]
        if due:
            self.dispatch.wake_at(self.parts.time.boot_at(min(due)))
        expiries = [
            row.expires_us
            for rows in (batch.ended_attempts, batch.inserts, batch.replays)
            for row in rows
            if row.expires_us is not None
        ]
        if expiries:
            self.retries.wake_at(self.parts.time.boot_at(min(expiries) + 1))

    async def start(self) -> None:
        """Join, warm up, accept workers.

        Raises ``NODE_ALREADY_RUNNING``, ``PORT_IN_USE``, and what the store raises.

        What other nodes own comes to this one later. The store must be open; a node that cannot start leaves
        nothing behind.
        """
        await self.parts.time.sample()
        try:
            await self.membership.join()
            await self.warm_up.run_once()
            self.address = await self._transport.start(self._streams.handle)
        except BaseException:
            if self.parts.ownership.is_registered:
                await self.parts.ownership.leave()
            raise
        self.warm_up.accepting_since_boot_us = self.parts.clock.boot_us()
        for loop in self._loops:
            loop.start()
        self._is_running = True
        self._hooks.emit(NodeStarted(node_id=self.node_id, address=self.address))

    async def stop(self, reason: str = "asked to stop") -> None:
        """Accept nothing more, commit what has arrived, hand over at once; idempotent."""
        if not self._is_running:
            return
        self._is_running = False
        await self._transport.stop()
        for loop in reversed(self._loops):
            await loop.stop()
        try:
            await self.outcomes.run_once()
            await self.output.flush()
            await self.parts.ownership.leave()
        except OstinatoError as error:
            if not error.code.startswith("DATABASE_"):
                raise
            # What was not committed was not acknowledged either: workers bring it again. The next node takes
            # over from the row that stays.
            reason = f"{reason}; not handed over: {error}"
        await self.registry.leave()
        self._hooks.emit(NodeStopped(node_id=self.node_id, reason=reason))

    def _stall(self) -> str:
        """Which loop waits for the database for too long; empty: none does."""
        stalled_us, name = max((loop.stalled_us, loop.name) for loop in self._loops)
        if not stalled_us:
            return ""
        return f"the {name} loop has been waiting for the database for {stalled_us // SECOND}s"

    def ready(self) -> dict[str, object]:
        """What the node says of itself to a readiness check."""
        ownership = self.parts.ownership
        stopped = sorted(ownership.stopped)
        problem = self.database.problem or self._stall()
        return {
            "ready": self._is_running and ownership.is_believed and not problem and not stopped,
            "node": self.node_id,
            "database": problem or "ok",
            "partitions": len(ownership.memory.epochs),
            "stopped_partitions": stopped,
            "idle": self.membership.standing == "idle",
            "workers": len(self.parts.sessions.by_id),
            "running": len(ownership.memory.running),
        }
