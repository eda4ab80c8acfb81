"""What both sides of a stream keep count of, purely: credits, grants, unacknowledged outcomes.

A *grant* is a free slot that a worker has promised to one node on one stream; the node's unused grants are
its *credits*. Grants travel as one count per pool that only rises, so a message that comes twice or late
changes nothing:

    worker   GrantLedger    granted = slots promised so far     ──►  node   CreditLedger
             receive(pool)  an assignment takes a promised slot ◄──         use(pool)
             release(pool)  its slot is free, and promised anew ──►         update(granted)

At any time (slots promised and not taken) + (slots taken) is at most the capacity. Ledgers of grants and
credits live as long as their stream; ``UnacknowledgedOutcomes`` lives as long as the worker, and repeats on
each new stream.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from ostinato.core.model import Outcome
from ostinato.errors import invariant


class CreditLedger:
    """Node side: how many assignments a worker still takes, by pool."""

    def __init__(self, granted: Mapping[str, int] | None = None) -> None:
        """`granted` as in the worker's ``Hello``."""
        self._granted: dict[str, int] = {}
        self._used: dict[str, int] = {}
        self.update(granted or {})

    def update(self, granted: Mapping[str, int]) -> bool:
        """Take over the counts of a ``Heartbeat`` or ``Outcomes``; True if there is more credit than before.

        A count below one already seen is ignored, as are pools that are not named.
        """
        rose = False
        for pool, count in granted.items():
            if count > self._granted.get(pool, 0):
                self._granted[pool] = count
                rose = True
        return rose

    def available(self, pool: str) -> int:
        """Assignments of the pool that may be sent now; never negative."""
        return self._granted.get(pool, 0) - self._used.get(pool, 0)

    def use(self, pool: str, count: int = 1) -> None:
        """Count assignments as sent, or as about to be. Raises ``INVARIANT`` beyond what is available."""
        invariant(
            0 <= count <= self.available(pool),
            "credits",
            f"{count} assignments of pool {pool} with {self.available(pool)} credits",
        )
        self._used[pool] = self._used.get(pool, 0) + count

    def give_back(self, pool: str, count: int = 1) -> None:
        """Undo `use` for assignments that were not sent after all. Raises ``INVARIANT`` beyond those used."""
        used = self._used.get(pool, 0)
        invariant(0 <= count <= used, "credits", f"{count} credits of pool {pool} given back, {used} used")
        self._used[pool] = used - count

    @property
    def pools(self) -> list[str]:
        """Pools with credit, sorted."""
        return sorted(pool for pool in self._granted if self.available(pool) > 0)


class GrantLedger:
    """Worker side: which of its slots are promised on one stream, by pool."""

    def __init__(self, capacity: Mapping[str, int], occupied: Mapping[str, int] | None = None) -> None:
        """Promise every slot of `capacity` but the `occupied` ones, where attempts of earlier streams run."""
        self._capacity = dict(capacity)
        self._occupied = {pool: (occupied or {}).get(pool, 0) for pool in capacity}
        self._granted = {pool: max(0, slots - self._occupied[pool]) for pool, slots in capacity.items()}
        self._received = dict.fromkeys(capacity, 0)

    @property
    def granted(self) -> dict[str, int]:
        """Counts for ``Hello``, ``Heartbeat`` and ``Outcomes``."""
        return dict(self._granted)

    @property
    def occupied(self) -> dict[str, int]:
        """Slots taken, for the ledger of the next stream."""
        return dict(self._occupied)

    def outstanding(self, pool: str) -> int:
        """Slots promised to the node for which no assignment has come."""
        return self._granted.get(pool, 0) - self._received.get(pool, 0)

    def receive(self, pool: str) -> bool:
        """Take a promised slot for an assignment. False if none was promised: the attempt must be refused.

        For an assignment that the worker already has, follow it by `release`: its slot was taken before, and
        the node has spent a credit on it.
        """
        if self.outstanding(pool) <= 0:
            return False
        self._received[pool] += 1
        self._occupied[pool] += 1
        return True

    def release(self, pool: str) -> bool:
        """Promise a slot whose attempt has ended again. False, and nothing changed, if none is taken."""
        if self._occupied.get(pool, 0) <= 0:
            return False
        self._occupied[pool] -= 1
        # More may be occupied than there are slots when a worker restarts its pools smaller.
        if self.outstanding(pool) + self._occupied[pool] < self._capacity[pool]:
            self._granted[pool] += 1
        return True


class UnacknowledgedOutcomes:
    """Worker side: outcomes in the order in which attempts ended, kept until acknowledged."""

    def __init__(self) -> None:
        self._pending: dict[str, Outcome] = {}
        # Attempt ids still to be sent on this stream; a dict keeps their order.
        self._unsent: dict[str, None] = {}
        self._size_bytes = 0

    def __len__(self) -> int:
        return len(self._pending)

    @property
    def size_bytes(self) -> int:
        """Bytes of what is kept, estimated by `outcome_bytes`; the worker's bound is compared with it."""
        return self._size_bytes

    @property
    def pending(self) -> list[Outcome]:
        """All that is kept, oldest first."""
        return list(self._pending.values())

    @property
    def unsent_count(self) -> int:
        """Outcomes that `take` would still return."""
        return len(self._unsent)

    def add(self, outcome: Outcome) -> bool:
        """Keep `outcome` and queue it for sending. False if its attempt already has one: the first stands."""
        if outcome.attempt_id in self._pending:
            return False
        self._pending[outcome.attempt_id] = outcome
        self._unsent[outcome.attempt_id] = None
        self._size_bytes += outcome_bytes(outcome)
        return True

    def take(self, *, count_max: int, bytes_max: int) -> list[Outcome]:
        """The next outcomes to send on this stream, which then count as sent; one at least, if any."""
        taken: list[Outcome] = []
        taken_bytes = 0
        for attempt_id in self._unsent:
            outcome = self._pending[attempt_id]
            taken_bytes += outcome_bytes(outcome)
            if taken and (len(taken) >= count_max or taken_bytes > bytes_max):
                break
            taken.append(outcome)
        for outcome in taken:
            del self._unsent[outcome.attempt_id]
        return taken

    def resume(self) -> None:
        """A new stream has begun: everything kept is to be sent again, in its old order."""
        self._unsent = dict.fromkeys(self._pending)

    def acknowledge(self, attempt_ids: Iterable[str]) -> list[Outcome]:
        """Forget these outcomes and return those that were kept; unknown and repeated ids are ignored."""
        forgotten: list[Outcome] = []
        for attempt_id in attempt_ids:
            outcome = self._pending.pop(attempt_id, None)
            if outcome is not None:
                self._unsent.pop(attempt_id, None)
                self._size_bytes -= outcome_bytes(outcome)
                forgotten.append(outcome)
        return forgotten


#: More than the ids and numbers of an outcome take.
_OUTCOME_BYTES_OVERHEAD = 256


def outcome_bytes(outcome: Outcome) -> int:
    """Estimate of what an outcome takes in memory and on the wire, from the parts that can be long."""
    size = _OUTCOME_BYTES_OVERHEAD + len(outcome.result or b"") + len(outcome.unstarted_reason)
    if outcome.failure is not None:
        failure = outcome.failure
        size += len(failure.message) + len(failure.traceback) + len(failure.detail)
        size += sum(len(cause.message) for cause in failure.chain)
    return size
