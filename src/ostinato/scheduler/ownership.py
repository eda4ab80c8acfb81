"""Which partitions this node owns, and how long it may believe so.

The node renews its row every second. It believes in its partitions until (last renewal sent + ownership
lease − margin) on its own monotonic clock; past that it decides nothing. A node whose row is gone knows that
it has been declared dead. SQLite admits one node per database, so it takes all partitions at its start, each
with the next epoch; and there a renewal that cannot be written (a full disk) ends no belief, since the lock
and the row prove it: the workers' running attempts go on.
"""

from __future__ import annotations

import asyncio
from typing import Any

from ostinato.clock import Clock
from ostinato.core.changes import Proof
from ostinato.core.partition.state import Memory
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import PartitionsLost
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import NodeRow
from ostinato.store.protocol import Store


class Ownership:
    """The owned partitions, what is remembered of them, and the belief in them."""

    def __init__(self, node_id: str, config: NodeConfig, *, store: Store, clock: Clock, hooks: Hooks) -> None:
        self.node_id = node_id
        self.memory = Memory()
        #: Partitions given up because a rule that must always hold was broken there.
        self.stopped: set[int] = set()
        self._config = config
        self._store = store
        self._clock = clock
        self._hooks = hooks
        self._believed_until_us = 0

    async def take_all(self, *, address: str, now_us: int) -> None:
        """Register the node and take every partition. Raises ``NODE_ALREADY_RUNNING``."""
        sent_us = self._clock.boot_us()
        await self._store.register_node(
            NodeRow(id=self.node_id, renewals=0, address=address, started_us=now_us)
        )
        dead: dict[str, int] = {}
        if not self._store.capabilities.many_nodes:
            # One node per database, and its lock is ours: whoever left a row has not stopped cleanly.
            others = [node for node in await self._store.nodes() if node.id != self.node_id]
            dead = {node.id: node.renewals for node in others}
        proofs = await self._store.take_partitions(
            self.node_id, range(self._store.partition_count), dead_nodes=dead
        )
        self.memory = Memory(epochs={proof.partition: proof.epoch for proof in proofs})
        self._believe_from(sent_us)

    async def renew(self) -> None:
        """Raise the node's counter; a row that is gone ends every belief.

        Raises what kept it from being written, even where ownership has been proved without.
        """
        sent_us = self._clock.boot_us()
        writing = asyncio.ensure_future(self._store.renew_node(self.node_id))
        try:
            while not await self._is_done_soon(writing):
                # Somebody holds the database; that is no reason to end the belief that a lock proves.
                await self._believe_by_lock()
            is_renewed = writing.result()
        except OstinatoError:
            await self._believe_by_lock()
            raise
        finally:
            writing.cancel()
        if is_renewed:
            self._believe_from(sent_us)
        else:
            self.lose(list(self.memory.epochs), "the node was declared dead")
            self._believed_until_us = 0

    @property
    def is_believed(self) -> bool:
        """Whether the node may decide, assign and acknowledge now."""
        return self._clock.boot_us() < self._believed_until_us

    def owned(self) -> list[int]:
        """Partitions to decide about now; empty while the node does not believe."""
        return list(self.memory.epochs) if self.is_believed else []

    def proofs(self, partitions: set[int]) -> list[Proof]:
        """Proofs for a transaction; partitions that are no longer owned get one that must fail."""
        return [
            Proof(number, self.node_id, self.memory.epochs.get(number, -1)) for number in sorted(partitions)
        ]

    def lose(self, partitions: list[int], reason: str) -> None:
        """Forget partitions whose proof failed."""
        lost = self.memory.lose(partitions)
        if lost:
            self._hooks.emit(PartitionsLost(node_id=self.node_id, count=len(lost), reason=reason))

    async def _is_done_soon(self, writing: asyncio.Future[bool]) -> bool:
        """Whether it is done within a renewal's interval; goes on if not."""
        tick_us = self._clock.boot_us() + self._config.renewal_us
        tick = asyncio.ensure_future(self._clock.sleep_until_us(tick_us))
        waited: list[asyncio.Future[Any]] = [writing, tick]
        try:
            await asyncio.wait(waited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            tick.cancel()
        return writing.done()

    async def _believe_by_lock(self) -> None:
        asked_us = self._clock.boot_us()
        if await self._store.owns_by_lock(self.node_id):
            self._believe_from(asked_us)

    async def stop_partition_of(self, instance_id: str) -> None:
        """Decide no more about the partition of an instance of which a rule is broken, until the next start.

        The others go on: one broken row must not stand in the way of everyone's work.
        """
        attempt = self.memory.running.get(instance_id)
        if attempt is not None:
            partition = attempt.partition
        else:
            row = (await self._store.get_instances([instance_id])).get(instance_id)
            if row is None:
                return
            partition = row.partition
        if partition in self.memory.epochs:
            self.stopped.add(partition)
            self.lose([partition], f"stopped: a rule is broken for instance {instance_id}")

    async def release(self) -> None:
        """Hand over at once: delete the row and free the partitions."""
        self.memory = Memory()
        self._believed_until_us = 0
        await self._store.remove_node(self.node_id)

    def _believe_from(self, sent_us: int) -> None:
        self._believed_until_us = sent_us + self._config.ownership_lease_us - self._config.ownership_margin_us
