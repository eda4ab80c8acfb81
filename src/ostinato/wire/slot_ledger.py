"""Worker side: to which stream each of its slots is promised, or which attempt has it; pure.

::

              promise(stream)                 take(stream)
    free slot ───────────────► promised ──────────────────► taken
        ▲ ◄──────────────────────┘ │ ▲                        │
        │   returned(stream)       │ └── never by itself      │
        ├──────────────────────────┘ close(stream)            │
        └─────────────────────────────────────────────────────┘ release

A slot is promised to one stream at a time. It is free again when the node of that stream says that it has
given it back, or when the stream has ended: nothing that was on its way there can arrive any more. So, over
all streams, (slots promised and not taken) + (slots taken) never exceeds the capacity, whatever nodes say and
in whatever order their streams bring it. All counts of a stream but the wanted one only rise.

Places in a queue ahead of the slots count as slots here, and their number may change. It falls as promises
are used up, given back, or end with their stream: what was promised before stays promised.
"""

from __future__ import annotations

from collections.abc import Mapping


class _Promises:
    """Counts of one stream, by pool."""

    def __init__(self, pools: Mapping[str, int]) -> None:
        self.granted = dict.fromkeys(pools, 0)
        self.taken = dict.fromkeys(pools, 0)
        self.returned = dict.fromkeys(pools, 0)
        self.wanted = dict.fromkeys(pools, 0)

    def outstanding(self, pool: str) -> int:
        return self.granted.get(pool, 0) - self.taken.get(pool, 0) - self.returned.get(pool, 0)


class SlotLedger:
    """The slots of one worker over all of its streams, which are numbered and never opened twice."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self._capacity = dict(capacity)
        self._ahead = dict.fromkeys(capacity, 0)
        self._occupied = dict.fromkeys(capacity, 0)
        self._streams: dict[int, _Promises] = {}

    @property
    def pools(self) -> list[str]:
        """Pools that there are."""
        return list(self._capacity)

    @property
    def streams(self) -> list[int]:
        """Streams that are open, in the order of their opening."""
        return list(self._streams)

    @property
    def occupied(self) -> dict[str, int]:
        """Slots taken."""
        return dict(self._occupied)

    def capacity(self, pool: str) -> int:
        """Slots that there are."""
        return self._capacity.get(pool, 0)

    def open(self, stream: int) -> None:
        """A stream begins, with nothing promised on it."""
        self._streams[stream] = _Promises(self._capacity)

    def close(self, stream: int) -> None:
        """A stream is over for good: what was promised on it and not taken is free. Idempotent."""
        self._streams.pop(stream, None)

    def set_ahead(self, pool: str, count: int) -> None:
        """From now on so many attempts may wait ahead of the slots of a pool that there is."""
        self._ahead[pool] = count

    def ahead(self, pool: str) -> int:
        """How many attempts may wait ahead of a pool's slots."""
        return self._ahead.get(pool, 0)

    def free(self, pool: str) -> int:
        """Slots and places ahead neither taken nor promised; none while more are taken than there are."""
        return max(0, self._left(pool))

    def excess(self, pool: str) -> int:
        """By how many there are more taken and promised than slots and places ahead."""
        return max(0, -self._left(pool))

    def _left(self, pool: str) -> int:
        promised = sum(promises.outstanding(pool) for promises in self._streams.values())
        bound = self._capacity.get(pool, 0) + self._ahead.get(pool, 0)
        return bound - self._occupied.get(pool, 0) - promised

    def outstanding(self, stream: int, pool: str) -> int:
        """Slots promised on a stream for which no assignment has come."""
        promises = self._streams.get(stream)
        return 0 if promises is None else promises.outstanding(pool)

    def promise(self, stream: int, pool: str, *, count: int) -> int:
        """Promise up to `count` free slots on a stream; returns how many."""
        promised = max(0, min(count, self.free(pool)))
        if promised:
            self._streams[stream].granted[pool] += promised
        return promised

    def take(self, stream: int, pool: str) -> bool:
        """Take a promised slot for an assignment. False if none was promised: the attempt must be refused.

        For an assignment that the worker already has, follow it by `release`: its slot was taken before, and
        the node has spent a credit on it.
        """
        promises = self._streams.get(stream)
        if promises is None or promises.outstanding(pool) <= 0:
            return False
        promises.taken[pool] += 1
        self._occupied[pool] += 1
        return True

    def release(self, pool: str) -> bool:
        """A taken slot is free. False, and nothing changed, if none is taken."""
        if self._occupied.get(pool, 0) <= 0:
            return False
        self._occupied[pool] -= 1
        return True

    def want(self, stream: int, pool: str, *, count: int) -> bool:
        """Wish to have `count` of a stream's promises back; True if that is more than was wished before."""
        promises = self._streams[stream]
        before = promises.wanted[pool]
        promises.wanted[pool] = promises.returned[pool] + count
        return promises.wanted[pool] > before

    def returned(self, stream: int, counts: Mapping[str, int]) -> bool:
        """The node has given back so many promises of a stream so far; True if slots have become free.

        A count below one already heard changes nothing. One beyond what was promised and is not taken frees
        only that.
        """
        promises = self._streams.get(stream)
        if promises is None:
            return False
        is_freed = False
        for pool, count in counts.items():
            freed = min(count - promises.returned.get(pool, count), promises.outstanding(pool))
            if freed > 0:
                promises.returned[pool] += freed
                is_freed = True
        return is_freed

    def granted(self, stream: int) -> dict[str, int]:
        """Counts for ``Hello``, ``Heartbeat`` and ``Outcomes`` of a stream."""
        return dict(self._streams[stream].granted)

    def wanted(self, stream: int) -> dict[str, int]:
        """Counts for ``Heartbeat.wanted`` of a stream, of pools from which anything is wanted."""
        promises = self._streams[stream]
        return {pool: count for pool, count in promises.wanted.items() if count > promises.returned[pool]}
