"""Documents as YAML text: faults with file, line and column; long texts written as blocks."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import yaml

from ostinato.control.document.errors import InvalidDocument
from ostinato.control.document.read import Document, read_document, refuse_repeats
from ostinato.control.document.yaml_nodes import Faults, Node, Position, plain_value, position_of, read_nodes
from ostinato.control.document.yaml_scalars import Trap, read_plain
from ostinato.core.failure.text import escape_unseen, has_unseen
from ostinato.core.sizes import MIB, format_size
from ostinato.errors import UserError, restated

Read = TypeVar("Read")

TEXT_BYTES_MAX = 10 * MIB

#: What YAML does not allow (1.2.2, section 5.1); a lone surrogate is no character at all.
_UNPRINTABLE = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x84\x86-\x9f\ud800-\udfff\ufffe\uffff]")
_BOM = "\ufeff"
_PAIR = re.compile(r"\\u([dD][89abAB][0-9a-fA-F]{2})\\u([dD][c-fC-F][0-9a-fA-F]{2})")
#: A backslash with what belongs to it, so that one that is escaped itself begins nothing.
_ESCAPE = re.compile(rf"{_PAIR.pattern}|\\.", re.DOTALL)


def read_yaml(text: str | bytes, *, name: str) -> list[Document]:
    """Documents of a file, of which each YAML document is one; `name` stands in the place of each fault.

    Raises ``InvalidDocument`` with every fault, in the order of the text: ``INVALID_DOCUMENT`` for what is
    not YAML or no document (bytes that are not UTF-8, a key said twice, a value that means two things),
    ``BODY_TOO_LARGE`` beyond 10 MiB, else as ``read_document``; a task that stands in two of the documents is
    refused.
    """
    hint = "write version: 1, and tasks: with a list of tasks"
    documents = read_roots(text, lambda root: _read_root(root, name), name=name, hint=hint)
    refuse_repeats(documents)
    return documents


def read_roots(text: str | bytes, read: Callable[[Node], Read], *, name: str, hint: str) -> list[Read]:
    """What `read` makes of the root of each YAML document that is not empty.

    `read` may raise ``InvalidDocument``; the faults are told with their places, as those of the text itself.
    `hint` says what to write into a file that is empty.
    """
    decoded = _decoded(text, name)
    found = Faults()
    roots = read_nodes(decoded, found)
    # An empty one is what a last line of --- leaves behind.
    filled = [
        (number, root) for number, root in enumerate(roots) if root.kind != "scalar" or root.value is not None
    ]
    if not filled and not found:
        raise InvalidDocument([_fault("holds no document", name, (1, 1), hint=hint)])
    documents: list[Read] = []
    for number, root in filled:
        try:
            documents.append(read(root))
        except InvalidDocument as invalid:
            for fault in invalid.errors:
                found.add(fault, position_of(root, fault.field), document=number)
    if found:
        faults = [restated(entry.fault, place=_place(name, entry.position)) for entry in found.in_order()]
        raise InvalidDocument(faults)
    return documents


def write_yaml(document: dict[str, Any], *, ascii_only: bool = False) -> str:
    """Text that ``read_yaml`` reads as the same document; keys in the order of `document`.

    With `ascii_only` other characters are escapes within double quotes, for output whose encoding lacks some.
    """
    text = yaml.dump(
        document,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=not ascii_only,
        default_flow_style=False,
        width=10**6,
    )
    # `_represent_text` has put them within double quotes, where an escape means the same.
    return "\n".join(map(escape_unseen, str(text).split("\n")))


def _read_root(root: Node, name: str) -> Document:
    document = read_document(plain_value(root))
    entries = [node.position for node in root.value["tasks"].value]
    return msgspec.structs.replace(document, places=tuple(_place(name, position) for position in entries))


def _decoded(text: str | bytes, name: str) -> str:
    size_bytes = len(text) if isinstance(text, bytes) else len(text.encode("utf-8", "surrogatepass"))
    if size_bytes > TEXT_BYTES_MAX:
        message = f"{format_size(size_bytes)}, at most {format_size(TEXT_BYTES_MAX)}"
        raise InvalidDocument([UserError("BODY_TOO_LARGE", message, place=_place(name, (1, 1)))])
    text = (_from_utf8(text, name) if isinstance(text, bytes) else text).removeprefix(_BOM)
    found = _UNPRINTABLE.search(text)
    if found is not None:
        line = text.count("\n", 0, found.start()) + 1
        column = found.start() - text.rfind("\n", 0, found.start())
        what = (
            "a lone surrogate" if "\ud800" <= found[0] <= "\udfff" else f"the control character {found[0]!a}"
        )
        raise InvalidDocument([_fault(f"holds {what}", name, (line, column))])
    return _with_whole_escapes(text)


def _with_whole_escapes(text: str) -> str:
    """JSON is YAML but for this: it writes a character beyond U+FFFF as two escapes, which YAML refuses."""
    if _PAIR.search(text) is None:
        return text
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return text  # elsewhere the same letters may be text, within single quotes or none
    return _ESCAPE.sub(_whole_escape, text)


def _whole_escape(found: re.Match[str]) -> str:
    if found[1] is None:
        return found[0]
    return f"\\U{ord(bytes.fromhex(found[1] + found[2]).decode('utf-16-be')):08x}"


def _from_utf8(encoded: bytes, name: str) -> str:
    try:
        return encoded.decode()
    except UnicodeDecodeError as error:
        line = encoded.count(b"\n", 0, error.start) + 1
        column = error.start - encoded.rfind(b"\n", 0, error.start)
        message = f"the byte 0x{encoded[error.start]:02x} is not UTF-8"
        fault = _fault(message, name, (line, column), hint="save the file as UTF-8")
        raise InvalidDocument([fault]) from None


def _fault(message: str, name: str, position: Position, *, hint: str = "") -> UserError:
    return UserError("INVALID_DOCUMENT", message, hint=hint, place=_place(name, position))


def _place(name: str, position: Position) -> str:
    return f"{name}:{position[0]}:{position[1]}"


_BaseDumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_BaseDumper):  # type: ignore[misc]  # the C one if there is one
    """Without aliases; texts of several lines as blocks."""

    def ignore_aliases(self, data: object) -> bool:
        return True


def _represent_text(dumper: Any, text: str) -> Any:
    # PyYAML quotes what YAML 1.1 would misread; the reader's own traps go further.
    quoted = "'" if isinstance(read_plain(text), Trap) else None
    style = '"' if any(map(has_unseen, text.split("\n"))) else "|" if "\n" in text else quoted
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Dumper.add_representer(str, _represent_text)
