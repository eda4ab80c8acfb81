"""C189: long histories, long output and many rows, asked of a running API, the command line and the SDK."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from support.rest import Rest, running_rest
from typer.testing import CliRunner

from ostinato import App
from ostinato.cli.main import app as command_line
from ostinato.control.explain import HISTORY_ROWS_MAX

ROW_COUNT = 1_000


@pytest.fixture
async def rest(tmp_path: Path) -> AsyncIterator[Rest]:
    async with running_rest(tmp_path) as running:
        yield running


async def long_lived(rest: Rest, directory: Path) -> str:
    """An instance that has failed `ROW_COUNT` times, beside the rows of its own."""
    instance_id = await rest.submit("add", delay="1h")
    failure = '{"code":"E","category":"transient","message":"once more"}'
    connection = sqlite3.connect(directory / "rest.db", timeout=10)
    connection.executemany(
        "INSERT INTO history (instance_id, partition, at_us, kind, sentence, generation, attempt, attempt_id,"
        " worker_name, code, category, by, unconditional, failure)"
        " VALUES (?, 0, ?, 'retry', ?, 1, ?, ?, 'w', 'E', 'transient', '', 0, ?)",
        [
            (instance_id, 1_800_000_000_000_000 + number, f"failure {number}", number, f"{number:x}", failure)
            for number in range(1, ROW_COUNT + 1)
        ],
    )
    connection.commit()
    connection.close()
    return instance_id


def command(*arguments: str, directory: Path) -> tuple[int, str]:
    url = f"sqlite:///{directory}/rest.db"
    result = CliRunner().invoke(command_line, [*arguments, "--database", url], prog_name="ostinato")
    return result.exit_code, result.stdout


async def test_c189_story_of_a_long_history_is_its_newest_end_and_says_what_is_left_out(
    rest: Rest, tmp_path: Path
) -> None:
    instance_id = await long_lived(rest, tmp_path)
    story = (await rest.get(f"/instances/{instance_id}")).json()
    assert len(story["history"]) == HISTORY_ROWS_MAX
    assert story["left_out"] == ROW_COUNT - HISTORY_ROWS_MAX
    assert story["history"][-1]["sentence"] == f"failure {ROW_COUNT}"
    assert [attempt["attempt"] for attempt in story["attempts"]][-1] == ROW_COUNT
    assert len(story["attempts"]) == HISTORY_ROWS_MAX


async def test_c189_short_history_leaves_nothing_out(rest: Rest) -> None:
    story = await rest.in_state(await rest.submit("closed"), "failed")
    assert (story["left_out"], len(story["history"])) == (0, 1)


async def test_c189_history_is_paged_through_from_its_beginning_without_gap_or_repetition(
    rest: Rest, tmp_path: Path
) -> None:
    path = f"/instances/{await long_lived(rest, tmp_path)}/history"
    found: list[str] = []
    params: dict[str, Any] = {"limit": 300}
    while True:
        page = (await rest.get(path, params=params)).json()
        found += [row["sentence"] for row in page["items"]]
        if page["cursor"] is None:
            break
        params["after"] = page["cursor"]
    assert found == [f"failure {number}" for number in range(1, ROW_COUNT + 1)]
    beyond = (await rest.get(path, params={"after": "999999999999999"})).json()
    assert beyond == {"items": [], "cursor": None}


@pytest.mark.parametrize("after", ["-1", "", "1.2", "null", "x", "9" * 16])
async def test_history_after_what_is_no_number_of_rows_is_refused(rest: Rest, after: str) -> None:
    instance_id = await rest.submit("add", delay="1h")
    answer = await rest.get(f"/instances/{instance_id}/history", params={"after": after})
    assert (answer.status_code, answer.json()["field"]) == (400, "after")


async def test_history_of_nothing_is_not_found_and_its_limit_is_checked(rest: Rest) -> None:
    unknown = await rest.get("/instances/0nothing/history")
    assert (unknown.status_code, unknown.json()["code"]) == (404, "INSTANCE_NOT_FOUND")
    instance_id = await rest.submit("add", delay="1h")
    over = await rest.get(f"/instances/{instance_id}/history", params={"limit": 1001})
    assert (over.status_code, over.json()["field"]) == (400, "limit")


async def test_c189_command_tells_the_newest_and_how_many_it_leaves_out_unless_asked_for_all(
    rest: Rest, tmp_path: Path
) -> None:
    instance_id = await long_lived(rest, tmp_path)
    status, shown = await asyncio.to_thread(command, "instance", "show", instance_id, directory=tmp_path)
    assert status == 0
    count = ROW_COUNT - HISTORY_ROWS_MAX
    assert f"… {count} earlier entries are left out: ostinato instance show {instance_id} --all" in shown
    assert f"failure {ROW_COUNT}" in shown
    told = [line for line in shown.splitlines() if line.startswith("attempt ")]
    assert len(told) == HISTORY_ROWS_MAX
    status, shown = await asyncio.to_thread(
        command, "instance", "show", instance_id, "--all", "--json", directory=tmp_path
    )
    assert (status, len(json.loads(shown)["history"]), json.loads(shown)["left_out"]) == (0, ROW_COUNT, 0)


async def test_c189_story_over_http_is_the_same_as_from_the_database(rest: Rest, tmp_path: Path) -> None:
    instance_id = await long_lived(rest, tmp_path)
    host, port = rest.address
    over_http = App("viewer", url=f"http://{host}:{port}")
    direct = App("viewer", url=f"sqlite:///{tmp_path}/rest.db")
    try:
        told = await over_http.handle(instance_id).story_async()
        assert told.left_out == ROW_COUNT - HISTORY_ROWS_MAX
        assert told == await direct.handle(instance_id).story_async()
    finally:
        await asyncio.to_thread(over_http.close)
        await asyncio.to_thread(direct.close)
