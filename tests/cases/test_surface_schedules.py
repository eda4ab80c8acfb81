"""Groups A, B, D and J as REST, documents, commands and the SDK show them."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from house.project import ROOT
from support.dev import clean_environment
from support.rest import Rest, running_rest
from typer.testing import CliRunner, Result

from ostinato import App, cron
from ostinato.cli.main import app as command_line
from ostinato.errors import UserError

CASES: dict[str, dict[str, Any]] = {
    case["id"]: case for case in json.loads((ROOT / "tests/cases/cron.json").read_text(encoding="utf-8"))
}
IMPOSSIBLE = [CASES["CR121"]["expr"], CASES["CR123"]["expr"]]
POSSIBLE = [CASES["CR059"]["expr"], CASES["CR065"]["expr"]]
TASK = "/namespaces/default/tasks/job"
REFUSAL_SECONDS_MAX = 0.05


@pytest.fixture
async def rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Rest]:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("OSTINATO_DATABASE", f"sqlite:///{tmp_path}/rest.db")
    async with running_rest(tmp_path) as running:
        yield running


async def command(*arguments: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, command_line, [*arguments], prog_name="ostinato")


def entry(expression: str, **more: object) -> dict[str, Any]:
    return {"shell": {"command": "true"}, "triggers": [{"cron": expression}], **more}


def document(expression: str, **more: object) -> dict[str, Any]:
    return {"version": 1, "tasks": [{"name": "job", **entry(expression, **more)}]}


async def next_fire(rest: Rest) -> str | None:
    """What the API says once the newest triggers are in force."""

    async def look() -> dict[str, Any] | None:
        task: dict[str, Any] = (await rest.get(TASK)).json()
        return task if task["scheduled_version"] == task["version"] else None

    task = await rest.until(look)
    fire: str | None = task["triggers"][0]["next"]
    return fire


# ── C015: impossible dates ────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("expression", IMPOSSIBLE)
async def test_c015_impossible_date_is_refused_alike_everywhere_and_nothing_is_stored(
    rest: Rest, expression: str, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(document(expression)), encoding="utf-8")
    for answer, field in (
        (await rest.put(TASK, entry(expression)), "triggers[0].cron"),
        (await rest.post("/apply", document(expression)), "tasks[0].triggers[0].cron"),
        (await rest.post("/cron/preview", {"expression": expression, "timezone": "UTC"}), "expression"),
    ):
        problem = answer.json()
        assert (answer.status_code, problem["code"], problem["field"]) == (400, "INVALID_CRON", field)
        assert "day-of-month" in problem["detail"]
    for arguments in (["apply", "-f", "job.yaml"], ["cron", "next", expression]):
        result = await command(*arguments)
        assert result.exit_code == 2
        assert "INVALID_CRON" in result.stderr
        assert "day-of-month" in result.stderr
    with pytest.raises(UserError, match="day-of-month") as refused:
        App("shop").shell("job", "true", triggers=[cron(expression)])
    assert refused.value.code == "INVALID_CRON"
    assert (await rest.get(TASK)).status_code == 404


@pytest.mark.parametrize("expression", IMPOSSIBLE)
async def test_c015_refusal_takes_no_search_of_years(rest: Rest, expression: str) -> None:
    await rest.put(TASK, entry(expression))
    taken: list[float] = []
    for _ in range(5):
        began = time.perf_counter()
        await rest.put(TASK, entry(expression))
        taken.append(time.perf_counter() - began)
    # The fastest, as others use this machine too.
    assert min(taken) < REFUSAL_SECONDS_MAX


@pytest.mark.parametrize("expression", POSSIBLE)
async def test_c015_rare_date_is_accepted_everywhere(rest: Rest, expression: str, tmp_path: Path) -> None:
    assert (await rest.put(TASK, entry(expression))).status_code == 201
    (tmp_path / "job.yaml").write_text(json.dumps(document(expression)), encoding="utf-8")
    assert (await command("apply", "-f", "job.yaml", "--diff")).exit_code == 0
    preview = await rest.post("/cron/preview", {"expression": expression, "timezone": "UTC", "count": 1})
    assert preview.json()["fires"] == [(await next_fire(rest) or "").replace("Z", "+00:00")]


async def test_c019_preview_shows_what_a_step_really_means(rest: Rest) -> None:
    body = {"expression": "*/40 * * * *", "timezone": "UTC", "start": "2026-01-01T00:00:00Z"}
    fires = (await rest.post("/cron/preview", body)).json()["fires"]
    assert [fire[11:16] for fire in fires[:5]] == ["00:40", "01:00", "01:40", "02:00", "02:40"]


# ── C029, C041: saving and registering again ──────────────────────────────────────────────────────────


async def test_c029_saving_the_same_schedule_keeps_its_next_fire_and_another_one_moves_it(rest: Rest) -> None:
    await rest.put(TASK, entry("0 * * * *"))
    before = await next_fire(rest)
    await rest.put(TASK, entry("0 * * * *", description="only a word has changed"))
    assert await next_fire(rest) == before
    await rest.put(TASK, entry("5 * * * *"))
    after = await next_fire(rest)
    assert after is not None
    assert after[14:19] == "05:00"
    shown = json.loads((await command("task", "show", "job", "--json")).stdout)
    assert shown["triggers"][0]["next"] == after
    assert shown["version"] == 3


async def test_c041_same_document_from_many_processes_and_requests_makes_one_version(
    rest: Rest, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(json.dumps(document("0 * * * *")), encoding="utf-8")
    processes = [
        await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "ostinato.cli", "apply", "-f", "job.yaml"),
            *("--database", f"sqlite:///{tmp_path}/rest.db"),
            cwd=tmp_path,
            env=clean_environment(),
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        for _ in range(3)
    ]
    answers = await asyncio.gather(*(rest.post("/apply", document("0 * * * *")) for _ in range(5)))
    for process in processes:
        _, told = await process.communicate()
        assert process.returncode == 0, told
    assert {answer.status_code for answer in answers} == {200}
    task = (await rest.get(TASK)).json()
    assert task["version"] == 1
    await next_fire(rest)
    assert len((await rest.get(TASK)).json()["triggers"]) == 1


# ── C031, C035: late fires, deletion ──────────────────────────────────────────────────────────────────


async def test_c031_fire_that_was_late_says_so_in_its_story(rest: Rest, tmp_path: Path) -> None:
    await rest.put(TASK, {"shell": {"command": "true"}, "triggers": [{"cron": "0 0 1 1 *"}]})
    await next_fire(rest)
    connection = sqlite3.connect(tmp_path / "rest.db", timeout=10)
    late_us = rest.clock.wall_us() - 60_000_000
    connection.execute("UPDATE task_trigger SET next_us = ?", (late_us,))
    connection.commit()
    connection.close()

    async def made() -> str | None:
        items = (await rest.get("/instances?task=job")).json()["items"]
        return str(items[0]["id"]) if items else None

    instance_id = await rest.until(made)
    story = (await rest.get(f"/instances/{instance_id}")).json()
    assert story["fire"] is not None
    assert any("late" in row["sentence"] for row in story["history"]), story["history"]
    shown = (await command("instance", "show", instance_id)).stdout
    assert "late" in shown


@pytest.mark.parametrize("by_command", [True, False])
async def test_c035_delete_cancels_what_waits_with_the_cause_and_nothing_of_it_starts(
    rest: Rest, by_command: bool
) -> None:
    for _ in range(5):
        await rest.submit("endless", delay="1h")
    running = await rest.submit("endless")
    await rest.in_state(running, "running")
    if by_command:
        result = await command("task", "delete", "endless", "--yes")
        assert result.exit_code == 0, result.stderr
    else:
        deleted = await rest.client.delete("/api/v1/namespaces/default/tasks/endless")
        assert deleted.status_code == 204
    items = (await rest.get("/instances?task=endless")).json()["items"]
    waiting = [item for item in items if item["id"] != running]
    assert [item["state"] for item in waiting] == ["cancelled"] * 5
    assert all("deleted" in item["reason"] for item in waiting)
    assert len(rest.worker.assigned) == 1
    (item,) = rest.worker.running.values()
    await rest.worker.finish(item, b"1")
    await rest.in_state(running, "success")


# ── C057: the effective policy ────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("combination", range(16))
async def test_c057_policy_in_force_is_echoed_with_every_default_and_reads_back_as_itself(
    rest: Rest, combination: int
) -> None:
    fields = [("max_retry", 2), ("interval", "10s"), ("multiplier", 3), ("window", "25s")]
    said = {name: value for bit, (name, value) in enumerate(fields) if combination >> bit & 1}
    unsaid = {"max_retry": 3, "interval": "5s", "multiplier": 2, "window": "none"}
    await rest.put(TASK, {"shell": {"command": "true"}, "retry": said})
    echo = (await rest.get(TASK)).json()["retry"]
    assert {name: echo[name] for name in unsaid} == {**unsaid, **said}
    assert (echo["jitter"], echo["max_interval"], echo["max_lost"]) == ("none", "none", 3)
    await rest.put(TASK, {"shell": {"command": "true"}, "retry": echo})
    assert (await rest.get(TASK)).json()["retry"] == echo
    shown = json.loads((await command("task", "show", "job", "--json")).stdout)
    assert shown["retry"] == echo


@pytest.mark.parametrize(
    ("retry", "field", "words"),
    [
        ({"interval": "300s", "multiplier": 2, "max_retry": 1000}, None, ""),
        ({"max_retry": -1}, "retry.max_retry", ""),
        ({"interval": "-5s"}, "retry.interval", ""),
        ({"interval": "99999999999999999999d"}, "retry.interval", ""),
        ({"retry_on": ["app.Slow"], "no_retry_on": ["app.Slow"]}, "retry.retry_on", ""),
        ({"jiter": "full"}, "retry.jiter", "did you mean jitter?"),
    ],
)
async def test_c049_c057_policy_is_in_force_or_refused_with_its_field(
    rest: Rest, retry: dict[str, object], field: str | None, words: str
) -> None:
    answer = await rest.put(TASK, {"shell": {"command": "true"}, "retry": retry})
    if field is None:
        assert answer.status_code == 201, answer.text
        return
    assert answer.status_code == 400
    assert answer.json()["field"].startswith(field), answer.json()
    assert words in answer.json().get("hint", "")
    assert (await rest.get(TASK)).status_code == 404


# ── group J: databases that fail ──────────────────────────────────────────────────────────────────────


def _ruin(file: Path) -> None:
    file.write_bytes(b"no database at all " * 1000)


def _newer(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE alembic_version SET version_num = 'r9999'")
    connection.close()


@pytest.mark.parametrize(("harm", "code"), [(_ruin, "DATABASE_UNUSABLE"), (_newer, "SCHEMA_VERSION")])
async def test_group_j_every_command_says_what_is_wrong_with_a_database_and_changes_nothing(
    tmp_path: Path, harm: Callable[[Path], None], code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bad.db"
    bad = ["--database", "sqlite:///bad.db"]
    assert (await command("apply", "--create", "-f", _job(tmp_path), *bad)).exit_code == 0
    harm(file)
    before = file.read_bytes()
    for arguments in (
        ["task", "list"],
        ["task", "trigger", "job"],
        ["instance", "list"],
        ["worker", "list"],
        ["node", "list"],
        ["export"],
        ["apply", "-f", _job(tmp_path)],
        ["doctor"],
    ):
        result = await command(*arguments, "--database", "sqlite:///bad.db")
        assert result.exit_code == (1 if arguments == ["doctor"] else 2), (arguments, result.stderr)
        assert code in result.stderr or arguments == ["doctor"]
        assert "Traceback" not in result.stdout + result.stderr
    assert file.read_bytes() == before


def _job(folder: Path) -> str:
    (folder / "job.yaml").write_text(json.dumps(document("0 * * * *")), encoding="utf-8")
    return "job.yaml"
