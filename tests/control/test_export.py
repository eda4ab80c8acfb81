"""An export is a document that an apply reads back without a change."""

from __future__ import annotations

import json

import msgspec
import pytest

from ostinato.control.document.read import read_document
from ostinato.control.document.yaml_text import read_yaml, write_yaml
from ostinato.control.export import export
from ostinato.control.plan import plan
from ostinato.core.definition import HttpSpec, Parameter, PythonSpec, ShellSpec, TaskDefinition
from ostinato.core.instants import DAY, HOUR, MINUTE, SECOND
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.schedule.trigger import CronTrigger, DateTrigger, IntervalTrigger
from ostinato.errors import UserError
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import START_US, VirtualClock, run_virtual

#: Values that YAML would take for something else, and characters that it must quote.
HARD_TEXTS = [
    "yes",
    "1:30",
    "2026-01-01",
    "null",
    "~",
    "0x10",
    "a: b",
    " # c",
    "- d",
    "é\u202e\U0001f600",
    "a\nb\n",
    "'\"",
    "",
]


def everything() -> list[TaskDefinition]:
    return [
        TaskDefinition("shop", "a_plain", ShellSpec("true")),
        TaskDefinition(
            "shop",
            "b_shell",
            ShellSpec(
                ("echo", *HARD_TEXTS),
                env={f"N{n}": text for n, text in enumerate(HARD_TEXTS)},
                directory="/srv",
            ),
            triggers=(
                CronTrigger(cron="0 2 * * *", timezone="Europe/Berlin", misfire="skip", spread_us=MINUTE),
                IntervalTrigger(every_us=90 * SECOND, anchor_us=START_US),
                DateTrigger(at_us=START_US + DAY, misfire="fire_all", misfire_bound=3),
            ),
            retry=RetryPolicy(max_retry=7),
            timeout_us=None,
            grace_us=0,
            queue_timeout_us=HOUR,
            overlap="queue",
            queue_bound=7,
            priority=9,
            labels={"zone": "eu", "answer": "yes"},
            memory_limit_bytes=256 * 1024 * 1024,
            cpu_limit=0.5,
            payload=msgspec.Raw(b'{"a":[1,2.5,null,true,"no"],"z":{"y":"1e3"}}'),
            description="several\nlines: yes",
        ),
        TaskDefinition(
            "shop",
            "c_http",
            HttpSpec(
                "POST",
                "https://example.com/x?y=%20",
                headers={"X-A": "b"},
                body="{}",
                success_status=("200", "3xx"),
                connect_timeout_us=1_500_000,
                follow_redirects=True,
            ),
        ),
        TaskDefinition(
            "shop",
            "d_python",
            PythonSpec(
                "shop:run", is_async=True, parameters=(Parameter("day"), Parameter("force", required=False))
            ),
            isolation="process",
        ),
        TaskDefinition("shop", "e_python", PythonSpec("shop:any", accepts_any=True), exclusive="relaxed"),
    ]


@pytest.mark.parametrize("form", ["yaml", "json"])
def test_what_is_exported_applies_without_a_change(form: str) -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await store.apply(everything(), now_us=START_US)
        exported = await export(store, "shop")
        assert [entry["name"] for entry in exported["tasks"]] == [each.name for each in everything()]
        if form == "yaml":
            read = read_yaml(write_yaml(exported), name="tasks.yaml")
        else:
            read = [read_document(json.loads(json.dumps(exported)))]
        made = await plan(store, read, prune=True)
        assert [(change.ref.name, change.action) for change in made.changes] == [
            (each.name, "unchanged") for each in everything()
        ]

    run_virtual(story())


def test_an_export_may_be_of_documents_or_apps_or_named_tasks_alone() -> None:
    async def story() -> None:
        store = MemoryStore(VirtualClock())
        await store.apply([TaskDefinition("n", "code", ShellSpec("true"))], now_us=START_US, origin="app")
        await store.apply(
            [TaskDefinition("n", "file", ShellSpec("true"))], now_us=START_US, origin="document"
        )

        async def names(**options: object) -> list[str]:
            found = await export(store, "n", **options)  # type: ignore[arg-type]  # chosen below
            return [entry["name"] for entry in found["tasks"]]

        assert await names() == ["code", "file"]
        assert await names(origin="app") == ["code"]
        assert await names(origin="document") == ["file"]
        assert await names(names=["file", "file"]) == ["file"]
        assert await names(names=["file"], origin="app") == []
        with pytest.raises(UserError) as caught:
            await names(names=["fil"])
        assert (caught.value.code, caught.value.hint) == ("TASK_NOT_FOUND", "did you mean file?")
        with pytest.raises(UserError) as caught:
            await export(store, "no/name")
        assert (caught.value.code, caught.value.field) == ("INVALID_NAME", "namespace")
        nothing = await export(store, "empty")
        assert (nothing["namespace"], nothing["tasks"]) == ("empty", [])

    run_virtual(story())
