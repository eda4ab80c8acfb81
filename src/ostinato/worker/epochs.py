"""The newest owner of each partition that the worker has heard of; pure.

Streams of several nodes know no common order: what a former owner has sent may arrive long after its
successor was heard. Epochs rise from owner to owner, so the worker can tell (I1).
"""

from __future__ import annotations

from collections.abc import Sequence


class Epochs:
    """Highest epoch heard, by partition."""

    def __init__(self) -> None:
        self._newest: dict[int, int] = {}

    def forget(self) -> None:
        """No stream is open, so nothing of a former owner can arrive any more.

        What is known is not needed then, and would bar every owner after a database was restored.
        """
        self._newest.clear()

    def current(self, partitions: Sequence[int], epochs: Sequence[int]) -> Sequence[int]:
        """Those of a node's partitions of which no later owner is known; it may say nothing of epochs."""
        if len(epochs) != len(partitions):
            return partitions
        return [number for number, epoch in zip(partitions, epochs, strict=True) if self.hear(number, epoch)]

    def hear(self, partition: int, epoch: int) -> bool:
        """Somebody speaks as the owner in this epoch (0: it does not say); False if a later one is known."""
        newest = self._newest.get(partition, 0)
        if epoch > newest:
            self._newest[partition] = epoch
        return not epoch or epoch >= newest
