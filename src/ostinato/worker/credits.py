"""The worker's slots, shared out among the nodes that it has streams to.

The first node gets all of them, so that one node alone can use the whole worker. From then on

* a slot that is free goes to a node that says it has due work (*demand*), else to the one with the fewest,
* while some node has demand, the others are asked to give their unused credits back,
* while none has, a node with less than an even share gets it from those with more. What nobody is short of
  stays where it is, so an idle cluster moves nothing,
* places ahead of the slots are shared as slots are, and asked back once there are fewer of them.

Nothing is promised while granting rests: for good after a drain began, and while results cannot be kept safe.
A drain asks everything back; what a node has given back it cannot have used for an assignment on its way.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from ostinato.wire.slot_ledger import SlotLedger


class _Link:
    """What is known of one stream's node."""

    def __init__(self, on_granted: Callable[[], None], on_wanted: Callable[[], None]) -> None:
        self.on_granted = on_granted
        self.on_wanted = on_wanted
        self.is_welcome = False
        #: What the node could do with more credits, less what it was promised since it said so.
        self.demand: dict[str, int] = {}
        #: When it was last promised a slot: the smallest comes first among equals.
        self.turn = 0


class Credits:
    """Promises of slots over all streams; what attempts occupy is promised to nobody."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self._ledger = SlotLedger(capacity)
        self._links: dict[int, _Link] = {}
        self._turn = 0
        self._is_stopped = False
        #: Set once granting was stopped and nothing is promised any more: no assignment is on its way.
        self.all_withdrawn = asyncio.Event()
        #: Why nothing is granted for now; empty while grants are given.
        self.pause_reason = ""

    # ── streams ───────────────────────────────────────────────────────────────────────────────────────

    def open(
        self, stream: int, *, on_granted: Callable[[], None], on_wanted: Callable[[], None]
    ) -> dict[str, int]:
        """A stream is about to be greeted; returns what the greeting grants: all that is free on the first.

        `on_granted` is called when the stream's node is to hear of new grants, `on_wanted` when it should
        soon hear what is wanted back.
        """
        self._ledger.open(stream)
        self._links[stream] = _Link(on_granted, on_wanted)
        if len(self._links) == 1 and not self._rests:
            for pool in self._ledger.pools:
                self._ledger.promise(stream, pool, count=self._ledger.free(pool))
        return self._ledger.granted(stream)

    def welcomed(self, stream: int) -> None:
        """The stream's node may be given its share."""
        self._links[stream].is_welcome = True
        self._share_free()
        self._ask_back(is_urgent=True)

    def close(self, stream: int) -> None:
        """The stream is over: what was promised there goes to others. Idempotent."""
        self._links.pop(stream, None)
        self._ledger.close(stream)
        self._share_free()
        self._note_withdrawn()

    @property
    def ahead(self) -> dict[str, int]:
        """Places ahead of the slots by pool, of pools that have any."""
        counts = {pool: self._ledger.ahead(pool) for pool in self._ledger.pools}
        return {pool: count for pool, count in counts.items() if count}

    def granted(self, stream: int) -> dict[str, int]:
        """Cumulative grants on a stream."""
        return self._ledger.granted(stream)

    def wanted(self, stream: int) -> dict[str, int]:
        """What the stream's node is asked to have given back, for a heartbeat that leaves now."""
        self._ask_back(is_urgent=False)
        return self._ledger.wanted(stream)

    def heard(self, stream: int, *, returned: Mapping[str, int], demand: Mapping[str, int]) -> None:
        """A node has said what it gave back and what it could do with more."""
        link = self._links.get(stream)
        if link is None:
            return
        is_new = dict(demand) != link.demand
        link.demand = dict(demand)
        if self._ledger.returned(stream, returned) or is_new:
            self._share_free()
            self._ask_back(is_urgent=True)
        self._note_withdrawn()

    def capacity(self, pool: str) -> int:
        """Slots of a pool, without places ahead of them."""
        return self._ledger.capacity(pool)

    # ── slots ─────────────────────────────────────────────────────────────────────────────────────────

    def take(self, stream: int, pool: str) -> bool:
        """Occupy a promised slot for an assignment that came on a stream; False if none was promised."""
        is_taken = self._ledger.take(stream, pool)
        self._note_withdrawn()
        return is_taken

    def give_back(self, pool: str, *, count: int = 1) -> None:
        """So many slots are free again."""
        for _ in range(count):
            self._ledger.release(pool)
        self._share(pool)

    def set_ahead(self, pool: str, count: int) -> None:
        """From now on so many attempts may wait ahead of a pool's slots; no news if they could before."""
        before = self._ledger.ahead(pool)
        if count == before:
            return
        self._ledger.set_ahead(pool, count)
        if count > before:
            self._share(pool)
        else:
            self._ask_back(is_urgent=True)

    def stop_granting(self) -> None:
        """Grant nothing more and ask everything back; what was granted before may still arrive until then."""
        self._is_stopped = True
        self._ask_back(is_urgent=True)
        self._note_withdrawn()

    def pause_granting(self, reason: str) -> None:
        """Grant nothing more until `resume_granting`; what was granted before may still arrive."""
        self.pause_reason = reason

    def resume_granting(self) -> None:
        """Grant what has become free meanwhile, unless granting was stopped; idempotent."""
        self.pause_reason = ""
        self._share_free()

    # ── sharing ───────────────────────────────────────────────────────────────────────────────────────

    @property
    def _rests(self) -> bool:
        return self._is_stopped or bool(self.pause_reason)

    def _note_withdrawn(self) -> None:
        if self._is_stopped and not any(
            self._ledger.outstanding(stream, pool) for stream in self._links for pool in self._ledger.pools
        ):
            self.all_withdrawn.set()

    def _share_free(self) -> None:
        for pool in self._ledger.pools:
            self._share(pool)

    def _share(self, pool: str) -> None:
        """Promise every free slot of a pool to somebody who is welcome, or was greeted and is alone."""
        if self._rests:
            return
        free = self._ledger.free(pool)
        # To the only one at once: whom to give the next to is a question of its own for every slot.
        step = free if len(self._links) == 1 else 1
        while free > 0:
            stream = self._neediest(pool)
            if stream is None:
                return
            link = self._links[stream]
            self._turn += 1
            link.turn = self._turn
            if link.demand.get(pool, 0) > 0:
                link.demand[pool] = max(0, link.demand[pool] - step)
            free -= self._ledger.promise(stream, pool, count=step)
            link.on_granted()

    def _neediest(self, pool: str) -> int | None:
        streams = [stream for stream, link in self._links.items() if link.is_welcome or len(self._links) == 1]
        return min(
            streams,
            key=lambda stream: (
                self._links[stream].demand.get(pool, 0) <= 0,
                self._ledger.outstanding(stream, pool),
                self._links[stream].turn,
            ),
            default=None,
        )

    def _ask_back(self, *, is_urgent: bool) -> None:
        """Work out what each node is asked to give back; `is_urgent`: who is asked for more hears now."""
        hasten: set[int] = set()
        welcome = {stream: link for stream, link in self._links.items() if link.is_welcome}
        for pool in self._ledger.pools:
            unused = {stream: self._ledger.outstanding(stream, pool) for stream in welcome}
            demand = {stream: max(0, link.demand.get(pool, 0)) for stream, link in welcome.items()}
            for stream, count in self._to_ask_back(pool, unused, demand).items():
                if self._ledger.want(stream, pool, count=count):
                    hasten.add(stream)
        if is_urgent:
            for stream in hasten:
                self._links[stream].on_wanted()

    def _to_ask_back(
        self, pool: str, unused: Mapping[int, int], demand: Mapping[int, int]
    ) -> Mapping[int, int]:
        if self._is_stopped:
            return unused
        if self.pause_reason:
            return dict.fromkeys(unused, 0)
        asked = _asked_back(unused, demand)
        excess = self._ledger.excess(pool)
        return _from_richest(unused, excess) if excess > sum(asked.values()) else asked


def _asked_back(unused: Mapping[int, int], demand: Mapping[int, int]) -> dict[int, int]:
    """How many of its unused credits each stream's node is asked for, given what each could do with."""
    if not unused:
        return {}
    if any(demand.values()):
        needed = sum(demand.values())
        spare = {stream: 0 if demand.get(stream) else count for stream, count in unused.items()}
    else:
        share = sum(unused.values()) // len(unused)
        needed = sum(max(0, share - count) for count in unused.values())
        spare = {stream: max(0, count - share) for stream, count in unused.items()}
    return _from_richest(spare, needed)


def _from_richest(spare: Mapping[int, int], needed: int) -> dict[int, int]:
    """How `needed` are asked of those who can spare so many; of few, so that few nodes are bothered."""
    asked: dict[int, int] = {}
    for stream in sorted(spare, key=lambda stream: -spare[stream]):
        asked[stream] = min(spare[stream], needed)
        needed -= asked[stream]
    return asked
