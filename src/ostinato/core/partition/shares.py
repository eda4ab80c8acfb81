"""Fair shares of the partitions: what a node is to release and what it is to take; pure.

With n live nodes each owns ⌊p/n⌋ or ⌈p/n⌉ of p partitions; the first by id have one more. Every node
works out the same plan from what it sees, and carries out its own part of it:

* who has more than its share releases what is too much, the highest numbers first;
* what is free, or belongs to nobody who lives, is dealt out to those who have less, in order of their ids.

Nodes that are idle (``standing``) count only where all are: they own nothing, and release what they have.

Nothing else moves, so nothing moves where nothing has changed. Nodes that see different things for a moment
may plan the same partition for two of them: the store gives it to one, and the next look goes on from there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

import msgspec


class Moves(msgspec.Struct, frozen=True):
    """What one node is to do, by number of partition."""

    release: tuple[int, ...] = ()
    take: tuple[int, ...] = ()


def shares(partition_count: int, live: Collection[str]) -> dict[str, int]:
    """How many partitions each live node is to own; empty where nobody lives."""
    ordered = sorted(set(live))
    if not ordered:
        return {}
    base, rest = divmod(partition_count, len(ordered))
    return {node_id: base + (place < rest) for place, node_id in enumerate(ordered)}


def moves(node_id: str, *, owners: Sequence[str], live: Collection[str], idle: Collection[str] = ()) -> Moves:
    """The part of `node_id` in the plan. `owners` names each partition's owner, empty for none.

    `idle` are those of `live` that take no part in the sharing. A node that does not live does nothing.
    """
    if node_id not in live:
        return Moves()
    sharing = set(live) - set(idle) or set(live)
    share = dict.fromkeys(sorted(set(live) - sharing), 0) | shares(len(owners), sharing)
    held: dict[str, list[int]] = {name: [] for name in share}
    free: list[int] = []
    for partition, owner in enumerate(owners):
        held.get(owner, free).append(partition)
    dealt = 0
    for name, wanted in share.items():
        missing = max(0, wanted - len(held[name]))
        if name == node_id:
            return Moves(release=tuple(held[name][wanted:]), take=tuple(free[dealt : dealt + missing]))
        dealt += missing
    return Moves()
