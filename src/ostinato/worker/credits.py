"""The worker's slots over all of its streams: one ledger of grants per stream, frozen by a drain."""

from __future__ import annotations

from collections.abc import Mapping

from ostinato.wire.ledgers import GrantLedger


class Credits:
    """Grants of the present stream; what attempts of earlier streams occupy is not granted."""

    def __init__(self, capacity: Mapping[str, int]) -> None:
        self._capacity = dict(capacity)
        self._ledger = GrantLedger(capacity)
        self._frozen: dict[str, int] | None = None

    def begin_stream(self) -> None:
        """A new stream begins: every slot that is not occupied is granted on it, or none after a drain."""
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
        self._frozen = self._ledger.granted

    def granted(self) -> dict[str, int]:
        """Cumulative grants on this stream."""
        return self._ledger.granted if self._frozen is None else dict(self._frozen)
