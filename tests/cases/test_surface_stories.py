"""C187: text that a terminal or a browser would obey, in every field, over REST and through every command."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.rest import Rest, running_rest
from typer.testing import CliRunner, Result

from ostinato.cli.main import app as command_line
from ostinato.core.failure.failure import Cause, Failure
from ostinato.core.instants import SECOND
from ostinato.core.model import OutputChunk
from ostinato.store.batches import WorkerRow

MARKUP = "<img src=x onerror=alert(1)></script><script>alert(1)</script>javascript:alert(1)"
#: An override of the direction, spaces of no width, a soft hyphen, a letter of tags, a filler.
UNSEEN = "\u202egnp.\u200b\u2060\ufeff\u00ad\U000e0041\u3164x\u200dx"
#: Colours, a link to elsewhere, a C1 control, the start of the line, deletion.
OBEYED = "\x1b[31m\x1b]8;;http://evil.example\x07here\x1b]8;;\x07\x9b2J\rover\x7f"
#: What names, keys and texts for people may hold, and what anything else may.
ALLOWED = f"{MARKUP} {UNSEEN}"
ANYTHING = f"{ALLOWED} {OBEYED}"
LABEL = f"<img src=x onerror=alert(1)>{UNSEEN}"
JOINED = "\U0001f469\u200d\U0001f4bb \u0645\u06cc\u200c\u062e"


class Hostile:
    """A database whose every text was written by somebody who means no good."""

    def __init__(self, rest: Rest, directory: Path) -> None:
        self.rest = rest
        self.directory = directory
        self.instance_id = ""

    async def run(self, *arguments: str, status: int | None = 0) -> Result:
        """A command on the database, in this process; the API goes on meanwhile."""
        result = await asyncio.to_thread(self._call, *arguments)
        assert status is None or result.exit_code == status, (arguments, result.stdout, result.stderr)
        return result

    def _call(self, *arguments: str) -> Result:
        environment = {"OSTINATO_DATABASE": f"sqlite:///{self.directory}/rest.db"}
        return CliRunner().invoke(command_line, [*arguments], env=environment, prog_name="ostinato")


def entry() -> dict[str, Any]:
    return {
        "shell": {"command": f"echo '{ANYTHING}'", "env": {"GREETING": ANYTHING}},
        "description": f"{ALLOWED}\n{ALLOWED}",
        "labels": {"zone": LABEL},
        "payload": {ANYTHING: [ANYTHING, {ALLOWED: ANYTHING}]},
        "triggers": [{"cron": "0 2 * * *"}],
    }


def failure() -> Failure:
    return Failure(
        code="CLOSED",
        category="permanent",
        message=f"{ANYTHING}\n{ANYTHING}\u2028attempt 99: success",
        classes=(ALLOWED,),
        chain=(Cause(ALLOWED, ANYTHING), Cause(ALLOWED, ANYTHING)),
        traceback=f"Traceback\n  {ANYTHING}\n",
        detail=ANYTHING,
    )


@pytest.fixture
async def hostile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Hostile]:
    monkeypatch.chdir(tmp_path)
    async with running_rest(tmp_path) as rest:
        made = Hostile(rest, tmp_path)
        assert (await rest.put("/namespaces/default/tasks/evil", entry())).status_code == 201
        answer = await rest.post(
            "/namespaces/default/tasks/endless/instances",
            {"payload": {ANYTHING: ANYTHING}, "key": ALLOWED, "reason": ALLOWED},
            headers={"x-ostinato-by": LABEL.encode()},
        )
        assert answer.status_code == 201, answer.text
        made.instance_id = answer.json()["instance_id"]
        await rest.in_state(made.instance_id, "running")
        (item,) = rest.worker.running.values()
        await rest.store.append_output(
            [
                OutputChunk(
                    instance_id=made.instance_id,
                    attempt=1,
                    attempt_id=item.attempt_id,
                    sequence=number,
                    at_us=rest.clock.wall_us(),
                    stream=stream,
                    text=f"{ANYTHING}\r\n{ANYTHING}\n",
                )
                for number, stream in enumerate(("stdout", "stderr"))
            ]
        )
        await rest.worker.finish(item, failure())
        await rest.in_state(made.instance_id, "failed")
        (node,) = await rest.store.nodes()
        await rest.store.record_workers([_worker(rest, node_id=node.id)], gone_before_us=0)
        yield made


def _worker(rest: Rest, *, node_id: str) -> WorkerRow:
    return WorkerRow(
        worker_id="bad-worker",
        worker_name=LABEL,
        node_id=node_id,
        state="connected",
        labels={"zone": LABEL},
        capacity={"process": 1},
        problems=[f"{ANYTHING}: {ANYTHING}\n{ANYTHING}"],
        executors=[LABEL],
        connected_us=rest.clock.wall_us() - SECOND,
        seen_us=rest.clock.wall_us(),
    )


def unseen(shown: str, *, but: str = "\n") -> list[str]:
    """Characters of what was shown that a terminal obeys, or that nobody sees."""
    return sorted({character for character in shown if not character.isprintable() and character not in but})


def texts_of(value: object) -> Iterator[str]:
    """Every text and key within JSON."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, inner in value.items():
            yield from (key, *texts_of(inner))
    elif isinstance(value, list):
        for inner in value:
            yield from texts_of(inner)


COMMANDS = (
    ["task", "list"],
    ["task", "show", "evil"],
    ["instance", "list"],
    ["instance", "list", "--key", ALLOWED],
    ["instance", "show", "{id}"],
    ["instance", "show", "{id}", "--traceback", "--all"],
    ["instance", "show", "{id}", "--watch"],
    ["instance", "logs", "{id}"],
    ["instance", "logs", "{id}", "--tail", "3"],
    ["instance", "logs", "{id}", "--follow"],
    ["worker", "list"],
    ["worker", "show", "bad-worker"],
    ["worker", "show", LABEL],
    ["node", "list"],
    ["partition", "list"],
    ["namespace", "list"],
    ["export"],
    ["doctor"],
)


@pytest.mark.parametrize("width", ["", "20", "200"])
async def test_c187_no_command_shows_what_a_terminal_obeys_or_nobody_sees(
    hostile: Hostile, width: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", width)
    shown_markup = 0
    for arguments in COMMANDS:
        result = await hostile.run(
            *(argument.format(id=hostile.instance_id) for argument in arguments),
            status=None if arguments == ["doctor"] else 0,
        )
        assert unseen(result.stdout) == [], arguments
        assert unseen(result.stderr) == [], arguments
        shown_markup += "<img src=x onerror=alert(1)>" in result.stdout
    # They were all there to be shown, as text.
    assert shown_markup >= 11


async def test_c187_story_cannot_be_given_lines_that_it_has_not(hostile: Hostile) -> None:
    shown = (await hostile.run("instance", "show", hostile.instance_id, "--traceback")).stdout
    heads = [line for line in shown.splitlines() if line.startswith("attempt ")]
    assert len(heads) == 1
    assert "\\x1b[31m\\x1b]8;;http://evil.example\\x07here" in shown
    assert "\\u202egnp.\\u200b\\u2060\\ufeff\\xad\\U000e0041\\u3164x\\u200dx" in shown


async def test_c187_json_of_every_command_carries_each_text_as_it_is_in_characters_that_are_seen(
    hostile: Hostile,
) -> None:
    found: set[str] = set()
    for arguments in COMMANDS:
        if "--watch" in arguments or "--follow" in arguments or arguments == ["doctor"]:
            continue
        given = [argument.format(id=hostile.instance_id) for argument in arguments]
        result = await hostile.run(*given, "--json")
        assert unseen(result.stdout) == [], arguments
        found |= set(texts_of(json.loads(result.stdout)))
    story = failure()
    for text in (ANYTHING, ALLOWED, LABEL, story.message, story.traceback, f"{ALLOWED}\n{ALLOWED}"):
        assert text in found


async def test_c187_what_is_refused_is_named_without_being_obeyed(hostile: Hostile) -> None:
    for arguments, status in (
        (["task", "show", ANYTHING], 2),
        (["task", ANYTHING], 2),
        ([ANYTHING], 2),
        (["task", "list", f"--{ANYTHING}"], 2),
        (["task", "list", "--limit", ANYTHING], 2),
        (["instance", "list", "--state", ANYTHING], 2),
        (["instance", "list", "--since", ANYTHING], 2),
        (["instance", "list", "--cursor", ANYTHING], 2),
        (["instance", "show", ANYTHING], 5),
        (["instance", "cancel", ANYTHING, "--reason", UNSEEN], 5),
        (["worker", "show", ANYTHING], 2),
        (["worker", "show", ALLOWED], 5),
        (["apply", "-f", ANYTHING], 2),
        (["export", "--task", ANYTHING], 2),
        (["cron", "next", ANYTHING], 2),
        (["cron", "next", "0 2 * * *", "--timezone", ANYTHING], 2),
        (["task", "trigger", "evil", "--payload", ANYTHING], 2),
    ):
        for form in ([], ["--json"]):
            result = await hostile.run(*form, *arguments, status=None)
            assert result.exit_code == status, (arguments, result.stderr)
            assert unseen(result.stdout + result.stderr) == [], arguments


# ── documents ─────────────────────────────────────────────────────────────────────────────────────────


async def test_c187_export_written_to_a_file_applies_without_a_change_and_hides_nothing(
    hostile: Hostile,
) -> None:
    written = (await hostile.run("export", "--task", "evil")).stdout
    assert unseen(written) == []
    (hostile.directory / "evil.yaml").write_text(written, encoding="utf-8")
    await hostile.run("apply", "-f", "evil.yaml", "--diff")
    await hostile.run("apply", "--create", "-f", "evil.yaml", "--database", "sqlite:///other.db")
    again = await hostile.run("export", "--task", "evil", "--json", "--database", "sqlite:///other.db")
    assert json.loads(again.stdout) == json.loads(
        (await hostile.run("export", "--task", "evil", "--json")).stdout
    )


async def test_c187_diff_and_dry_run_of_a_hostile_document_show_it_as_text(hostile: Hostile) -> None:
    document = {"version": 1, "tasks": [{"name": "evil", **entry(), "description": f"new {ALLOWED}"}]}
    (hostile.directory / "evil.yaml").write_text(json.dumps(document), encoding="utf-8")
    for options, status in ((["--diff"], 1), (["--dry-run"], 0), (["--diff", "--json"], 1), ([], 0)):
        result = await hostile.run("apply", "-f", "evil.yaml", *options, status=None)
        assert result.exit_code == status, result.stderr
        assert unseen(result.stdout + result.stderr) == []
    coloured = (await hostile.run("apply", "-f", "evil.yaml", "--diff", "--color", "always")).stdout
    assert coloured == ""


async def test_c187_faults_of_a_hostile_document_are_told_as_text(hostile: Hostile) -> None:
    tasks = [
        {"name": ANYTHING, ANYTHING: 1, "shell": {"command": "true", ANYTHING: 1}, "labels": {ANYTHING: 1}}
    ]
    (hostile.directory / "bad.yaml").write_text(json.dumps({"version": 1, "tasks": tasks}), encoding="utf-8")
    result = await hostile.run("apply", "-f", "bad.yaml", status=2)
    assert unseen(result.stdout + result.stderr) == []
    assert "bad.yaml:1:" in result.stderr


async def test_json_that_a_program_wrote_in_ascii_is_a_document_too(hostile: Hostile) -> None:
    """JSON writes a character beyond U+FFFF as two escapes, which YAML does not know."""
    description = f"\U0001f4be {JOINED} \\ud83d\\udcbe"
    tasks = [{"name": "kept", "shell": {"command": "true"}, "description": description}]
    written = json.dumps({"version": 1, "tasks": tasks}, ensure_ascii=True)
    assert "\\ud83d\\udcbe" in written
    (hostile.directory / "kept.json").write_text(written, encoding="ascii")
    await hostile.run("apply", "-f", "kept.json")
    shown = json.loads((await hostile.run("task", "show", "kept", "--json")).stdout)
    assert shown["definition"]["description"] == description


async def test_emoji_and_scripts_that_need_joiners_are_left_alone(hostile: Hostile) -> None:
    await hostile.rest.put(
        "/namespaces/default/tasks/kind",
        {"shell": {"command": "true"}, "description": JOINED},
    )
    shown = (await hostile.run("task", "show", "kind")).stdout
    assert JOINED in shown


# ── REST ──────────────────────────────────────────────────────────────────────────────────────────────

PATHS = (
    "/version",
    "/openapi.json",
    "/namespaces",
    "/namespaces/default/tasks",
    "/namespaces/default/tasks/evil",
    "/namespaces/default/export",
    "/instances",
    "/instances/counts",
    "/instances/{id}",
    "/instances/{id}/history",
    "/instances/{id}/output",
    "/workers",
    "/workers/bad-worker",
    "/nodes",
    "/partitions",
)


async def test_c187_every_answer_is_json_that_no_browser_takes_for_a_page(hostile: Hostile) -> None:
    found: set[str] = set()
    for path in PATHS:
        answer = await hostile.rest.get(path.format(id=hostile.instance_id))
        assert answer.status_code == 200, path
        assert answer.headers["content-type"] == "application/json", path
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["content-security-policy"] == "default-src 'none'"
        found |= set(texts_of(answer.json()))
    for text in (ANYTHING, ALLOWED, LABEL, failure().message, failure().traceback):
        assert text in found


async def test_c187_output_is_downloaded_as_plain_text_whatever_it_is(hostile: Hostile) -> None:
    await hostile.rest.store.append_output(
        [
            OutputChunk(
                instance_id=hostile.instance_id,
                attempt=1,
                attempt_id="f" * 16,
                sequence=9,
                at_us=1,
                stream="stdout",
                text='<svg xmlns="http://www.w3.org/2000/svg" onload="alert(1)"/>\n',
            )
        ]
    )
    answer = await hostile.rest.get(f"/instances/{hostile.instance_id}/output.txt")
    assert answer.headers["content-type"] == "text/plain; charset=utf-8"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-security-policy"] == "default-src 'none'"
    assert answer.headers["content-disposition"].startswith("attachment;")
    assert "<svg" in answer.text
    assert answer.text.startswith(f"{ANYTHING}\r\n")


async def test_c187_refusals_quote_what_was_sent_in_json_and_headers_take_nothing_over(
    hostile: Hostile,
) -> None:
    for answer in (
        await hostile.rest.get(f"/{MARKUP}"),
        await hostile.rest.get("/instances", params={ALLOWED: ALLOWED}),
        await hostile.rest.get("/instances", params={"state": ANYTHING}),
        await hostile.rest.get("/instances", params={"cursor": ANYTHING}),
        await hostile.rest.get("/workers/%1b%5B31m%0d%0ax-evil:1"),
        await hostile.rest.get("/namespaces/default/tasks/%3Cimg%20src=x%3E"),
        await hostile.rest.put("/namespaces/default/tasks/evil", {ANYTHING: 1}),
        await hostile.rest.post("/apply", {"version": 1, "tasks": [{"name": ANYTHING}]}),
        await hostile.rest.post("/namespaces/default/tasks/add/instances", {"key": ANYTHING}),
        await hostile.rest.post("/cron/preview", {"expression": ANYTHING, "timezone": ANYTHING}),
    ):
        assert 400 <= answer.status_code < 500, answer.text
        assert answer.headers["content-type"] == "application/problem+json"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "x-evil" not in answer.headers
        assert answer.json()["code"]
