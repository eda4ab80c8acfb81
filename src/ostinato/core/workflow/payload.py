"""Payloads with references: JSON in which some values stand elsewhere, and are put in when the node may run.

An object with one of these members stands for a value, wherever in the payload it is:

* ``{"$result": "node", "path": "/a/0"}``: result of a node upstream. Of a mapped node it is the list of its
  items' results, in the order of the items, with null where an item has none.
* ``{"$run": "payload", "path": "/a"}``: payload that the run was started with.
* ``{"$own": "payload" | "result", "path": …}``: in a compensation, of the instance that it undoes.
* ``{"$literal": …}``: its value as it stands, whatever it looks like.

``path`` is a JSON Pointer (RFC 6901), empty for the whole. ``default`` is used where the value is missing;
without one a result that does not exist is null, and the node is told whose it is (`Missing`), whereas a
path that leads nowhere in a value that exists is an error: it fails the node. No other key may begin with
``$``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import msgspec

from ostinato.core.payload import RESULT_BYTES_MAX, decode_json, require_unique_members
from ostinato.core.plain import require_plain
from ostinato.errors import UserError

#: A payload may hold as much as one result: what it refers to has to fit in it.
RESOLVED_BYTES_MAX = RESULT_BYTES_MAX

_KINDS = ("$result", "$run", "$own")
_OPTIONS = frozenset({"path", "default"})
_encoder = msgspec.json.Encoder()


class Reference(msgspec.Struct, frozen=True):
    """Stands for a value: `kind` is ``result``, ``run`` or ``own``."""

    kind: str
    #: Node of a ``result``; ``payload`` or ``result`` of the others.
    source: str
    #: Tokens of the pointer, unescaped.
    path: tuple[str, ...] = ()
    #: JSON; None: none was given.
    default: bytes | None = None

    def __str__(self) -> str:
        at = f" at {'/' + '/'.join(self.path)}" if self.path else ""
        of = f"the result of {self.source}" if self.kind == "result" else f"the {self.kind} {self.source}"
        return of + at


class Template(msgspec.Struct, frozen=True):
    """A payload, parsed: values with `Reference` objects in their places."""

    tree: Any
    #: Each once.
    references: tuple[Reference, ...]


class Missing(msgspec.Struct, frozen=True):
    """A node upstream that has no result, as the instance is told."""

    node: str
    #: As which it ended.
    state: str
    #: Of a mapped node whose other items have one: how many have none.
    items: int = 0


class UnresolvedError(Exception):
    """A payload cannot be made of what there is; the text says why. Permanent: the node fails."""


# ── what an author writes ─────────────────────────────────────────────────────────────────────────────


def parse_template(encoded: bytes, *, field: str, kinds: tuple[str, ...]) -> Template:
    """Template of the JSON `encoded`, which may refer to `kinds` (of ``result``, ``run``, ``own``).

    Raises ``INVALID_PAYLOAD`` with the path below `field`: not JSON, not plain, a member twice, an unknown
    key that begins with ``$``, a reference that is badly formed or of another kind.
    """
    value = decode_json(encoded, field=field)
    require_plain(value, field=field)
    require_unique_members(encoded, field=field)
    found: list[Reference] = []
    tree = _parse(value, field, kinds, found)
    return Template(tree, tuple(dict.fromkeys(found)))


def _parse(value: object, field: str, kinds: tuple[str, ...], found: list[Reference]) -> object:
    # The depth is bounded: `require_plain` has refused more than 100.
    if isinstance(value, list):
        return [_parse(inner, f"{field}[{index}]", kinds, found) for index, inner in enumerate(value)]
    if not isinstance(value, dict):
        return value
    marks = [key for key in value if key.startswith("$")]
    if not marks:
        return {key: _parse(inner, f"{field}.{key}", kinds, found) for key, inner in value.items()}
    if marks == ["$literal"] and len(value) == 1:
        return value["$literal"]
    reference = _reference(cast(dict[str, object], value), marks, field)
    if reference.kind not in kinds:
        allowed = " and ".join(f"${kind}" for kind in kinds)
        raise UserError("INVALID_PAYLOAD", f"only {allowed} can be referred to here", field=field)
    found.append(reference)
    return reference


def _reference(value: dict[str, object], marks: list[str], field: str) -> Reference:
    mark = marks[0]
    if len(marks) > 1 or mark not in _KINDS:
        raise UserError(
            "INVALID_PAYLOAD",
            f"{mark!a} is no reference"
            if len(marks) == 1
            else f"{marks[0]!a} and {marks[1]!a} in one object",
            field=field,
            hint='refer with "$result", "$run" or "$own"; {"$literal": …} takes a value as it stands',
        )
    more = [key for key in value if key != mark and key not in _OPTIONS]
    if more:
        message = f"{more[0]!a} does not belong to a reference; path and default do"
        raise UserError("INVALID_PAYLOAD", message, field=field)
    source = value[mark]
    allowed = {"$run": ("payload",), "$own": ("payload", "result")}.get(mark)
    if not isinstance(source, str) or (allowed is not None and source not in allowed):
        names = "the name of a node" if allowed is None else " or ".join(allowed)
        raise UserError("INVALID_PAYLOAD", f"{mark} takes {names}", field=field)
    path = parse_pointer(value.get("path", ""), field=f"{field}.path")
    default = _encoder.encode(value["default"]) if "default" in value else None
    return Reference(mark[1:], source, path, default)


def parse_pointer(text: object, *, field: str) -> tuple[str, ...]:
    """Tokens of a JSON Pointer, unescaped (RFC 6901). Raises ``INVALID_PAYLOAD``."""
    if text == "":
        return ()
    if not isinstance(text, str) or not text.startswith("/"):
        hint = 'write "/name/0", or leave it out for the whole value'
        raise UserError("INVALID_PAYLOAD", f"{text!a} is not a JSON Pointer", field=field, hint=hint)
    tokens = text[1:].split("/")
    for token in tokens:
        if "~" in token.replace("~0", "").replace("~1", ""):
            message = f"in the JSON Pointer {text!a} a '~' is written ~0, a '/' within a name ~1"
            raise UserError("INVALID_PAYLOAD", message, field=field)
    return tuple(token.replace("~1", "/").replace("~0", "~") for token in tokens)


# ── what a node is given ──────────────────────────────────────────────────────────────────────────────


def resolve(template: Template, lookup: Callable[[Reference], object]) -> object:
    """Value of `template` with what `lookup` says in place of each reference.

    It may share parts with the template, so it is not to be changed. Raises what `lookup` raises.
    """
    if not template.references:
        return template.tree
    values = {reference: lookup(reference) for reference in template.references}
    return _filled(template.tree, values)


def _filled(tree: object, values: dict[Reference, object]) -> object:
    if isinstance(tree, Reference):
        return values[tree]
    if isinstance(tree, list):
        return [_filled(inner, values) for inner in tree]
    if isinstance(tree, dict):
        return {key: _filled(inner, values) for key, inner in tree.items()}
    return tree


def encode_resolved(value: object, *, limit_bytes: int = RESOLVED_BYTES_MAX) -> bytes:
    """JSON of a resolved payload. Raises `UnresolvedError` if it is no object or beyond `limit_bytes`."""
    if not isinstance(value, dict):
        raise UnresolvedError(f"the payload is not an object but {_kind(value)}")
    return encode_bounded(value, what="the payload", limit_bytes=limit_bytes)


def encode_bounded(value: object, *, what: str, limit_bytes: int = RESOLVED_BYTES_MAX) -> bytes:
    """JSON of `value`. Raises `UnresolvedError` if it is longer than `limit_bytes`."""
    encoded = _encoder.encode(value)
    if len(encoded) > limit_bytes:
        raise UnresolvedError(
            f"{what} would have {len(encoded):,} bytes of JSON, the limit is {limit_bytes:,}"
        )
    return encoded


def value_at(value: object, reference: Reference, *, skip: int = 0) -> object:
    """What the reference's path, without its first `skip` tokens, leads to in `value`; else its default.

    Raises `UnresolvedError` where it leads nowhere and there is no default.
    """
    for token in reference.path[skip:]:
        if isinstance(value, dict) and token in value:
            value = value[token]
        elif isinstance(value, list) and is_index(token) and int(token) < len(value):
            value = value[int(token)]
        elif reference.default is not None:
            return msgspec.json.decode(reference.default)
        else:
            raise UnresolvedError(f"there is nothing at {token!a} in {reference}")
    return value


def is_index(token: str) -> bool:
    """Whether a token of a pointer names an item of a list: digits, without zeros before them."""
    return token.isascii() and token.isdigit() and (token == "0" or token[0] != "0") and len(token) < 18


def default_of(reference: Reference) -> object:
    """What stands in place of a value that is missing: the default, null without one."""
    return None if reference.default is None else msgspec.json.decode(reference.default)


def result_nodes(references: tuple[Reference, ...]) -> Iterator[str]:
    """Names of the nodes whose results are referred to, each once, in order."""
    yield from dict.fromkeys(reference.source for reference in references if reference.kind == "result")


def _kind(value: object) -> str:
    if value is None:
        return "null"
    names: dict[type, str] = {list: "a list", str: "a text", bool: "true or false"}
    return names.get(type(value), "a number")
