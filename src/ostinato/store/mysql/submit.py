"""Inserts new instances with their idempotency keys, all or none.

What nobody has submitted before is inserted at once. Where a row is there already, which ones are is looked
up, for as many submissions at a time as cannot be repeats of each other. Keys are locked before instances,
each sorted; who comes second with a key waits until the first has committed, and then reads whose it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from ostinato.core.model import Instance
from ostinato.errors import UserError
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.mysql.existing import fire_of, first_of_each, known_instances
from ostinato.store.mysql.faults import fault, is_duplicate
from ostinato.store.mysql.literals import Row
from ostinato.store.mysql.session import Driver, read_rows, write_rows
from ostinato.store.rules import require_bounded, require_partition, submission_problem
from ostinato.store.server.rows import instance_values

#: Namespace, task and key.
_Key: TypeAlias = tuple[str, str, str]


class RepeatsError(Exception):
    """Somebody, or the same list, has submitted one of these before."""


def require_submittable(submissions: Sequence[Submission], *, partition_count: int) -> None:
    """Raise ``INVALID_VALUE`` naming the first that breaks a rule; the database may still refuse a row."""
    for submission in submissions:
        instance = submission.instance
        require_partition(instance.partition, partition_count, subject=instance.id)
        if submission_problem(submission) is not None:
            require_bounded((submission,), partition_count)


def refusal(error: Exception, submissions: Sequence[Submission], *, partition_count: int) -> UserError | None:
    """The error that names the offender, where the server has refused a row; None for other errors."""
    found = fault(error)
    if found is None or found.kind != "data":
        return None
    try:
        # Looks for the offender only now: the check costs more than the insertion.
        require_bounded(submissions, partition_count)
    except UserError as named:
        return named
    subject = submissions[0].instance.id if len(submissions) == 1 else ""
    return UserError("INVALID_VALUE", f"instances cannot be stored: {found.reason}", subject=subject)


async def submit_new(
    driver: Driver, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    """Insert `submissions`, none of which is a repeat. Raises ``RepeatsError`` where one is: roll back."""
    instances = [submission.instance for submission in submissions]
    keyed = {_key_of(submission): submission for submission in submissions if submission.key}
    if len(first_of_each(instances)) < len(instances) or len(keyed) < sum(
        bool(submission.key) for submission in submissions
    ):
        raise RepeatsError
    holders = await _take_keys(driver, keyed, now_us=now_us)
    if any(holders[key][0] != submission.instance.id for key, submission in keyed.items()):
        raise RepeatsError
    try:
        await _insert(driver, instances)
    except Exception as error:
        if is_duplicate(error):
            raise RepeatsError from error
        raise
    return [SubmitReceipt(instance.id, created=True) for instance in instances]


async def submit_known(
    driver: Driver, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    """Insert those of `submissions` that are not there, each as if it came after those before it."""
    receipts: list[SubmitReceipt] = []
    for part in _distinct(submissions):
        receipts += await _submit_part(driver, part, now_us=now_us)
    return receipts


async def _submit_part(
    driver: Driver, submissions: Sequence[Submission], *, now_us: int
) -> list[SubmitReceipt]:
    known = await known_instances(driver, [submission.instance for submission in submissions])
    keyed = {
        _key_of(submission): submission
        for submission in submissions
        if submission.key and submission.instance.id not in known
    }
    holders = await _take_keys(driver, keyed, now_us=now_us)
    receipts: list[SubmitReceipt] = []
    new: list[Instance] = []
    for submission in submissions:
        instance = submission.instance
        holder, request_hash = holders.get(_key_of(submission), ("", ""))
        if instance.id in known:
            receipts.append(SubmitReceipt(known[instance.id], created=False))
        elif submission.key and holder != instance.id:
            is_conflict = request_hash != submission.request_hash
            receipts.append(SubmitReceipt(holder, created=False, conflict=is_conflict))
        else:
            new.append(instance)
            receipts.append(SubmitReceipt(instance.id, created=True))
    await _insert(driver, new)
    return receipts


def _distinct(submissions: Sequence[Submission]) -> Iterator[Sequence[Submission]]:
    """`submissions` in their order, in parts within which no id, key or fire comes twice."""
    part: list[Submission] = []
    seen: set[object] = set()
    for submission in submissions:
        marks: set[object] = {("id", submission.instance.id)}
        if submission.key:
            marks.add(("key", _key_of(submission)))
        if submission.instance.fire_us is not None:
            marks.add(("fire", fire_of(submission.instance)))
        if not seen.isdisjoint(marks):
            yield part
            part, seen = [], set()
        part.append(submission)
        seen |= marks
    if part:
        yield part


async def _take_keys(
    driver: Driver, keyed: dict[_Key, Submission], *, now_us: int
) -> dict[_Key, tuple[str, str]]:
    """Take the keys that are free or expired; returns each key's instance and hash of the request."""
    if not keyed:
        return {}
    rows: list[Row] = [
        (*key, keyed[key].instance.id, keyed[key].request_hash, keyed[key].key_expires_us, now_us)
        for key in sorted(keyed)
    ]
    await write_rows(driver, "take_key", rows=rows)
    held = await read_rows(driver, "find_keys", rows=sorted(keyed))
    return {(row[0], row[1], row[2]): (row[3], row[4]) for row in held}


async def _insert(driver: Driver, instances: Sequence[Instance]) -> None:
    values = [instance_values(instance) for instance in sorted(instances, key=lambda row: row.id)]
    await write_rows(driver, "insert_instance", rows=values)


def _key_of(submission: Submission) -> _Key:
    return submission.instance.namespace, submission.instance.task, submission.key
