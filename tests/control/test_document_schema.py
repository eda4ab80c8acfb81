"""The JSON Schema, the page and the reader say the same of every field."""

from __future__ import annotations

import copy
import json
import re
import runpy
from collections.abc import Iterator
from typing import Any

import pytest
from house.project import ROOT
from jsonschema import Draft202012Validator

from ostinato.control.document.block import Block
from ostinato.control.document.container_block import CONTAINER, MOUNT
from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.executor_blocks import HTTP, PYTHON, SHELL
from ostinato.control.document.json_schema import json_schema
from ostinato.control.document.read import DOCUMENT, read_document
from ostinato.control.document.task_fields import TASK
from ostinato.control.document.trigger_block import BLOCKS
from ostinato.control.document.yaml_text import read_yaml, write_yaml
from ostinato.core.retry.policy import effective_policy
from ostinato.errors import UserError
from ostinato.sdk.declaration import TaskOptions

SCHEMA = json_schema()
VALIDATOR = Draft202012Validator(SCHEMA)
PAGE = (ROOT / "docs/tasks-yaml.md").read_text(encoding="utf-8")

EVERYTHING: dict[str, Any] = {
    "version": 1,
    "namespace": "shop",
    "tasks": [
        {
            "name": "backup",
            "description": "Nightly",
            "shell": {"command": ["pg_dump", "shop"], "env": {"A": "b"}, "directory": "/srv"},
            "triggers": [
                {
                    "cron": "0 2 * * *",
                    "timezone": "Europe/Berlin",
                    "dst_gap": "skip",
                    "dst_fold": "both",
                    "spread": "10m",
                    "misfire": "fire_all",
                    "misfire_grace": "2h",
                    "misfire_bound": 5,
                },
                {"every": "1h30m", "anchor": "2026-01-01T00:00:00Z"},
                {"at": "2026-01-31T18:00:00+01:00"},
            ],
            "retry": {
                "backoff": "exponential",
                "interval": "5s",
                "multiplier": 2,
                "max_interval": "10m",
                "jitter": "10%",
                "max_retry": 3,
                "max_lost": 3,
                "window": "none",
                "retry_on": ["HTTP_5*"],
                "no_retry_on": [],
                "rules": [
                    {"match": ["TIMEOUT"], "action": "retry", "backoff": "delays", "delays": ["1s"]},
                    {"match": ["EXIT_3"], "action": "fail"},
                ],
            },
            "timeout": "none",
            "grace": "5s",
            "queue_timeout": "1h",
            "heartbeat_timeout": "1m",
            "overlap": "queue",
            "queue_bound": 10,
            "shards": 8,
            "priority": 9,
            "labels": {"zone": "eu"},
            "payload": {"a": [1, None, {"b": 0.5}]},
            "exclusive": "relaxed",
            "memory_limit": "512MiB",
            "cpu_limit": 0.5,
        },
        {
            "name": "ping",
            "http": {
                "method": "POST",
                "url": "https://example.com",
                "headers": {"Accept": "a/b"},
                "body": "x",
                "success_status": [200, "3xx", "400-404"],
                "connect_timeout": "1s",
                "read_timeout": "500ms",
                "follow_redirects": True,
            },
            "timeout": None,
        },
        {
            "name": "report",
            "python": {
                "call": "shop:report",
                "async": True,
                "parameters": ["day", {"name": "limit", "required": False, "type": "int"}],
                "accepts_any": True,
            },
            "isolation": "process",
        },
        {
            "name": "dump",
            "container": {
                "image": "registry.example.com:5000/shop/tools:1.4",
                "command": ["--day", "today"],
                "entrypoint": ["report"],
                "env": {"A": "b"},
                "mounts": [{"source": "/srv/shop", "target": "/data", "read_only": True}],
                "directory": "/app",
                "user": "1000:1000",
                "network": "none",
                "pull": "always",
                "init": False,
            },
        },
    ],
}


def test_the_published_schema_is_current() -> None:
    generator = runpy.run_path(str(ROOT / "tools/generate_json_schema.py"))
    written = (ROOT / "docs/tasks.schema.json").read_text(encoding="utf-8")
    assert written == generator["rendered"](), "run: python tools/generate_json_schema.py"


def test_the_schema_is_one_and_accepts_a_document_with_every_field() -> None:
    Draft202012Validator.check_schema(SCHEMA)
    VALIDATOR.validate(EVERYTHING)
    assert len(read_document(EVERYTHING).definitions) == 4
    said = set(_keys(EVERYTHING))
    blocks: list[Block] = [DOCUMENT, TASK, SHELL, HTTP, PYTHON.block, CONTAINER, MOUNT, *BLOCKS.values()]
    assert {name for block in blocks for name in block.names} <= said, "or the test leaves a field out"


def _keys(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield key
            yield from _keys(member)
    elif isinstance(value, list):
        for member in value:
            yield from _keys(member)


def _blocks(value: Any, path: str = "") -> Iterator[str]:
    """Paths of the blocks in which an unknown key is a fault."""
    if isinstance(value, list):
        for index, member in enumerate(value):
            yield from _blocks(member, f"{path}/{index}")
    elif isinstance(value, dict) and path.rsplit("/", 1)[-1] not in ("env", "headers", "labels", "payload"):
        yield path
        for key, member in value.items():
            yield from _blocks(member, f"{path}/{key}")


@pytest.mark.parametrize("path", list(_blocks(EVERYTHING)))
def test_an_unknown_key_is_refused_by_reader_and_schema_in_every_block(path: str) -> None:
    document = copy.deepcopy(EVERYTHING)
    block: Any = document
    for part in path.split("/")[1:]:
        block = block[int(part) if isinstance(block, list) else part]
    block["unknown_key"] = 1
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(InvalidDocument) as caught:
        read_document(document)
    assert [fault.field.rsplit(".", 1)[-1] for fault in caught.value.errors] == ["unknown_key"]


def test_the_retry_blocks_of_the_schema_have_the_fields_that_a_policy_has() -> None:
    for said, block in (({"": 1}, "retry"), ({"rules": [{"": 1}]}, "rule")):
        with pytest.raises(UserError) as caught:
            effective_policy(said)
        known = caught.value.hint.removeprefix("known are ").split(", ")
        assert set(known) == set(SCHEMA["$defs"][block]["properties"])


def test_python_has_the_options_that_a_document_has() -> None:
    options = set(TaskOptions.__annotations__) - {"cron", "every", "at", "timezone"}
    assert options == set(TASK.names) - {"name", "shell", "http", "python", "container"}


@pytest.mark.parametrize(
    "changes",
    [
        {"timeout": "soon"},
        {"timeout": 30},
        {"priority": 10},
        {"priority": "5"},
        {"overlap": "some"},
        {"triggers": [{"cron": "@daily", "every": "5m"}]},
        {"triggers": [{"at": "2026-01-01 00:00:00"}]},
        {"labels": {"a": 1}},
        {"http": {"method": "GET", "url": "http://x"}},
        {"memory_limit": "lots"},
        {"retry": {"interval": 5}},
        {"name": "a b"},
    ],
)
def test_what_the_schema_refuses_the_reader_refuses(changes: dict[str, Any]) -> None:
    document = {"version": 1, "tasks": [{"name": "t", "shell": {"command": "true"}, **changes}]}
    assert not VALIDATOR.is_valid(document)
    with pytest.raises(InvalidDocument):
        read_document(document)


def test_every_field_has_a_description_and_its_examples_and_default_are_valid() -> None:
    def visit(schema: Any) -> Iterator[tuple[Any, Any]]:
        if isinstance(schema, dict):
            if isinstance(schema.get("description"), str):
                assert schema["description"].endswith(".")
                for value in [
                    *schema.get("examples", ()),
                    *([schema["default"]] if "default" in schema else ()),
                ]:
                    yield schema, value
            for member in schema.values():
                yield from visit(member)
        elif isinstance(schema, list):
            for member in schema:
                yield from visit(member)

    checked = 0
    for schema, value in visit(SCHEMA):
        assert Draft202012Validator({**schema, "$defs": SCHEMA["$defs"]}).is_valid(value), (schema, value)
        checked += 1
    assert checked > 30
    for block in (SCHEMA, *SCHEMA["$defs"].values(), *SCHEMA["$defs"]["trigger"]["oneOf"]):
        for name, schema in block.get("properties", {}).items():
            assert schema.get("description"), name


def test_the_page_names_every_field() -> None:
    named = set(re.findall(r"^\| `([a-z_]+)`", PAGE, re.MULTILINE))
    blocks: list[Block] = [DOCUMENT, TASK, SHELL, HTTP, PYTHON.block, *BLOCKS.values()]
    fields = {name for block in blocks for name in block.names} | set(SCHEMA["$defs"]["retry"]["properties"])
    assert fields - named == set()


def test_the_examples_of_the_page_are_valid() -> None:
    examples = re.findall(r"^```yaml\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
    documents = [example for example in examples if "version: 1" in example]
    assert len(documents) >= 3
    for text in documents:
        for document in read_yaml(text, name="tasks-yaml.md"):
            plain = json.loads(json.dumps({"version": 1, "namespace": document.namespace, "tasks": []}))
            assert VALIDATOR.is_valid(plain)
            assert document.definitions


def test_what_is_written_of_everything_is_valid_too() -> None:
    from ostinato.control.document.write import document

    read = read_document(EVERYTHING)
    written = document(read.namespace, read.definitions)
    VALIDATOR.validate(written)
    assert read_yaml(write_yaml(written), name="tasks.yaml")[0].definitions == read.definitions
