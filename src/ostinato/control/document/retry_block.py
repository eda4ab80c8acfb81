"""The ``retry`` block: read by ``effective_policy`` as everywhere, but with all of its faults."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ostinato.control.document.block import or_null
from ostinato.control.document.errors import joined
from ostinato.control.document.hints import native_retry_hint
from ostinato.control.document.kinds import DURATION_PATTERN, NONE, WHOLE_FLOAT_MAX, plain_number
from ostinato.control.document.reading import FAULTY, Reading, shown, wrong_type
from ostinato.core.failure.match import PATTERN_LENGTH_MAX
from ostinato.core.retry.budget_words import FLOOR_PATTERN, SHARE_PATTERN
from ostinato.core.retry.policy import RetryPolicy, effective_policy, policy_to_dict
from ostinato.core.retry.policy_model import (
    BACKOFFS,
    DELAYS_COUNT_MAX,
    PATTERNS_COUNT_MAX,
    RETRY_COUNT_MAX,
    RULE_ACTIONS,
    RULES_COUNT_MAX,
)
from ostinato.errors import UserError

#: A block with more faults than this tells the first ones; reading it again after each costs time.
FAULTS_COUNT_MAX = 20

_HINT = "write a block such as {max_retry: 5}; in Python Retry.fixed(30), or Retry.none() for no retries"
_ENTRY = re.compile(r"(rules|retry_on|no_retry_on|delays)\[(\d+)\]", re.ASCII)
#: Fields whose meaning depends on another: where that is faulty, nothing can be said of them.
_DEPENDENT = {
    "backoff": ("interval", "multiplier", "delays", "jitter", "rules"),
    "delays": ("backoff", "interval", "multiplier", "jitter", "rules"),
}
#: Jitters that are words; ``proportional`` is written as its factor.
_JITTER_WORDS = (NONE, "full", "equal", "decorrelated")


class RetryKind:
    """A retry policy. In Python also one that is made already."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if reading.native and isinstance(value, RetryPolicy):
            return value
        if not isinstance(value, Mapping):
            hint = native_retry_hint(value) if _is_number(value) else _HINT
            raise wrong_type(value, "a retry policy", field=field, code="INVALID_POLICY", hint=hint)
        said: dict[object, object] = dict(value)
        before = len(reading.faults)
        if not reading.native:
            _refuse_bare_numbers(said, field, reading=reading)
        for _ in range(FAULTS_COUNT_MAX):
            try:
                policy = effective_policy(said, field=field)  # type: ignore[arg-type]  # it checks the keys
            except UserError as fault:
                reading.refuse(fault)
                if not _take_out(said, fault.field.removeprefix(f"{field}.")):
                    break
            else:
                return policy if len(reading.faults) == before else FAULTY
        return FAULTY

    def write(self, value: Any) -> dict[str, Any]:
        """The fields without which another policy would be read."""
        return minimal_policy(value)

    def schema(self) -> dict[str, Any]:
        return {"$ref": "#/$defs/retry"}


def minimal_policy(policy: RetryPolicy) -> dict[str, Any]:
    """The shortest block that reads as `policy`; empty for the defaults of an explicit one."""
    block: dict[str, Any] = dict(policy_to_dict(policy))
    if isinstance(block.get("multiplier"), int):
        block["multiplier"] = plain_number(policy.multiplier)
    # Backwards, so that of two fields that imply each other the first stays.
    for name in reversed(list(block)):
        shorter = {key: value for key, value in block.items() if key != name}
        if _reads_as(shorter, policy):
            block = shorter
    return block


def _reads_as(block: dict[str, Any], policy: RetryPolicy) -> bool:
    try:
        return effective_policy(block) == policy
    except UserError:
        return False


def _refuse_bare_numbers(said: dict[object, object], field: str, *, reading: Reading) -> None:
    """Durations of a document have units; numbers of seconds are for Python."""
    for name in ("interval", "max_interval", "window"):
        if _is_number(said.get(name)):
            reading.refuse(_no_unit(said[name], joined(field, name)))
            said[name] = "1s"
    delays = said.get("delays")
    if isinstance(delays, list | tuple):
        for index, delay in enumerate(delays):
            if _is_number(delay):
                reading.refuse(_no_unit(delay, f"{joined(field, 'delays')}[{index}]"))
        said["delays"] = ["1s" if _is_number(delay) else delay for delay in delays]
    rules = said.get("rules")
    if isinstance(rules, list | tuple):
        read = []
        for index, rule in enumerate(rules):
            copy = dict(rule) if isinstance(rule, Mapping) else rule
            if isinstance(copy, dict):
                _refuse_bare_numbers(copy, f"{joined(field, 'rules')}[{index}]", reading=reading)
            read.append(copy)
        said["rules"] = read


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _no_unit(value: object, field: str) -> UserError:
    is_plain = isinstance(value, int | float) and 0 <= value <= WHOLE_FLOAT_MAX
    hint = f"write {value}s for seconds" if is_plain else ""
    return UserError("INVALID_DURATION", f"{shown(value)} has no unit", field=field, hint=hint)


def _take_out(said: dict[object, object], path: str) -> bool:
    """Replace what is wrong at `path` by something harmless; False if there is nothing that could be."""
    entry = _ENTRY.match(path)
    if entry is not None:
        name, index = entry[1], int(entry[2])
        entries = said.get(name)
        if isinstance(entries, list | tuple) and index < len(entries):
            harmless = f"ostinato.harmless.Entry{index}"
            instead: dict[str, object] = {
                "rules": {"match": [harmless], "action": "fail"},
                "delays": "1s",
            }
            said[name] = [*entries[:index], instead.get(name, harmless), *entries[index + 1 :]]
            return True
    name = re.split(r"[.\[]", path, maxsplit=1)[0]
    found = [key for key in said if key in (path, name) or str(key) == path]
    for key in (*found, *_DEPENDENT.get(name, ())):
        said.pop(key, None)
    if name == "max_retry":
        # Rules are compared with it.
        said[name] = RETRY_COUNT_MAX
    return bool(found)


# ── JSON Schema ───────────────────────────────────────────────────────────────────────────────────────


def retry_schema() -> dict[str, Any]:
    """Schema of the block; ``effective_policy`` knows the same fields (checked by a test)."""
    properties = {
        **_schedule_properties(),
        "max_lost": _count("How often a lost attempt is repeated; 0: at most one attempt at all.", 3),
        "window": _duration(
            "Longest time from the first failure to the start of a retry.", optional=True, default=NONE
        ),
        "retry_on": _patterns("Failures that are retried; empty: all that no_retry_on does not name."),
        "no_retry_on": _patterns("Failures that are not retried; wins over retry_on. Unsaid: [permanent]."),
        "rules": {
            "type": "array",
            "items": {"$ref": "#/$defs/rule"},
            "maxItems": RULES_COUNT_MAX,
            "description": "The long form: the first rule that matches a failure decides.",
        },
        "budget": _budget(),
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "description": "When, how often and for which failures to retry. A block, even an empty one, is "
        "explicit: no jitter and no cap unless it asks for them.",
        "properties": {name: or_null(schema) for name, schema in properties.items()},
    }


def rule_schema() -> dict[str, Any]:
    """Schema of an entry of ``rules``."""
    properties = {
        "match": _patterns("Failures that the rule is for."),
        "action": {"enum": list(RULE_ACTIONS), "description": "Whether they are retried, or fail at once."},
        **{name: or_null(schema) for name, schema in _schedule_properties(with_defaults=False).items()},
    }
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": ["match", "action"],
    }


def _schedule_properties(*, with_defaults: bool = True) -> dict[str, dict[str, Any]]:
    properties = {
        "backoff": {
            "enum": list(BACKOFFS),
            "description": "How the delay grows from retry to retry.",
            "default": "exponential",
        },
        "interval": _duration("Delay before the first retry.", default="5s"),
        "multiplier": {
            "type": "number",
            "minimum": 1,
            "description": "Each delay is the one before times this (exponential).",
            "default": 2,
        },
        "delays": {
            "type": "array",
            "items": _duration("One delay."),
            "minItems": 1,
            "maxItems": DELAYS_COUNT_MAX,
            "description": "The delays in turn, for backoff delays; without max_retry as many retries.",
        },
        "max_interval": _duration("Longest delay.", optional=True, default=NONE),
        "jitter": {
            "anyOf": [
                {"enum": list(_JITTER_WORDS)},
                {"type": "number", "minimum": 0, "maximum": 1},
                {"type": "string", "pattern": r"^\s*(?:±?\s*[0-9]{1,3}(?:\.[0-9]{1,6})?\s*%?)\s*$"},
            ],
            "description": "How delays are spread at random: a word, or a fraction such as 0.1 or 10%.",
            "default": NONE,
        },
        "max_retry": _count("How often failures of the task itself are retried; 0: not once.", 3),
    }
    if not with_defaults:
        for schema in properties.values():
            schema.pop("default", None)
    return properties


def _budget() -> dict[str, Any]:
    share = {
        "anyOf": [
            {"type": "number", "minimum": 0, "maximum": 1},
            {"type": "string", "pattern": rf"^\s*(?:{SHARE_PATTERN})\s*$"},
        ],
        "description": "Retries for each first attempt of the last ten seconds, such as 10%.",
    }
    block = {
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "share": share,
            "floor": or_null(
                {
                    "type": "string",
                    "pattern": rf"^\s*(?:{NONE}|{FLOOR_PATTERN})\s*$",
                    "description": "Retries that may start whatever else does, such as 1/s or 30/m.",
                    "default": "1/s",
                }
            ),
        },
        "required": ["share"],
    }
    return {
        "anyOf": [{"const": NONE}, *share["anyOf"], block],
        "description": "How many retries of the task may start: a share of its first attempts.",
        "default": NONE,
    }


def _count(description: str, default: int) -> dict[str, Any]:
    return {
        "type": "integer",
        "minimum": 0,
        "maximum": RETRY_COUNT_MAX,
        "description": description,
        "default": default,
    }


def _duration(description: str, *, optional: bool = False, default: str = "") -> dict[str, Any]:
    pattern = f"(?:{NONE}|{DURATION_PATTERN})" if optional else DURATION_PATTERN
    schema = {"type": "string", "pattern": rf"^\s*{pattern}\s*$", "description": description}
    return {**schema, "default": default} if default else schema


def _patterns(description: str) -> dict[str, Any]:
    entry = {"type": "string", "minLength": 1, "maxLength": PATTERN_LENGTH_MAX}
    return {
        "type": "array",
        "items": entry,
        "maxItems": PATTERNS_COUNT_MAX,
        "description": f"{description} Codes, globs such as HTTP_5*, categories, or exception classes.",
        "examples": [["HTTP_5*", "TIMEOUT"]],
    }
