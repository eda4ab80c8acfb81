"""One of many submissions, and how an SDK call becomes a request."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from ostinato.control.names import validate_key
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskRef
from ostinato.core.instants import from_datetime, parse_duration
from ostinato.sdk.retry import Duration


class SubmitOptions(msgspec.Struct, frozen=True, kw_only=True):
    """When and how one instance is to run. None: as the task says, and now.

    `key` makes the submission repeatable: for 24 hours an equal one is answered with the instance that
    exists. `delay` and `at` exclude each other. `priority` is 0 to 9, higher first.
    """

    key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int | None = None

    def request(self, ref: TaskRef, payload: bytes) -> SubmitRequest:
        """The request that these options make of a payload. Raises as ``submit``."""
        if self.key is not None:
            validate_key(self.key)
        return SubmitRequest(
            namespace=ref.namespace,
            task=ref.name,
            payload=payload,
            key=self.key or "",
            delay_us=None if self.delay is None else parse_duration(self.delay, field="delay"),
            due_us=None if self.at is None else from_datetime(self.at, field="at"),
            priority=self.priority,
        )


class Submission(msgspec.Struct, frozen=True):
    """One entry of ``submit_many`` that has options of its own; see `SubmitOptions`."""

    payload: Mapping[str, object] = {}
    key: str | None = None
    delay: Duration | None = None
    at: datetime | None = None
    priority: int | None = None

    @property
    def options(self) -> SubmitOptions:
        """The options alone."""
        return SubmitOptions(key=self.key, delay=self.delay, at=self.at, priority=self.priority)


NOW = SubmitOptions()
