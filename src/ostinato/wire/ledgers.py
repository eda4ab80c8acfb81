"""What both sides of a stream keep count of, purely: credits and unacknowledged outcomes.

A *grant* is a free slot that a worker has promised to one node on one stream; the node's unused grants are
its *credits*. Everything travels as one count per pool and stream that only rises, so a message that comes
twice or late changes nothing:

    worker   SlotLedger               granted = slots promised so far     ──►  node   CreditLedger
             take(stream, pool)       an assignment takes a promised slot ◄──         use(pool)
             release(pool), promise   its slot is free, and promised anew ──►         update(granted)
             want(stream, pool)       unused promises are wanted back     ──►         want(wanted)
             returned(stream, …)      they are free                       ◄──         returned

Ledgers of promises and credits live as long as their stream. ``UnacknowledgedOutcomes`` lives as long as the
worker; an ``OutcomeQueue`` says which of them one stream has yet to carry.
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
        self._wanted: dict[str, int] = {}
        self._returned: dict[str, int] = {}
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
        return self._granted.get(pool, 0) - self._used.get(pool, 0) - self._returned.get(pool, 0)

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

    def want(self, wanted: Mapping[str, int]) -> None:
        """The worker would like to have so many credits back, all together; the newest wish counts.

        A pool that is not named is not wanted any more.
        """
        self._wanted = dict(wanted)

    def return_wanted(self) -> bool:
        """Give back what is wanted and not used; True if anything is. Nothing more may be sent on that."""
        is_any = False
        for pool, wanted in self._wanted.items():
            count = min(wanted - self._returned.get(pool, 0), self.available(pool))
            if count > 0:
                self._returned[pool] = self._returned.get(pool, 0) + count
                is_any = True
        return is_any

    @property
    def returned(self) -> dict[str, int]:
        """Counts for ``HeartbeatAcknowledged``: credits given back so far."""
        return dict(self._returned)

    @property
    def pools(self) -> list[str]:
        """Pools with credit, sorted."""
        return sorted(pool for pool in self._granted if self.available(pool) > 0)


class UnacknowledgedOutcomes:
    """Worker side: outcomes in the order in which attempts ended, kept until acknowledged."""

    def __init__(self) -> None:
        self._pending: dict[str, Outcome] = {}
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

    def get(self, attempt_id: str) -> Outcome | None:
        """The outcome of an attempt, if it is kept."""
        return self._pending.get(attempt_id)

    def add(self, outcome: Outcome) -> bool:
        """Keep `outcome`. False if its attempt already has one: the first stands."""
        if outcome.attempt_id in self._pending:
            return False
        self._pending[outcome.attempt_id] = outcome
        self._size_bytes += outcome_bytes(outcome)
        return True

    def acknowledge(self, attempt_ids: Iterable[str]) -> list[Outcome]:
        """Forget these outcomes and return those that were kept; unknown and repeated ids are ignored."""
        forgotten: list[Outcome] = []
        for attempt_id in attempt_ids:
            outcome = self._pending.pop(attempt_id, None)
            if outcome is not None:
                self._size_bytes -= outcome_bytes(outcome)
                forgotten.append(outcome)
        return forgotten


class OutcomeQueue:
    """Worker side: which of the unacknowledged outcomes one stream has yet to carry, and which it has."""

    def __init__(self, kept: UnacknowledgedOutcomes) -> None:
        self._kept = kept
        # Attempt ids; dicts keep their order.
        self._unsent: dict[str, None] = {}
        self._sent: dict[str, None] = {}

    @property
    def unsent_count(self) -> int:
        """Outcomes that `take` would still return, if none has been acknowledged meanwhile."""
        return len(self._unsent)

    @property
    def sent_count(self) -> int:
        """Outcomes sent on this stream that nobody has answered."""
        return len(self._sent)

    def add(self, attempt_ids: Iterable[str]) -> None:
        """Send these, in this order, after what waits already, but for those whose answer is awaited."""
        for attempt_id in attempt_ids:
            if attempt_id not in self._sent:
                self._unsent.setdefault(attempt_id)

    def take(self, *, count_max: int, bytes_max: int) -> list[Outcome]:
        """The next outcomes to send, which then count as sent; one at least, if any."""
        taken: list[Outcome] = []
        taken_bytes = 0
        gone: list[str] = []
        for attempt_id in self._unsent:
            outcome = self._kept.get(attempt_id)
            if outcome is None:
                gone.append(attempt_id)
                continue
            taken_bytes += outcome_bytes(outcome)
            if taken and (len(taken) >= count_max or taken_bytes > bytes_max):
                break
            taken.append(outcome)
        for attempt_id in gone:
            del self._unsent[attempt_id]
        for outcome in taken:
            del self._unsent[outcome.attempt_id]
            self._sent[outcome.attempt_id] = None
        return taken

    def answered(self, attempt_ids: Iterable[str]) -> None:
        """These need not be sent here any more: somebody has them, or this node does not want them."""
        for attempt_id in attempt_ids:
            self._sent.pop(attempt_id, None)
            self._unsent.pop(attempt_id, None)

    def repeat(self) -> None:
        """Something was dropped: everything that was sent here and not answered is sent again, first."""
        self._unsent = {**self._sent, **self._unsent}
        self._sent = {}


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
