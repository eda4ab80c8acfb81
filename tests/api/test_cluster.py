"""Workers, nodes, partitions, and what a cron expression will do, over REST."""

from __future__ import annotations

from support.rest import Rest

from ostinato.wire.messages import Drain


async def test_worker_is_found_by_name_and_by_id(rest: Rest) -> None:
    async def listed() -> str | None:
        items = (await rest.get("/workers")).json()["items"]
        return items[0]["id"] if items else None

    identity = await rest.until(listed)
    for name in ("scripted", identity):
        worker = (await rest.get(f"/workers/{name}")).json()
        assert (worker["id"], worker["state"]) == (identity, "connected")
    unknown = await rest.get("/workers/scriptd")
    assert (unknown.status_code, unknown.json()["hint"]) == (404, "did you mean scripted?")
    assert (await rest.get("/workers/%00")).json()["field"] == "worker"


async def test_drained_worker_has_been_told(rest: Rest) -> None:
    async def present() -> bool | None:
        return bool((await rest.get("/workers")).json()["items"]) or None

    await rest.until(present)
    answer = await rest.post("/workers/scripted/drain", {"reason": "new kernel"})
    assert answer.json() == {"worker": "scripted", "done": "drain"}

    async def told() -> bool | None:
        return any(isinstance(message, Drain) for message in rest.worker.messages) or None

    assert await rest.until(told)
    assert (await rest.post("/workers/nobody/drain")).status_code == 404


async def test_nodes_and_partitions_say_who_owns_what(rest: Rest) -> None:
    (node,) = (await rest.get("/nodes")).json()["items"]
    partitions = (await rest.get("/partitions")).json()["items"]
    assert (node["id"], node["partitions"]) == (rest.node.node_id, len(partitions))
    assert {partition["owner"] for partition in partitions} == {node["id"]}


async def test_preview_shows_the_offset_of_each_fire_c191(rest: Rest) -> None:
    body = {
        "expression": "30 2 * * *",
        "timezone": "Europe/Berlin",
        "start": "2026-03-28T00:00:00+01:00",
        "count": 2,
    }
    answer = await rest.post("/cron/preview", body)
    assert answer.json() == {"fires": ["2026-03-28T02:30:00+01:00", "2026-03-29T03:00:00+02:00"]}


async def test_preview_names_what_it_cannot_use(rest: Rest) -> None:
    for change, code, field in (
        ({"expression": "30 2 * *"}, "INVALID_CRON", "expression"),
        ({"timezone": "Europe/Berln"}, "INVALID_TIMEZONE", "timezone"),
        ({"count": 1001}, "INVALID_VALUE", "count"),
        ({"start": "today"}, "INVALID_INSTANT", "start"),
        ({"expresion": "x"}, "INVALID_VALUE", "expresion"),
    ):
        answer = await rest.post("/cron/preview", {"expression": "30 2 * * *", **change})
        assert (answer.status_code, answer.json()["code"], answer.json()["field"]) == (400, code, field)
