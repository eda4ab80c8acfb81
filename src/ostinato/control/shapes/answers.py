"""What is answered to those who submit, ask and count, as the API and ``--json`` show it."""

from __future__ import annotations

from typing import Annotated

import msgspec

from ostinato.store.batches import InstanceCounts, RequestAnswer, SubmitReceipt


class SubmittedShape(msgspec.Struct, kw_only=True):
    """The instance that answers a submission."""

    instance_id: str
    created: Annotated[bool, msgspec.Meta(description="False: it existed under the live key.")]


class AnswerShape(msgspec.Struct, kw_only=True):
    """An owner's answer about one instance."""

    instance_id: str
    code: Annotated[str, msgspec.Meta(description="`OK`, or why not: a code of docs/errors.md.")]
    message: str


class CountsShape(msgspec.Struct, kw_only=True):
    """Number of instances by state."""

    by_state: dict[str, int]
    exact: Annotated[bool, msgspec.Meta(description="False: there are more.")]


def submitted_shape(receipt: SubmitReceipt) -> SubmittedShape:
    """Shape of the receipt of a submission."""
    return SubmittedShape(instance_id=receipt.instance_id, created=receipt.created)


def answer_shape(instance_id: str, answer: RequestAnswer) -> AnswerShape:
    """Shape of what the owner said of the instance that was asked about."""
    return AnswerShape(instance_id=instance_id, code=answer.code, message=answer.message)


def counts_shape(counts: InstanceCounts) -> CountsShape:
    """Shape of a count."""
    return CountsShape(by_state=counts.by_state, exact=counts.exact)
