"""A node that another has taken a partition from does not believe in it any more.

Its belief ends a second before anybody may find it dead by its counter. That another finds its session lock
free is earlier, and allowed for by the wait of whoever takes over; so this is judged only where there are no
such locks.
"""

from __future__ import annotations

from ostinato.core.changes import Proof
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.history import Event


class BeliefEnds(Checker):
    """Compares, at every commit, what living nodes believe in with what the database shows."""

    invariant = "belief"
    listens = (Transaction,)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._owners: dict[int, Proof] = {}
        self._told: set[Proof] = set()

    def on(self, event: Event) -> None:
        assert isinstance(event, Transaction), "it listens to nothing else"
        for change in event.owners:
            self._owners[change.after.partition] = change.after
        if self.known.has_session_locks:
            return
        for proof in self.known.believed():
            owner = self._owners.get(proof.partition)
            if owner is None or owner == proof or not owner.owner or owner.epoch <= proof.epoch:
                continue
            if proof not in self._told:
                self._told.add(proof)
                self.violate(
                    event.at_us,
                    f"partition {proof.partition}",
                    f"{proof.owner} believes in it at epoch {proof.epoch}, and {owner.owner} has taken it "
                    f"at epoch {owner.epoch}",
                )
