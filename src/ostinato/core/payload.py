"""JSON of payloads and results: what comes out equals what went in, or it is refused with its path.

Refused rather than changed silently: NaN and Infinity (JSON has none), integers beyond 64 bits (other
languages round them), bytes, sets, dates, decimals, keys that are no text, nesting beyond 100. Types that
JSON lacks travel where an annotation brings them back (``core.plain``). Case C161.
"""

from __future__ import annotations

import json
from typing import cast

import msgspec

from ostinato.core.plain import nested_too_deep, require_plain
from ostinato.errors import UserError

#: Design section 11, Sizes.
PAYLOAD_BYTES_MAX = 262_144
RESULT_BYTES_MAX = 1_048_576

#: What is said of a member that one object holds twice.
TWICE = "is given twice in one object"
_ESCAPED_QUOTE = rb"\u0022"
_encoder = msgspec.json.Encoder()
_sorting_encoder = msgspec.json.Encoder(order="sorted")
_members_decoder = msgspec.json.Decoder(dict[str, msgspec.Raw])


def encode_payload(value: object, *, field: str = "payload", limit_bytes: int = PAYLOAD_BYTES_MAX) -> bytes:
    """JSON of `value`, which must hold plain values only.

    Raises ``INVALID_PAYLOAD`` naming the path below `field`, ``PAYLOAD_TOO_LARGE`` beyond `limit_bytes`.
    """
    require_plain(value, field=field)
    encoded = _encoder.encode(value)
    require_size(encoded, field=field, limit_bytes=limit_bytes)
    return encoded


def encode_result(value: object, *, limit_bytes: int = RESULT_BYTES_MAX) -> bytes:
    """JSON of what a task returned. Raises as `encode_payload`, with paths below ``result``."""
    return encode_payload(value, field="result", limit_bytes=limit_bytes)


def canonical_json(encoded: bytes) -> bytes:
    """The same JSON with sorted keys and no spaces, so that equal values give equal bytes."""
    return _sorting_encoder.encode(msgspec.json.decode(encoded))


def require_size(encoded: bytes, *, field: str, limit_bytes: int) -> None:
    """Raise ``PAYLOAD_TOO_LARGE`` if `encoded` is longer than `limit_bytes`."""
    if len(encoded) > limit_bytes:
        raise UserError(
            "PAYLOAD_TOO_LARGE",
            f"{len(encoded):,} bytes of JSON, the limit is {limit_bytes:,}",
            field=field,
            hint="store the data elsewhere and send its address",
        )


def check_json_object(
    encoded: bytes, *, field: str = "payload", limit_bytes: int = PAYLOAD_BYTES_MAX
) -> dict[str, object]:
    """The object that JSON from outside holds, after all checks of `encode_payload`.

    Raises ``INVALID_PAYLOAD`` if it is not JSON or no object, ``PAYLOAD_TOO_LARGE``.
    """
    require_size(encoded, field=field, limit_bytes=limit_bytes)
    value = decode_json(encoded, field=field)
    if not isinstance(value, dict):
        raise not_an_object(value, field=field)
    require_plain(value, field=field)
    return value


def not_an_object(value: object, *, field: str) -> UserError:
    """The refusal of a payload that is something else than names with values."""
    return UserError(
        "INVALID_PAYLOAD",
        f"a JSON object is needed, not {_json_name(value)}",
        field=field,
        hint='write {"name": value}',
    )


def decode_json(encoded: bytes, *, field: str = "payload") -> object:
    """Value of any JSON text. Raises ``INVALID_PAYLOAD``, also for nesting that no stack can hold."""
    try:
        return cast(object, msgspec.json.decode(encoded))
    except RecursionError:
        raise nested_too_deep(field) from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        require_plain(almost_json(encoded), field=field)
        hint = 'write {"name": value}, with names and texts in double quotes'
        raise UserError("INVALID_PAYLOAD", f"not JSON: {error}", field=field, hint=hint) from None


def almost_json(encoded: bytes) -> object:
    """Value of what is JSON but for NaN, Infinity, a number out of range or a lone surrogate; else None.

    Programs write these. A rule that sees the value can say which one it is and where it stands.
    """
    try:
        return cast(object, json.loads(encoded.decode("utf-8", "surrogatepass")))
    except (ValueError, RecursionError):
        return None


def repeated_member(encoded: bytes) -> str:
    """Path of a member that one object of `encoded`, valid JSON, holds twice; empty where there is none.

    JSON leaves open which of the two counts, and a decoder drops one of them without a word. It shows in
    fewer quotation marks once decoded and encoded again; only then, or where a quotation mark is written as
    a number, is each object looked through, which takes longer.
    """
    if _ESCAPED_QUOTE not in encoded:
        again = _encoder.encode(msgspec.json.decode(encoded))
        if again.count(b'"') == encoded.count(b'"'):
            return ""
    whole = json.loads(encoded, object_pairs_hook=_Members)
    # What stands within a value that was dropped is not found, but the member that dropped it is.
    left: list[tuple[str, object]] = [("", whole)]
    for path, value in left:
        if isinstance(value, _Members):
            dot = f"{path}." if path else ""
            if value.repeated:
                return dot + ascii(value.repeated[:100])[1:-1]
            left += [(f"{dot}{ascii(name)[1:-1]}", inner) for name, inner in value.items()]
        elif isinstance(value, list):
            left += [(f"{path}[{index}]", inner) for index, inner in enumerate(value)]
    return ""


class _Members(dict[str, object]):
    """Members of an object, and the name of one that stands there twice."""

    def __init__(self, pairs: list[tuple[str, object]]) -> None:
        super().__init__(pairs)
        self.repeated = ""
        if len(self) < len(pairs):
            seen: set[str] = set()
            for name, _ in pairs:
                if name in seen:
                    self.repeated = name or '""'
                    break
                seen.add(name)


def require_unique_members(encoded: bytes, *, field: str = "payload") -> None:
    """Raise ``INVALID_PAYLOAD`` if an object of `encoded`, valid JSON, holds a member twice."""
    path = repeated_member(encoded)
    if path:
        raise UserError("INVALID_PAYLOAD", TWICE, field=f"{field}.{path}")


def merge_objects(base: bytes, over: bytes) -> bytes:
    """JSON object `base` with the members of `over` put in, which win; values are not looked into."""
    if base == b"{}":
        return over
    members = _members_decoder.decode(base)
    members.update(_members_decoder.decode(over))
    return _encoder.encode(members)


def _json_name(value: object) -> str:
    names = {
        list: "an array",
        tuple: "an array",
        str: "a text",
        bool: "true or false",
        type(None): "null",
        int: "a number",
        float: "a number",
    }
    return names.get(type(value), type(value).__name__)
