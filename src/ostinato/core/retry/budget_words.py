"""A retry budget as people write it: ``10%``, or ``{share: 10%, floor: 30/m}``."""

from __future__ import annotations

import re
from collections.abc import Mapping

import msgspec

from ostinato.core.instants import HOUR, MINUTE, SECOND
from ostinato.core.retry.policy_model import FLOOR_COUNT_MAX, RetryBudget
from ostinato.core.retry.validation import refusal

FIELDS = ("share", "floor")
SHARE_PATTERN = r"(?:[0-9]{1,3}(?:\.[0-9]{1,6})?)\s*%?"
FLOOR_PATTERN = r"[0-9]{1,7}\s*/\s*(?:s|second|m|minute|h|hour)"

_NONE = "none"
_PERIODS = {"s": SECOND, "m": MINUTE, "h": HOUR}
_HINT = "write a share of first attempts such as 10%, or {share: 10%, floor: 1/s}, or none"
_SHARE_HINT = "write 0.1 or 10%"
_FLOOR_HINT = "write retries per s, m or h, such as 1/s or 30/m; none leaves the share alone"


def read_budget(value: object, field: str) -> RetryBudget | msgspec.UnsetType:
    """Budget of what a policy says; ``none`` is no budget. Raises ``INVALID_POLICY`` naming the field."""
    if value == _NONE:
        return msgspec.UNSET
    if isinstance(value, RetryBudget):
        return value
    if not isinstance(value, Mapping):
        return RetryBudget(_share(value, field, hint=_HINT))
    for name in value:
        if name not in FIELDS:
            known = f"known are {', '.join(FIELDS)}"
            raise refusal(f"{name!r} is not a field of a retry budget", f"{field}.{name}", hint=known)
    if value.get("share") is None:
        raise refusal("is missing", f"{field}.share", hint=_SHARE_HINT)
    budget = RetryBudget(_share(value["share"], f"{field}.share", hint=_SHARE_HINT))
    if value.get("floor") is not None:
        count, period_us = _floor(value["floor"], f"{field}.floor")
        budget = msgspec.structs.replace(budget, floor_count=count, floor_period_us=period_us)
    return budget


def budget_echo(budget: RetryBudget | msgspec.UnsetType) -> object:
    """What `read_budget` reads as this budget."""
    if budget is msgspec.UNSET:
        return _NONE
    return {"share": _plain(budget.share), "floor": floor_words(budget)}


def budget_words(budget: RetryBudget) -> str:
    """A budget in words, for reasons."""
    share = f"{budget.share * 100:.6g}% of first attempts"
    return share if budget.floor_count == 0 else f"{share}, at least {floor_words(budget)}"


def floor_words(budget: RetryBudget) -> str:
    """The floor as it is written: ``1/s``."""
    if budget.floor_count == 0:
        return _NONE
    unit = next(unit for unit, period_us in _PERIODS.items() if period_us == budget.floor_period_us)
    return f"{budget.floor_count}/{unit}"


def _share(value: object, field: str, *, hint: str) -> float:
    if isinstance(value, str):
        found = re.fullmatch(SHARE_PATTERN, value.strip(), re.ASCII)
        if found is None:
            raise refusal(f"{value!r} is not a share", field, hint=hint)
        return float(value.strip().rstrip("% ")) / (100 if "%" in value else 1)
    if not isinstance(value, int | float) or isinstance(value, bool):
        raise refusal(f"{value!r} is not a share", field, hint=hint)
    return float(value)


def _floor(value: object, field: str) -> tuple[int, int]:
    if value == _NONE:
        return 0, SECOND
    found = re.fullmatch(FLOOR_PATTERN, value.strip(), re.ASCII) if isinstance(value, str) else None
    if found is None or not isinstance(value, str):
        raise refusal(f"{value!r} is not a number of retries in a time", field, hint=_FLOOR_HINT)
    count, _, period = value.partition("/")
    if int(count) > FLOOR_COUNT_MAX:
        raise refusal(f"is at most {FLOOR_COUNT_MAX} in a time, not {int(count)}", field)
    # None of it is none, whatever the time.
    return int(count), _PERIODS[period.strip()[0]] if int(count) else SECOND


def _plain(value: float) -> int | float:
    return int(value) if value.is_integer() else value
