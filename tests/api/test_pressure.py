"""Backpressure over REST, on real databases: filled up to yellow and red, drained again, nothing lost."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.real_stores import Place, place_of
from support.rest import Rest, running_rest

from ostinato.core.instants import MILLISECOND
from ostinato.core.pressure import Limits

SUBMIT = "/namespaces/default/tasks/add/instances"
MANY = "/namespaces/default/instances"
LIMITS = Limits(yellow=5, red=10)


@pytest.fixture(scope="module", params=["sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with place_of(request.param, tmp_path_factory.mktemp("pressure")) as place:
        yield place


@asynccontextmanager
async def filled(place: Place, folder: Path, count: int, *, limits: Limits = LIMITS) -> AsyncIterator[Rest]:
    """An API without a node, so that what is submitted waits; `count` instances do already."""
    place.clean()
    async with running_rest(folder, database=place.url, with_node=False, pressure=limits) as rest:
        if count:
            entries = [{"task": "add", "payload": {"first": number}} for number in range(count)]
            assert (await rest.post(MANY, {"submissions": entries})).status_code == 201
        yield rest


async def pressure(rest: Rest) -> dict[str, Any]:
    found: dict[str, Any] = (await rest.get("/pressure")).json()
    return found


async def at_level(rest: Rest, level: str) -> dict[str, Any]:
    """What is said of the pressure once it has that level."""

    async def look() -> dict[str, Any] | None:
        found = await pressure(rest)
        return found if found["level"] == level else None

    return await rest.until(look)


async def metric(rest: Rest, name: str) -> float:
    text = (await rest.client.get("/metrics")).text
    found = re.search(rf"^{re.escape(name)} (\S+)$", text, re.MULTILINE)
    assert found is not None, name
    return float(found[1])


def refused(answer: httpx.Response) -> bool:
    if answer.status_code != 429:
        return False
    assert answer.headers["content-type"] == "application/problem+json"
    assert answer.headers["retry-after"] == "1"
    problem = answer.json()
    assert (problem["code"], problem["status"]) == ("BACKPRESSURE", 429)
    assert problem["type"] == "urn:ostinato:error:BACKPRESSURE"
    assert "wait" in problem["detail"]
    return True


async def test_it_fills_to_yellow_and_red_and_drains_to_green_and_nothing_accepted_is_lost(
    place: Place, tmp_path: Path
) -> None:
    async with filled(place, tmp_path, 0) as rest:
        assert await pressure(rest) == {"level": "green", "waiting": 0, "yellow": 5, "red": 10}
        accepted: list[str] = []
        times_us: list[int] = []
        while True:
            before_us = rest.clock.boot_us()
            answer = await rest.post(SUBMIT)
            times_us.append(rest.clock.boot_us() - before_us)
            if refused(answer):
                break
            assert answer.status_code == 201
            accepted.append(answer.json()["instance_id"])
        assert len(accepted) == 10
        assert min(times_us[5:10]) >= 50 * MILLISECOND
        assert max(times_us[5:10]) >= 500 * MILLISECOND
        assert (await at_level(rest, "red"))["waiting"] == 10
        assert await metric(rest, "ostinato_pressure_level") == 2
        assert await metric(rest, 'ostinato_submissions_held_back_total{how="refused"}') == 1
        await rest.start_node()
        assert (await at_level(rest, "green"))["waiting"] <= 4
        assert (await rest.post(SUBMIT)).status_code == 201
        for identity in accepted:
            await rest.in_state(identity, "success")

        async def is_told() -> bool | None:
            return await metric(rest, "ostinato_pressure_level") == 0 or None

        # Nobody submits: the node itself measures, and says so.
        assert await rest.until(is_told)


async def test_many_clients_at_once_get_no_further_than_the_red_limit(place: Place, tmp_path: Path) -> None:
    async with filled(place, tmp_path, 30, limits=Limits(red=40)) as rest:
        answers = await asyncio.gather(*(rest.post(SUBMIT) for _ in range(60)))
        accepted = [answer.json()["instance_id"] for answer in answers if answer.status_code == 201]
        assert len(accepted) == 10
        assert sum(map(refused, answers)) == 50
        for identity in accepted:
            assert (await rest.get(f"/instances/{identity}")).json()["state"] == "pending"


async def test_all_of_many_are_refused_and_none_of_them_is_there(place: Place, tmp_path: Path) -> None:
    async with filled(place, tmp_path, 40) as rest:
        await at_level(rest, "red")
        entries = [{"task": "add", "key": f"k{number}"} for number in range(5)]
        assert refused(await rest.post(MANY, {"submissions": entries}))
        assert (await rest.get("/instances/counts")).json()["by_state"] == {"pending": 40}


async def test_a_repeated_key_or_id_gets_its_instance_while_it_is_red(place: Place, tmp_path: Path) -> None:
    async with filled(place, tmp_path, 0) as rest:
        key = {"Idempotency-Key": "once"}
        first = (await rest.post(SUBMIT, {"payload": {"first": 1}}, headers=key)).json()["instance_id"]
        chosen = {"id": "01kdvdna0a20kw71nvrk6p2fhg", "payload": {"first": 2}}
        assert (await rest.post(SUBMIT, chosen)).status_code == 201
        await rest.post(MANY, {"submissions": [{"task": "add"}] * 40})
        await at_level(rest, "red")
        again = await rest.post(SUBMIT, {"payload": {"first": 1}}, headers=key)
        assert (again.status_code, again.json()) == (200, {"instance_id": first, "created": False})
        assert (await rest.post(SUBMIT, chosen)).json()["instance_id"] == chosen["id"]
        other = await rest.post(SUBMIT, {"payload": {"first": 9}}, headers=key)
        assert (other.status_code, other.json()["code"]) == (409, "KEY_CONFLICT")
        assert refused(await rest.post(SUBMIT, headers={"Idempotency-Key": "another"}))
        entries = [{"task": "add", "key": "once", "payload": {"first": 1}}, {"task": "add", **chosen}]
        both = await rest.post(MANY, {"submissions": entries})
        assert [item["instance_id"] for item in both.json()["items"]] == [first, chosen["id"]]


async def test_cancels_retries_and_questions_are_answered_while_it_is_red(tmp_path: Path) -> None:
    async with running_rest(tmp_path, pressure=Limits(red=20)) as rest:
        failed = await rest.submit("closed")
        await rest.in_state(failed, "failed")
        # Held, as no worker knows the task: that waits too.
        await rest.post("/namespaces/default/tasks/backup/pause")
        entries = [{"task": "backup"}] * 20
        answer = await rest.post(MANY, {"submissions": entries})
        ids = [item["instance_id"] for item in answer.json()["items"]]
        await at_level(rest, "red")
        assert refused(await rest.post(SUBMIT))
        assert (await rest.post(f"/instances/{failed}/retry", {})).status_code == 200
        story = await rest.in_state(failed, "failed")
        assert story["generation"] == 2
        for identity in ids[:3]:
            assert (await rest.post(f"/instances/{identity}/cancel")).status_code == 200
        await at_level(rest, "green")
        await rest.in_state(await rest.submit("add"), "success")


async def test_without_limits_nothing_is_counted_and_all_is_green(tmp_path: Path) -> None:
    async with running_rest(tmp_path) as rest:
        assert await pressure(rest) == {"level": "green", "waiting": None, "yellow": None, "red": None}
        assert await metric(rest, "ostinato_pressure_level") == 0
