"""Every field of an entry of ``tasks.yaml``: the one description that reader, writer and schema share."""

from __future__ import annotations

from typing import get_args

from ostinato.control.apply import (
    CPU_LIMIT_MAX,
    CPU_LIMIT_MIN,
    PRIORITY_MAX,
    QUEUE_BOUND_MAX,
    SHARDS_MAX,
    TRIGGERS_COUNT_MAX,
)
from ostinato.control.document.block import Block, Field
from ostinato.control.document.container_block import CONTAINER
from ostinato.control.document.executor_blocks import HTTP, PYTHON, SHELL
from ostinato.control.document.hints import hint_of_task_field
from ostinato.control.document.kinds import (
    NAME_PATTERN,
    Duration,
    JsonObject,
    ListOf,
    OptionalNumber,
    OptionalSize,
    Text,
    TextMap,
    Whole,
    Word,
)
from ostinato.control.document.retry_block import RetryKind
from ostinato.control.document.trigger_block import TriggerKind
from ostinato.core.definition import Isolation, Overlap, TaskDefinition

#: What a task runs; an entry has exactly one of them.
EXECUTORS = (
    Field(name="shell", attribute="executor", kind=SHELL, description="Run a command."),
    Field(name="http", attribute="executor", kind=HTTP, description="Send one HTTP request."),
    Field(name="python", attribute="executor", kind=PYTHON, description="Run a function of an app."),
    Field(name="container", attribute="executor", kind=CONTAINER, description="Run a container."),
)

NAME = Field(
    name="name",
    attribute="name",
    kind=Text(NAME_PATTERN),
    description="Name of the task, unique in its namespace.",
    required=True,
    examples=("backup",),
)

#: Options of every kind of task, as in ``TaskOptions`` of the SDK.
OPTIONS = Block(
    type=TaskDefinition,
    thing="a task",
    fields=(
        Field(
            name="description", attribute="description", kind=Text(), description="For people.", default=""
        ),
        Field(
            name="triggers",
            attribute="triggers",
            kind=ListOf(TriggerKind(), TRIGGERS_COUNT_MAX, '[{cron: "0 2 * * *"}]'),
            description="When the task runs by itself; unsaid: only when it is submitted.",
        ),
        Field(
            name="retry",
            attribute="retry",
            kind=RetryKind(),
            description="When a failed attempt is repeated; unsaid: 3 retries after 5 s, 10 s, 20 s, ±10 %.",
        ),
        Field(
            name="timeout",
            attribute="timeout_us",
            kind=Duration(optional=True),
            description="Longest run of one attempt; none must be said.",
            default="1h",
            examples=("10m", "none"),
        ),
        Field(
            name="grace",
            attribute="grace_us",
            kind=Duration(),
            description="From SIGTERM or cancellation to SIGKILL, at most 1h.",
            default="10s",
        ),
        Field(
            name="queue_timeout",
            attribute="queue_timeout_us",
            kind=Duration(optional=True),
            description="Longest wait for a worker after the due time.",
            default="none",
        ),
        Field(
            name="heartbeat_timeout",
            attribute="heartbeat_timeout_us",
            kind=Duration(optional=True),
            description="Longest silence of an attempt that reports heartbeats.",
            default="none",
        ),
        Field(
            name="overlap",
            attribute="overlap",
            kind=Word(get_args(Overlap)),
            description="What happens while an earlier instance has not ended; "
            "unsaid: forbid for fires, allow for submissions.",
        ),
        Field(
            name="queue_bound",
            attribute="queue_bound",
            kind=Whole(1, QUEUE_BOUND_MAX),
            description="How many instances wait at most with overlap: queue.",
            default=100,
        ),
        Field(
            name="shards",
            attribute="shards",
            kind=Whole(1, SHARDS_MAX),
            description="How many instances each fire makes; each is told its number, to do its share.",
            default=1,
            examples=(8,),
        ),
        Field(
            name="priority",
            attribute="priority",
            kind=Whole(0, PRIORITY_MAX),
            description="Higher runs first.",
            default=5,
        ),
        Field(
            name="labels",
            attribute="labels",
            kind=TextMap("a label", whole=True),
            description="Labels that a worker must carry.",
            examples=({"zone": "eu"},),
        ),
        Field(
            name="payload",
            attribute="payload",
            kind=JsonObject(),
            description="What fires run with, and what a submission's payload is laid over.",
            examples=({"day": "today"},),
        ),
        Field(
            name="exclusive",
            attribute="exclusive",
            kind=Word(("strict", "relaxed")),
            description="Whether an attempt stops when its worker has lost touch, or may finish.",
            default="strict",
        ),
        Field(
            name="isolation",
            attribute="isolation",
            kind=Word(get_args(Isolation)),
            description="process: each attempt of a Python function has a fresh process to itself.",
            default="shared",
        ),
        Field(
            name="memory_limit",
            attribute="memory_limit_bytes",
            kind=OptionalSize(),
            description="Most memory that an attempt may take.",
            default="none",
            examples=("512MiB",),
        ),
        Field(
            name="cpu_limit",
            attribute="cpu_limit",
            kind=OptionalNumber(CPU_LIMIT_MIN, CPU_LIMIT_MAX),
            description="Most cores that an attempt may take.",
            default="none",
            examples=(0.5, 2),
        ),
    ),
)

#: A whole entry.
TASK = Block(
    type=TaskDefinition,
    thing="a task",
    fields=(NAME, *EXECUTORS, *OPTIONS.fields),
    unknown_hint=hint_of_task_field,
)
