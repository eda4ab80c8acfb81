"""I5: state moves only by who owns the partition at the commit; one owner per epoch, and epochs rise.

And what a worker executes, an owner has written before: an assignment is committed, then sent.
"""

from __future__ import annotations

from ostinato.core.changes import Proof
from ostinato.core.states import State
from ostinato.simulation.checkers.checker import Checker, Known, Report, Transaction
from ostinato.simulation.checkers.remembered import Remembered
from ostinato.simulation.history import Event, ExecutionBegan, OwnerCommitted, RowCommitted


class OneDecisionMaker(Checker):
    """Knows who owns each partition, at which epoch, and which attempts were assigned."""

    invariant = "I5"
    listens = (Transaction, ExecutionBegan)

    def __init__(self, known: Known, report: Report) -> None:
        super().__init__(known, report)
        self._owners: dict[int, Proof] = {}
        self._gone: Remembered[str, None] = Remembered()
        self._assigned: Remembered[str, tuple[str, int]] = Remembered()

    def on(self, event: Event) -> None:
        if isinstance(event, ExecutionBegan):
            self._check_assigned(event)
            return
        assert isinstance(event, Transaction), "it listens to nothing else"
        for node in event.nodes:
            if not node.is_there:
                self._gone.put(node.node_id, None, at_us=event.at_us)
        for change in event.owners:
            self._check_owner(change)
        for row in event.rows:
            self._check_row(row)

    def _check_owner(self, change: OwnerCommitted) -> None:
        before, after = change.before, change.after
        subject = f"partition {after.partition}"
        known = self._owners.get(after.partition, Proof(after.partition, "", 0))
        self._owners[after.partition] = after
        if before != known:
            self.violate(change.at_us, subject, f"its owner was {known}, not {before}")
        if not after.owner:
            if after.epoch != before.epoch:
                self.violate(change.at_us, subject, "a hand-over changed its epoch")
        elif after.epoch <= before.epoch:
            self.violate(
                change.at_us,
                subject,
                f"{after.owner} takes it from {before.owner or 'nobody'} and epoch {before.epoch} "
                f"does not rise ({after.epoch})",
            )
        if after.owner in self._gone:
            self.violate(change.at_us, subject, f"{after.owner}, whose row is gone, takes it")

    def _check_row(self, row: RowCommitted) -> None:
        instance = row.after
        if instance is None:
            return
        if row.before is None and instance.fire_us is None:
            # Anyone may submit.
            return
        subject, proof = instance.id, row.proof
        if proof is None:
            self.violate(row.at_us, subject, f"{row.process} moved it to {instance.state} without a proof")
            return
        if proof.partition != instance.partition:
            self.violate(row.at_us, subject, f"moved under the proof of partition {proof.partition}")
        owner = self._owners.get(instance.partition)
        if owner != proof:
            self.violate(
                row.at_us,
                subject,
                f"{row.process} moved it to {instance.state} as {proof.owner} at epoch {proof.epoch}; "
                f"the owner is {owner}",
            )
        before = row.before
        if before is not None and instance.state is State.RUNNING and before.state is not State.RUNNING:
            if instance.attempt != before.attempt + 1:
                self.violate(
                    row.at_us, subject, f"attempt {before.attempt} is followed by {instance.attempt}"
                )
            if instance.attempt_id in self._assigned:
                self.violate(row.at_us, subject, f"attempt id {instance.attempt_id} was used before")
            self._assigned.put(instance.attempt_id, (instance.id, instance.attempt), at_us=row.at_us)

    def _check_assigned(self, event: ExecutionBegan) -> None:
        if self._assigned.get(event.attempt_id) != (event.instance_id, event.attempt):
            self.violate(
                event.at_us,
                event.instance_id,
                f"{event.worker} executes attempt {event.attempt} ({event.attempt_id}), "
                "whose assignment was not written",
            )
