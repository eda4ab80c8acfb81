"""Zone names, and the spans of constant offset against the zone files themselves."""

from __future__ import annotations

import os
import struct
from importlib import resources
from io import BytesIO
from zoneinfo import ZoneInfo

import pytest

from ostinato.core.instants import SECOND, parse_instant, to_datetime
from ostinato.core.schedule.zone import load_zone, span_at, zone_names
from ostinato.errors import UserError

FULL = os.environ.get("OSTINATO_CASES_FULL") == "1"


@pytest.mark.parametrize(
    "name",
    [
        "",
        " ",
        ".",
        "..",
        "../../etc/passwd",
        "/etc/localtime",
        "/usr/share/zoneinfo/UTC",
        "Europe",
        "Europe/",
        "Europe//Berlin",
        "Europe/../Europe/Berlin",
        "./UTC",
        "Europe/Berlin ",
        "Europe/Berlin\n",
        "Europe/Berlin\x00",
        "europe/berlin",
        "utc",
        "localtime",
        "posixrules",
        "posix/Europe/Berlin",
        "right/UTC",
        "Factory",
        "zone.tab",
        "tzdata.zi",
        "UTC+1",
        "+01:00",
        "CEST",
        "Europe\\Berlin",
        "Ｅurope/Berlin",  # noqa: RUF001 - a letter of full width is the point
        "x" * 10_000,
    ],
)
def test_only_exact_iana_names_are_zones(name: str) -> None:
    with pytest.raises(UserError) as caught:
        load_zone(name)
    assert (caught.value.code, caught.value.field) == ("INVALID_TIMEZONE", "timezone")
    assert "zoneinfo" not in caught.value.message.replace("/usr/share/zoneinfo/UTC", "")
    assert len(str(caught.value)) < 300


def test_an_odd_case_is_told_the_right_one() -> None:
    with pytest.raises(UserError) as caught:
        load_zone("europe/berlin", field="triggers[1].timezone")
    assert caught.value.hint == "write Europe/Berlin"
    assert caught.value.field == "triggers[1].timezone"


def test_every_iana_name_loads() -> None:
    assert len(zone_names()) > 500
    assert all(load_zone(name).key == name for name in zone_names())


def _file_changes(name: str) -> list[tuple[int, int]]:
    """(UTC second, offset from then on) as the compiled zone file of the tzdata package lists them."""
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/")).read_bytes()
    stream = BytesIO(data)

    def counts() -> tuple[int, ...]:
        return struct.unpack(">6l", stream.read(44)[20:])

    utc, std, leap, times, types, letters = counts()
    stream.seek(times * 5 + types * 6 + letters + leap * 8 + std + utc, 1)
    *_, times, types, _letters = counts()
    instants = struct.unpack(f">{times}q", stream.read(8 * times))
    indexes = stream.read(times)
    offsets = [struct.unpack(">lbb", stream.read(6))[0] for _ in range(types)]
    changes: list[tuple[int, int]] = []
    current = offsets[0]
    for instant, index in zip(instants, indexes, strict=True):
        if offsets[index] != current:
            current = offsets[index]
            changes.append((instant, current))
    return changes


@pytest.mark.parametrize("name", sorted(zone_names())[:: 1 if FULL else 40])
def test_spans_begin_exactly_where_the_zone_file_says(name: str) -> None:
    data = resources.files("tzdata").joinpath("zoneinfo", *name.split("/"))
    with data.open("rb") as file:
        zone = ZoneInfo.from_file(file, key=name)
    for instant_s, offset_s in _file_changes(name):
        span = span_at(zone, instant_s)
        before = span_at(zone, instant_s - 1)
        assert (span.start_s, span.offset_s) == (instant_s, offset_s)
        assert before.end_s == instant_s
        assert span.jump_s == offset_s - before.offset_s


def test_gap_and_fold_are_told_in_local_seconds() -> None:
    zone = load_zone("Europe/Berlin")
    gap_s = parse_instant("2026-03-29T01:00:00+00:00") // SECOND
    after_gap = span_at(zone, gap_s)
    assert (after_gap.jump_s, after_gap.start_s + after_gap.offset_s - after_gap.seen_until_s) == (3600, 3600)
    fold_s = parse_instant("2026-10-25T01:00:00+00:00") // SECOND
    first, second = span_at(zone, fold_s - 1), span_at(zone, fold_s)
    assert to_datetime(first.again_from_s * SECOND).isoformat() == "2026-10-25T02:00:00+00:00"
    assert to_datetime(second.seen_until_s * SECOND).isoformat() == "2026-10-25T03:00:00+00:00"


@pytest.mark.parametrize("text", ["0001-01-01T00:00:00+00:00", "9999-12-31T23:59:59+00:00"])
@pytest.mark.parametrize("name", ["UTC", "Pacific/Kiritimati", "America/New_York"])
def test_the_ends_of_the_calendar_have_an_offset(name: str, text: str) -> None:
    instant_s = parse_instant(text) // SECOND
    span = span_at(load_zone(name), instant_s)
    assert span.start_s <= instant_s < span.end_s
