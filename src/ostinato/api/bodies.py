"""Bodies of requests and answers that are not a shape of ``control``."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from ostinato.control.plan import ChangeShape
from ostinato.control.requests import REASON_LENGTH_MAX
from ostinato.control.shapes.answers import AnswerShape, SubmittedShape
from ostinato.control.shapes.cluster import NodeShape, PartitionShape, WorkerShape
from ostinato.control.shapes.instance import HistoryShape, InstanceShape, OutputShape
from ostinato.control.shapes.task import TaskShape

#: Submissions of one request, which are accepted all or none.
SUBMISSIONS_COUNT_MAX = 10_000
#: Ids of instances that one request may name.
BATCH_COUNT_MAX = 500
#: Instances that one request by filter acts on.
MATCHING_COUNT_MAX = 1_000
FIRES_COUNT_MAX = 1_000

_Cursor = Annotated[
    str | None,
    msgspec.Meta(description="Give it as `cursor` for the page that follows; null at the end of the list."),
]
Payload = Annotated[
    Any,
    msgspec.Meta(
        description="A JSON object: the arguments of a Python task by name, what other tasks find as input.",
        extra_json_schema={"type": "object"},
    ),
]
Reason = Annotated[
    str,
    msgspec.Meta(description="Why, for the history.", extra_json_schema={"maxLength": REASON_LENGTH_MAX}),
]
# What is of any type here is refused by the rule of its own, in the words that the other surfaces have too.
_OPTIONAL_TEXT = {"type": ["string", "null"]}
_Delay = Annotated[
    Any,
    msgspec.Meta(
        description="Start so long from now, as `90s` or `1h30m`.",
        examples=["5m"],
        extra_json_schema=_OPTIONAL_TEXT,
    ),
]
_At = Annotated[
    Any,
    msgspec.Meta(
        description="Start then: ISO 8601 with an offset.",
        examples=["2030-01-31T18:00:00+01:00"],
        extra_json_schema=_OPTIONAL_TEXT,
    ),
]
_Key = Annotated[
    Any,
    msgspec.Meta(
        description="Idempotency key: while it lives (24 h), the same request is carried out once.",
        extra_json_schema=_OPTIONAL_TEXT,
    ),
]
_Id = Annotated[
    str | None,
    msgspec.Meta(
        description="Id of the instance, for a caller that may have to repeat a request without an answer.",
        extra_json_schema={"pattern": "^[0-7][0-9abcdefghjkmnpqrstvwxyz]{25}$"},
    ),
]
_Priority = Annotated[
    Any,
    msgspec.Meta(
        description="0 to 9, higher first; the task's if left out.",
        extra_json_schema={"type": ["integer", "null"], "minimum": 0, "maximum": 9},
    ),
]


class _In(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """A body that somebody sends: unknown members are refused."""


# ── requests ──────────────────────────────────────────────────────────────────────────────────────────


class SubmitBody(_In, kw_only=True, frozen=True):
    """One run of a task; `delay` and `at` exclude each other, neither means now."""

    payload: Payload = msgspec.field(default_factory=dict)
    id: _Id = None
    key: _Key = None
    delay: _Delay = None
    at: _At = None
    priority: _Priority = None
    reason: Annotated[str, msgspec.Meta(description="Said of the instance while it waits.")] = ""


class SubmissionBody(SubmitBody, kw_only=True, frozen=True):
    """One of several runs."""

    task: Annotated[str, msgspec.Meta(description="Name of the task.", examples=["backup"])]


class SubmissionsBody(_In, kw_only=True, frozen=True):
    """Several runs, of which all are accepted or none."""

    submissions: Annotated[
        list[SubmissionBody], msgspec.Meta(extra_json_schema={"maxItems": SUBMISSIONS_COUNT_MAX})
    ]


class ReasonBody(_In, kw_only=True, frozen=True):
    """Why something is asked for."""

    reason: Reason = ""


class RetryBody(ReasonBody, kw_only=True, frozen=True):
    """How an instance runs again."""

    latest: Annotated[
        bool, msgspec.Meta(description="With the newest version of the task, not the pinned one.")
    ] = False
    payload: Annotated[
        Any,
        msgspec.Meta(
            description="Another payload; null or left out: the same.",
            extra_json_schema={"type": ["object", "null"]},
        ),
    ] = None
    force: Annotated[bool, msgspec.Meta(description="Also what ended in success.")] = False
    generation: Annotated[
        int | None,
        msgspec.Meta(
            description="Only if the instance is at this generation, so that a repeated request runs it "
            "once. Not with several instances.",
            extra_json_schema={"minimum": 1},
        ),
    ] = None


class FilterBody(_In, kw_only=True, frozen=True):
    """Which instances; what is left out matches all."""

    namespace: str | None = None
    task: str | None = None
    state: Annotated[list[str], msgspec.Meta(description="Any of these states.")] = []
    key: str | None = None
    code: Annotated[str | None, msgspec.Meta(description="Code of the newest failure.")] = None
    created_from: Annotated[str | None, msgspec.Meta(description="Created then or later.")] = None
    created_before: Annotated[str | None, msgspec.Meta(description="Created earlier than that.")] = None


_Ids = Annotated[
    list[str] | None,
    msgspec.Meta(description=f"Ids of at most {BATCH_COUNT_MAX} instances. Either this or `filter`."),
]
_Matching = Annotated[
    int | None,
    msgspec.Meta(
        description="With `filter`: how many instances at most.",
        extra_json_schema={"minimum": 1, "maximum": MATCHING_COUNT_MAX},
    ),
]


class CancelManyBody(ReasonBody, kw_only=True, frozen=True):
    """Which instances to cancel: by id or by filter."""

    ids: _Ids = None
    filter: FilterBody | None = None
    limit: _Matching = None


class RetryManyBody(RetryBody, kw_only=True, frozen=True):
    """Which instances to run again: by id or by filter."""

    ids: _Ids = None
    filter: FilterBody | None = None
    limit: _Matching = None


class PreviewBody(_In, kw_only=True, frozen=True):
    """A cron expression to try out."""

    expression: Annotated[
        str, msgspec.Meta(description="Five or six fields, or @daily and such.", examples=["30 2 * * *"])
    ]
    timezone: Annotated[str, msgspec.Meta(description="IANA name.", examples=["Europe/Berlin"])] = "UTC"
    count: Annotated[int, msgspec.Meta(extra_json_schema={"minimum": 0, "maximum": FIRES_COUNT_MAX})] = 5
    start: Annotated[str | None, msgspec.Meta(description="ISO 8601 with an offset; now if left out.")] = None


# ── answers ───────────────────────────────────────────────────────────────────────────────────────────


class VersionBody(msgspec.Struct, kw_only=True):
    """What answers."""

    ostinato: str
    python: str


class NamespaceList(msgspec.Struct, kw_only=True):
    """Namespaces that have tasks, by name."""

    items: list[str]


class TaskPage(msgspec.Struct, kw_only=True):
    """Tasks by name."""

    items: list[TaskShape]
    cursor: _Cursor


class InstancePageBody(msgspec.Struct, kw_only=True):
    """Instances, newest first. A page may be shorter than asked for and still not be the last."""

    items: list[InstanceShape]
    cursor: _Cursor


class HistoryPage(msgspec.Struct, kw_only=True):
    """History in the order it was written."""

    items: list[HistoryShape]
    cursor: Annotated[
        str | None, msgspec.Meta(description="Give it as `after` for what follows; null: no more for now.")
    ]


class OutputPage(msgspec.Struct, kw_only=True):
    """Output in the order it was written."""

    items: list[OutputShape]
    cursor: Annotated[
        str | None, msgspec.Meta(description="Give it as `after` for what follows; null: no more for now.")
    ]


class FlagBody(msgspec.Struct, kw_only=True):
    """What the owner has done with a task."""

    namespace: str
    task: str
    done: Annotated[str, msgspec.Meta(description="`pause`, `resume`, `disable` or `enable`.")]


class SubmittedList(msgspec.Struct, kw_only=True):
    """Answers in the order of the submissions."""

    items: list[SubmittedShape]


class AnswerList(msgspec.Struct, kw_only=True):
    """Answers by instance."""

    items: list[AnswerShape]


class ChangeList(msgspec.Struct, kw_only=True):
    """What an apply does or has done, in the order of the document, then deletions."""

    changes: list[ChangeShape]


class WorkerList(msgspec.Struct, kw_only=True):
    """Workers by name."""

    items: list[WorkerShape]


class DrainBody(msgspec.Struct, kw_only=True):
    """What the owners have told a worker."""

    worker: str
    done: Annotated[str, msgspec.Meta(description="`drain`: it takes no more work.")]


class NodeList(msgspec.Struct, kw_only=True):
    """Scheduler nodes."""

    items: list[NodeShape]


class PartitionList(msgspec.Struct, kw_only=True):
    """Partitions by number."""

    items: list[PartitionShape]


class FireList(msgspec.Struct, kw_only=True):
    """The next fires, each with the zone's offset then; fewer than asked for where the calendar ends."""

    fires: list[str]
