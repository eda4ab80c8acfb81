"""IANA time zones: loading one by its exact name, and its spans of constant offset with their gaps and folds.

``ZoneInfo`` tells the offset at an instant but not when it changes. The search for the next fire needs the
changes, so they are found by asking for the offset once a day and bisecting the days that differ (no two
changes of any IANA zone are closer than a week), a block of 400 days at a time, cached.

Words: *local seconds* are the seconds since 1970-01-01T00:00 that the zone's wall clock shows. A change
forward makes a *gap* (local seconds that no instant shows), a change backward a *fold* (shown twice).
"""

from __future__ import annotations

import re
from bisect import bisect_right
from difflib import get_close_matches
from functools import lru_cache
from importlib import resources
from typing import NamedTuple
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from ostinato.core.instants import INSTANT_MAX_US, INSTANT_MIN_US, SECOND, to_datetime
from ostinato.errors import UserError

DAY_S = 86_400
UTC_MIN_S = INSTANT_MIN_US // SECOND
UTC_MAX_S = INSTANT_MAX_US // SECOND

_BLOCK_S = 400 * DAY_S
#: A change this far outside a block still matters to it: the longest fold on record lasts 24 h.
_MARGIN_S = 3 * DAY_S
#: ``datetime`` cannot show the zone's wall clock closer to its ends than the largest offset.
_PROBE_MIN_S = UTC_MIN_S + 2 * DAY_S
_PROBE_MAX_S = UTC_MAX_S - 2 * DAY_S
_NAME = re.compile(r"[A-Za-z0-9_+\-]{1,32}(?:/[A-Za-z0-9_+\-]{1,32}){0,3}", re.ASCII)
#: How alike a name must be to be suggested.
_NEAR_ENOUGH = 0.75
#: In the list of names, but stands for "no zone was set".
_NOT_A_ZONE = frozenset({"Factory"})


class Span(NamedTuple):
    """A stretch of time in which a zone's offset from UTC does not change."""

    #: First UTC second, and the first one after the span (or after the block, where the span goes on).
    start_s: int
    end_s: int
    #: Local seconds minus UTC seconds.
    offset_s: int
    #: How far the wall clock jumped when the span began; 0 where the change lies too far back to matter.
    jump_s: int
    #: Local seconds before this one were shown by an earlier span.
    seen_until_s: int
    #: Local seconds from this one on are shown again by a later span.
    again_from_s: int


class _Block(NamedTuple):
    starts: tuple[int, ...]
    spans: tuple[Span, ...]


@lru_cache(maxsize=1024)
def load_zone(name: str, *, field: str = "timezone") -> ZoneInfo:
    """Zone with exactly this IANA name. Raises ``INVALID_TIMEZONE``; never falls back to the host's zone."""
    # Checked against the list of names rather than by trying to open a file: a path, a name of the
    # host alone (``localtime``) or an odd case that some file systems forgive must mean nothing.
    if not (_NAME.fullmatch(name) and name in zone_names()):
        raise _unknown(name, field)
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        # The host's own zone data is broken there. Its message would name a file: not the caller's business.
        raise _unknown(name, field) from None


def _unknown(name: str, field: str) -> UserError:
    meant = _meant(name) if len(name) <= 64 else ""
    shown = repr(name if len(name) <= 64 else name[:64] + "…")
    return UserError(
        "INVALID_TIMEZONE",
        f"{shown} is not a time zone of the IANA database" if name else "the time zone is empty",
        field=field,
        hint=meant or "write a name such as Europe/Berlin or UTC",
    )


def _meant(name: str) -> str:
    """The hint of the zone that is probably meant: another case, a city alone, a slip of the keys."""
    said = name.strip().replace(" ", "_").casefold()
    spelling = _spelling()
    if said in spelling:
        return f"write {spelling[said]}"
    # Of offsets every one is near to every other.
    is_word = not any(letter.isdigit() for letter in said)
    near = get_close_matches(said, spelling, n=1, cutoff=_NEAR_ENOUGH) if is_word else []
    return f"did you mean {spelling[near[0]]}?" if near else ""


@lru_cache(maxsize=1)
def zone_names() -> frozenset[str]:
    """Every name that `load_zone` accepts."""
    names = resources.files("tzdata").joinpath("zones").read_text(encoding="ascii").split()
    return frozenset(names) - _NOT_A_ZONE


@lru_cache(maxsize=1)
def _spelling() -> dict[str, str]:
    # Sorted, so that of a city in two regions the same is named every time.
    cities = {name.rpartition("/")[2].casefold(): name for name in sorted(zone_names(), reverse=True)}
    return cities | {name.casefold(): name for name in zone_names()}


def span_at(zone: ZoneInfo, utc_s: int) -> Span:
    """The span of `zone` that holds the UTC second `utc_s`."""
    starts, spans = _block(zone, utc_s // _BLOCK_S)
    return spans[bisect_right(starts, utc_s) - 1]


@lru_cache(maxsize=4096)
def _block(zone: ZoneInfo, index: int) -> _Block:
    block_end_s = (index + 1) * _BLOCK_S
    first_s = index * _BLOCK_S - _MARGIN_S
    changes = _changes(zone, from_s=first_s, until_s=block_end_s + _MARGIN_S)
    starts = [first_s, *(at_s for at_s, _ in changes)]
    offsets = [_offset_s(zone, first_s), *(offset_s for _, offset_s in changes)]
    ends = [*starts[1:], block_end_s + _MARGIN_S]

    seen_until_s = first_s + offsets[0]
    spans: list[Span] = []
    for position, (start_s, end_s, offset_s) in enumerate(zip(starts, ends, offsets, strict=True)):
        later = range(position + 1, len(starts))
        span = Span(
            start_s=start_s,
            end_s=min(end_s, block_end_s),
            offset_s=offset_s,
            jump_s=offset_s - offsets[position - 1] if position else 0,
            seen_until_s=seen_until_s,
            again_from_s=min([end_s + offset_s, *(starts[i] + offsets[i] for i in later)]),
        )
        seen_until_s = max(seen_until_s, end_s + offset_s)
        if start_s < block_end_s:
            spans.append(span)
    return _Block(tuple(span.start_s for span in spans), tuple(spans))


def _changes(zone: ZoneInfo, *, from_s: int, until_s: int) -> list[tuple[int, int]]:
    """(UTC second, offset from then on) of every change of offset in (`from_s`, `until_s`)."""
    found: list[tuple[int, int]] = []
    before_s = _offset_s(zone, from_s)
    for day_s in range(from_s, until_s, DAY_S):
        after_s = _offset_s(zone, day_s + DAY_S)
        if after_s == before_s:
            continue
        low, high = day_s, day_s + DAY_S
        while high - low > 1:
            middle = (low + high) // 2
            if _offset_s(zone, middle) == before_s:
                low = middle
            else:
                high = middle
        found.append((high, after_s))
        before_s = after_s
    return found


def _offset_s(zone: ZoneInfo, utc_s: int) -> int:
    moment = to_datetime(min(max(utc_s, _PROBE_MIN_S), _PROBE_MAX_S) * SECOND).astimezone(zone)
    offset = moment.utcoffset()
    return 0 if offset is None else offset.days * DAY_S + offset.seconds
