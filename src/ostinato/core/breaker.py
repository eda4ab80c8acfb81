"""A circuit breaker: it opens where too much fails, lets a few probes through, and closes again; pure.

::

    closed ──too much of the last `window` has failed──► open ──after `cool_down`──► half_open
      ▲                                                   ▲                             │
      └────────── all probes have ended well ─────────────┼───── one has failed ────────┘

A `Breaker` is one row that all owners share. Each function gives the row as it is after something happened,
or the very same one where that changes nothing; whoever writes it compares and sets its ``version``, and asks
again where another was faster. The generation rises with each change of state: what belongs to another one
(an attempt from before, a probe of an earlier half-open) counts for nothing, so that no late success
closes what a probe has opened (C169).

A *probe* is an attempt that was assigned while the breaker was half-open. It is taken by the transaction that
assigns it and ends however the attempt ends: well, badly, or as neither (cancelled, lost, refused, a failure
of a category that does not count), after which its place is free for another one (C171). Design section 4.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from ostinato.core.instants import SECOND

BreakerState = Literal["closed", "open", "half_open"]
#: What an attempt says of what it needs: that it is there, that it is not, or nothing.
Word = Literal["good", "bad", "neither"]

#: Into so many parts the window is divided: what is counted is as old as its part.
PARTS = 10


class BreakerPolicy(msgspec.Struct, frozen=True):
    """When a breaker opens and closes. `failure_rate` is the share of attempts in `window_us` that failed."""

    failure_rate: float = 0.5
    window_us: int = 60 * SECOND
    #: Below so many attempts in the window nothing is concluded.
    volume_min: int = 20
    cool_down_us: int = 30 * SECOND
    probe_count: int = 1
    #: Failures of other categories say nothing: a bad payload is no outage (C173).
    categories: tuple[str, ...] = ("transient", "resource")


class Part(msgspec.Struct, frozen=True):
    """What ended within one part of the window; parts are numbered by shared time."""

    number: int
    good_count: int = 0
    bad_count: int = 0


class Breaker(msgspec.Struct, frozen=True):
    """The shared row. `version` rises with each write, `generation` with each change of `state`."""

    state: BreakerState = "closed"
    generation: int = 1
    version: int = 0
    #: Shared time of the newest change of state.
    since_us: int = 0
    parts: tuple[Part, ...] = ()
    #: Probes of this generation that are running, and that have ended well.
    probes_out: int = 0
    probes_good: int = 0


def word_of(policy: BreakerPolicy, category: str | None) -> Word:
    """What an attempt that ended with a failure of `category` says; None: it ended well."""
    if category is None:
        return "good"
    return "bad" if category in policy.categories else "neither"


def counted(
    breaker: Breaker, policy: BreakerPolicy, *, generation: int, good: int, bad: int, now_us: int
) -> Breaker:
    """So many attempts of a generation have ended since the last time; opens where too many have failed.

    Of another generation, or unless it is closed, they say nothing.
    """
    if breaker.state != "closed" or generation != breaker.generation or not (good or bad):
        return breaker
    number = now_us * PARTS // policy.window_us
    kept = {part.number: part for part in breaker.parts if number - PARTS < part.number <= number}
    known = kept.get(number, Part(number))
    kept[number] = Part(number, known.good_count + good, known.bad_count + bad)
    parts = tuple(kept[each] for each in sorted(kept))
    bad_sum = sum(part.bad_count for part in parts)
    volume = bad_sum + sum(part.good_count for part in parts)
    if bad_sum and volume >= policy.volume_min and bad_sum >= policy.failure_rate * volume:
        return _changed(breaker, "open", now_us=now_us)
    return msgspec.structs.replace(breaker, parts=parts, version=breaker.version + 1)


def cooled_down(breaker: Breaker, policy: BreakerPolicy, *, now_us: int) -> Breaker:
    """Time has passed: after the cool-down an open one is half-open."""
    if breaker.state != "open" or now_us < half_open_us(breaker, policy):
        return breaker
    return _changed(breaker, "half_open", now_us=now_us)


def half_open_us(breaker: Breaker, policy: BreakerPolicy) -> int:
    """When an open one lets the first probe through."""
    return breaker.since_us + policy.cool_down_us


def free_probes(breaker: Breaker, policy: BreakerPolicy) -> int:
    """So many probes may be taken; 0 unless it is half-open.

    Those that have ended well keep their place: in all no more than `probe_count` are needed to close it.
    """
    if breaker.state != "half_open":
        return 0
    return max(0, policy.probe_count - breaker.probes_out - breaker.probes_good)


def probes_taken(breaker: Breaker, policy: BreakerPolicy, *, count: int) -> Breaker | None:
    """So many probes are assigned; None where there is no room for all of them: none may be then."""
    if not 0 < count <= free_probes(breaker, policy):
        return None
    return msgspec.structs.replace(
        breaker, probes_out=breaker.probes_out + count, version=breaker.version + 1
    )


def probe_ended(
    breaker: Breaker, policy: BreakerPolicy, *, generation: int, word: Word, now_us: int
) -> Breaker:
    """A probe of a generation has ended; one of another generation says nothing."""
    if breaker.state != "half_open" or generation != breaker.generation or not breaker.probes_out:
        return breaker
    if word == "bad":
        return _changed(breaker, "open", now_us=now_us)
    good = breaker.probes_good + (word == "good")
    if good >= policy.probe_count:
        return _changed(breaker, "closed", now_us=now_us)
    return msgspec.structs.replace(
        breaker, probes_out=breaker.probes_out - 1, probes_good=good, version=breaker.version + 1
    )


def _changed(breaker: Breaker, state: BreakerState, *, now_us: int) -> Breaker:
    return Breaker(state, breaker.generation + 1, breaker.version + 1, since_us=now_us)
