"""Whether a node serves workers, and when one that none reaches hands over to those that they do reach; pure.

A node that only its workers cannot reach keeps renewing itself, so nobody takes its partitions, and their
work stands still. It notices that itself, by its own monotonic clock:

    last heartbeat ├──────────── patience ────────────┤
    looks without a gap find that others serve ├──── patience ────┤ idle: its partitions go to the others

Half a worker lease of patience: time for three attempts to connect, and short of the end of the lease of what
its workers run, so that the next owner can go on with it. Nothing but a worker ends it. Where no node is
reached, none becomes idle; one that is stays so when the others lose their workers too, so that nothing
moves to and fro.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

#: ``serving``: a worker is heard. ``idle``: none is, while others serve: it takes no part in the sharing of
#: partitions. Empty: neither.
Standing: TypeAlias = Literal["", "serving", "idle"]


class StandingWatch:
    """One node's memory of when it was reached; after a start or a freeze all patience lies before it."""

    def __init__(self, *, patience_us: int, fresh_us: int, gap_us: int) -> None:
        """A worker heard within `fresh_us` is there; looks that are `gap_us` apart prove nothing together."""
        self._patience_us = patience_us
        self._fresh_us = fresh_us
        self._gap_us = gap_us
        #: Since when every look has found that others serve.
        self._others_since_us: int | None = None
        self._heard_us: int | None = None
        self._looked_us: int | None = None

    def look(self, standing: Standing, *, now_us: int, heard_us: int | None, others_serve: bool) -> Standing:
        """What this node, which was `standing`, is now.

        `heard_us` is when the newest heartbeat of a connected worker came; None: no worker is connected.
        """
        has_gap = self._looked_us is None or now_us - self._looked_us >= self._gap_us
        self._looked_us = now_us
        if has_gap or not others_serve:
            self._others_since_us = None
        if others_serve and self._others_since_us is None:
            self._others_since_us = now_us
        if heard_us is not None:
            self._heard_us = heard_us
            if now_us - heard_us < self._fresh_us:
                return "serving"
        if standing == "idle":
            return "idle"
        if self._others_since_us is None:
            return ""
        since_us = max(self._others_since_us, self._heard_us or self._others_since_us)
        return "idle" if now_us - since_us >= self._patience_us else ""
