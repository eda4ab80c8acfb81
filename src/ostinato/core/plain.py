"""Plain values, which JSON carries unchanged, and the typed ones that can be made of them and back.

Plain are: dict with text keys, list, tuple (as an array), str, bool, None, integers of 64 bits (signed or
unsigned) and finite floats, nested at most 100 deep. All else is refused with its path, or travels where an
annotation says what to rebuild (`to_plain`, `from_plain`). Case C161.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping
from math import isfinite
from typing import cast

import msgspec

from ostinato.errors import UserError

NESTING_MAX = 100
INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**64 - 1

_SIMPLE = frozenset({str, bool, type(None)})


def require_plain(value: object, *, field: str) -> None:
    """Raise ``INVALID_PAYLOAD`` with the path of the first part that JSON cannot carry unchanged."""
    if not is_plain(value):
        raise _first_refusal(value, field)


def is_plain(value: object) -> bool:
    """Whether JSON carries `value` unchanged (a tuple counts as an array)."""
    return _is_plain(value, NESTING_MAX)


def _is_plain(value: object, depth_left: int) -> bool:
    kind = type(value)
    if kind is str:
        return _is_clean(cast(str, value))
    if kind in _SIMPLE:
        return True
    if kind is int:
        return INTEGER_MIN <= cast(int, value) <= INTEGER_MAX
    if kind is float:
        return isfinite(cast(float, value))
    if depth_left == 0:
        return False
    if kind is dict:
        for key, member in cast(dict[object, object], value).items():
            if type(key) is not str or not _is_clean(key) or not _is_plain(member, depth_left - 1):
                return False
        return True
    if kind is list or kind is tuple:
        # A loop, not all(): a generator frame for each level would cost more than the check itself.
        for item in cast(list[object], value):  # noqa: SIM110 - as said above
            if not _is_plain(item, depth_left - 1):
                return False
        return True
    return False


def _is_clean(text: str) -> bool:
    if text.isascii():
        return True
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _first_refusal(value: object, path: str) -> UserError:
    """The refusal of the first offending part, found without recursion."""
    pending: list[tuple[object, str, int]] = [(value, path, NESTING_MAX)]
    while pending:
        part, where, depth_left = pending.pop()
        if isinstance(part, dict | list | tuple) and type(part) in (dict, list, tuple):
            if depth_left == 0:
                return nested_too_deep(where)
            bad_key = next((key for key in part if not _is_key(key)), None) if type(part) is dict else None
            if bad_key is not None:
                return _refused_key(bad_key, where)
            pending += [(inner, at, depth_left - 1) for inner, at in reversed([*_parts(part, where)])]
        elif not _is_plain(part, 0):
            return _refused_value(part, where)
    return UserError("INVALID_PAYLOAD", "JSON cannot carry this value", field=path)


def _parts(value: object, path: str) -> Iterator[tuple[object, str]]:
    if isinstance(value, dict):
        for key, member in value.items():
            yield member, f"{path}.{key}"
    elif isinstance(value, list | tuple):
        for position, item in enumerate(value):
            yield item, f"{path}[{position}]"


def _is_key(key: object) -> bool:
    return type(key) is str and _is_clean(key)


def _refused_key(key: object, path: str) -> UserError:
    if isinstance(key, str):
        return UserError("INVALID_PAYLOAD", f"the key {key!r} is not valid Unicode text", field=path)
    return UserError(
        "INVALID_PAYLOAD",
        f"the key {_short(key)} is {_a(type(key).__name__)}; keys of JSON objects are text",
        field=path,
        hint="use str(key), or annotate the parameter with its type, such as dict[int, str]",
    )


def _refused_value(value: object, path: str) -> UserError:
    hint = ""
    if isinstance(value, float):
        message, hint = f"{value!r} has no form in JSON", "send None or a text instead"
    elif isinstance(value, int):
        message, hint = f"{_short(value)} does not fit in 64 bits", "send it as text"
    elif isinstance(value, str) and not _is_clean(value):
        message = "the text holds a lone surrogate, which is not valid Unicode"
    elif isinstance(value, bytes | bytearray | memoryview):
        message, hint = "JSON cannot carry bytes", "send base64 text, or annotate the type as bytes"
    else:
        name = type(value).__qualname__
        message = f"JSON cannot carry {_a(name)} unchanged"
        hint = f"annotate the type as {name} where it can be rebuilt, or convert it first"
    return UserError("INVALID_PAYLOAD", message, field=path, hint=hint)


def nested_too_deep(path: str) -> UserError:
    return UserError(
        "INVALID_PAYLOAD",
        f"nested more than {NESTING_MAX} deep, or contains itself",
        field=path[:200] + ("…" if len(path) > 200 else ""),
    )


def _short(value: object) -> str:
    if isinstance(value, int) and abs(value) > 10**40:
        return "the integer"  # repr() of thousands of digits raises
    text = repr(value)
    return text if len(text) <= 60 else text[:60] + "…"


def _a(name: str) -> str:
    return f"{'an' if name[:1].lower() in 'aeiou' else 'a'} {name}"


# ── typed values ──────────────────────────────────────────────────────────────────────────────────────


def to_plain(value: object, *, field: str, rebuild: Callable[[object], object] | None) -> object:
    """`value` in plain values from which `rebuild` makes an equal one.

    Without `rebuild` only plain values pass. Raises ``INVALID_PAYLOAD`` naming the path when a part cannot be
    carried, `rebuild` refuses it, or what comes back is not equal (2**53 + 1 for a float, a field that the
    annotated class does not have, a date within ``dict[str, Any]``).
    """
    if rebuild is None or is_plain(value):
        require_plain(value, field=field)
        plain = value
    else:
        try:
            plain = msgspec.to_builtins(value, str_keys=True)
        except RecursionError:
            raise nested_too_deep(field) from None
        except TypeError as error:
            raise UserError("INVALID_PAYLOAD", _lower(str(error)), field=field) from None
        require_plain(plain, field=field)
    if rebuild is not None:
        rebuilt = rebuild(plain)
        if not same_value(rebuilt, value):
            raise _changed(value, rebuilt, field=field)
    return plain


def _changed(value: object, rebuilt: object, *, field: str) -> UserError:
    given, made = type(value).__qualname__, type(rebuilt).__qualname__
    if given == made or isinstance(value, int | float):
        return UserError(
            "INVALID_PAYLOAD",
            f"the value would come back as {_short(rebuilt)}, which is not the same",
            field=field,
            hint="annotate the exact type, or convert the value first",
        )
    return UserError("INVALID_PAYLOAD", f"{_a(made)} is expected, not {_a(given)}", field=field)


def from_plain(plain: object, kind: object, *, field: str) -> object:
    """The value of type `kind` (anything that msgspec understands) made of plain values.

    Raises ``INVALID_PAYLOAD`` naming the path below `field`.
    """
    try:
        return cast(object, msgspec.convert(plain, type=kind, str_keys=True))
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        where = field + path.rstrip("`").removeprefix("$")
        raise UserError("INVALID_PAYLOAD", _lower(message), field=where) from None
    except Exception as error:
        # A class of the user's may raise anything when it is made.
        message = f"{type(error).__name__}: {error}"
        raise UserError("INVALID_PAYLOAD", message, field=field) from error


def _lower(message: str) -> str:
    return message[:1].lower() + message[1:]


def same_value(left: object, right: object) -> bool:
    """Equality that looks into objects whose class compares by identity only."""
    if left is right or left == right:
        return True
    if isinstance(left, list | tuple) and isinstance(right, list | tuple):
        return len(left) == len(right) and all(map(same_value, left, right))
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(same_value(left[key], right[key]) for key in left)
    if type(left) is not type(right):
        return False
    members = _members(left)
    return members is not None and same_value(dict(members), dict(_members(right) or {}))


def _members(value: object) -> Mapping[str, object] | None:
    if isinstance(value, msgspec.Struct):
        return {name: getattr(value, name) for name in value.__struct_fields__}
    if dataclasses.is_dataclass(value):
        return {entry.name: getattr(value, entry.name) for entry in dataclasses.fields(value)}
    return None
