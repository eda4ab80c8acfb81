"""Triggers: validation, identity, next fire, spread, and their line for people."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ostinato.core.instants import DAY, HOUR, INSTANT_MAX_US, MINUTE, SECOND, parse_instant
from ostinato.core.schedule.date import next_date_fire
from ostinato.core.schedule.interval import interval_fire_count, next_interval_fire
from ostinato.core.schedule.spread import spread_offset_us
from ostinato.core.schedule.trigger import (
    CronTrigger,
    DateTrigger,
    IntervalTrigger,
    Trigger,
    describe_trigger,
    next_fire,
    trigger_id,
    validate_trigger,
)
from ostinato.errors import UserError

NOON_US = parse_instant("2026-01-01T12:00:00+00:00")


def following(trigger: Trigger, after_us: int, *, created_us: int = NOON_US, key: str = "t") -> int | None:
    return next_fire(trigger, after_us, created_us=created_us, spread_key=key)


def test_c037_an_interval_is_a_grid_from_its_anchor_whatever_restarts() -> None:
    created_us = parse_instant("2026-01-01T00:00:00+00:00")
    trigger = IntervalTrigger(every_us=6 * HOUR)
    found: set[int] = set()
    # A scheduler that starts every 4 hours and knows nothing but the task.
    for start_us in range(created_us, created_us + 3 * DAY, 4 * HOUR):
        fire_us = following(trigger, start_us, created_us=created_us)
        assert fire_us is not None
        if fire_us <= created_us + 3 * DAY:
            found.add(fire_us)
    assert sorted(found) == [created_us + n * 6 * HOUR for n in range(1, 13)]


def test_an_interval_begins_at_an_anchor_in_the_future_and_follows_one_in_the_past() -> None:
    assert next_interval_fire(HOUR, NOON_US, NOON_US - 10 * DAY) == NOON_US
    assert next_interval_fire(HOUR, NOON_US, NOON_US) == NOON_US + HOUR
    assert next_interval_fire(HOUR, NOON_US + 5, NOON_US + 10 * DAY) == NOON_US + 10 * DAY + 5
    assert next_interval_fire(DAY, 0, INSTANT_MAX_US) is None
    explicit = IntervalTrigger(every_us=HOUR, anchor_us=0)
    assert following(explicit, NOON_US, created_us=NOON_US + 7) == NOON_US + HOUR


@given(
    every_us=st.integers(min_value=1, max_value=10**15),
    anchor_us=st.integers(min_value=-(10**15), max_value=10**15),
    after_us=st.integers(min_value=-(10**16), max_value=10**16),
)
def test_an_interval_fire_is_on_the_grid_strictly_later_and_the_first(
    every_us: int, anchor_us: int, after_us: int
) -> None:
    fire_us = next_interval_fire(every_us, anchor_us, after_us)
    assert fire_us is not None
    assert fire_us > after_us
    assert (fire_us - anchor_us) % every_us == 0
    assert fire_us == anchor_us or fire_us - every_us <= after_us
    assert interval_fire_count(every_us, first_us=fire_us, last_us=fire_us + 3 * every_us) == 4


def test_c039_far_fires_are_not_early() -> None:
    at_us = NOON_US + 60 * DAY
    assert next_date_fire(at_us, NOON_US) == at_us
    assert next_date_fire(at_us, at_us) is None
    assert following(DateTrigger(at_us=at_us), NOON_US) == at_us
    assert following(IntervalTrigger(every_us=90 * DAY), NOON_US) == NOON_US + 90 * DAY


def test_a_spread_is_stable_never_early_and_scatters() -> None:
    trigger = CronTrigger(cron="0 * * * *", spread_us=10 * MINUTE)
    offsets: set[int] = set()
    for key in (f"default/task-{n}" for n in range(200)):
        fire_us = following(trigger, NOON_US, key=key)
        assert fire_us is not None
        again_us = following(trigger, NOON_US + 20 * MINUTE, key=key)
        assert again_us is not None
        offset_us = again_us - NOON_US - HOUR
        assert 0 <= offset_us < 10 * MINUTE
        assert offset_us % SECOND == 0
        assert fire_us in (NOON_US + offset_us, again_us)
        assert following(trigger, again_us, key=key) == again_us + HOUR
        offsets.add(offset_us)
    assert len(offsets) > 100
    assert spread_offset_us(0, "t") == 0
    assert 0 <= spread_offset_us(SECOND, "t") < SECOND


def test_the_identity_is_the_specification_of_instants_alone() -> None:
    base = CronTrigger(cron="0 0 * * mon", timezone="Europe/Berlin")
    identity = trigger_id("default", "backup", base)
    same = [
        CronTrigger(cron=" 0 0\t* * MON", timezone="Europe/Berlin"),
        msgspec.structs.replace(base, misfire="skip", misfire_grace_us=0, misfire_bound=3),
    ]
    other = [
        msgspec.structs.replace(base, timezone="Europe/Paris"),
        msgspec.structs.replace(base, cron="0 1 * * mon"),
        msgspec.structs.replace(base, dst_gap="skip"),
        msgspec.structs.replace(base, dst_fold="both"),
        msgspec.structs.replace(base, spread_us=SECOND),
    ]
    assert {trigger_id("default", "backup", trigger) for trigger in same} == {identity}
    identities = {identity, *(trigger_id("default", "backup", trigger) for trigger in other)}
    identities |= {trigger_id("other", "backup", base), trigger_id("default", "restore", base)}
    kinds: list[Trigger] = [
        IntervalTrigger(every_us=60),
        IntervalTrigger(every_us=60, anchor_us=0),
        DateTrigger(at_us=60),
    ]
    identities |= {trigger_id("default", "backup", trigger) for trigger in kinds}
    assert len(identities) == 1 + len(other) + 2 + len(kinds)
    # Stored in databases: must not change between releases.
    assert identity == "f7a2f975ae633258"
    assert trigger_id("n", "t", CronTrigger(cron="@daily")) == trigger_id(
        "n", "t", CronTrigger(cron="0 0 * * *")
    )


@pytest.mark.parametrize(
    ("trigger", "line"),
    [
        (CronTrigger(cron="0 2 * * *", timezone="Europe/Berlin"), "cron 0 2 * * * Europe/Berlin"),
        (
            CronTrigger(cron="@daily", spread_us=MINUTE, dst_gap="skip", dst_fold="both"),
            "cron @daily UTC spread 1m dst_gap skip dst_fold both",
        ),
        (IntervalTrigger(every_us=5 * MINUTE), "every 5m"),
        (IntervalTrigger(every_us=5 * MINUTE, anchor_us=0), "every 5m from 1970-01-01T00:00:00Z"),
        (DateTrigger(at_us=0), "at 1970-01-01T00:00:00Z"),
    ],
)
def test_people_read_one_line(trigger: Trigger, line: str) -> None:
    assert describe_trigger(trigger) == line


@pytest.mark.parametrize(
    ("trigger", "field"),
    [
        (CronTrigger(cron="0 0 31 2 *"), "cron"),
        (CronTrigger(cron="nonsense"), "cron"),
        (CronTrigger(cron="* * * * *", timezone=""), "timezone"),
        (CronTrigger(cron="* * * * *", misfire="sometimes"), "misfire"),
        (CronTrigger(cron="* * * * *", misfire_grace_us=-1), "misfire_grace"),
        (CronTrigger(cron="* * * * *", misfire_bound=0), "misfire_bound"),
        (CronTrigger(cron="* * * * *", misfire_bound=1001), "misfire_bound"),
        (CronTrigger(cron="* * * * *", spread_us=-1), "spread"),
        (CronTrigger(cron="* * * * *", spread_us=DAY + 1), "spread"),
        (CronTrigger(cron="* * * * *", dst_gap="never"), "dst_gap"),  # type: ignore[arg-type] # wrong on purpose
        (CronTrigger(cron="* * * * *", dst_fold="never"), "dst_fold"),  # type: ignore[arg-type] # wrong on purpose
        (IntervalTrigger(every_us=0), "every"),
        (IntervalTrigger(every_us=-HOUR), "every"),
        (IntervalTrigger(every_us=10**30), "every"),
        (IntervalTrigger(every_us=HOUR, anchor_us=10**30), "anchor"),
        (DateTrigger(at_us=10**30), "at"),
        (DateTrigger(at_us=0, misfire=""), "misfire"),
    ],
)
def test_a_trigger_that_cannot_fire_as_written_is_refused(trigger: Trigger, field: str) -> None:
    with pytest.raises(UserError) as plain:
        validate_trigger(trigger)
    assert plain.value.field == field
    with pytest.raises(UserError) as nested:
        validate_trigger(trigger, field="triggers[2]")
    assert nested.value.field == f"triggers[2].{field}"


@pytest.mark.parametrize(
    "trigger",
    [
        CronTrigger(cron="0 2 * * *", misfire_grace_us=0, misfire_bound=1),
        IntervalTrigger(every_us=HOUR),
        DateTrigger(at_us=0),
    ],
)
def test_a_valid_trigger_passes_and_travels_as_json(trigger: Trigger) -> None:
    validate_trigger(trigger)
    assert msgspec.json.decode(msgspec.json.encode(trigger), type=Trigger) == trigger
