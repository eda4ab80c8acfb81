"""Instances as a test looks at them: what became of each, its attempts, and why it was retried."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from types import TracebackType
from typing import Any

from ostinato.control.explain import AttemptStory, Story, WholeStory
from ostinato.control.story_text import story_lines
from ostinato.core.failure.failure import Failure
from ostinato.core.instants import format_duration, to_datetime
from ostinato.core.payload import decode_json
from ostinato.core.states import State
from ostinato.sdk.gateway.protocol import Glimpse
from ostinato.sdk.handle import InstanceFailed

#: A line of a story that says which command tells more, of which there is none here.
_COMMAND = re.compile(r"(?:logs|traceback|again): ostinato ")
_OWN_FILES = __file__.removesuffix("testing/instance.py")


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt. `ended` is ``running``, ``success``, ``failed``, ``lost``, ``cancelled`` or the like.

    `decision` is the rule that decided what followed, in words. Instants are in the cluster's zone, None
    where that has not happened.
    """

    number: int
    generation: int
    ended: str
    code: str
    category: str
    message: str
    decision: str
    started: datetime | None
    finished: datetime | None

    @property
    def duration(self) -> timedelta | None:
        """From start to end; None if it has not ended, or never started."""
        return None if self.started is None or self.finished is None else self.finished - self.started


@dataclass(frozen=True, kw_only=True)
class RetryDecision:
    """The decision to retry after one attempt, which it names: how long after its end, and why."""

    attempt: int
    delay: timedelta
    due: datetime
    reason: str


@dataclass(frozen=True, kw_only=True)
class Instance:
    """An instance as it stood when it was asked for. Instants are in the cluster's zone.

    `fire` is the scheduled instant of the fire that made it, None if it was submitted; `shard` its number, of
    the `shard_total` that the fire made. `result` is what the
    task returned, as its handle gives it; None unless it is a success. `failure` is that of the newest
    failed attempt. `attempts` are those on record, `story` is what ``ostinato instance show`` tells.
    """

    id: str
    task: str
    namespace: str
    state: State
    reason: str
    key: str
    payload: dict[str, Any]
    result: object
    failure: Failure | None
    created: datetime
    fire: datetime | None
    shard: int
    shard_total: int
    finished: datetime | None
    attempts: list[Attempt]
    retries: list[RetryDecision]
    story: str = field(repr=False)
    _raised: BaseException | None = field(repr=False)
    _glimpse: Glimpse = field(repr=False)

    def __repr__(self) -> str:
        tried = f" after {len(self.attempts)} attempts" if len(self.attempts) > 1 else ""
        why = f": {self.reason}" if self.reason else ""
        if self.failure is not None and self.state in (State.FAILED, State.RETRY_WAITING):
            why = f": {self.failure.code}: {self.failure.message}; {self.reason}"
        return f"<instance {self.id} of {self.namespace}/{self.task}: {self.state}{tried}{why}>"

    @property
    def delays(self) -> list[str]:
        """The delay of each retry as a text: ``["5s", "10s"]``."""
        return [format_duration(retry.delay // timedelta(microseconds=1)) for retry in self.retries]

    def raise_failure(self) -> None:
        """Raise what the task raised in its newest attempt, with the traceback of the user's code alone.

        A failure that no exception caused (a time-out, a code) is raised as ``InstanceFailed``, and without a
        failure nothing is. An instance that succeeded has none, whatever happened before.
        """
        if self._raised is not None:
            raise self._raised.with_traceback(users_frames(self._raised.__traceback__))
        if self.state is not State.SUCCESS and self.failure is not None:
            raise InstanceFailed(self._glimpse)


def look_at(
    whole: WholeStory,
    *,
    decode: Callable[[bytes], object] | None,
    raised: BaseException | None,
    zone: tzinfo | None,
) -> Instance:
    """The instance of a story. `raised` is what its newest attempt raised."""
    row, story = whole.instance, whole.story

    def at(instant_us: int | None) -> datetime | None:
        return None if instant_us is None else to_datetime(instant_us).astimezone(zone)

    return Instance(
        id=row.id,
        task=row.task,
        namespace=row.namespace,
        state=row.state,
        reason=row.reason,
        key=row.key,
        payload=_payload(row.payload),
        result=None if row.result is None else (decode or decode_json)(row.result),
        failure=row.failure,
        created=to_datetime(row.created_us).astimezone(zone),
        fire=at(row.fire_us),
        shard=row.shard,
        shard_total=row.shard_total,
        finished=at(row.finished_us),
        attempts=[_attempt(told, at) for told in story.attempts],
        retries=_retries(story, zone),
        story="\n".join(line for line in story_lines(story) if not _COMMAND.match(line)),
        _raised=raised,
        _glimpse=Glimpse(
            id=row.id,
            ref=row.ref,
            state=row.state,
            reason=row.reason,
            failure=row.failure,
            result=row.result,
        ),
    )


def users_frames(frames: TracebackType | None) -> TracebackType | None:
    """A traceback from the first frame on that is not of this package; all of it if there is none."""
    left = frames
    while left is not None and left.tb_frame.f_code.co_filename.startswith(_OWN_FILES):
        left = left.tb_next
    return left or frames


def _attempt(told: AttemptStory, at: Callable[[int | None], datetime | None]) -> Attempt:
    return Attempt(
        number=told.number,
        generation=told.generation,
        ended=told.ended,
        code=told.code,
        category=told.category,
        message=told.message,
        decision=told.decision,
        started=at(told.started_us),
        finished=at(told.ended_us),
    )


def _retries(story: Story, zone: tzinfo | None) -> list[RetryDecision]:
    return [
        RetryDecision(
            attempt=told.number,
            delay=timedelta(microseconds=told.next_due_us - told.ended_us),
            due=to_datetime(told.next_due_us).astimezone(zone),
            reason=told.decision,
        )
        for told in story.attempts
        if told.next_due_us is not None and told.ended_us is not None
    ]


def _payload(encoded: bytes) -> dict[str, Any]:
    payload = decode_json(encoded)
    assert isinstance(payload, dict), "a payload is an object"
    return payload
