"""Plain scalars of YAML: what they mean where YAML 1.1 and 1.2 agree; otherwise a trap."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import yaml

from ostinato.control.document.errors import shown_key

TAG = "tag:yaml.org,2002:"
INTEGER_DIGITS_MAX = 1_000

#: Untyped in the stubs of PyYAML.
_RESOLVER: Any = yaml.resolver.Resolver()
_TRUTHS = {"true": True, "false": False}
_OCTAL = re.compile(r"[+-]?0[0-7_]+", re.ASCII)
_EXPONENT = re.compile(r"[+-]?[0-9]+[eE][+-]?[0-9]+", re.ASCII)
_SEXAGESIMAL = re.compile(r"[+-]?[0-9][0-9_]*(?::[0-5]?[0-9])+(?:\.[0-9_]*)?", re.ASCII)


class Trap(msgspec.Struct, frozen=True):
    """A scalar that is refused; `value` stands for it while the rest is read."""

    message: str
    hint: str
    value: object


def read_plain(text: str) -> object:
    """Value of a scalar without quotes and tag, or the `Trap` that it is. Instants are texts."""
    kind = str(_RESOLVER.resolve(yaml.ScalarNode, text, (True, False))).removeprefix(TAG)
    if kind == "null":
        return None
    if kind == "bool":
        return _truth(text)
    if kind == "str" and _EXPONENT.fullmatch(text):
        return _trap(text, "a text", hint=f'write "{text}" for the text, or the number with a point')
    # Timestamps stay texts too: as those of YAML they would lose their offset.
    return _number(text, kind) if kind in ("int", "float") else text


def _truth(text: str) -> object:
    value = _TRUTHS.get(text.lower())
    if value is not None:
        return value
    meant = str(text.lower() in ("yes", "on")).lower()
    return _trap(text, meant, hint=f'write {meant}, or "{text}" for the text')


def _number(text: str, kind: str) -> object:
    if _SEXAGESIMAL.fullmatch(text):
        return _trap(text, "a number of base 60", hint=f'write "{text}" for the text')
    digits = text.replace("_", "")
    if kind == "float":
        # ``.inf`` and ``.nan`` as Python spells them.
        lowered = digits.lower()
        return float(lowered.replace(".", "") if lowered.endswith((".inf", ".nan")) else digits)
    if len(digits) > INTEGER_DIGITS_MAX:
        return Trap(f"is an integer of {len(digits)} digits", "write it in quotes, as a text", 0)
    if _OCTAL.fullmatch(text):
        number = digits.lstrip("+-0") or "0"
        hint = f'write "{shown_key(text)}" for the text, {shown_key(number)} for the number'
        return _trap(text, "an octal number", hint=hint)
    return int(digits, 0)


def _trap(text: str, meaning: str, *, hint: str) -> Trap:
    message = f"{shown_key(text)} means {meaning} to YAML 1.1 and something else to YAML 1.2"
    return Trap(message, hint, text)
