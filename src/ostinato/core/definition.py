"""What a task is: executor, triggers, retry policy, limits of time, routing; pure data.

A definition is immutable. A changed one becomes the next version of the task; an instance pins the version
that it was created with (design section 11, Versions).
"""

from __future__ import annotations

from functools import cache
from typing import Any, Literal, TypeAlias

import msgspec

from ostinato.core.instants import HOUR, SECOND
from ostinato.core.retry.policy import DEFAULT_POLICY, RetryPolicy
from ostinato.core.schedule.trigger import Trigger

#: Who made the newest version of a task: an app (SDK), or an apply of a document (``tasks.yaml``, REST).
Origin: TypeAlias = Literal["app", "document"]

Overlap: TypeAlias = Literal["allow", "forbid", "queue", "replace"]

#: Whether attempts may share a process with others, one after the other or at the same time.
Isolation: TypeAlias = Literal["shared", "process"]

#: Which of a worker's pools of slots an attempt occupies: one process each, or a share of the event loop.
Pool: TypeAlias = Literal["process", "async"]


class TaskRef(msgspec.Struct, frozen=True, order=True):
    """Names a task: unique in its namespace."""

    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


#: Types of JSON values by the name that Python has for them.
PARAMETER_TYPES: dict[str, type[object]] = {
    kind.__name__: kind for kind in (int, float, bool, str, list, dict)
}


class Parameter(msgspec.Struct, frozen=True, omit_defaults=True):
    """One parameter of a Python task, so that every submitter can refuse a wrong name or kind of value."""

    name: str
    required: bool = True
    #: What its value must be, where that is one of `PARAMETER_TYPES`; empty: only the worker can tell.
    type: str = ""


class PythonSpec(msgspec.Struct, frozen=True, tag="python", tag_field="kind", omit_defaults=True):
    """Run a Python function that the worker has imported."""

    call: str
    is_async: bool = False
    parameters: tuple[Parameter, ...] = ()
    accepts_any: bool = False


class ShellSpec(msgspec.Struct, frozen=True, tag="shell", tag_field="kind", omit_defaults=True):
    """Run a command: a string through ``/bin/sh -c``, a list as it stands."""

    command: str | tuple[str, ...]
    env: dict[str, str] = msgspec.field(default_factory=dict)
    directory: str = ""


class HttpSpec(msgspec.Struct, frozen=True, tag="http", tag_field="kind", omit_defaults=True):
    """Send one HTTP request; the status decides."""

    method: str
    url: str
    headers: dict[str, str] = msgspec.field(default_factory=dict)
    body: str = ""
    #: Statuses that are a success, as ``200``, ``2xx`` or ``200-204``.
    success_status: tuple[str, ...] = ("2xx",)
    connect_timeout_us: int = 10 * SECOND
    #: Longest silence while reading; the attempt's own time-out bounds the whole.
    read_timeout_us: int = 60 * SECOND
    follow_redirects: bool = False


#: When an image is fetched: if the engine does not have it, before every attempt, or by nobody here.
PullPolicy: TypeAlias = Literal["missing", "always", "never"]


class Mount(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something of the worker's machine that a container sees."""

    #: Path of a folder or file, or the name of a volume, which is made if there is none.
    source: str
    target: str
    read_only: bool = False


class ContainerSpec(msgspec.Struct, frozen=True, tag="container", tag_field="kind", omit_defaults=True):
    """Run a container of an image: a string by its ``/bin/sh -c``, a list as arguments of its program."""

    image: str
    #: None: what the image itself runs.
    command: str | tuple[str, ...] | None = None
    #: Program that gets the list; empty: the image's own.
    entrypoint: tuple[str, ...] = ()
    env: dict[str, str] = msgspec.field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()
    #: Folder within the container; empty: the image's.
    directory: str = ""
    #: User and group within the container, as ``1000:1000``; empty: the image's.
    user: str = ""
    #: Network of the engine, ``host`` or ``none``; empty: the engine's default.
    network: str = ""
    pull: PullPolicy = "missing"
    #: Whether the engine puts an init before the program, which passes signals on and reaps.
    init: bool = True


ExecutorSpec: TypeAlias = PythonSpec | ShellSpec | HttpSpec | ContainerSpec


class TaskDefinition(msgspec.Struct, frozen=True, omit_defaults=True):
    """A named, versioned definition of work. Defaults are those of design section 11."""

    namespace: str
    name: str
    executor: ExecutorSpec
    triggers: tuple[Trigger, ...] = ()
    retry: RetryPolicy = DEFAULT_POLICY
    #: Longest run of one attempt; None only when the author said so.
    timeout_us: int | None = HOUR
    #: Between SIGTERM (or cancellation) and SIGKILL.
    grace_us: int = 10 * SECOND
    #: Longest wait for a worker after the due time; None waits for ever.
    queue_timeout_us: int | None = None
    #: None: ``forbid`` for fires, ``allow`` for submissions.
    overlap: Overlap | None = None
    queue_bound: int = 100
    #: Instances that each fire makes, which share its work: each is told its number (design section 5).
    shards: int = 1
    priority: int = 5
    #: Labels that a worker must carry.
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    exclusive: Literal["strict", "relaxed"] = "strict"
    heartbeat_timeout_us: int | None = None
    #: ``process``: an attempt of a Python function has a fresh process to itself.
    isolation: Isolation = "shared"
    #: What an attempt may take; None is no limit. `cpu_limit` counts cores.
    memory_limit_bytes: int | None = None
    cpu_limit: float | None = None
    #: Payload of fires, and the base that a submission's payload is merged over; a JSON object.
    payload: msgspec.Raw = msgspec.Raw(b"{}")
    description: str = ""

    @property
    def ref(self) -> TaskRef:
        return TaskRef(self.namespace, self.name)

    @property
    def pool(self) -> Pool:
        """Pool of the worker's slots that an attempt of this task occupies."""
        return pool_of(self.executor, self.isolation)


def pool_of(executor: ExecutorSpec, isolation: Isolation) -> Pool:
    """Pool that attempts of such a task occupy."""
    if isinstance(executor, PythonSpec):
        return "async" if executor.is_async and isolation == "shared" else "process"
    return "async" if isinstance(executor, HttpSpec) else "process"


class TaskRow(msgspec.Struct, frozen=True):
    """A task as the store knows it: the newest version, and what is read live (pause, disable)."""

    definition: TaskDefinition
    version: int
    partition: int
    paused: bool
    disabled: bool
    #: Version whose triggers are in force; lags `version` until the owner has switched.
    scheduled_version: int
    created_us: int
    updated_us: int
    origin: Origin = "app"

    @property
    def ref(self) -> TaskRef:
        return self.definition.ref


_encoder = msgspec.json.Encoder(order="sorted")
_decoder = msgspec.json.Decoder(TaskDefinition)


def encode_definition(definition: TaskDefinition) -> bytes:
    """Canonical JSON: equal definitions give equal bytes, so that an unchanged one makes no new version."""
    return _encoder.encode(_without_said_defaults(definition))


def _without_said_defaults(value: Any) -> Any:
    """An equal struct, the same as if what is said and is the default had been left out.

    The encoder leaves out what *is* the default object, not what equals it.
    """
    if isinstance(value, tuple):
        return tuple(_without_said_defaults(entry) for entry in value)
    if not isinstance(value, msgspec.Struct) or isinstance(value, msgspec.Raw):
        return value
    changes = {}
    for name, default in _defaults(type(value)):
        said = getattr(value, name)
        if default is not msgspec.NODEFAULT and said == default:
            changes[name] = default
        elif isinstance(said, msgspec.Struct | tuple):
            changes[name] = _without_said_defaults(said)
    return msgspec.structs.replace(value, **changes) if changes else value


@cache
def _defaults(kind: type[msgspec.Struct]) -> tuple[tuple[str, object], ...]:
    return tuple((entry.name, entry.default) for entry in msgspec.structs.fields(kind))


def decode_definition(encoded: bytes) -> TaskDefinition:
    """Definition of bytes made by `encode_definition`."""
    return _decoder.decode(encoded)
