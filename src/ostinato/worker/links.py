"""The worker's streams to all nodes: one connection for each address that is known.

Addresses that the operator has given are tried for ever. Those that nodes tell of are tried while some
connected node names them, or while no node at all is there to ask, and dropped some time after. Nodes are
known by their ids: two addresses that lead to the same node keep one stream.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from random import Random

import msgspec

from ostinato.clock import Clock
from ostinato.core.instants import MINUTE, SECOND
from ostinato.errors import UserError
from ostinato.settings import is_loopback
from ostinato.settings_readers import read_address
from ostinato.wire.protocol import WorkerTransport
from ostinato.worker.attempts import Attempts
from ostinato.worker.config import WorkerConfig
from ostinato.worker.connection import Connection
from ostinato.worker.credits import Credits
from ostinato.worker.epochs import Epochs
from ostinato.worker.known_tasks import KnownTasks
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.outbox import Outbox
from ostinato.worker.spool import Spool

_log = logging.getLogger("ostinato.worker")

#: How long an address is kept that no connected node names any more.
FORGOTTEN_US = 2 * MINUTE
_LOOK_US = 30 * SECOND


class LinkParts(msgspec.Struct, frozen=True, kw_only=True):
    """What all connections of a worker share.

    `on_drain` is called when a node asks for a drain, `on_leases_moved` when a lease may run longer,
    `on_nodes` with the known addresses when these have changed. `is_connected` is set while any node serves
    a stream.
    """

    config: WorkerConfig
    worker_id: str
    clock: Clock
    transport: WorkerTransport
    rng: Random
    attempts: Attempts
    outbox: Outbox
    credits: Credits
    lease: LeaseGuard
    epochs: Epochs
    known: KnownTasks
    #: Kinds that the worker can run now.
    executors: Callable[[], list[str]]
    on_drain: Callable[[str], None]
    on_leases_moved: Callable[[], None]
    on_nodes: Callable[[list[str]], None]
    is_connected: asyncio.Event
    spool: Spool | None = None


class _Known:
    """An address, and the connection to it."""

    def __init__(self, connection: Connection, running: asyncio.Task[None], *, named_us: int) -> None:
        self.connection = connection
        self.running = running
        #: When a connected node last named it, or it was served (boot time).
        self.named_us = named_us


class Links:
    """Keeps the connections, and what they must know of each other."""

    def __init__(self, parts: LinkParts) -> None:
        self._parts = parts
        self._known: dict[str, _Known] = {}
        #: By id of the node: the connection that it serves.
        self._by_node: dict[str, Connection] = {}
        #: What the node of each served connection names.
        self._named: dict[Connection, list[str]] = {}
        #: Named addresses that are not dialled, and were told.
        self._refused: set[str] = set()
        self._changed = asyncio.Event()
        self._node_left = asyncio.Event()
        self._stream_count = 0
        self._sequence = 0
        #: Streams that were greeted and are not over.
        self._open_streams: dict[int, None] = {}
        #: Whether any node has welcomed this worker, ever.
        self.was_welcome = False
        #: Who has the app's declarations in its greeting, while nobody has been welcomed with them.
        self._declaring: Connection | None = None

    @property
    def addresses(self) -> list[str]:
        """Known addresses, the configured ones first."""
        return list(self._known)

    async def run(self) -> None:
        """Connect for ever. Raises what the first node says if it refuses the worker for good."""
        try:
            while True:
                self._changed.clear()
                for known in self._known.values():
                    if known.running.done():
                        known.running.result()
                self._dial_new()
                await self._drop_forgotten()
                await self._until_something_happens()
        finally:
            await self._end(list(self._known))

    def _dial_new(self) -> None:
        named = [address for nodes in self._named.values() for address in nodes if self._may_dial(address)]
        new = [address for address in [*self._parts.config.addresses, *named] if address not in self._known]
        for address in dict.fromkeys(new):
            connection = Connection(address, parts=self._parts, links=self)
            running = asyncio.create_task(connection.run(), name=f"ostinato-link-{address}")
            running.add_done_callback(lambda _: self._changed.set())
            self._known[address] = _Known(connection, running, named_us=self._parts.clock.boot_us())
        if new:
            self._parts.on_nodes(self.addresses)

    def _may_dial(self, address: str) -> bool:
        """A token is shown to nodes of other machines over TLS only, whoever names them."""
        if not self._parts.config.is_token_open:
            return True
        try:
            is_near = is_loopback(read_address(address).host)
        except UserError:
            is_near = False
        if not is_near and address not in self._refused:
            self._refused.add(address)
            reason = "the join token would go there unencrypted: give --tls-ca"
            _log.warning("scheduler_not_dialled", extra={"address": address, "reason": reason})
        return is_near

    async def _until_something_happens(self) -> None:
        clock = self._parts.clock
        waiters: list[asyncio.Future[object]] = [asyncio.ensure_future(self._changed.wait())]
        # Configured addresses are never dropped; with no others there is nothing to look at.
        if self._known.keys() - set(self._parts.config.addresses):
            waiters.append(asyncio.ensure_future(clock.sleep_until_us(clock.boot_us() + _LOOK_US)))
        try:
            await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for waiter in waiters:
                waiter.cancel()

    async def _drop_forgotten(self) -> None:
        now_us = self._parts.clock.boot_us()
        needed = set(self._parts.config.addresses)
        for connection, nodes in self._named.items():
            needed.update([connection.address, *nodes])
        gone: list[str] = []
        for address, known in self._known.items():
            if address in needed or not self._named:
                known.named_us = now_us
            elif now_us - known.named_us >= FORGOTTEN_US:
                gone.append(address)
        if gone:
            await self._end(gone)
            self._parts.on_nodes(self.addresses)

    async def _end(self, addresses: Sequence[str]) -> None:
        ended = [self._known.pop(address).running for address in addresses]
        for running in ended:
            running.cancel()
        if ended:
            await asyncio.wait(ended)

    # ── what connections tell ─────────────────────────────────────────────────────────────────────────

    def begin_stream(self) -> tuple[int, list[int]]:
        """Number of a stream that is about to be greeted, and those of the others that are not over."""
        others = list(self._open_streams)
        if not others:
            self._parts.epochs.forget()
        self._stream_count += 1
        self._open_streams[self._stream_count] = None
        return self._stream_count, others

    def end_stream(self, stream: int) -> None:
        """Nothing can arrive on a stream any more. Idempotent."""
        self._open_streams.pop(stream, None)

    def next_sequence(self) -> int:
        """Number of the worker's next heartbeat: one counter, so that a later one has a higher number."""
        self._sequence += 1
        return self._sequence

    def declares(self, connection: Connection) -> bool:
        """Whether a greeting is to bring what the app declares."""
        if self.was_welcome or self._declaring not in (None, connection):
            return False
        self._declaring = connection
        return True

    def welcomed(self, connection: Connection, node_id: str, *, nodes: Sequence[str]) -> None:
        """A node serves a connection. One that it served by another address before is given up."""
        other = self._by_node.get(node_id)
        if other is not None and other is not connection:
            other.give_up()
        self._by_node[node_id] = connection
        self.was_welcome = True
        self._parts.is_connected.set()
        self.told(connection, nodes)

    def told(self, connection: Connection, nodes: Sequence[str]) -> None:
        """The node of a connection names all nodes; it has no news if it names none."""
        if nodes or connection not in self._named:
            self._named[connection] = list(nodes)
            self._changed.set()

    def greet_again(self) -> None:
        """What the worker can run has changed, which only a greeting says: every stream begins anew."""
        for known in self._known.values():
            known.connection.renew()

    def left(self, connection: Connection, node_id: str) -> None:
        """A connection is no longer greeted or served; `node_id` is empty if it was not served."""
        if self._declaring is connection:
            self._declaring = None
        if node_id and self._by_node.get(node_id) is connection:
            del self._by_node[node_id]
        if self._named.pop(connection, None) is not None:
            self._changed.set()
            self._node_left.set()
            self._node_left = asyncio.Event()
        if not self._named:
            self._parts.is_connected.clear()

    async def until_node_leaves(self, node_id: str) -> None:
        """Return once no connection is served by that node."""
        while node_id in self._by_node:
            await self._node_left.wait()
