"""Which of the fires that are due now really fire: the ordinary ones, and those that were missed.

A fire is *on time* when it is at most ``ON_TIME_US`` late, or when it is the only one due and at most
``BUSY_US`` late (the scheduler was busy, not down). On-time fires fire whatever the mode, with their
lateness told. Every other due fire is *missed*, and the trigger's mode decides:

* ``fire_once``: the latest missed fire stands for all, if it is at most the grace late. Nothing is made up
  when an on-time fire is due as well, since that one stands for the missed ones.
* ``fire_all``: the latest fires up to the bound, oldest first. The bound limits it, not the grace.
* ``skip``: nothing.

Whatever is not made up is told in words, never dropped in silence. The work is bounded for any gap: at most
a few thousand steps of the schedule, whether it was a minute or a century (C027, C165).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple, TypeAlias

from ostinato.core.instants import SECOND, format_duration, format_instant
from ostinato.core.schedule.interval import interval_fire_count
from ostinato.core.schedule.trigger import IntervalTrigger, Trigger, next_fire

#: A fire this late is on time whatever happened before it.
ON_TIME_US = 5 * SECOND
#: The only fire that is due may be this late and still be no misfire.
BUSY_US = 60 * SECOND
#: A fire this late says so (C031).
LATE_US = SECOND
#: Missed fires are counted one by one up to here; beyond, the plan says "at least".
COUNT_MAX = 2000

#: More than the fires that can be on time at once (the shortest interval is 100 ms).
_LATEST_MIN = 64

#: First fire strictly after an instant.
_Step: TypeAlias = Callable[[int], int | None]


class PlannedFire(NamedTuple):
    """A fire to create now."""

    scheduled_us: int
    #: How long after its time it fires; 0 or more (I4).
    late_us: int
    #: The fire was missed, and the trigger's mode makes it up.
    made_up: bool


class FirePlan(NamedTuple):
    """What to do at one look at a trigger; all fires up to now, or to the end asked for, are dealt with."""

    #: Ascending, each scheduled instant once.
    fires: tuple[PlannedFire, ...]
    #: Missed fires, made up or not. A lower bound when `missed_is_at_least`.
    missed_count: int
    missed_first_us: int | None
    missed_last_us: int | None
    #: How many were missed and why none of them is made up; None where one is, or nothing was missed.
    skipped_reason: str | None
    #: First fire strictly after that; None: no further run.
    next_fire_us: int | None
    #: What happened, for the history; empty when nothing was late.
    note: str
    missed_is_at_least: bool = False


class _Due(NamedTuple):
    """Fires that are due: the latest ones, and how many there are in all."""

    latest: list[int]
    total: int
    #: The first one after these; None: no further run.
    upcoming_us: int | None
    is_at_least: bool = False


def plan_fires(
    trigger: Trigger,
    *,
    next_fire_us: int,
    now_us: int,
    created_us: int,
    spread_key: str,
    until_us: int | None = None,
) -> FirePlan:
    """Plan for a trigger whose stored next fire is `next_fire_us`, at the instant `now_us`.

    Before its time nothing fires and the next fire stays as it is (I4). `until_us`: later fires are not this
    plan's, though they are due; how late those up to it are is still told by now.
    """
    end_us = now_us if until_us is None else min(now_us, until_us)
    if end_us < next_fire_us:
        return FirePlan((), 0, None, None, None, next_fire_us, "")
    step = partial(next_fire, trigger, created_us=created_us, spread_key=spread_key)
    due = _due_fires(trigger, step, first_us=next_fire_us, now_us=end_us)
    upcoming_us = due.upcoming_us
    on_time_limit_us = BUSY_US if due.total == 1 else ON_TIME_US
    on_time = [fire_us for fire_us in due.latest if now_us - fire_us <= on_time_limit_us]
    missed = due.latest[: len(due.latest) - len(on_time)]
    fires = tuple(PlannedFire(fire_us, now_us - fire_us, False) for fire_us in on_time)
    missed_count = due.total - len(on_time)
    if missed_count == 0:
        return FirePlan(fires, 0, None, None, None, upcoming_us, _late_note(fires))

    last_us = missed[-1]
    made_up_us, why = _made_up(trigger, missed, on_time=on_time, now_us=now_us, missed_count=missed_count)
    amount = f"{'at least ' if due.is_at_least else ''}{missed_count}"
    note = (
        f"{amount} {'fire' if missed_count == 1 else 'fires'} missed, "
        f"{format_instant(next_fire_us)} to {format_instant(last_us)}; {why}"
    )
    return FirePlan(
        fires=(*(PlannedFire(fire_us, now_us - fire_us, True) for fire_us in made_up_us), *fires),
        missed_count=missed_count,
        missed_first_us=next_fire_us,
        missed_last_us=last_us,
        skipped_reason=None if made_up_us else note,
        next_fire_us=upcoming_us,
        note=note,
        missed_is_at_least=due.is_at_least,
    )


def _made_up(
    trigger: Trigger, missed: list[int], *, on_time: list[int], now_us: int, missed_count: int
) -> tuple[list[int], str]:
    """Missed fires that fire after all, and the rule that says so."""
    late = format_duration(now_us - missed[-1])
    if trigger.misfire == "skip":
        return [], f"misfire skip makes up none (the last is {late} late)"
    if trigger.misfire == "fire_all":
        room = min(max(0, trigger.misfire_bound - len(on_time)), len(missed))
        kept = missed[len(missed) - room :]
        limit = "" if len(kept) == missed_count else f", misfire_bound is {trigger.misfire_bound}"
        return kept, f"misfire fire_all makes up {len(kept)}{limit}"
    if on_time:
        return [], f"the fire of {format_instant(on_time[0])}, on time, stands for all (misfire fire_once)"
    grace = format_duration(trigger.misfire_grace_us)
    if now_us - missed[-1] > trigger.misfire_grace_us:
        return [], f"the last is {late} late, beyond the grace of {grace}"
    return [missed[-1]], f"misfire fire_once makes up the last one, {late} late"


def _late_note(fires: tuple[PlannedFire, ...]) -> str:
    latest_us = max((fire.late_us for fire in fires), default=0)
    return f"fired {format_duration(latest_us)} late" if latest_us >= LATE_US else ""


def _due_fires(trigger: Trigger, step: _Step, *, first_us: int, now_us: int) -> _Due:
    """Fires in [`first_us`, `now_us`]: the latest ones that can matter, and the count of all."""
    wanted = max(trigger.misfire_bound + 1, _LATEST_MIN)
    if isinstance(trigger, IntervalTrigger):
        return _due_interval_fires(trigger, step, first_us=first_us, now_us=now_us, wanted=wanted)
    latest = deque([first_us], maxlen=wanted)
    count = 1
    fire_us = step(first_us)
    while fire_us is not None and fire_us <= now_us:
        if count == COUNT_MAX:
            found = _latest_fires(step, first_us=first_us, now_us=now_us, wanted=wanted)
            return _Due(found, COUNT_MAX, step(now_us), is_at_least=True)
        latest.append(fire_us)
        count += 1
        fire_us = step(fire_us)
    return _Due(list(latest), count, fire_us)


def _due_interval_fires(
    trigger: IntervalTrigger, step: _Step, *, first_us: int, now_us: int, wanted: int
) -> _Due:
    second_us = step(first_us)
    if second_us is None or second_us > now_us:
        return _Due([first_us], 1, second_us)
    rest = interval_fire_count(trigger.every_us, first_us=second_us, last_us=now_us)
    last_us = second_us + (rest - 1) * trigger.every_us
    latest = [last_us - back * trigger.every_us for back in range(min(rest, wanted) - 1, -1, -1)]
    return _Due([first_us, *latest] if rest < wanted else latest, rest + 1, step(last_us))


def _latest_fires(step: _Step, *, first_us: int, now_us: int, wanted: int) -> list[int]:
    """The latest `wanted` fires in [`first_us`, `now_us`], which holds more than ``COUNT_MAX`` of them.

    Looks at a stretch that ends now and doubles it until it holds enough. A stretch that turns out far too
    full (a burst that the doubling reached all at once) is halved towards the one before.
    """
    limit = 2 * wanted
    too_short_us, too_long_us = 0, now_us - first_us + 1
    stretch_us = min(60 * SECOND, too_long_us)
    while True:
        found = _walk(step, after_us=now_us - stretch_us, now_us=now_us, limit=limit)
        if wanted <= len(found) < limit:
            return found[-wanted:]
        if len(found) == limit:
            too_long_us = stretch_us
        else:
            too_short_us = stretch_us
        doubled_us = stretch_us * 2
        stretch_us = doubled_us if doubled_us < too_long_us else (too_short_us + too_long_us) // 2


def _walk(step: _Step, *, after_us: int, now_us: int, limit: int) -> list[int]:
    """Fires in (`after_us`, `now_us`], at most the first `limit`."""
    found: list[int] = []
    fire_us = step(after_us)
    while fire_us is not None and fire_us <= now_us and len(found) < limit:
        found.append(fire_us)
        fire_us = step(fire_us)
    return found
