"""What a fire does when earlier instances of its task have not ended: the overlap policies.

Every instance that is not terminal counts: blocked, pending, running, waiting for a retry, replays too
(design section 5). A fire that is refused still leaves an instance, ``skipped``, with the reason given here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, NamedTuple, TypeAlias

from ostinato.core.model import Instance
from ostinato.errors import UserError

OVERLAP_MODES = ("allow", "forbid", "queue", "replace")
#: Instances that may wait behind the one at work (design section 11).
QUEUE_BOUND_DEFAULT = 100
#: Ids of instances that a reason lists before it says how many more there are.
_IDS_SHOWN = 3


#: A firing of a trigger: its id and the scheduled instant.
Fire: TypeAlias = tuple[str, int]


def fire_of(instance: Instance) -> Fire | None:
    """The fire that has made an instance, alone or as one of its shards; None for a submission."""
    return None if instance.fire_us is None else (instance.fire_trigger, instance.fire_us)


def sharded_fires(instances: Iterable[Instance]) -> list[Fire]:
    """The fires of those that have shards, each once."""
    sharded = (fire_of(instance) for instance in instances if instance.shard_total > 1)
    return list(dict.fromkeys(fire for fire in sharded if fire is not None))


class LiveInstance(NamedTuple):
    """An instance of the task that has not reached a terminal state."""

    instance_id: str
    state: str
    due_us: int
    #: It has been created by ``replace`` and waits for the instances before it to end.
    is_waiting_replacement: bool = False
    #: What its shards have in common; None: no fire made it, so it is the only one.
    fire: Fire | None = None


def stands_before(other: Instance, waiting: Instance) -> bool:
    """Whether `other`, which is live, has to end before `waiting` may start.

    What has started has to, whenever it was made. What has not only if it is older: a younger one, due later
    perhaps, will be put behind this one itself. `other` may have been read later than `waiting`, and be the
    same instance, started by another node meanwhile: it stands before nothing of itself. Nor do shards of one
    fire stand before each other.
    """
    if other.id == waiting.id or (waiting.shard_total > 1 and fire_of(other) == fire_of(waiting)):
        return False
    return other.attempt > 0 or (other.created_us, other.id) < (waiting.created_us, waiting.id)


class OverlapDecision(NamedTuple):
    """What becomes of the new fire.

    ``create``: an instance that may start. ``wait``: an instance that may start only once the live ones have
    ended (``queue``: in order of due time; ``replace``: once those in `cancel` are gone). ``skip``: an
    instance that ends at once as ``skipped``.
    """

    action: Literal["create", "skip", "wait"]
    #: Ids of instances to cancel, earliest due first, each with `replaced_cause` as its cause.
    cancel: tuple[str, ...]
    #: In words, for the history; empty for an ordinary ``create``.
    reason: str


def decide_overlap(
    mode: str, *, live: Sequence[LiveInstance], queue_bound: int = QUEUE_BOUND_DEFAULT
) -> OverlapDecision:
    """Decision for one fire; `live` in any order, terminal instances not among them.

    Raises ``INVALID_VALUE`` (field ``overlap``) on an unknown mode.
    """
    if mode not in OVERLAP_MODES:
        raise UserError(
            "INVALID_VALUE",
            f"{mode!r} is not known",
            field="overlap",
            hint=f"one of {', '.join(OVERLAP_MODES)}",
        )
    if mode == "allow" or not live:
        return OverlapDecision("create", (), "")
    ordered = sorted(live, key=lambda instance: (instance.due_us, instance.instance_id))
    if mode == "forbid":
        return OverlapDecision("skip", (), f"overlap forbid: {_names(ordered)} not ended")
    if mode == "queue":
        return _queue(ordered, queue_bound)
    # A replacement that still waits is replaced like any other: it ends without having started, and the new
    # one waits for what both were waiting for (I1: never beside the old attempt).
    return OverlapDecision(
        "wait",
        tuple(instance.instance_id for instance in ordered),
        f"overlap replace: waits until {_names(ordered, plural='have', single='has')} ended",
    )


def _queue(ordered: list[LiveInstance], queue_bound: int) -> OverlapDecision:
    # The shards of a fire are one.
    count = len({instance.fire or instance.instance_id for instance in ordered})
    if count - 1 >= queue_bound:
        # Those that count include submissions that their owner has yet to admit: "live", not "wait".
        verb = "is" if count == 1 else "are"
        return OverlapDecision(
            "skip",
            (),
            f"overlap queue: {count} {verb} live, at most {queue_bound} may wait behind the first",
        )
    return OverlapDecision("wait", (), f"overlap queue: waits behind {_names(ordered, plural='', single='')}")


def replaced_cause(new_instance_id: str) -> str:
    """Cause that a cancelled instance shows for having been replaced."""
    return f"replaced by {new_instance_id}"


def _names(instances: list[LiveInstance], *, plural: str = "have", single: str = "has") -> str:
    named = ", ".join(f"{item.instance_id} ({item.state})" for item in instances[:_IDS_SHOWN])
    more = len(instances) - _IDS_SHOWN
    verb = single if len(instances) == 1 else plural
    return f"{named}{f' and {more} more' if more > 0 else ''}{f' {verb}' if verb else ''}"
