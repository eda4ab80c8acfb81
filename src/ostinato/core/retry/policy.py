"""The retry policy as people write it: read with every default filled in, and echoed in the same words.

The data itself is in ``policy_model``, its refusals in ``validation``; both are given on from here, so that
this is the one module to import a policy from.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from difflib import get_close_matches
from typing import Literal, TypeVar, cast

import msgspec

from ostinato.core.failure.classify import qualified_name
from ostinato.core.failure.coverage import covers
from ostinato.core.failure.signals import PERMANENT_CLASS
from ostinato.core.instants import format_duration, parse_duration
from ostinato.core.retry.budget_words import budget_echo, read_budget
from ostinato.core.retry.policy_model import (
    DEFAULT_POLICY,
    Backoff,
    Jitter,
    RetryBudget,
    RetryPolicy,
    RetryRule,
    RuleAction,
)
from ostinato.core.retry.validation import JITTER_HINT, policy_notes, refusal, validate_policy
from ostinato.errors import UserError

__all__ = [
    "DEFAULT_POLICY",
    "RetryBudget",
    "RetryPolicy",
    "RetryRule",
    "effective_policy",
    "policy_notes",
    "policy_to_dict",
    "validate_policy",
]

Entry = TypeVar("Entry")

_NONE: Literal["none"] = "none"
_FRACTION = re.compile(r"±?\s*(\d{1,3}(?:\.\d{1,6})?)\s*(%?)", re.ASCII)

#: The fields of a schedule, which a rule may set too, in the order of the echo.
_SCHEDULE_FIELDS = ("backoff", "interval", "multiplier", "delays", "max_interval", "jitter", "max_retry")
_POLICY_FIELDS = (*_SCHEDULE_FIELDS, "max_lost", "window", "retry_on", "no_retry_on", "rules", "budget")
_RULE_FIELDS = ("match", "action", *_SCHEDULE_FIELDS)


def effective_policy(partial: Mapping[str, object], *, field: str = "retry") -> RetryPolicy:
    """Valid policy of a ``retry`` block (YAML, REST, SDK) with every default filled in (C057).

    A block, even an empty one, is explicit: no jitter and no cap unless it asks for them. Durations are as in
    ``parse_duration``; null means unset, ``none`` means no window, cap, jitter or budget, and 0 means 0.
    Exception classes may stand for their names. Unsaid ``max_retry`` of a list of delays is its length.
    Unsaid ``no_retry_on`` is ``[permanent]``; where ``retry_on`` names what to retry, it is
    ``[ostinato.Permanent]``, so that a task's own refusal still counts, unless that is named too.
    Raises ``INVALID_POLICY`` or ``INVALID_DURATION`` naming the field.
    """
    said = _known_fields(partial, _POLICY_FIELDS, field=field)
    _refuse_meaningless(said, said.get("backoff", "exponential"), field=field)
    changes = _schedule_changes(said, field)
    if "max_retry" not in said and "delays_us" in changes:
        changes["max_retry"] = len(cast("tuple[int, ...]", changes["delays_us"]))
    if "max_lost" in said:
        changes["max_lost"] = _count(said["max_lost"], f"{field}.max_lost")
    if "window" in said:
        changes["window_us"] = _optional_duration(said["window"], f"{field}.window")
    if "retry_on" in said:
        changes["retry_on"] = _patterns(said["retry_on"], f"{field}.retry_on")
    if "no_retry_on" in said:
        changes["no_retry_on"] = _patterns(said["no_retry_on"], f"{field}.no_retry_on")
    elif changes.get("retry_on"):
        changes["no_retry_on"] = _unsaid_no_retry_on(cast("tuple[str, ...]", changes["retry_on"]))
    if "rules" in said:
        changes["rules"] = _rules(said["rules"], f"{field}.rules")
    if "budget" in said:
        changes["budget"] = read_budget(said["budget"], f"{field}.budget")
    policy = msgspec.structs.replace(RetryPolicy(), **changes)
    validate_policy(policy, field=field)
    return policy


def policy_to_dict(policy: RetryPolicy) -> dict[str, object]:
    """Echo of a policy in the words of ``tasks.yaml``; ``effective_policy`` reads it back as the same policy.

    Every default is filled in; fields that the backoff gives no meaning to are left out.
    """
    echo: dict[str, object] = {"backoff": policy.backoff}
    if policy.backoff == "delays":
        echo["delays"] = [format_duration(delay_us) for delay_us in policy.delays_us]
    else:
        echo["interval"] = format_duration(policy.interval_us)
    if policy.backoff == "exponential":
        echo["multiplier"] = _plain_number(policy.multiplier)
    echo["max_interval"] = _optional_text(policy.max_interval_us)
    echo["jitter"] = _jitter_echo(policy.jitter, policy.jitter_factor)
    echo["max_retry"] = policy.max_retry
    echo["max_lost"] = policy.max_lost
    echo["window"] = _optional_text(policy.window_us)
    echo["retry_on"] = list(policy.retry_on)
    echo["no_retry_on"] = list(policy.no_retry_on)
    echo["rules"] = [_rule_to_dict(rule) for rule in policy.rules]
    echo["budget"] = budget_echo(policy.budget)
    return echo


def _known_fields(partial: object, known: Sequence[str], *, field: str) -> dict[str, object]:
    if not isinstance(partial, Mapping):
        raise refusal(f"{partial!r} is not a block of fields", field)
    for name in partial:
        if name not in known:
            close = get_close_matches(str(name), known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"known are {', '.join(known)}"
            raise refusal(f"{name!r} is not a field of a retry policy", f"{field}.{name}", hint=hint)
    return {str(name): value for name, value in partial.items() if value is not None}


def _refuse_meaningless(said: Mapping[str, object], backoff: object, *, field: str) -> None:
    """A field that would be read and then have no effect is a mistake, not a wish."""
    without_meaning = {
        "fixed": ("multiplier", "delays"),
        "linear": ("multiplier", "delays"),
        "exponential": ("delays",),
        "delays": ("multiplier", "interval"),
    }.get(str(backoff), ())
    for name in without_meaning:
        if name in said:
            hint = "write backoff: delays" if name == "delays" else "take it away"
            raise refusal(f"has no meaning with backoff {backoff}", f"{field}.{name}", hint=hint)


def _schedule_changes(said: Mapping[str, object], field: str) -> dict[str, object]:
    changes: dict[str, object] = {}
    if "backoff" in said:
        changes["backoff"] = cast(Backoff, _word(said["backoff"], f"{field}.backoff"))
    if "interval" in said:
        changes["interval_us"] = _duration(said["interval"], f"{field}.interval")
    if "multiplier" in said:
        changes["multiplier"] = float(_number(said["multiplier"], f"{field}.multiplier"))
    if "delays" in said:
        changes["delays_us"] = _listed(said["delays"], f"{field}.delays", read=_duration)
    if "max_interval" in said:
        changes["max_interval_us"] = _optional_duration(said["max_interval"], f"{field}.max_interval")
    if "jitter" in said:
        changes["jitter"], changes["jitter_factor"] = _jitter(said["jitter"], f"{field}.jitter")
    if "max_retry" in said:
        changes["max_retry"] = _count(said["max_retry"], f"{field}.max_retry")
    return changes


def _unsaid_no_retry_on(retry_on: tuple[str, ...]) -> tuple[str, ...]:
    named = any(
        pattern in ("permanent", "PERMANENT") or covers(pattern, PERMANENT_CLASS) for pattern in retry_on
    )
    return () if named else (PERMANENT_CLASS,)


def _rules(value: object, field: str) -> tuple[RetryRule, ...]:
    return _listed(value, field, read=_rule)


def _rule(value: object, field: str) -> RetryRule:
    said = _known_fields(value, _RULE_FIELDS, field=field)
    if "action" not in said:
        raise refusal("is missing", f"{field}.action", hint="use retry or fail")
    if "backoff" in said:
        _refuse_meaningless(said, said["backoff"], field=field)
    changes = _schedule_changes(said, field)
    # None in a rule means "as the policy", so a rule cannot lift the policy's cap; saying so beats ignoring
    # it.
    if "max_interval_us" in changes and changes["max_interval_us"] is None:
        raise refusal("a rule cannot take the cap away", f"{field}.max_interval", hint="write a duration")
    rule = RetryRule(
        match=_patterns(said.get("match", ()), f"{field}.match"),
        action=cast(RuleAction, _word(said["action"], f"{field}.action")),
    )
    return msgspec.structs.replace(rule, **changes)


def _rule_to_dict(rule: RetryRule) -> dict[str, object]:
    echo: dict[str, object] = {"match": list(rule.match), "action": rule.action}
    if rule.backoff is not None:
        echo["backoff"] = rule.backoff
    if rule.interval_us is not None:
        echo["interval"] = format_duration(rule.interval_us)
    if rule.multiplier is not None:
        echo["multiplier"] = _plain_number(rule.multiplier)
    if rule.delays_us is not None:
        echo["delays"] = [format_duration(delay_us) for delay_us in rule.delays_us]
    if rule.max_interval_us is not None:
        echo["max_interval"] = format_duration(rule.max_interval_us)
    if rule.jitter is not None:
        echo["jitter"] = _jitter_echo(rule.jitter, rule.jitter_factor or 0.0)
    if rule.max_retry is not None:
        echo["max_retry"] = rule.max_retry
    return echo


def _jitter(value: object, field: str) -> tuple[Jitter, float]:
    """Word, fraction or percentage → (jitter, factor). 0 is said, and says none."""
    if isinstance(value, str):
        fraction = _FRACTION.fullmatch(value.strip())
        if fraction is None:
            return cast(Jitter, value), 0.0
        factor = float(fraction[1]) / (100 if fraction[2] else 1)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        factor = float(value)
    else:
        raise refusal(f"{value!r} is no jitter", field, hint=JITTER_HINT)
    return (_NONE, 0.0) if factor == 0 else ("proportional", factor)


def _jitter_echo(jitter: Jitter, factor: float) -> object:
    return _plain_number(factor) if jitter == "proportional" else jitter


def _duration(value: object, field: str) -> int:
    if not isinstance(value, str | int | float | timedelta):
        raise UserError(
            "INVALID_DURATION",
            f"{value!r} is not a duration",
            field=field,
            hint="write it as 500ms, 30s, 5m, 1h30m or 7d",
        )
    return parse_duration(value, field=field)


def _optional_duration(value: object, field: str) -> int | None:
    return None if value == _NONE else _duration(value, field)


def _optional_text(duration_us: int | None) -> str:
    return _NONE if duration_us is None else format_duration(duration_us)


def _count(value: object, field: str) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise refusal(
            f"{value!r} is not a whole number", field, hint="attempts are bounded; 0 means not once"
        )
    return value


def _number(value: object, field: str) -> float:
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
        raise refusal(f"{value!r} is not a number", field)
    return value


def _plain_number(value: float) -> int | float:
    return int(value) if value.is_integer() else value


def _word(value: object, field: str) -> str:
    if not isinstance(value, str):
        raise refusal(f"{value!r} is not a word", field)
    return value


def _patterns(value: object, field: str) -> tuple[str, ...]:
    return _listed(value, field, read=_pattern)


def _pattern(value: object, field: str) -> str:
    if isinstance(value, type) and issubclass(value, BaseException):
        return qualified_name(value)
    return _word(value, field)


def _listed(value: object, field: str, *, read: Callable[[object, str], Entry]) -> tuple[Entry, ...]:
    # A text is a sequence too; taking it for a list of letters would refuse or match the wrong things.
    if not isinstance(value, list | tuple):
        hint = f"write it in brackets: {_as_list(value)}"
        raise refusal(f"{_shown(value)} is not a list", field, hint=hint)
    return tuple(read(entry, f"{field}[{index}]") for index, entry in enumerate(value))


def _shown(value: object) -> str:
    return value.__qualname__ if isinstance(value, type) else repr(value)


def _as_list(value: object) -> str:
    """What is meant by a single `value`, or by several in one text, as YAML and Python both write it."""
    if isinstance(value, str):
        return json.dumps([part.strip() for part in value.split(",") if part.strip()] or ["HTTP_5*"])
    return f"[{_shown(value)}]"
