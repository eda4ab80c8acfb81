"""Parameters that several routes share: where they come from, what they mean, their bounds."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from litestar.di import NamedDependency
from litestar.params import HeaderParameter, PathParameter, QueryParameter

from ostinato.api.paging import CURSOR_LENGTH_MAX, LIMIT_MAX
from ostinato.api.services import Services
from ostinato.control.filters import CODE_LENGTH_MAX, STATES
from ostinato.control.names import KEY_BYTES_MAX, NAME_LENGTH_MAX

#: As ``control.names`` checks; here so that clients can be generated from it.
NAME_SCHEMA: dict[str, Any] = {
    "minLength": 1,
    "maxLength": NAME_LENGTH_MAX,
    "pattern": "^[A-Za-z0-9][A-Za-z0-9_.-]*$",
}
ID_SCHEMA: dict[str, Any] = {"minLength": 1, "maxLength": 26, "pattern": "^[0-9a-z]+$"}
#: Bounds of instants that ``control`` can read are not a matter of form.
INSTANT_SCHEMA: dict[str, Any] = {"maxLength": 100}

#: Given by the app, not by the request.
ServicesOf: TypeAlias = NamedDependency[Services]
By: TypeAlias = NamedDependency[str]

Namespace: TypeAlias = Annotated[
    str, PathParameter(description="Name of the namespace, such as `default`.", schema_extra=NAME_SCHEMA)
]
TaskName: TypeAlias = Annotated[
    str, PathParameter(description="Name of the task within the namespace.", schema_extra=NAME_SCHEMA)
]
InstanceId: TypeAlias = Annotated[
    str, PathParameter(description="Id of the instance.", schema_extra=ID_SCHEMA)
]
WorkerName: TypeAlias = Annotated[
    str,
    PathParameter(
        description="Name or id of the worker.", schema_extra={"minLength": 1, "maxLength": NAME_LENGTH_MAX}
    ),
]
Limit: TypeAlias = Annotated[
    int,
    QueryParameter(
        description="How many at most.", required=False, schema_extra={"minimum": 1, "maximum": LIMIT_MAX}
    ),
]
Cursor: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        description="Where the page before said that this one begins; left out for the first.",
        required=False,
        schema_extra={"maxLength": CURSOR_LENGTH_MAX},
    ),
]
IdempotencyKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        description="As `key` in the body: while it lives (24 h), the same request is carried out once.",
        schema_extra={"maxLength": KEY_BYTES_MAX},
    ),
]
RetryKey: TypeAlias = Annotated[
    str | None,
    HeaderParameter(
        name="Idempotency-Key",
        required=False,
        description="An instance is run again once under a key; asked again, the answer is the same.",
        schema_extra={"minLength": 1, "maxLength": KEY_BYTES_MAX},
    ),
]

# ── filters of instances ──────────────────────────────────────────────────────────────────────────────

InNamespace: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="namespace", required=False, description="Of this namespace.", schema_extra=NAME_SCHEMA
    ),
]
OfTask: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="task", required=False, description="Of the task of this name.", schema_extra=NAME_SCHEMA
    ),
]
InStates: TypeAlias = Annotated[
    list[str] | None,
    QueryParameter(
        name="state",
        required=False,
        description="In any of these states; may be given several times.",
        schema_extra={"items": {"type": "string", "enum": list(STATES)}},
    ),
]
WithKey: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="key",
        required=False,
        description="With this idempotency key.",
        schema_extra={"minLength": 1, "maxLength": KEY_BYTES_MAX},
    ),
]
WithCode: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="code",
        required=False,
        description="Whose newest failure has this code, such as `TIMEOUT`.",
        schema_extra={"maxLength": CODE_LENGTH_MAX},
    ),
]
CreatedFrom: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="created_from",
        required=False,
        description="Created then or later: ISO 8601 with an offset.",
        schema_extra=INSTANT_SCHEMA,
    ),
]
CreatedBefore: TypeAlias = Annotated[
    str | None,
    QueryParameter(
        name="created_before",
        required=False,
        description="Created earlier than that: ISO 8601 with an offset.",
        schema_extra=INSTANT_SCHEMA,
    ),
]
