"""What ``--help`` says: whole sentences, and the words that a newcomer does not know."""

from __future__ import annotations

import pytest
from support.commands import Invoke

GROUPS = ["task", "instance", "worker", "node", "partition", "namespace", "db", "cron"]


@pytest.mark.parametrize(
    "group", [[], *([name] for name in GROUPS)], ids=lambda group: " ".join(group) or "top"
)
def test_summaries_of_commands_are_whole_sentences(invoke: Invoke, group: list[str]) -> None:
    shown = invoke(*group, "--help", env={"COLUMNS": "80"}).stdout
    commands = shown.partition("Commands:\n")[2]
    assert commands
    assert "..." not in commands
    assert "…" not in commands


def test_top_help_says_what_an_instance_is(invoke: Invoke) -> None:
    shown = " ".join(invoke("--help").stdout.split())
    assert "an instance is one run of a task" in shown


def test_bind_is_said_to_be_the_address_of_the_api(invoke: Invoke) -> None:
    for command in ("dev", "scheduler"):
        assert "Address of API, health and metrics." in " ".join(invoke(command, "--help").stdout.split())
