"""A scheduler node: takes its partitions, warms up, runs the loops, hands over at the end."""

from __future__ import annotations

from random import Random

from ostinato.clock import Clock
from ostinato.core.ids import new_id
from ostinato.core.partition.effects import Effects
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import NodeStarted, NodeStopped, PartitionsTaken
from ostinato.scheduler.committer import Committer
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.dispatch_loop import DispatchLoop
from ostinato.scheduler.health_loop import HealthLoop
from ostinato.scheduler.held_work import HeldWork
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.outcome_loop import OutcomeLoop
from ostinato.scheduler.output_loop import OutputLoop
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.renewal_loop import RenewalLoop
from ostinato.scheduler.request_loop import RequestLoop
from ostinato.scheduler.retention_loop import RetentionLoop
from ostinato.scheduler.retry_loop import RetryLoop
from ostinato.scheduler.sessions import Sessions
from ostinato.scheduler.shared_time import SharedTime
from ostinato.scheduler.trigger_loop import TriggerLoop
from ostinato.scheduler.warm_up import warm_up
from ostinato.scheduler.watch_loop import WatchLoop
from ostinato.scheduler.worker_streams import WorkerStreams
from ostinato.store.protocol import Store
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
    ) -> None:
        config.validate()
        self._config = config
        self._store = store
        self._transport = transport
        self._clock = clock
        self._hooks = hooks
        self.node_id = new_id(clock.wall_us(), rng)
        self.address = ""
        self.time = SharedTime(store, clock)
        self.ownership = Ownership(self.node_id, config, store=store, clock=clock, hooks=hooks)
        self.sessions = Sessions()
        self._held = HeldWork()
        self._definitions = Definitions(store)
        self._build_loops(rng)
        self._is_running = False

    def _build_loops(self, rng: Random) -> None:
        config, store, clock, hooks = self._config, self._store, self._clock, self._hooks
        time, ownership, sessions, definitions = self.time, self.ownership, self.sessions, self._definitions
        committer = Committer(ownership, self._held, store=store, clock=clock, hooks=hooks)
        self.dispatch = dispatch = DispatchLoop(
            config, store=store, clock=clock, rng=rng, hooks=hooks, time=time, ownership=ownership,
            committer=committer, definitions=definitions, sessions=sessions, held=self._held,
        )  # fmt: skip
        self.outcomes = OutcomeLoop(
            config, store=store, clock=clock, rng=rng, hooks=hooks, time=time, ownership=ownership,
            committer=committer, definitions=definitions, sessions=sessions,
        )  # fmt: skip
        self.triggers = TriggerLoop(
            config, store=store, clock=clock, rng=rng, hooks=hooks, time=time, ownership=ownership,
            committer=committer, definitions=definitions, sessions=sessions,
        )  # fmt: skip
        self.requests = RequestLoop(
            config, store=store, clock=clock, hooks=hooks, time=time, ownership=ownership,
            committer=committer, definitions=definitions, sessions=sessions, triggers=self.triggers,
        )  # fmt: skip
        self.retries = RetryLoop(
            config, store=store, clock=clock, hooks=hooks, time=time, ownership=ownership,
            committer=committer, definitions=definitions,
        )  # fmt: skip
        self.health = HealthLoop(
            config, clock=clock, rng=rng, hooks=hooks, time=time, ownership=ownership,
            committer=committer, sessions=sessions, held=self._held,
        )  # fmt: skip
        self.output = OutputLoop(store=store, clock=clock, hooks=hooks)
        self._streams = WorkerStreams(
            config, store=store, clock=clock, rng=rng, hooks=hooks, time=time, ownership=ownership,
            committer=committer, sessions=sessions, dispatch=dispatch, outcomes=self.outcomes,
            output=self.output, triggers=self.triggers, health=self.health,
        )  # fmt: skip
        committer.after_commit = self._after_commit
        woken = (dispatch, self.triggers, self.requests, self.retries)
        self._loops: tuple[Loop, ...] = (
            RenewalLoop(config, clock=clock, hooks=hooks, time=time, ownership=ownership),
            WatchLoop(config, woken, store=store, clock=clock, hooks=hooks),
            self.health, self.outcomes, dispatch, self.triggers, self.retries, self.requests, self.output,
            RetentionLoop(config, store=store, clock=clock, hooks=hooks, time=time, ownership=ownership),
        )  # fmt: skip

    def _after_commit(self, effects: Effects) -> None:
        """Wake the loops that a commit concerns, exactly when it does."""
        batch = effects.batch
        if effects.ended or effects.ended_waiting or batch.inserts or batch.replays or batch.flags:
            self.dispatch.wake()
        due = [ended.due_us for ended in effects.ended if ended.due_us is not None]
        if due:
            self.dispatch.wake_at(self.time.boot_at(min(due)))
        expiries = [
            row.expires_us
            for rows in (batch.ended_attempts, batch.inserts, batch.replays)
            for row in rows
            if row.expires_us is not None
        ]
        if expiries:
            self.retries.wake_at(self.time.boot_at(min(expiries) + 1))

    async def start(self) -> None:
        """Own, warm up, accept workers. Raises ``NODE_ALREADY_RUNNING``, ``PORT_IN_USE``, the store's errors.

        The store must be open; a node that cannot start leaves nothing behind.
        """
        await self.time.sample()
        await self.ownership.take_all(address=self._config.address, now_us=self.time.now_us())
        try:
            running_count = await warm_up(
                self.ownership,
                store=self._store,
                clock=self._clock,
                definitions=self._definitions,
                held=self._held,
            )
            self.address = await self._transport.start(self._streams.handle)
        except BaseException:
            await self.ownership.release()
            raise
        for loop in self._loops:
            loop.start()
        self._is_running = True
        self._hooks.emit(
            PartitionsTaken(
                node_id=self.node_id,
                count=len(self.ownership.memory.epochs),
                running_count=running_count,
            )
        )
        self._hooks.emit(NodeStarted(node_id=self.node_id, address=self.address))

    async def stop(self, reason: str = "asked to stop") -> None:
        """Accept nothing more, commit what has arrived, hand over at once; idempotent."""
        if not self._is_running:
            return
        self._is_running = False
        await self._transport.stop()
        for loop in reversed(self._loops):
            await loop.stop()
        await self.outcomes.run_once()
        await self.output.flush()
        await self.ownership.release()
        self._hooks.emit(NodeStopped(node_id=self.node_id, reason=reason))

    def ready(self) -> dict[str, object]:
        """What the node says of itself to a readiness check."""
        return {
            "ready": self._is_running and self.ownership.is_believed,
            "node": self.node_id,
            "partitions": len(self.ownership.memory.epochs),
            "workers": len(self.sessions.by_id),
            "running": len(self.ownership.memory.running),
        }
