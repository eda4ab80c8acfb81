"""YAML text as nodes that know where they stand; made of PyYAML's events, without recursion.

PyYAML's own constructor is of no use here. It turns ``at: 2026-01-01 00:00:00`` into a time without zone,
``on`` into true, ``0123`` into 83 and ``10:30`` into 630; it lets the second of two equal keys win; and a
file of a few hundred bytes can make it build thousands of millions of values. So only its parser is used:
instants stay texts, the traps of YAML 1.1 are refused with what to write instead, and what aliases make is
counted before it is made.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, NoReturn

import msgspec
import yaml

from ostinato.control.document.errors import joined, shown_key
from ostinato.control.document.reading import shown
from ostinato.control.document.yaml_scalars import TAG, Trap, read_plain
from ostinato.core.plain import NESTING_MAX
from ostinato.errors import UserError

#: A document has a few levels above a payload, which may be nested as deep as any.
DEPTH_MAX = NESTING_MAX + 10
#: Values of one document, those that aliases repeat counted each time.
VALUES_COUNT_MAX = 1_000_000

_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_ALLOWED_TAGS = frozenset(TAG + name for name in ("str", "map", "seq"))

Position = tuple[int, int]


class Node(msgspec.Struct, eq=False):
    """A value of the text. `value`: a scalar, a list of nodes, or pairs of key and node."""

    kind: str
    position: Position
    value: Any
    #: Of mappings: where each key stands.
    keys: dict[str, Position] = {}
    depth: int = 1
    count: int = 1


class Found(NamedTuple):
    """A fault, where it is, and in which YAML document of the text."""

    fault: UserError
    position: Position
    document: int


class Faults:
    """Faults of a text, at most one for each field of a document."""

    def __init__(self) -> None:
        self._found: list[Found] = []
        self._fields: set[tuple[int, str]] = set()

    def __bool__(self) -> bool:
        return bool(self._found)

    def add(self, fault: UserError, position: Position, *, document: int) -> None:
        """Record `fault` unless its field has one already; what is no field's may have several."""
        if fault.field and self.has(fault.field, document):
            return
        self._fields.add((document, fault.field))
        self._found.append(Found(fault, position, document))

    def has(self, field: str, document: int) -> bool:
        """Whether the field has a fault."""
        return (document, field) in self._fields

    def in_order(self) -> list[Found]:
        """By line and column."""
        return sorted(self._found, key=lambda entry: entry.position)


class _Open:
    """A list or mapping whose end has not come yet."""

    def __init__(self, node: Node, anchor: str | None, *, field: str) -> None:
        self.node = node
        self.anchor = anchor
        self.field = field
        #: Key whose value comes next; empty: that of a merge.
        self.key: tuple[str, Position] | None = None
        self.awaits_key = node.kind == "map"
        self.said: dict[str, Position] = {}
        self.merged: list[Node] = []

    def path(self) -> str:
        """Path of the member that comes next."""
        if self.node.kind == "list":
            return f"{self.field}[{len(self.node.value)}]"
        return joined(self.field, shown_key(self.key[0])) if self.key else self.field

    def close(self) -> Node:
        """The node with what is merged in, which counts only where the block itself says nothing."""
        for block in self.merged:
            for key, node in block.value.items():
                if key not in self.node.value:
                    self.node.value[key] = node
                    self.node.keys[key] = block.keys[key]
        members = self.node.value if self.node.kind == "list" else self.node.value.values()
        self.node.depth = 1 + max((member.depth for member in members), default=0)
        self.node.count = 1 + sum(member.count for member in members)
        return self.node


class _Stop(Exception):
    """The rest of the text cannot be read in any useful way; the fault is recorded."""


def read_nodes(text: str, faults: Faults) -> list[Node]:
    """Root of each YAML document of `text`; after a fault of the grammar those before it."""
    roots: list[Node] = []
    builder = _Builder(faults)
    try:
        for event in yaml.parse(text, Loader=_LOADER):
            root = builder.take(event)
            if root is not None:
                roots.append(root)
    except _Stop:
        # Its fault is recorded already.
        return roots
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        position = (mark.line + 1, mark.column + 1) if mark is not None else (1, 1)
        message, hint = _grammar_words(error, text.split("\n"), position)
        builder.refuse(message, position, hint=hint)
    except yaml.reader.ReaderError as error:
        builder.refuse(f"is not YAML: {error.reason}", (1, 1))
    return roots


def plain_value(root: Node) -> object:
    """The values of a node, without positions; a value that aliases repeat is built each time."""
    if root.kind == "scalar":
        return root.value
    if root.kind == "list":
        return [plain_value(node) for node in root.value]
    return {key: plain_value(node) for key, node in root.value.items()}


def position_of(root: Node, field: str) -> Position:
    """Where the key or entry at the path `field` stands, or the nearest thing around it."""
    node, position, rest = root, root.position, field
    while rest:
        step = _step(node, rest)
        if step is None:
            break
        node, position, rest = step
    return position


def _step(node: Node, rest: str) -> tuple[Node, Position, str] | None:
    if node.kind == "list":
        index = re.match(r"\[(\d{1,9})\]\.?", rest, re.ASCII)
        if index is None or int(index[1]) >= len(node.value):
            return None
        entry = node.value[int(index[1])]
        return entry, entry.position, rest[index.end() :]
    if node.kind != "map":
        return None
    # Keys may hold dots and brackets themselves: the longest that fits is meant.
    for key in sorted(node.value, key=len, reverse=True):
        name = shown_key(key)
        if rest.startswith(name) and rest[len(name) : len(name) + 1] in ("", ".", "["):
            return node.value[key], node.keys[key], rest[len(name) :].removeprefix(".")
    # The part of a cron expression that is wrong has a name, but no key.
    return (node.value["cron"], node.keys["cron"], "") if "cron" in node.value else None


class _Builder:
    """Nodes of events."""

    def __init__(self, faults: Faults) -> None:
        self._faults = faults
        self._anchors: dict[str, Node] = {}
        self._open: list[_Open] = []
        self._count = 0
        self._document = -1

    def refuse(self, message: str, position: Position, *, field: str = "", hint: str = "") -> None:
        """Record a fault of the text."""
        fault = UserError("INVALID_DOCUMENT", message, field=field, hint=hint)
        self._faults.add(fault, position, document=self._document)

    def take(self, event: Any) -> Node | None:
        """The root, when the event completes one."""
        if isinstance(event, yaml.DocumentStartEvent):
            self._anchors = {}
            self._document += 1
            return None
        position = (event.start_mark.line + 1, event.start_mark.column + 1)
        if isinstance(event, yaml.AliasEvent):
            return self._alias(str(event.anchor), position)
        if isinstance(event, yaml.ScalarEvent):
            return self._scalar(event, position)
        if isinstance(event, yaml.SequenceStartEvent | yaml.MappingStartEvent):
            self._begin(event, position)
        elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
            done = self._open.pop()
            node = done.close()
            if done.anchor is not None:
                self._anchors[done.anchor] = node
            return self._add(node, node.position)
        return None

    @property
    def _field(self) -> str:
        return self._open[-1].path() if self._open else ""

    @property
    def _awaits_key(self) -> bool:
        return bool(self._open) and self._open[-1].awaits_key

    def _begin(self, event: Any, position: Position) -> None:
        kind = "map" if isinstance(event, yaml.MappingStartEvent) else "list"
        self._check_tag(event.tag, position)
        if self._awaits_key:
            self._stop("a key is a text, not a list or block", position)
        if len(self._open) >= DEPTH_MAX:
            self._stop(f"nested more than {DEPTH_MAX} deep", position)
        self._spend(1, position)
        node = Node(kind=kind, position=position, value={} if kind == "map" else [], keys={})
        self._open.append(_Open(node, event.anchor, field=self._field))

    def _scalar(self, event: Any, position: Position) -> Node | None:
        self._spend(1, position)
        if self._awaits_key:
            # A key is what stands there: ``on`` and ``1`` are names like others.
            if event.anchor is not None:
                self._anchors[event.anchor] = Node(kind="scalar", position=position, value=event.value)
            self._key(event.value, position, is_plain=_is_plain(event))
            return None
        node = Node(kind="scalar", position=position, value=self._value(event, position))
        if event.anchor is not None:
            self._anchors[event.anchor] = node
        return self._add(node, position)

    def _value(self, event: Any, position: Position) -> object:
        self._check_tag(event.tag, position)
        if not _is_plain(event):
            return event.value
        read = read_plain(event.value)
        if isinstance(read, Trap):
            self.refuse(read.message, position, field=self._field, hint=read.hint)
            return read.value
        return read

    def _check_tag(self, tag: str | None, position: Position) -> None:
        if tag is not None and tag != "!" and tag not in _ALLOWED_TAGS:
            written = f"!!{tag.removeprefix(TAG)}" if tag.startswith(TAG) else tag
            message = f"the tag {shown_key(written)} is not allowed"
            self.refuse(message, position, field=self._field, hint="write the value without it")

    def _alias(self, anchor: str, position: Position) -> Node | None:
        node = self._anchors.get(anchor)
        if node is None:
            hint = "put the text in quotes, if it is none"
            self._stop(f"the alias *{shown_key(anchor)} names nothing before it", position, hint=hint)
        if len(self._open) + node.depth > DEPTH_MAX:
            self._stop(f"nested more than {DEPTH_MAX} deep", position)
        self._spend(node.count, position)
        if self._awaits_key:
            if node.kind != "scalar":
                self._stop("a key is a text, not a list or block", position)
            self._key(str(node.value), position, is_plain=False)
            return None
        return self._add(node, position)

    def _key(self, key: str, position: Position, *, is_plain: bool) -> None:
        around = self._open[-1]
        around.awaits_key = False
        if is_plain and key in ("", "~"):
            self.refuse("a key is missing before ':'", position, field=around.field)
        first = around.said.setdefault(key, position)
        if first != position:
            self.refuse(
                f"{shown(key)} is said twice in one block, in lines {first[0]} and {position[0]}",
                position,
                field=joined(around.field, shown_key(key)),
                hint="take one away",
            )
        around.key = None if is_plain and key == "<<" else (key, position)

    def _add(self, node: Node, position: Position) -> Node | None:
        if not self._open:
            return node
        around = self._open[-1]
        if around.node.kind == "list":
            around.node.value.append(node)
            return None
        around.awaits_key = True
        if around.key is None:
            self._merge(around, node, position)
        else:
            key, where = around.key
            around.key = None
            # Of two equal keys the first is read on, so that its faults are told as well.
            around.node.value.setdefault(key, node)
            around.node.keys.setdefault(key, where)
        return None

    def _merge(self, around: _Open, node: Node, position: Position) -> None:
        blocks = node.value if node.kind == "list" else [node]
        for block in blocks:
            if block.kind != "map":
                hint = "write <<: *name, where &name marks a block"
                self.refuse("only blocks can be merged in", position, field=around.field, hint=hint)
                return
            self._spend(block.count, position)
        around.merged += blocks

    def _spend(self, count: int, position: Position) -> None:
        self._count += count
        if self._count > VALUES_COUNT_MAX:
            self._stop(f"more than {VALUES_COUNT_MAX:,} values, with what aliases repeat", position)

    def _stop(self, message: str, position: Position, *, hint: str = "") -> NoReturn:
        # Told in any case: that of a field which has a fault already is the text's.
        field = "" if self._faults.has(self._field, self._document) else self._field
        self.refuse(message, position, field=field, hint=hint)
        raise _Stop


def _is_plain(event: Any) -> bool:
    return event.tag is None and bool(event.implicit[0])


#: What the parser says of a line that begins in no column where one may.
_MISPLACED = (
    "did not find expected key",
    "did not find expected '-' indicator",
    "not allowed in this context",
)


def _grammar_words(error: Any, lines: list[str], position: Position) -> tuple[str, str]:
    """Message and hint of a fault of the grammar."""
    line = lines[position[0] - 1] if position[0] <= len(lines) else ""
    message = f"is not YAML: {error.problem or error.context or 'it ends too early'}"
    if "\t" in line[: len(line) - len(line.lstrip())]:
        return "is not YAML: a tab indents", "use spaces"
    at = line[position[1] - 1 : position[1]]
    if "alias" in f"{error.context}{error.problem}" or at in ("@", "`", "%", "*", "&"):
        return message, 'put the text in quotes, as "* * * * *" or "@daily"'
    if "mapping values are not allowed" in str(error.problem):
        return message, "put a text that holds a colon in quotes, and look at the indentation"
    if any(words in str(error.problem) for words in _MISPLACED):
        return message, "look at the indentation: what belongs together begins in the same column"
    return message, ""
