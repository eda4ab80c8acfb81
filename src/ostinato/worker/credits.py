"""The worker's slots over all of its streams: one ledger of grants per stream.

Grants are frozen by a drain for good, and while the worker cannot keep results safe.
"""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.wire.ledgers import GrantLedger


class Credits:
    """Grants of the present stream; what attempts of earlier streams occupy is not granted."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self._capacity = dict(capacity)
        self._ledger = GrantLedger(capacity)
        self._frozen: dict[str, int] | None = None
        self._is_stopped = False
        #: Why nothing is granted for now; empty while grants are given.
        self.pause_reason = ""

    def begin_stream(self) -> None:
        """A new stream begins: every slot that is not occupied is granted on it, or none if frozen."""
        self._ledger = GrantLedger(self._capacity, self._ledger.occupied)
        if self._frozen is not None:
            self._frozen = dict.fromkeys(self._capacity, 0)

    def take(self, pool: str) -> bool:
        """Occupy a granted slot for an assignment; False if none was granted."""
        return self._ledger.receive(pool)

    def give_back(self, pool: str) -> None:
        """A slot is free again."""
        self._ledger.release(pool)

    def stop_granting(self) -> None:
        """Grant nothing more; what was granted before may still arrive."""
        self._is_stopped = True
        self._freeze()

    def pause_granting(self, reason: str) -> None:
        """Grant nothing more until `resume_granting`; what was granted before may still arrive."""
        self.pause_reason = reason
        self._freeze()

    def resume_granting(self) -> None:
        """Grant what has become free meanwhile, unless granting was stopped; idempotent."""
        self.pause_reason = ""
        if not self._is_stopped:
            self._frozen = None

    def _freeze(self) -> None:
        if self._frozen is None:
            self._frozen = self._ledger.granted

    def granted(self) -> dict[str, int]:
        """Cumulative grants on this stream."""
        return self._ledger.granted if self._frozen is None else dict(self._frozen)
