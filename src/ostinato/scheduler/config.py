"""How a scheduler node behaves: the numbers of design section 11, in one struct."""

from __future__ import annotations

import msgspec

from ostinato.core.instants import DAY, MILLISECOND, SECOND
from ostinato.core.routing import Strategy
from ostinato.errors import UserError

#: A shorter worker lease cannot be honoured: heartbeats, kills and reconnects need their time.
WORKER_LEASE_MIN_US = 6 * SECOND


class NodeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of a node; durations in microseconds of monotonic time."""

    #: Where workers reach this node; every node tells it to every worker.
    address: str = "inprocess"
    #: Whether workers are told where all nodes are, to keep a stream to each.
    tells_nodes: bool = True
    strategy: Strategy = "least_loaded"
    ownership_lease_us: int = 3 * SECOND
    ownership_margin_us: int = 500 * MILLISECOND
    renewal_us: int = SECOND
    #: Between two looks at the other nodes.
    look_us: int = 200 * MILLISECOND
    worker_lease_us: int = 60 * SECOND
    #: An assignment not acknowledged by then takes its worker out of rotation.
    acknowledgement_us: int = 5 * SECOND
    #: A hint that somebody has committed work can be lost; the work cannot.
    safety_poll_us: int = 5 * SECOND
    #: Between two counts of live instances for the metrics, and two records of the workers for the lists.
    backlog_us: int = 15 * SECOND
    #: Most waiting instances looked at, and most outcomes committed, in one transaction.
    batch_count: int = 1000
    success_retention_us: int = 7 * DAY
    other_retention_us: int = 30 * DAY
    #: What workers must bring to join; empty: nothing.
    join_token: str = ""

    @property
    def heartbeat_us(self) -> int:
        """Interval of worker heartbeats: a twelfth of the lease, at most 5 s."""
        return min(self.worker_lease_us // 12, 5 * SECOND)

    @property
    def fresh_us(self) -> int:
        """A worker heard within this is there: three heartbeats."""
        return 3 * self.heartbeat_us

    @property
    def idle_us(self) -> int:
        """A node that no worker reaches for so long hands over to those that workers reach."""
        return self.worker_lease_us // 2

    def validate(self) -> None:
        """Raise ``INVALID_SETTING`` for a lease that could not be honoured (C077)."""
        if self.worker_lease_us < WORKER_LEASE_MIN_US:
            raise UserError(
                "INVALID_SETTING",
                f"{self.worker_lease_us / SECOND:g}s is too short",
                field="worker_lease",
                hint=f"at least {WORKER_LEASE_MIN_US // SECOND}s",
            )
