"""The payload of ``task trigger``: JSON on the command line, in a file or on stdin, and single arguments."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from ostinato.core.payload import PAYLOAD_BYTES_MAX, check_json_object, merge_objects, require_unique_members
from ostinato.errors import UserError

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"


def payload_of(said: str | None, arguments: Sequence[str]) -> bytes:
    """A JSON object from ``--payload`` (``{…}``, ``@FILE``, ``-`` for stdin) and each ``--arg``.

    ``NAME=TEXT`` is a text, whatever it looks like; ``NAME:=JSON`` is any value.

    Raises ``INVALID_VALUE`` for what cannot be read or is given twice, ``INVALID_PAYLOAD`` for what is no
    JSON object, ``PAYLOAD_TOO_LARGE``.
    """
    base = b"{}" if said is None else _read(said)
    known = check_json_object(base)
    require_unique_members(base)
    given: dict[str, msgspec.Raw] = {}
    for argument in arguments:
        name, equals, value = argument.partition("=")
        is_json = name.endswith(":")
        name = name.removesuffix(":")
        if not equals or not name:
            raise UserError(
                "INVALID_VALUE",
                f"{argument!r} is no argument",
                field="--arg",
                hint="write NAME=TEXT, or NAME:=JSON",
            )
        if name in given or name in known:
            raise UserError("INVALID_VALUE", f"{name} is given twice", field="--arg")
        given[name] = msgspec.Raw(_json(name, value) if is_json else msgspec.json.encode(_text(value)))
    whole = merge_objects(base, msgspec.json.encode(given)) if given else base
    check_json_object(whole)
    return whole


def _json(name: str, value: str) -> bytes:
    encoded = value.encode("utf-8", "surrogatepass")
    try:
        msgspec.json.decode(encoded)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise UserError(
            "INVALID_PAYLOAD",
            f"{value!a} is no JSON",
            field="--arg",
            hint=f"write {name}=TEXT for a text",
        ) from None
    require_unique_members(encoded, field="--arg")
    return encoded


def _text(value: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError:
        raise UserError("INVALID_PAYLOAD", f"{value!a} is not valid Unicode", field="--arg") from None
    return value


def _read(said: str) -> bytes:
    if said == "-":
        return _first(sys.stdin.buffer.read(PAYLOAD_BYTES_MAX + 1), "standard input")
    if not said.startswith("@"):
        return said.encode("utf-8", "surrogatepass")
    path = Path(said[1:])
    try:
        with path.open("rb") as file:
            return _first(file.read(PAYLOAD_BYTES_MAX + 1), str(path))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserError("INVALID_VALUE", f"{said[1:]!r} cannot be read: {why}", field="--payload") from None


def _first(read: bytes, where: str) -> bytes:
    if not read.strip():
        raise UserError("INVALID_PAYLOAD", f"{where} is empty", field="payload", hint='write {"name": value}')
    return read.removeprefix(_BYTE_ORDER_MARK)
