"""Who of the other nodes is dead, by their counters and the watcher's own monotonic clock; pure.

A node that lives raises its counter once a second. It believes in its partitions for an ownership lease, less
a margin, after it *sent* its newest renewal; whoever watches it waits for a lease and a margin after it has
*seen* that renewal. So no clock is compared with another one, and drift stays within the margins:

    owner    sent ├──────── lease − margin ────────┤ decides nothing more
    watcher        seen ├────────── lease + margin ──────────────┤ dead
"""

from __future__ import annotations

from collections.abc import Collection, Mapping

import msgspec


class _Seen(msgspec.Struct):
    counter: int
    #: When the look that first saw this counter had come back.
    since_us: int


class NodeWatch:
    """One watcher's memory of the others; nothing is known of a node before it was seen once."""

    def __init__(self, *, lease_us: int, margin_us: int, gap_us: int) -> None:
        """A watcher that has not looked for `gap_us` says nothing about the time before.

        Its database may have been away, and have come back for it a moment before it does for the others.
        """
        self._patience_us = lease_us + margin_us
        self._gap_us = gap_us
        self._seen: dict[str, _Seen] = {}
        self._looked_us: int | None = None

    def look(
        self,
        counters: Mapping[str, int],
        *,
        sent_us: int,
        received_us: int,
        freed: Collection[str] = (),
    ) -> dict[str, int]:
        """Take over what a look found; returns the dead, each with the counter with which it was found dead.

        `counters` are those of all other nodes that have a row. The look was asked at `sent_us` and answered
        at `received_us`. `freed` are nodes whose session lock has become free: they are dead at once.
        """
        if self._looked_us is None or sent_us - self._looked_us >= self._gap_us:
            self._seen.clear()
        self._looked_us = received_us
        dead: dict[str, int] = {}
        for node_id, counter in counters.items():
            seen = self._seen.get(node_id)
            if seen is None or seen.counter != counter:
                self._seen[node_id] = seen = _Seen(counter, received_us)
            if node_id in freed or sent_us - seen.since_us >= self._patience_us:
                dead[node_id] = counter
        for node_id in self._seen.keys() - counters.keys():
            del self._seen[node_id]
        return dead
