"""Who lives, and who owns what: several looks a second at nodes and partitions (docs/cluster.md).

    look ──► dead nodes ──► fair shares ──► take: dead nodes' and free partitions ──► warm-up
         │                             └──► release: decide no more ─► commits under way end ─► free
         └──► standing: a node that no worker reaches leaves its share to those that workers reach

Only a node that believes in itself takes or declares anybody dead. One whose identity has ended joins again,
under a new one. Where only one node may share the database there is nothing to look at.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ostinato.core.changes import Proof
from ostinato.core.instants import SECOND
from ostinato.core.partition.node_watch import NodeWatch
from ostinato.core.partition.shares import moves
from ostinato.core.partition.standing import Standing, StandingWatch
from ostinato.observe.records import NodeDeclaredDead, NodeIdle, NodeRejoined, NodeServing, PartitionsReleased
from ostinato.scheduler.loop import Loop
from ostinato.scheduler.ownership import DECLARED_DEAD
from ostinato.scheduler.parts import NodeParts
from ostinato.store.batches import NodeRow


class MembershipLoop(Loop):
    """Takes what is due to this node and gives away what is too much."""

    name = "membership"

    def __init__(self, parts: NodeParts) -> None:
        super().__init__(parts.clock, parts.hooks)
        # Whoever looks seldom takes over late.
        self.retry_last_us = parts.config.renewal_us
        self._config = parts.config
        self._store = parts.store
        self._time = parts.time
        self._ownership = parts.ownership
        self._committer = parts.committer
        self._sessions = parts.sessions
        self._watch = NodeWatch(
            lease_us=parts.config.ownership_lease_us,
            margin_us=parts.config.ownership_margin_us,
            gap_us=parts.config.renewal_us,
        )
        self._standing_watch = self._new_standing_watch()
        #: Whether workers reach this node, as the others know it.
        self.standing: Standing = ""
        self._live: tuple[NodeRow, ...] = ()
        self._told_dead: set[str] = set()
        #: Called when partitions are to be warmed up.
        self.on_taken: Callable[[], None] = _nothing
        #: Called when the node has a new identity.
        self.on_rejoined: Callable[[], None] = _nothing

    async def join(self) -> None:
        """Register and take what is there to be taken.

        Raises ``NODE_ALREADY_RUNNING``, and what the store raises.
        """
        await self._ownership.register(now_us=self._time.now_us())
        if self._store.capabilities.many_nodes:
            await self._look()
            return
        # One node per database, and its lock is ours: whoever left a row has not stopped cleanly.
        node_id = self._ownership.node_id
        others = [node for node in await self._store.nodes() if node.id != node_id]
        owners = await self._store.partition_owners()
        await self._take(
            range(self._store.partition_count),
            owners=owners,
            dead={node.id: node.renewals for node in others},
        )

    def addresses(self) -> list[str]:
        """Where workers reach the nodes that live, as the newest look found them; by node id.

        Empty where workers are not told of nodes. A port that the system has chosen is known to nobody.
        """
        if not self._config.tells_nodes:
            return []
        return [node.address for node in self._live if not node.address.endswith(":0")]

    async def run_once(self) -> int | None:
        """One look, and what follows from it."""
        if not self._store.capabilities.many_nodes:
            return None
        began_us = self._clock.boot_us()
        if not self._ownership.is_registered:
            former = self._ownership.node_id
            await self._ownership.register(now_us=self._time.now_us())
            self._standing_watch, self.standing = self._new_standing_watch(), ""
            self._hooks.emit(NodeRejoined(node_id=self._ownership.node_id, former_id=former))
            self.on_rejoined()
        await self._look()
        # Alone there is nobody to take over from; whoever comes waits a moment for its share.
        is_alone = len(self._live) <= 1 and not self._told_dead
        return began_us + (self._config.renewal_us if is_alone else self._config.look_us)

    async def _look(self) -> None:
        ownership = self._ownership
        node_id = ownership.node_id
        sent_us = self._clock.boot_us()
        seen = await self._store.watch_nodes()
        received_us = self._clock.boot_us()
        owners = await self._store.partition_owners()
        if ownership.node_id != node_id or not ownership.is_registered:
            return
        rows = {node.id: node for node in seen.nodes}
        mine = rows.pop(node_id, None)
        if mine is None:
            ownership.end(DECLARED_DEAD)
            self.wake()
            return
        ownership.reconcile(owners)
        if ownership.warming:
            self.on_taken()
        counters = {other: row.renewals for other, row in rows.items()}
        dead = self._watch.look(counters, sent_us=sent_us, received_us=received_us, freed=seen.freed)
        dead.update({other: counters[other] for other in ownership.former_ids & counters.keys()})
        self._live = tuple(node for node in seen.nodes if node.id not in dead)
        if not ownership.is_believed:
            return
        self._tell_dead(dead, rows=rows, freed=seen.freed, owners=owners)
        await self._stand(mine)
        if ownership.node_id != node_id or not ownership.is_believed:
            return
        idle = {row.id for row in self._live if row.standing == "idle" and row.id != node_id}
        plan = moves(
            node_id,
            owners=[proof.owner for proof in owners],
            live=[row.id for row in self._live],
            idle=idle | ({node_id} if self.standing == "idle" else set()),
        )
        doubted = {proof.partition for proof in owners if proof.owner == node_id} & ownership.doubted
        take = [*plan.take, *sorted(doubted.difference(plan.release))]
        if take or dead:
            await self._take(take, owners=owners, dead=dead)
        ownership.begin_release(plan.release)
        await self._release()

    async def _stand(self, mine: NodeRow) -> None:
        """Tell the others whether workers reach this node, before anything follows from it."""
        standing = self._standing_watch.look(
            mine.standing,
            now_us=self._clock.boot_us(),
            heard_us=self._sessions.newest_heard_boot_us(),
            others_serve=any(row.standing == "serving" for row in self._live if row.id != mine.id),
        )
        if standing != mine.standing:
            await self._store.note_standing(mine.id, standing)
        if self._ownership.node_id != mine.id:
            return
        if (standing == "idle") != (self.standing == "idle"):
            count = len(self._ownership.memory.epochs)
            self._hooks.emit(
                NodeIdle(node_id=mine.id, count=count) if standing == "idle" else NodeServing(node_id=mine.id)
            )
        self.standing = standing

    def _new_standing_watch(self) -> StandingWatch:
        return StandingWatch(
            patience_us=self._config.idle_us,
            fresh_us=self._config.fresh_us,
            gap_us=self._config.ownership_lease_us,
        )

    async def _take(
        self, partitions: Sequence[int], *, owners: Sequence[Proof], dead: Mapping[str, int]
    ) -> None:
        ownership = self._ownership
        node_id = ownership.node_id
        before = {proof.partition: proof for proof in owners}
        proofs = await self._store.take_partitions(node_id, partitions, dead_nodes=dead)
        if ownership.node_id != node_id or not ownership.is_registered or not proofs:
            return
        # Nobody owned it between the look and the take: the epoch would have risen by more than one.
        free = {
            proof.partition
            for proof in proofs
            if not before[proof.partition].owner and proof.epoch == before[proof.partition].epoch + 1
        }
        ownership.take(proofs, free=free)
        self.on_taken()

    async def _release(self) -> None:
        """Free what is decided about no more, once what is under way about it has been committed."""
        ownership = self._ownership
        ready = sorted(number for number in ownership.releasing if not self._committer.is_under_way(number))
        if not ready:
            return
        node_id = ownership.node_id
        await self._store.release_partitions(node_id, ready)
        if ownership.node_id == node_id:
            for number in ready:
                ownership.releasing.pop(number, None)
            self._hooks.emit(
                PartitionsReleased(
                    node_id=node_id, count=len(ready), owned_count=len(ownership.memory.epochs)
                )
            )

    def _tell_dead(
        self,
        dead: Mapping[str, int],
        *,
        rows: Mapping[str, NodeRow],
        freed: frozenset[str],
        owners: Sequence[Proof],
    ) -> None:
        """Say once of each that it counts as dead, and what is known of it; whether it lives is not."""
        for other in sorted(dead.keys() - self._told_dead):
            silent_us = self._config.ownership_lease_us + self._config.ownership_margin_us
            reason = f"it has not renewed itself for {silent_us / SECOND:g}s: ended, frozen or cut off"
            if other in self._ownership.former_ids:
                reason = "it was this process, which has lost that identity"
            elif other in freed:
                reason = "its session lock is free: it has ended, or its renewal connection was dropped"
            self._hooks.emit(
                NodeDeclaredDead(
                    node_id=self._ownership.node_id,
                    dead_id=other,
                    address=rows[other].address,
                    count=sum(proof.owner == other for proof in owners),
                    reason=reason,
                )
            )
        self._told_dead = set(dead)


def _nothing() -> None:
    """What follows until the node says otherwise."""
