"""Which partitions this node owns, and how long it may believe so.

The node renews its row every second. It believes in its partitions until (last renewal sent + ownership
lease − margin) on its own monotonic clock; past that it decides nothing. A node whose row is gone, or that
another server answers than before, knows that it has lost everything: its identity ends, and the membership
loop joins again under a new one.

A partition that belongs to this node is in one of five places:

    taken ──► warming ──► memory.epochs ──► releasing ──► free
      ▲                   (decided about)
      └──── doubted ◄───────────┤
                                └──► stopped (a rule is broken there)

SQLite admits one node per database, so it takes all partitions at its start, each with the next epoch; and
there a renewal that cannot be written (a full disk) ends no belief, since the lock and the row prove it: the
workers' running attempts go on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from random import Random
from typing import Any, NamedTuple

from ostinato.clock import Clock
from ostinato.core.changes import Proof
from ostinato.core.ids import new_id
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.partition.state import Memory
from ostinato.errors import OstinatoError
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import PartitionsLost
from ostinato.scheduler.config import NodeConfig
from ostinato.store.batches import NodeRow
from ostinato.store.protocol import Store

#: Why a node whose row is gone ends its identity.
DECLARED_DEAD = "its row is gone: another node has declared it dead"


class Taken(NamedTuple):
    """A partition that belongs to this node and is not warmed up yet."""

    epoch: int
    #: Node's monotonic clock when the take-over was known to be committed.
    boot_us: int
    #: Its former owner had handed it over: no lease of an owner can still run.
    was_free: bool


class Ownership:
    """The owned partitions, what is remembered of them, and the belief in them."""

    def __init__(self, config: NodeConfig, *, store: Store, clock: Clock, rng: Random, hooks: Hooks) -> None:
        self.memory = Memory()
        self.warming: dict[int, Taken] = {}
        #: Decided about no more, each with its epoch; to be released once no commit about them is under way.
        self.releasing: dict[int, int] = {}
        #: Nobody knows what was written of these: to be taken anew, with the next epoch, before anything is
        #: decided about them.
        self.doubted: set[int] = set()
        #: Given up because a rule that must always hold was broken there.
        self.stopped: set[int] = set()
        #: Whether the node's row is there, as far as it knows.
        self.is_registered = False
        #: Identities that this process has had and lost: nothing acts in their names any more.
        self.former_ids: set[str] = set()
        #: When this process registered first, under whatever identity; None: it has not.
        self._started_us: int | None = None
        #: Told which partitions are decided about no more.
        self.on_lost: Callable[[Collection[int]], None] = _nobody_is_told
        self._config = config
        self._store = store
        self._clock = clock
        self._rng = rng
        self._hooks = hooks
        self.node_id = new_id(clock.wall_us(), rng)
        self._identity = ""
        self._believed_until_us = 0
        #: Node's monotonic clock since when it has believed without a break.
        self.believed_since_boot_us = 0

    # ── identity and belief ──────────────────────────────────────────────────────────────────────────

    async def register(self, *, now_us: int) -> None:
        """Insert the node's row, under a new identity if the last one has ended.

        Raises ``NODE_ALREADY_RUNNING``, and what the store raises; then nothing is registered.
        """
        if self.node_id in self.former_ids:
            self.node_id = new_id(self._clock.wall_us(), self._rng)
        if self._started_us is None:
            self._started_us = now_us
        sent_us = self._clock.boot_us()
        row = NodeRow(id=self.node_id, renewals=0, address=self._config.address, started_us=self._started_us)
        try:
            await self._store.register_node(row)
            self._identity = await self._store.identity()
        except OstinatoError:
            # It may have been written all the same: a row that nobody renews, found dead like any other.
            self.former_ids.add(self.node_id)
            raise
        self.is_registered = True
        self._believe_from(sent_us)

    async def renew(self) -> None:
        """Raise the node's counter; a row that is gone, or another server, ends the identity.

        Raises what kept it from being written, even where ownership has been proved without.
        """
        if not self.is_registered:
            return
        node_id, sent_us = self.node_id, self._clock.boot_us()
        writing = asyncio.ensure_future(self._renewed(node_id))
        try:
            while not await self._is_done_soon(writing):
                # Somebody holds the database; that is no reason to end the belief that a lock proves.
                await self._believe_by_lock()
            is_renewed, identity = writing.result()
        except OstinatoError:
            await self._believe_by_lock()
            raise
        finally:
            writing.cancel()
        if node_id != self.node_id or not self.is_registered:
            return
        if not is_renewed:
            self.end(DECLARED_DEAD)
        elif identity != self._identity:
            self.end("another server or timeline of the database answers than before")
        else:
            self._believe_from(sent_us)

    async def _renewed(self, node_id: str) -> tuple[bool, str]:
        return await self._store.renew_node(node_id), await self._store.identity()

    @property
    def is_believed(self) -> bool:
        """Whether the node may decide, assign and acknowledge now."""
        return self._clock.boot_us() < self._believed_until_us

    def end(self, reason: str) -> None:
        """This identity is over: nothing that was believed under it holds."""
        self.is_registered = False
        self._believed_until_us = 0
        self.former_ids.add(self.node_id)
        self.lose([*self.memory.epochs, *self.warming, *self.releasing], reason)
        self.memory = Memory()
        self.releasing.clear()
        self.doubted.clear()
        self.stopped.clear()

    async def leave(self) -> None:
        """Hand over at once: delete the row and free the partitions."""
        self._believed_until_us = 0
        self.is_registered = False
        self.memory = Memory()
        self.warming.clear()
        self.releasing.clear()
        self.doubted.clear()
        await self._store.remove_node(self.node_id)

    async def _is_done_soon(self, writing: asyncio.Future[tuple[bool, str]]) -> bool:
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

    def _believe_from(self, sent_us: int) -> None:
        if not self.is_believed:
            self.believed_since_boot_us = self._clock.boot_us()
        self._believed_until_us = sent_us + self._config.ownership_lease_us - self._config.ownership_margin_us

    # ── partitions ───────────────────────────────────────────────────────────────────────────────────

    def owned(self) -> list[int]:
        """Partitions to decide about now; empty while the node does not believe."""
        return list(self.memory.epochs) if self.is_believed else []

    def proofs(self, partitions: set[int]) -> list[Proof]:
        """Proofs for a transaction; partitions that are no longer owned get one that must fail."""
        return [
            Proof(number, self.node_id, self.memory.epochs.get(number, -1)) for number in sorted(partitions)
        ]

    def take(self, proofs: Sequence[Proof], *, free: Collection[int]) -> None:
        """These belong to this node now, those in `free` from nobody; the warm-up comes next."""
        boot_us = self._clock.boot_us()
        for proof in proofs:
            self.doubted.discard(proof.partition)
            self.warming[proof.partition] = Taken(proof.epoch, boot_us, proof.partition in free)

    def reconcile(self, owners: Sequence[Proof]) -> None:
        """Believe what the database shows of this node, where an answer of it was lost."""
        others = [proof.partition for proof in owners if proof.owner != self.node_id]
        for number in others:
            self.releasing.pop(number, None)
            self.doubted.discard(number)
        self.lose(others, "another node has taken them over")
        for proof in owners:
            number = proof.partition
            if proof.owner != self.node_id:
                continue
            if number not in self.releasing and number not in self.stopped and number not in self.doubted:
                taken = self.warming.get(number)
                epoch = self.memory.epochs.get(number) if taken is None else taken.epoch
                if epoch != proof.epoch:
                    self.memory.lose([number])
                    self.take([proof], free=())

    def activate(self, taken: dict[int, Taken], running: Sequence[RunningAttempt]) -> dict[int, Taken]:
        """Decide about warmed up partitions from now on; returns those that still belong to this node."""
        still = {number: entry for number, entry in taken.items() if self.warming.get(number) is entry}
        for number, entry in still.items():
            del self.warming[number]
            self.memory.epochs[number] = entry.epoch
        for attempt in running:
            if attempt.partition in still:
                self.memory.running[attempt.instance_id] = attempt
        return still

    def begin_release(self, partitions: Sequence[int]) -> None:
        """Decide about these no more, and forget what is known of them."""
        fresh = [
            number for number in partitions if number not in self.releasing and number not in self.stopped
        ]
        for number in fresh:
            taken = self.warming.get(number)
            self.releasing[number] = self.memory.epochs.get(number, 0) if taken is None else taken.epoch
        for number in fresh:
            self.warming.pop(number, None)
            self.doubted.discard(number)
        self._forget(fresh)

    def doubt(self, proofs: Sequence[Proof]) -> None:
        """What was to be written under these proofs may have been, or may be yet: decide about them no more.

        Memory is not what the database shows. They are taken anew, which waits for what is under way and
        refuses what comes later, and warmed up (design section 3: read again before anything is decided).
        """
        mine = [
            proof.partition
            for proof in proofs
            if proof.owner == self.node_id and self.memory.epochs.get(proof.partition) == proof.epoch
        ]
        self.doubted.update(mine)
        self._forget(mine)

    def lose(self, partitions: Sequence[int], reason: str) -> None:
        """Forget partitions that belong to somebody else now."""
        taken = [number for number in partitions if self.warming.pop(number, None) is not None]
        lost = [*self._forget(partitions), *taken]
        if lost:
            self._hooks.emit(
                PartitionsLost(
                    node_id=self.node_id, count=len(lost), reason=reason, owned_count=len(self.memory.epochs)
                )
            )

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

    def _forget(self, partitions: Sequence[int]) -> list[int]:
        lost = self.memory.lose(partitions)
        if lost:
            self.on_lost(lost)
        return lost


def _nobody_is_told(_: Collection[int]) -> None:
    """What follows the loss of partitions until the node says otherwise."""
