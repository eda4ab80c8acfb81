"""What every adapter asks of a row before writing it: legal moves, legal births, texts and numbers that fit.

The same rules stand as CHECK constraints in the schema as far as one row can show them. Here they also cover
what needs both sides of a move, and what an in-memory store would otherwise accept silently.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import chain
from typing import TypeAlias, get_args, get_type_hints

import msgspec

from ostinato.core.definition import TaskDefinition, TaskRef, decode_definition, encode_definition
from ostinato.core.instants import MINUTE
from ostinato.core.model import Instance
from ostinato.core.states import INITIAL_STATES, TERMINAL_STATES, WAITING_STATES, State, is_legal
from ostinato.errors import UserError
from ostinato.store.batches import (
    ApplyReceipt,
    Assign,
    CommitBatch,
    EndAttempt,
    EndWaiting,
    HoldWaiting,
    Replay,
    RequestCancel,
    Submission,
    Success,
)

#: Waiting work overtakes work of one priority more once it is due this much longer.
AGEING_US_PER_PRIORITY = MINUTE

#: Newest instances of a task that tell whether any of it waits for a worker (`Store.waiting_tasks`).
TOLD_COUNT = 200

INTEGER_MIN = -(2**63)
INTEGER_MAX = 2**63 - 1

Move: TypeAlias = Assign | Success | EndAttempt | HoldWaiting | EndWaiting | RequestCancel | Replay

_END_ATTEMPT_STATES = frozenset({State.RETRY_WAITING, State.FAILED, State.CANCELLED})
_NOTHING: type = type(None)
_KINDS: frozenset[type] = frozenset({int, str, bytes, _NOTHING})
_END_WAITING_STATES = frozenset({State.FAILED, State.CANCELLED, State.SKIPPED})


def moves_of(batch: CommitBatch) -> Iterator[Move]:
    """Every move of a batch; at most one per instance."""
    return chain(
        batch.assigns,
        batch.successes,
        batch.ended_attempts,
        batch.holds,
        batch.ended_waiting,
        batch.cancel_requests,
        batch.replays,
    )


def move_problem(move: Move) -> str | None:
    """Why the table of states does not know this move; None when it does (I7)."""
    match move:
        case Assign() | HoldWaiting():
            legal = move.expected_state in WAITING_STATES
            target = "running" if isinstance(move, Assign) else "held"
        case EndAttempt():
            legal = move.state in _END_ATTEMPT_STATES
            target = move.state
            if legal and (move.finished_us is None) == (move.state in TERMINAL_STATES):
                return "finished_us stands with a terminal state, and only there"
        case EndWaiting():
            legal = move.state in _END_WAITING_STATES and is_legal(move.expected_state, move.state)
            target = move.state
        case Replay():
            legal = move.expected_state in TERMINAL_STATES
            target = "pending"
        case _:
            return None
    if legal:
        return None
    source = getattr(move, "expected_state", State.RUNNING)
    return f"no move from {source} to {target}"


def birth_problem(instance: Instance) -> str | None:
    """Why this instance cannot be inserted; None when it can. The twin of the schema's CHECK constraints."""
    problem = kind_problem(instance)
    if problem is not None:
        return problem
    if instance.state not in INITIAL_STATES:
        return f"an instance is not born {instance.state}"
    if (instance.finished_us is not None) != (instance.state in TERMINAL_STATES):
        return "finished_us stands with a terminal state, and only there"
    if instance.hold is not None and instance.state not in WAITING_STATES:
        return f"hold {instance.hold} on a {instance.state} instance"
    if not 0 <= instance.priority <= 9:
        return f"priority {instance.priority} is not within 0 and 9"
    if not 0 <= instance.shard < instance.shard_total:
        return f"shard {instance.shard} of {instance.shard_total}"
    if instance.attempt != 0 or instance.generation != 1:
        return "an instance is born in generation 1 before its first attempt"
    if instance.result is not None:
        return "result without success"
    return None


def kind_problem(row: msgspec.Struct) -> str | None:
    """Which value of `row` is not of its field's kind; None when all are.

    SQLite would keep it as it is, and every later read of the row would fail: one such row stops its queue.
    """
    for name, kinds in _kinds_of(type(row)):
        kind = type(getattr(row, name))
        # Exact for integers, as a bool is one to Python; a text may be of a subclass, as the states are.
        if kind not in kinds and not (str in kinds and issubclass(kind, str)):
            wanted = " or ".join(sorted("null" if item is _NOTHING else item.__name__ for item in kinds))
            return f"{name} is of type {kind.__name__}, not {wanted}"
    return None


@cache
def _kinds_of(struct: type[msgspec.Struct]) -> tuple[tuple[str, frozenset[type]], ...]:
    """Fields of `struct` that hold an integer, a text or bytes, with the types that their values may have."""
    kinds = {name: frozenset(get_args(hint) or (hint,)) for name, hint in get_type_hints(struct).items()}
    return tuple((name, found) for name, found in kinds.items() if found <= _KINDS)


def data_problem(row: msgspec.Struct) -> str | None:
    """Which value of `row` no database takes: a text that UTF-8 cannot carry, an integer over 64 bits."""
    for name in row.__struct_fields__:
        value = getattr(row, name)
        if isinstance(value, str):
            if not value.isascii() and not _is_utf8(value):
                return f"{name} holds a lone surrogate"
        elif isinstance(value, int):
            if not INTEGER_MIN <= value <= INTEGER_MAX:
                return f"{name} does not fit 64 bits"
        elif isinstance(value, msgspec.Struct):
            problem = data_problem(value)
            if problem is not None:
                return f"{name}.{problem}"
        elif isinstance(value, (tuple, list, dict)):
            problem = _items_problem(value if not isinstance(value, dict) else chain(value, value.values()))
            if problem is not None:
                return f"{name}: {problem}"
    return None


def _items_problem(items: Iterable[object]) -> str | None:
    for item in items:
        if isinstance(item, str) and not _is_utf8(item):
            return "a lone surrogate"
        if isinstance(item, msgspec.Struct):
            problem = data_problem(item)
            if problem is not None:
                return problem
    return None


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_bounded(submissions: Sequence[Submission], partition_count: int) -> None:
    """Refuse a list of submissions of which one row could not be stored. Raises ``INVALID_VALUE``."""
    for submission in submissions:
        instance = submission.instance
        require_partition(instance.partition, partition_count, subject=instance.id)
        problem = submission_problem(submission) or data_problem(submission)
        if problem is not None:
            raise UserError("INVALID_VALUE", f"instance cannot be stored: {problem}", subject=instance.id)


def submission_problem(submission: Submission) -> str | None:
    """Why this submission cannot be written; None when it can."""
    return birth_problem(submission.instance) or kind_problem(submission)


def key_time_us(submissions: Iterable[Submission], now_us: int) -> int:
    """Time by which keys count as expired: the database's `now_us`, or when the first submission was made.

    What was made while the key was alive does not replace it, however long it took to arrive (C143).
    """
    return min((now_us, *(each.instance.created_us for each in submissions if each.key)))


def require_storable(row: msgspec.Struct) -> None:
    """Raise ``INVALID_VALUE`` for a row of which no database could store a value."""
    problem = data_problem(row)
    if problem is not None:
        raise UserError("INVALID_VALUE", f"a row cannot be stored: {problem}")


def require_partition(partition: int, partition_count: int, *, subject: str) -> None:
    """Raise ``INVALID_VALUE`` for a partition that the database does not have."""
    if not 0 <= partition < partition_count:
        raise UserError(
            "INVALID_VALUE",
            f"partition {partition} is not one of the database's {partition_count}",
            subject=subject,
            field="partition",
        )


def require_encodable(definition: TaskDefinition) -> bytes:
    """Canonical bytes of a definition. Raises ``INVALID_VALUE`` where they could not be read back."""
    try:
        encoded = encode_definition(definition)
        decode_definition(encoded)
        str(definition.ref).encode()
    except UnicodeEncodeError:
        raise UserError(
            "INVALID_VALUE",
            "a text of the definition holds a lone surrogate",
            subject=ascii(definition.ref.name),
        ) from None
    except (TypeError, msgspec.DecodeError) as error:
        raise UserError(
            "INVALID_VALUE", f"the definition cannot be stored: {error}", subject=ascii(definition.ref.name)
        ) from None
    return encoded


def conflict_receipts(
    refs: Sequence[TaskRef], versions: Mapping[TaskRef, int], *, expected: Mapping[TaskRef, int]
) -> list[ApplyReceipt]:
    """Receipts of an apply that writes nothing; none where `versions`, what there is, are as expected."""
    conflicts = {ref for ref, version in expected.items() if versions.get(ref, 0) != version}
    if not conflicts:
        return []
    named = [*refs, *sorted(conflicts.difference(refs))]
    return [
        ApplyReceipt(ref, versions.get(ref, 0), "conflict" if ref in conflicts else "unchanged")
        for ref in named
    ]
