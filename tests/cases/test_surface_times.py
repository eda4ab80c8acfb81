"""C191: instants over REST and in commands carry their zone, and a preview is what really fires."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import AsyncIterator, Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from support.cluster import Cluster, python_task
from support.rest import Rest, running_rest
from typer.testing import CliRunner

from ostinato.cli.main import app as command_line
from ostinato.core.instants import DAY, HOUR, MINUTE, format_instant, from_datetime
from ostinato.core.schedule.trigger import CronTrigger
from ostinato.scheduler.config import NodeConfig
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import VirtualClock, run_virtual

#: The node's own pulse is slow, so that days of virtual time take moments.
SLOW = NodeConfig(
    worker_lease_us=10 * DAY,
    ownership_lease_us=DAY,
    renewal_us=6 * HOUR,
    safety_poll_us=6 * HOUR,
    acknowledgement_us=DAY,
    backlog_us=DAY,
)
BERLIN = "Europe/Berlin"
#: Anything that looks like a day with a time, with what follows it.
MOMENT = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:\.\d+)?)?(\S{0,6})")
ZONED = re.compile(r"(Z|[+-]\d\d:\d\d)\W*")


@pytest.fixture(autouse=True)
def elsewhere(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The machine is in New York."""
    monkeypatch.setenv("TZ", "America/New_York")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


def command(*arguments: str) -> str:
    result = CliRunner().invoke(command_line, [*arguments], prog_name="ostinato")
    assert result.exit_code == 0, result.stderr
    return result.stdout + result.stderr


def from_command(expression: str, start: str) -> list[str]:
    shown = command("cron", "next", expression, "--tz", BERLIN, "--start", start, "--json")
    fires: list[str] = json.loads(shown)
    return fires


def really_fired(expression: str, *, start: str, until: str) -> list[int]:
    """Instants for which a node makes instances in that time."""

    async def story() -> list[int]:
        cluster = Cluster(config=SLOW)
        cluster.clock = VirtualClock(start_us=_us(start))
        cluster.store = MemoryStore(cluster.clock)
        cluster.node = cluster._node()
        trigger = CronTrigger(cron=expression, timezone=BERLIN)
        await cluster.start(python_task(triggers=(trigger,), overlap="allow"))
        await cluster.sleep(_us(until) + MINUTE - cluster.clock.wall_us())
        fired = [row.fire_us or 0 for row in await cluster.instances()]
        await cluster.stop()
        return sorted(fired)

    return run_virtual(story())


def _us(text: str) -> int:
    return from_datetime(datetime.fromisoformat(text).astimezone(UTC))


@pytest.mark.parametrize("start", ["2026-03-27T12:00:00Z", "2026-10-23T12:00:00Z"])
@pytest.mark.parametrize("expression", ["30 2 * * *", "30 * * * *", "0 */2 * * *"])
def test_c191_preview_is_what_really_fires_around_both_changes_of_the_clock(
    expression: str, start: str
) -> None:
    shown: list[str] = []
    while len(shown) < 60 and (not shown or _us(shown[-1]) < _us(start) + 4 * DAY):
        shown += from_command(expression, shown[-1] if shown else start)
    assert really_fired(expression, start=start, until=shown[-1]) == [_us(fire) for fire in shown]


@pytest.mark.parametrize(
    ("expression", "start", "expected"),
    [
        (
            "30 2 * * *",
            "2026-03-28T00:00:00Z",
            ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"],
        ),
        (
            "30 2 * * *",
            "2026-10-24T00:00:00Z",
            ["2026-10-24T02:30:00+02:00", "2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"],
        ),
        (
            "30 * * * *",
            "2026-10-25T00:00:00Z",
            ["2026-10-25T02:30:00+02:00", "2026-10-25T02:30:00+01:00", "2026-10-25T03:30:00+01:00"],
        ),
    ],
)
async def test_c191_half_past_two_comes_twice_distinguished_by_its_offset_in_command_and_rest_alike(
    rest: Rest, expression: str, start: str, expected: list[str]
) -> None:
    asked = {"expression": expression, "timezone": BERLIN, "start": start, "count": 3}
    assert (await rest.post("/cron/preview", asked)).json() == {"fires": expected}
    assert (await asyncio.to_thread(from_command, expression, start))[:3] == expected


async def test_c191_every_instant_of_every_answer_carries_its_zone(
    rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OSTINATO_DATABASE", f"sqlite:///{tmp_path}/rest.db")
    identities = await everything_that_has_times(rest)
    shown: dict[str, str] = {}
    for path in (
        "/namespaces/default/tasks/nightly",
        "/namespaces/default/export",
        "/instances",
        *(f"/instances/{identity}" for identity in identities),
        f"/instances/{identities[0]}/history",
        "/workers",
        "/nodes",
    ):
        shown[path] = (await rest.get(path)).text
    for arguments in (
        ("task", "list"),
        ("task", "show", "nightly"),
        ("instance", "list"),
        *(("instance", "show", identity) for identity in identities),
        ("instance", "cancel", identities[1]),
        ("worker", "list"),
        ("worker", "show", "scripted"),
        ("node", "list"),
        ("export",),
    ):
        for form in ((), ("--json",)):
            shown[" ".join([*arguments, *form])] = await asyncio.to_thread(command, *arguments, *form)
    count = 0
    for where, text in shown.items():
        for found in MOMENT.finditer(text):
            assert ZONED.match(found[1]), (where, found[0])
            count += 1
    assert count > 60


async def everything_that_has_times(rest: Rest) -> list[str]:
    """Ids of one that has failed and one that waits for an instant."""
    trigger = [
        {"cron": "30 2 * * *", "timezone": BERLIN},
        {"every": "1h"},
        {"at": "2090-10-25T18:00:00+02:00"},
    ]
    put = await rest.put(
        "/namespaces/default/tasks/nightly", {"shell": {"command": "true"}, "triggers": trigger}
    )
    assert put.status_code == 201, put.text
    failed = await rest.submit("closed")
    await rest.in_state(failed, "failed")
    waiting = await rest.submit("add", at="2090-10-25T18:00:00+02:00", key="order-1")

    async def in_force() -> bool | None:
        task = (await rest.get("/namespaces/default/tasks/nightly")).json()
        return True if task["scheduled_version"] == task["version"] else None

    async def seen() -> bool | None:
        return True if (await rest.get("/workers")).json()["items"] else None

    await rest.until(in_force)
    await rest.until(seen)
    return [failed, waiting]


async def test_c191_instant_without_a_zone_is_refused_everywhere_and_one_with_a_zone_is_that_instant(
    rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """18:00 of whom? A form that does not say is never read as the server's zone."""
    monkeypatch.setenv("OSTINATO_DATABASE", f"sqlite:///{tmp_path}/rest.db")
    naive = "2090-10-25T18:00:00"
    submit = await rest.post("/namespaces/default/tasks/add/instances", {"at": naive})
    listed = await rest.get("/instances", params={"created_from": naive})
    preview = await rest.post("/cron/preview", {"expression": "0 2 * * *", "timezone": "UTC", "start": naive})
    for answer, field in ((submit, "at"), (listed, "created_from"), (preview, "start")):
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (
            400,
            "INVALID_INSTANT",
            field,
        )
    for arguments in (
        ("task", "trigger", "add", "--at", naive),
        ("instance", "list", "--since", naive),
        ("cron", "next", "0 2 * * *", "--start", naive),
    ):
        result = await asyncio.to_thread(CliRunner().invoke, command_line, [*arguments], prog_name="ostinato")
        assert (result.exit_code, "INVALID_INSTANT" in result.stderr) == (2, True), result.stderr
    kathmandu = await rest.submit("add", at=f"{naive}+05:45")
    story = (await rest.get(f"/instances/{kathmandu}")).json()
    assert story["due"] == format_instant(_us(f"{naive}+05:45")) == "2090-10-25T12:15:00Z"
