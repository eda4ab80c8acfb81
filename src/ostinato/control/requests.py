"""Ask the owner of a partition for something, and wait for its answer.

A request is a row, so it outlives the process that asked: whoever owns the partition carries it out, now or
after the next start. Nothing is reported as done before the owner has answered (design section 11, Pause).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import msgspec

from ostinato.clock import Clock
from ostinato.control.names import validate_text
from ostinato.control.queries import RENEWAL_SEEN_US
from ostinato.core.ids import new_id
from ostinato.core.instants import MILLISECOND, SECOND, format_duration
from ostinato.core.model import Instance
from ostinato.errors import (
    CODES,
    EXIT_CONFLICT,
    ConflictError,
    InternalError,
    OstinatoError,
    UnavailableError,
    UserError,
)
from ostinato.store.batches import NodeRow, Request, RequestAnswer, RequestKind
from ostinato.store.protocol import Store

ANSWER_WAIT_US = 10 * SECOND
REASON_LENGTH_MAX = 1_000
BY_LENGTH_MAX = 200

_WAIT_FIRST_US = 10 * MILLISECOND
_WAIT_LONGEST_US = 250 * MILLISECOND
_encode_body = msgspec.json.Encoder().encode


class Asker(msgspec.Struct, kw_only=True, frozen=True):
    """Who asks, with what clock and chance, and how long an answer is waited for."""

    clock: Clock
    rng: Random
    #: A person's or program's name, for the history; empty: unknown.
    by: str = ""
    wait_us: int = ANSWER_WAIT_US


def make_request(
    asker: Asker,
    kind: RequestKind,
    *,
    partition: int,
    namespace: str,
    created_us: int,
    task: str = "",
    instance_id: str = "",
    body: Mapping[str, object] | None = None,
) -> Request:
    """A new request; its id makes repeating `ask` with it harmless. Raises ``INVALID_VALUE`` on bad texts."""
    validate_text(asker.by, field="by", length_max=BY_LENGTH_MAX)
    return Request(
        id=new_id(created_us, asker.rng),
        partition=partition,
        kind=kind,
        namespace=namespace,
        created_us=created_us,
        task=task,
        instance_id=instance_id,
        body=_encode_body(body or {}),
        by=asker.by,
    )


def request_about(
    instance: Instance, kind: RequestKind, *, asker: Asker, created_us: int, body: Mapping[str, object]
) -> Request:
    """A new request about an instance. Raises as `make_request`."""
    return make_request(
        asker,
        kind,
        partition=instance.partition,
        namespace=instance.namespace,
        task=instance.task,
        instance_id=instance.id,
        created_us=created_us,
        body=body,
    )


def validate_reason(reason: str) -> None:
    """Raise ``INVALID_VALUE`` for a reason that is too long or holds control characters."""
    validate_text(reason, field="reason", length_max=REASON_LENGTH_MAX)


async def ask(store: Store, requests: Sequence[Request], *, asker: Asker) -> list[RequestAnswer]:
    """Record `requests` and return the owners' answers in the same order; none for none.

    An answer may say no: see `require_ok`. Raises ``SCHEDULER_UNREACHABLE`` if not all are answered within
    ``asker.wait_us``, at once when no scheduler runs. The requests stay recorded and are carried out later.
    """
    if not requests:
        return []
    nodes = await store.nodes()
    await _record(store, requests)
    identifiers = [request.id for request in requests]
    began_us = asker.clock.boot_us()
    deadline_us = began_us + asker.wait_us
    answers: dict[str, RequestAnswer] = {}
    interval_us = _WAIT_FIRST_US
    while nodes:
        open_ones = [identifier for identifier in identifiers if identifier not in answers]
        answers.update(await store.answers(open_ones))
        now_us = asker.clock.boot_us()
        if len(answers) == len(requests) or now_us >= deadline_us:
            break
        await asker.clock.sleep_until_us(min(now_us + interval_us, deadline_us))
        interval_us = min(interval_us * 2, _WAIT_LONGEST_US)
    if len(answers) < len(requests):
        waited_us = asker.clock.boot_us() - began_us
        raise await _unanswered(store, nodes, waited_us=waited_us, missing=len(requests) - len(answers))
    return [answers[identifier] for identifier in identifiers]


async def _record(store: Store, requests: Sequence[Request]) -> None:
    try:
        await store.add_requests(requests)
    except UnavailableError as error:
        if error.code != "DATABASE_UNAVAILABLE":
            raise
        # The rows may be there already; the same ids again change nothing then.
        await store.add_requests(requests)


async def _unanswered(
    store: Store, before: Sequence[NodeRow], *, waited_us: int, missing: int
) -> UnavailableError:
    what = "the request is recorded" if missing == 1 else f"{missing} requests are recorded"
    hint = "a scheduler carries it out when it can; repeating is not needed"
    renewals = {node.id: node.renewals for node in before}
    after = await store.nodes()
    renewed = [node for node in after if renewals.get(node.id) != node.renewals]
    if not after or (not renewed and waited_us >= RENEWAL_SEEN_US):
        return UnavailableError(
            "SCHEDULER_UNREACHABLE",
            f"{what}; no scheduler is running",
            hint=f"{hint}; ostinato dev APP or ostinato scheduler starts one",
        )
    return UnavailableError(
        "SCHEDULER_UNREACHABLE",
        f"{what}; the scheduler has not answered within {format_duration(waited_us // MILLISECOND * 1000)}",
        hint=hint,
    )


def require_ok(answer: RequestAnswer) -> RequestAnswer:
    """The answer, or its refusal raised as the error that the code means."""
    if answer.code == "OK":
        return answer
    raise refusal_of(answer)


def refusal_of(answer: RequestAnswer) -> OstinatoError:
    """The error that a refusing answer means; a code that this release does not know is internal."""
    if answer.code not in CODES:
        return InternalError("INTERNAL", f"{answer.code}: {answer.message}", subject=answer.instance_id)
    family = ConflictError if CODES[answer.code].exit_code == EXIT_CONFLICT else UserError
    return family(answer.code, answer.message, subject=answer.instance_id)
