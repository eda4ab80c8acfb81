"""What an app asks of a scheduler, whichever way leads there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import msgspec

from ostinato.control.explain import Story
from ostinato.control.submit import SubmitRequest
from ostinato.core.definition import TaskDefinition, TaskRef
from ostinato.core.failure.failure import Failure
from ostinato.core.states import State
from ostinato.store.batches import ApplyReceipt, SubmitReceipt


class Glimpse(msgspec.Struct, frozen=True, kw_only=True):
    """As much of an instance as says whether it has ended, and with what."""

    id: str
    ref: TaskRef
    state: State
    #: Why it is in this state; empty on the uneventful path.
    reason: str
    failure: Failure | None
    #: JSON; None unless it is a success.
    result: bytes | None


class Gateway(Protocol):
    """Calls of one scheduler. All run on the loop of the client that opened it.

    Both gateways raise the same errors for the same mistakes: class, code, message, field, hint and subject.
    """

    async def apply(self, definitions: Sequence[TaskDefinition]) -> list[ApplyReceipt]:
        """Store definitions, all or none; receipts in the same order. Raises as ``control.apply``."""
        ...

    async def submit(self, requests: Sequence[SubmitRequest]) -> list[SubmitReceipt]:
        """Make an instance of each request, all of one namespace. Raises as ``control.submit``."""
        ...

    async def look(self, instance_id: str) -> Glimpse:
        """State, failure and result of an instance. Raises ``INSTANCE_NOT_FOUND``."""
        ...

    async def cancel(self, instance_id: str, *, reason: str) -> None:
        """Ask for an instance's end and wait for the owner's answer. Raises as ``control.cancel``."""
        ...

    async def story(self, instance_id: str) -> Story:
        """Everything about an instance. Raises ``INSTANCE_NOT_FOUND``."""
        ...

    async def close(self) -> None:
        """Close connections; idempotent."""
        ...
