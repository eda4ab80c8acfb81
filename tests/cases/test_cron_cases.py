"""Every entry of cron.json: the fires that Vixie's rules demand, and the expressions that must be refused."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

import pytest

from ostinato.core.instants import parse_instant
from ostinato.core.schedule.preview import preview_cron
from ostinato.core.schedule.trigger import CronTrigger, validate_trigger
from ostinato.core.schedule.zone import load_zone
from ostinato.errors import UserError


class Case(TypedDict, total=False):
    id: str
    expr: str
    tz: str
    start: str
    expected: list[str]
    note: str
    invalid: bool
    may_refuse: bool
    alt: list[list[str]]


CASES: list[Case] = json.loads((Path(__file__).parent / "cron.json").read_text(encoding="utf-8"))
FIRING = [case for case in CASES if not case.get("invalid")]
INVALID = [case for case in CASES if case.get("invalid")]

#: Inverted ranges are refused (docs/schedules.md); everything else that may be refused is accepted.
REFUSED_BY_CHOICE = {"CR115"}
FIELD_OF_INVALID = {
    "CR121": "day-of-month",
    "CR123": "day-of-month",
    "CR125": "minute",
    "CR127": "day-of-month",
    "CR129": "month",
    "CR131": "day-of-week",
    "CR133": "minute",
    "CR135": "minute",
    "CR137": "minute",
    "CR139": "minute",
    "CR141": "minute",
    "CR143": "cron",
    "CR145": "cron",
    "CR147": "month",
    "CR149": "day-of-week",
    "CR151": "day-of-month",
    "CR153": "day-of-week",
    "CR155": "timezone",
    "CR157": "timezone",
}


@pytest.mark.parametrize("case", FIRING, ids=lambda case: case["id"])
def test_case_fires_as_expected(case: Case) -> None:
    if case["id"] in REFUSED_BY_CHOICE:
        assert case["may_refuse"]
        with pytest.raises(UserError, match="runs backwards"):
            preview_cron(case["expr"], case["tz"], parse_instant(case["start"]), 5)
        return
    assert preview_cron(case["expr"], case["tz"], parse_instant(case["start"]), 5) == case["expected"]


@pytest.mark.parametrize("case", INVALID, ids=lambda case: case["id"])
def test_case_is_refused_at_once_with_the_field_named(case: Case) -> None:
    trigger = CronTrigger(cron=case["expr"], timezone=case["tz"])
    load_zone("UTC")  # the list of zone names is read once per process, not per expression
    took_s: list[float] = []
    # The best of three: a look for garbage among all that a run of tests keeps takes longer than that.
    for _ in range(3):
        began = time.thread_time()
        with pytest.raises(UserError) as caught:
            validate_trigger(trigger, field="triggers[0]")
        took_s.append(time.thread_time() - began)
    assert min(took_s) < 0.05
    part = FIELD_OF_INVALID[case["id"]]
    assert caught.value.field == ("triggers[0].timezone" if part == "timezone" else "triggers[0].cron")
    if part not in ("cron", "timezone"):
        assert f"{part} field" in caught.value.message
    assert caught.value.code in ("INVALID_CRON", "INVALID_TIMEZONE")
    assert "No such file" not in str(caught.value)


@pytest.mark.parametrize("case", FIRING, ids=lambda case: case["id"])
def test_c011_every_expected_instant_exists_on_the_wall_clock(case: Case) -> None:
    zone = load_zone(case["tz"])
    for text in case["expected"]:
        moment = datetime.fromisoformat(text)
        assert moment.astimezone(UTC).astimezone(zone).replace(tzinfo=None) == moment.replace(tzinfo=None)
