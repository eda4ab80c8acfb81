"""Documents of tasks, read from plain values: all of their faults at once, each with its path."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, cast

import msgspec

from ostinato.control.apply import definition_faults
from ostinato.control.document.block import Block, Field
from ostinato.control.document.errors import InvalidDocument, joined, shown_key
from ostinato.control.document.executor_blocks import readable_part
from ostinato.control.document.hints import list_hint
from ostinato.control.document.kinds import NAME_PATTERN, Text, Whole
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.control.document.task_fields import EXECUTORS, NAME, OPTIONS, TASK
from ostinato.control.names import validate_name
from ostinato.core.definition import ExecutorSpec, PythonSpec, ShellSpec, TaskDefinition, TaskRef
from ostinato.errors import UserError, restated

VERSION = 1
NAMESPACE_UNSAID = "default"

#: What can be said of them depends on the executor.
_BY_EXECUTOR = ("shell", "http", "python", "container", "isolation", "memory_limit", "cpu_limit", "payload")


class Document(msgspec.Struct, frozen=True):
    """The tasks that a document names, in its order."""

    namespace: str
    definitions: list[TaskDefinition]
    #: Where each of them stands, as ``tasks.yaml:12:5``; empty: in no file.
    places: tuple[str, ...] = ()


class Entries:
    """``tasks``: a list of entries, which are read one by one with their namespace."""

    def read(self, value: object, field: str, *, reading: Reading) -> Any:
        if not isinstance(value, list | tuple):
            raise wrong_type(value, "a list", field=field, hint=list_hint(value))
        return value

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"type": "array", "items": {"$ref": "#/$defs/task"}}


class VersionKind:
    """The version of the form of documents."""

    _whole = Whole(VERSION, VERSION)

    def read(self, value: object, field: str, *, reading: Reading) -> int:
        if isinstance(value, int) and not isinstance(value, bool) and value != VERSION:
            message = f"version {value if abs(value) < 10**9 else '…'} is not known"
            raise UserError("INVALID_DOCUMENT", message, field=field, hint=f"write version: {VERSION}")
        return self._whole.read(value, field, reading=reading)

    def write(self, value: Any) -> Any:
        return value

    def schema(self) -> dict[str, Any]:
        return {"const": VERSION}


def _root_hint(name: str, _: object) -> str:
    """How a field of a task is written that stands in the document's own column."""
    if name not in TASK.names:
        return ""
    return f"{name} belongs to a task: indent it to the column of the task's name"


DOCUMENT = Block(
    type=Document,
    thing="a document",
    unknown_hint=_root_hint,
    fields=(
        Field(
            name="version",
            attribute="version",
            kind=VersionKind(),
            description="Version of this form of documents.",
            required=True,
            examples=(VERSION,),
        ),
        Field(
            name="namespace",
            attribute="namespace",
            kind=Text(NAME_PATTERN),
            description="Namespace of all tasks of the document.",
            default=NAMESPACE_UNSAID,
        ),
        Field(
            name="tasks",
            attribute="tasks",
            kind=Entries(),
            description="The tasks.",
            required=True,
        ),
    ),
)


def read_task(said: Mapping[str, object], *, namespace: str, field: str) -> TaskDefinition:
    """Definition of one entry of ``tasks.yaml``; paths of faults begin with `field`, which may be empty.

    Raises ``InvalidDocument`` with every fault; codes as ``validate_definition``.
    """
    reading = Reading()
    definition = _read_entry(said, namespace, field=field, reading=reading)
    if definition is None or reading.faults:
        raise InvalidDocument(reading.faults)
    return definition


def read_document(value: object) -> Document:
    """Document of plain values: ``{version: 1, namespace?, tasks: [...]}``.

    Raises ``InvalidDocument`` with every fault: ``INVALID_DOCUMENT`` for what is no document, else codes as
    ``validate_definition``.
    """
    reading = Reading()
    if not isinstance(value, Mapping):
        raise InvalidDocument(
            [
                wrong_type(
                    value,
                    "a document",
                    field="",
                    code="INVALID_DOCUMENT",
                    hint=f"write version: {VERSION}, and tasks: with a list of tasks",
                )
            ]
        )
    members = DOCUMENT.read_members(value, "", reading=reading)
    namespace = members.get("namespace", NAMESPACE_UNSAID)
    if namespace is not FAULTY:
        try:
            validate_name(namespace, field="namespace")
        except UserError as fault:
            reading.refuse(fault)
            namespace = FAULTY
    read: list[TaskDefinition] = []
    first: dict[str, int] = {}
    entries = members["tasks"]
    for index, entry in enumerate(() if entries is FAULTY else entries):
        field = f"tasks[{index}]"
        # Faults of a namespace are told once, not once a task.
        known = NAMESPACE_UNSAID if namespace is FAULTY else namespace
        definition = _read_entry(entry, known, field=field, reading=reading)
        _refuse_repeat(entry, index, namespace=known, first=first, reading=reading)
        if definition is not None:
            read.append(definition)
    if reading.faults:
        raise InvalidDocument(reading.faults)
    return Document(namespace, read)


def refuse_repeats(documents: Iterable[Document]) -> None:
    """Raise ``InvalidDocument`` if a task stands in two of `documents`, which are applied together."""
    first: dict[TaskRef, str] = {}
    faults: list[UserError] = []
    for number, document in enumerate(documents):
        for index, definition in enumerate(document.definitions):
            place = document.places[index] if document.places else ""
            here = place or f"document {number + 1}, tasks[{index}]"
            earlier = first.setdefault(definition.ref, here)
            if earlier != here:
                faults.append(
                    UserError(
                        "INVALID_VALUE",
                        f"task {definition.ref} is given twice",
                        subject=str(definition.ref),
                        field=f"tasks[{index}].name",
                        hint=f"first at {earlier}; take one away, or give it another name",
                        place=place,
                    )
                )
    if faults:
        raise InvalidDocument(faults)


def read_definition(
    members: Mapping[str, Any], ref: TaskRef, *, executor: ExecutorSpec | None, field: str, reading: Reading
) -> TaskDefinition | None:
    """Definition of values that are read, or None after recording what is wrong with the whole.

    `executor` None: it could not be read, so what depends on it is not judged.
    """
    readable = {name: value for name, value in members.items() if value is not FAULTY}
    is_limited = any(readable.get(name) is not None for name in ("memory_limit_bytes", "cpu_limit"))
    if is_limited and "isolation" not in members and isinstance(executor, PythonSpec):
        readable["isolation"] = "process"
    definition = TaskDefinition(
        namespace=ref.namespace, name=ref.name, executor=executor or ShellSpec("true"), **readable
    )
    faulty = {
        entry.name for entry in (NAME, *OPTIONS.fields) if members.get(entry.attribute) is FAULTY
    } | set(() if executor is not None else _BY_EXECUTOR)
    before = len(reading.faults)
    for fault in definition_faults(definition):
        root = fault.field.partition(".")[0].partition("[")[0]
        if root not in faulty and not (root == "payload" and "triggers" in faulty):
            reading.refuse(restated(fault, field=joined(field, fault.field)))
    if faulty or executor is None or len(reading.faults) > before:
        return None
    return msgspec.structs.replace(definition, executor=executor)


def _read_entry(said: object, namespace: str, *, field: str, reading: Reading) -> TaskDefinition | None:
    if not isinstance(said, Mapping):
        fault = wrong_type(said, "a task", field=field, hint="write {name: …, shell: {command: …}}")
        reading.refuse(fault)
        return None
    name = said.get("name")
    subject = f"{namespace}/{name}" if isinstance(name, str) and _is_name(name) else ""
    before = len(reading.faults)
    members = TASK.read_members(said, field, reading=reading)
    executor = _executor(said, members, field=field, reading=reading)
    name = members.pop("name")
    ref = TaskRef(namespace, "task" if name is FAULTY else name)
    definition = read_definition(members, ref, executor=executor, field=field, reading=reading)
    for index in range(before, len(reading.faults)):
        fault = reading.faults[index]
        # Not that of the name which stands in for one that could not be read.
        reading.faults[index] = restated(fault, subject=subject)
    return None if len(reading.faults) > before else definition


def _executor(
    said: Mapping[str, object], members: dict[str, Any], *, field: str, reading: Reading
) -> ExecutorSpec | None:
    """Take the executor out of `members`; of a faulty one what could be read, None if that is nothing."""
    executor = members.pop("executor", None)
    names = [entry.name for entry in EXECUTORS]
    found = [name for name in names if said.get(name) is not None]
    if len(found) == 1:
        read = readable_part(found[0], said[found[0]]) if executor is FAULTY else executor
        return cast("ExecutorSpec | None", read)
    message = f"has {' and '.join(found)}" if found else "has nothing to run"
    hint = f"write one of {', '.join(names)}"
    reading.refuse(UserError("INVALID_VALUE", message, field=field, hint=hint))
    return None


def _is_name(name: str) -> bool:
    try:
        validate_name(name, field="name")
    except UserError:
        return False
    return True


def _refuse_repeat(
    entry: object, index: int, *, namespace: str, first: dict[str, int], reading: Reading
) -> None:
    name = entry.get("name") if isinstance(entry, Mapping) else None
    if not isinstance(name, str) or first.setdefault(name, index) == index:
        return
    reading.refuse(
        UserError(
            "INVALID_VALUE",
            f"task {namespace}/{shown_key(name)} is given twice",
            field=f"tasks[{index}].name",
            hint=f"first at tasks[{first[name]}]; take one away, or give it another name",
        )
    )
