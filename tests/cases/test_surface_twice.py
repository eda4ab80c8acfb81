"""C193, C139, C141, C143: the same said twice over REST acts once; who comes late is told."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
from support.rest import Rest, running_rest
from typer.testing import CliRunner

from ostinato import App
from ostinato.cli.main import app as command_line

ADD = "/namespaces/default/tasks/add/instances"
BACKUP = "/namespaces/default/tasks/backup"
OTHER = "/namespaces/default/tasks/other"


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


def told(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json().get("code", "")


# ── the same person, twice ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("in_header", [True, False])
async def test_c193_submit_that_is_sent_many_times_at_once_under_a_key_makes_one_instance(
    rest: Rest, in_header: bool
) -> None:
    headers = {"idempotency-key": "page-7"} if in_header else {}
    body: dict[str, object] = {"payload": {"first": 1}} | ({} if in_header else {"key": "page-7"})
    answers = await asyncio.gather(*(rest.post(ADD, body, headers=headers) for _ in range(40)))
    assert {answer.status_code for answer in answers} == {200, 201}
    assert [answer.status_code for answer in answers].count(201) == 1
    assert len({answer.json()["instance_id"] for answer in answers}) == 1
    assert sum(answer.json()["created"] for answer in answers) == 1
    assert len((await rest.get("/instances?task=add")).json()["items"]) == 1


async def test_c193_retry_that_is_sent_twice_under_a_key_runs_once_although_it_has_ended_in_between(
    rest: Rest,
) -> None:
    """Without the key the second click comes after the new generation has failed, and runs it yet again."""
    instance_id = await rest.submit("closed")
    await rest.in_state(instance_id, "failed")
    again = {"headers": {"idempotency-key": "page-8"}}
    first = await rest.post(f"/instances/{instance_id}/retry", **again)
    await failed_in(rest, instance_id, generation=2)
    second = await rest.post(f"/instances/{instance_id}/retry", **again)
    many = await rest.post("/instances/retry", {"ids": [instance_id]}, **again)
    by_filter = await rest.post("/instances/retry", {"filter": {"task": "closed"}}, **again)
    assert first.json() == second.json() == many.json()["items"][0] == by_filter.json()["items"][0]
    assert (first.status_code, first.json()["code"]) == (200, "OK")
    assert (await failed_in(rest, instance_id, generation=2))["generation"] == 2
    other = await rest.post(f"/instances/{instance_id}/retry", headers={"idempotency-key": "page-9"})
    assert other.status_code == 200
    await failed_in(rest, instance_id, generation=3)


async def failed_in(rest: Rest, instance_id: str, *, generation: int) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        story: dict[str, Any] = (await rest.get(f"/instances/{instance_id}")).json()
        return story if (story["state"], story["generation"]) == ("failed", generation) else None

    return await rest.until(look)


@pytest.mark.parametrize("key", ["", "a\x07b", "k" * 513, " "])
async def test_key_of_a_retry_that_is_none_is_refused_and_named(rest: Rest, key: str) -> None:
    instance_id = await rest.submit("closed")
    await rest.in_state(instance_id, "failed")
    host, port = rest.address
    raw = await rest.raw(
        f"POST /api/v1/instances/{instance_id}/retry HTTP/1.1\r\nhost: {host}:{port}\r\n".encode(),
        b"connection: close\r\ncontent-length: 0\r\nidempotency-key: " + key.encode() + b"\r\n\r\n",
    )
    assert b" 400 " in raw.split(b"\r\n", 1)[0]
    assert (await rest.get(f"/instances/{instance_id}")).json()["generation"] == 1


async def test_c193_retries_at_once_without_a_key_make_one_generation_or_are_told_that_it_runs(
    rest: Rest,
) -> None:
    instance_id = await rest.submit("endless")
    await rest.in_state(instance_id, "running")
    await rest.post(f"/instances/{instance_id}/cancel")
    (item,) = rest.worker.running.values()
    await rest.worker.finish(item, b"1")
    await rest.in_state(instance_id, "success")
    again = (rest.post(f"/instances/{instance_id}/retry", {"force": True}) for _ in range(20))
    answers = [told(answer) for answer in await asyncio.gather(*again)]
    assert answers.count((200, "OK")) == 1
    assert set(answers) <= {(200, "OK"), (409, "INSTANCE_NOT_TERMINAL"), (409, "VERSION_CONFLICT")}
    assert (await rest.get(f"/instances/{instance_id}")).json()["generation"] == 2


async def test_c193_c131_cancel_twice_is_fine_and_of_what_has_ended_a_conflict(rest: Rest) -> None:
    waiting = await rest.submit("add", delay="1h")
    answers = await asyncio.gather(*(rest.post(f"/instances/{waiting}/cancel") for _ in range(10)))
    assert {told(answer) for answer in answers} <= {(200, "OK"), (409, "INSTANCE_TERMINAL")}
    assert (200, "OK") in {told(answer) for answer in answers}
    running = await rest.submit("endless")
    await rest.in_state(running, "running")
    twice = [await rest.post(f"/instances/{running}/cancel", {"reason": reason}) for reason in ("a", "b")]
    assert [told(answer) for answer in twice] == [(200, "OK")] * 2
    assert (await rest.get(f"/instances/{running}")).json()["cancel_reason"] == "a"


async def test_c129_c131_cancel_after_the_result_is_409_with_the_state_that_is_final(rest: Rest) -> None:
    for task, state in (("add", "success"), ("closed", "failed")):
        instance_id = await rest.submit(task)
        await rest.in_state(instance_id, state)
        late = await rest.post(f"/instances/{instance_id}/cancel")
        assert told(late) == (409, "INSTANCE_TERMINAL")
        assert state in late.json()["detail"]
        assert (await rest.get(f"/instances/{instance_id}")).json()["state"] == state


# ── two people, one task ──────────────────────────────────────────────────────────────────────────────


async def test_c193_second_of_two_who_edit_one_task_is_told_both_versions(rest: Rest) -> None:
    tag = (await rest.get(BACKUP)).headers["etag"]
    assert tag == '"1"'
    first = await rest.put(BACKUP, {"shell": {"command": "one"}}, headers={"if-match": tag})
    second = await rest.put(BACKUP, {"shell": {"command": "two"}}, headers={"if-match": tag})
    assert (first.status_code, first.headers["etag"]) == (200, '"2"')
    assert told(second) == (409, "VERSION_CONFLICT")
    assert "version 2" in second.json()["detail"]
    assert "version 1" in second.json()["detail"]
    assert (second.json()["subject"], second.json()["field"]) == ("default/backup", "If-Match")
    definition = (await rest.get(BACKUP)).json()["definition"]
    assert definition["shell"] == {"command": "one"}


async def test_c193_of_many_who_edit_one_version_at_once_one_succeeds(rest: Rest) -> None:
    answers = await asyncio.gather(
        *(
            rest.put(BACKUP, {"shell": {"command": f"echo {number}"}}, headers={"if-match": '"1"'})
            for number in range(20)
        )
    )
    assert [answer.status_code for answer in answers].count(200) == 1
    assert {told(answer) for answer in answers if answer.status_code != 200} == {(409, "VERSION_CONFLICT")}
    assert (await rest.get(BACKUP)).json()["version"] == 2


async def test_c193_of_many_who_create_one_task_one_succeeds(rest: Rest) -> None:
    answers = await asyncio.gather(
        *(
            rest.put(OTHER, {"shell": {"command": f"echo {number}"}}, headers={"if-none-match": "*"})
            for number in range(20)
        )
    )
    assert [answer.status_code for answer in answers].count(201) == 1
    assert (await rest.get(OTHER)).json()["version"] == 1


async def test_c193_c035_what_is_done_to_a_deleted_task_says_so_and_apply_goes_on_with_the_next_version(
    rest: Rest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rest.put(OTHER, {"shell": {"command": "true"}})
    waiting = (await rest.post(f"{OTHER}/instances", {"delay": "1h"})).json()["instance_id"]
    assert (await rest.client.delete(f"/api/v1{OTHER}")).status_code == 204
    assert (await rest.in_state(waiting, "cancelled"))["reason"].count("deleted")
    for late in (
        await rest.client.delete(f"/api/v1{OTHER}"),
        await rest.post(f"{OTHER}/pause"),
        await rest.post(f"{OTHER}/instances"),
        await rest.get(OTHER),
        await rest.post(f"/instances/{waiting}/retry"),
    ):
        assert told(late) == (404, "TASK_NOT_FOUND")
    stale = await rest.put(OTHER, {"shell": {"command": "true"}}, headers={"if-match": '"1"'})
    assert told(stale) == (409, "VERSION_CONFLICT")
    assert "does not exist" in stale.json()["detail"]
    monkeypatch.chdir(tmp_path)
    document = {"version": 1, "tasks": [{"name": "other", "shell": {"command": "true"}}]}
    (tmp_path / "tasks.yaml").write_text(json.dumps(document), encoding="utf-8")
    arguments = ["apply", "-f", "tasks.yaml", "--database", f"sqlite:///{tmp_path}/rest.db"]
    result = await asyncio.to_thread(CliRunner().invoke, command_line, arguments)
    assert result.exit_code == 0, result.stderr
    assert "created default/other (version 2)" in result.stdout


# ── answers that are lost, keys that end ──────────────────────────────────────────────────────────────


class Forgetful:
    """Passes a connection on; of every second one it lets the answer of the API go nowhere and hangs up."""

    def __init__(self, target: tuple[str, int]) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._met_count = 0
        self._passing: set[asyncio.Task[None]] = set()
        self.lost_count = 0

    async def start(self) -> str:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", 0)
        return f"127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def stop(self) -> None:
        assert self._server is not None
        self._server.close()
        await asyncio.gather(*self._passing)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._met_count += 1
        forgets = self._met_count % 2 == 1
        there, back = await asyncio.open_connection(*self._target)
        ways = {
            asyncio.create_task(_copy(reader, back)),
            # The first byte of an answer means that what was asked has been done.
            asyncio.create_task(self._lose(there) if forgets else _copy(there, writer)),
        }
        self._passing |= ways
        await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        for end in (back, writer):
            end.transport.abort()
        await asyncio.wait(ways)

    async def _lose(self, there: asyncio.StreamReader) -> None:
        self.lost_count += bool(await there.read(1))


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(ConnectionError):
        while piece := await reader.read(65_536):
            writer.write(piece)
            await writer.drain()


@pytest.mark.parametrize("with_key", [True, False])
async def test_c141_answer_that_is_lost_on_its_way_over_http_leaves_one_instance(
    rest: Rest, with_key: bool
) -> None:
    """The connection breaks behind the commit; the client says the same again, with a key or its own id."""
    forgetful = Forgetful(rest.address)
    address = await forgetful.start()
    identities = set()
    for number in range(5):
        app = App("shop", url=f"http://{address}")
        try:
            handle = await app.submit_async(
                "add", {"first": number}, delay="1h", key=f"order-{number}" if with_key else None
            )
            identities.add(handle.id)
        finally:
            await asyncio.to_thread(app.close)
    await forgetful.stop()
    assert forgetful.lost_count >= 5
    listed = (await rest.get("/instances?task=add")).json()["items"]
    assert {item["id"] for item in listed} == identities
    assert len(listed) == 5


async def test_c139_c143_key_whose_time_is_over_makes_one_more_and_both_are_seen(
    rest: Rest, tmp_path: Path
) -> None:
    """A key lives for 24 h; what was made under it before goes on, whatever its state."""
    body = {"key": "daily", "payload": {"first": 1}, "delay": "1h"}
    old = (await rest.post(ADD, body)).json()["instance_id"]
    with sqlite3.connect(tmp_path / "rest.db", timeout=10) as connection:
        connection.execute("UPDATE idempotency_key SET expires_us = 1")
    connection.close()
    answers = await asyncio.gather(*(rest.post(ADD, body) for _ in range(20)))
    assert [answer.status_code for answer in answers].count(201) == 1
    (new,) = {answer.json()["instance_id"] for answer in answers}
    assert new != old
    listed = (await rest.get("/instances", params={"key": "daily"})).json()["items"]
    assert {item["id"] for item in listed} == {old, new}
    assert {item["state"] for item in listed} == {"pending"}
