"""What is meant by fields that no task has, because other schedulers write it so: how it is written here."""

from __future__ import annotations

import json
from collections.abc import Mapping

from ostinato.core.url_text import shown_url

_SHOWN_LENGTH_MAX = 60

#: Members of a task's blocks that are said of the task itself.
_WITHIN = {
    "env": "shell",
    "environment": "shell",
    "directory": "shell",
    "cwd": "shell",
    "method": "http",
    "headers": "http",
    "body": "http",
}
_IMAGES = frozenset({"image", "docker", "podman", "docker_image", "container_image"})
_COMMANDS = frozenset({"command", "cmd", "script", "run", "exec", "bash"})
_URLS = frozenset({"url", "uri"})
_FUNCTIONS = frozenset({"call", "function", "func", "callable"})
_CRONS = frozenset({"cron", "crontab", "schedule"})
_ZONES = frozenset({"timezone", "time_zone", "tz", "zone"})
_RETRIES = frozenset({"retries", "max_retry", "max_retries", "retry_count"})


def hint_of_task_field(name: str, value: object) -> str:
    """How the unknown field `name` of a task is written; empty: not known."""
    if name in _COMMANDS:
        return block_hint("shell", value)
    if name in _IMAGES:
        return block_hint("container", value)
    if name in _URLS:
        return block_hint("http", value)
    if name in _FUNCTIONS:
        return block_hint("python", value)
    if name in _CRONS:
        return f"write triggers: [{{cron: {_shown(value, '0 2 * * *')}}}]"
    if name == "every":
        return f"write triggers: [{{every: {_bare(value, '5m')}}}]"
    if name == "at":
        return f"write triggers: [{{at: {_shown(value, '2026-01-31T18:00:00+01:00')}}}]"
    if name in _ZONES:
        zone = _bare(value, "Europe/Berlin")
        return f'it belongs to a trigger: write triggers: [{{cron: "0 2 * * *", timezone: {zone}}}]'
    if name in _RETRIES:
        return retry_hint(value)
    if name in _WITHIN:
        block = _WITHIN[name]
        return f"it belongs to {block}: write {block}: {{{_MEMBERS.get(name, name)}: …}}"
    return ""


def hint_of_trigger_field(name: str, value: object) -> str:
    """How the unknown field `name` of a cron trigger is written; empty: not known."""
    return f"write timezone: {_bare(value, 'Europe/Berlin')}" if name in _ZONES else ""


def block_hint(block: str, value: object) -> str:
    """The block of ``shell``, ``http``, ``python`` or ``container`` that is meant by a bare `value`."""
    if block == "http":
        return f"write http: {{method: GET, url: {_shown(_url(value), 'https://example.com')}}}"
    if block == "python":
        return f"write python: {{call: {_shown(value, 'package.module:function')}}}"
    if block == "container":
        return f"write container: {{image: {_shown(value, 'postgres:17')}}}"
    if isinstance(value, list | tuple) and all(isinstance(word, str) for word in value):
        return f"write shell: {{command: {_json(list(value)) or '[…]'}}}"
    return f"write shell: {{command: {_shown(value, '…')}}}"


#: Words of other tools for members of ``container``.
_CONTAINER_WORDS = {
    "workdir": "directory",
    "working_dir": "directory",
    "cwd": "directory",
    "environment": "env",
    "volumes": "mounts",
    "cmd": "command",
    "args": "command",
    "pull_policy": "pull",
    "image_pull_policy": "pull",
    "network_mode": "network",
}
_MEMORY_WORDS = frozenset({"memory", "mem_limit", "memory_limit"})
_CPU_WORDS = frozenset({"cpus", "cpu", "cpu_limit"})


def hint_of_container_field(name: str, value: object) -> str:
    """How the unknown field `name` of a container is written; empty: not known."""
    if name in _MEMORY_WORDS:
        return f"it belongs to the task: write memory_limit: {_bare(value, '512MiB')} beside container"
    if name in _CPU_WORDS:
        return "it belongs to the task: write cpu_limit: 2 beside container"
    if name in ("limits", "resources"):
        return "they belong to the task: write memory_limit: 512MiB and cpu_limit: 2 beside container"
    if name == "timeout":
        return f"it belongs to the task: write timeout: {_bare(value, '10m')} beside container"
    return f"write {_CONTAINER_WORDS[name]}: …" if name in _CONTAINER_WORDS else ""


def _url(value: object) -> object:
    """The value, unless it holds what a message must not show."""
    return value if isinstance(value, str) and shown_url(value) == value else ""


def retry_hint(value: object) -> str:
    """The retry block that is meant by a bare number."""
    return f"write retry: {{max_retry: {_count(value)}}}"


def native_retry_hint(value: object) -> str:
    """As `retry_hint`, and in the words of Python too."""
    return f'{retry_hint(value)}; in Python Retry.fixed("30s", max_retry={_count(value)})'


def list_hint(value: object) -> str:
    """How tasks are listed that are said by name."""
    first = next(iter(value), None) if isinstance(value, Mapping) else None
    name = f" {first}" if isinstance(first, str) and first.isprintable() and len(first) <= 60 else ""
    return f"begin each task with '- name:{name}'"


#: Other names of members.
_MEMBERS = {"environment": "env", "cwd": "directory"}


def _count(value: object) -> int:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= 1_000_000
    return value if is_count and isinstance(value, int) else 3


def _shown(value: object, example: str) -> str:
    """A text within quotes, as YAML and JSON both read it; the example for what is none or too long."""
    return (_json(value) if isinstance(value, str) and value else "") or _json(example)


def _bare(value: object, example: str) -> str:
    """A text without quotes, where it needs none."""
    plain = isinstance(value, str) and value.replace("/", "").replace("_", "").replace("-", "").isalnum()
    return value if plain and isinstance(value, str) and len(value) <= _SHOWN_LENGTH_MAX else example


def _json(value: object) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_LENGTH_MAX and text.isprintable() else ""
