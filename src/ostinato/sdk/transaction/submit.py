"""Submits in a user's own transaction: at once on a connection that blocks, awaiting on one that does not."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from random import Random
from typing import TypeVar

from ostinato.clock import Clock
from ostinato.control.submit import SubmitRequest
from ostinato.sdk.transaction.connections import (
    AsyncConnection,
    SyncConnection,
    is_checked,
    remember_checked,
    require_transaction,
)
from ostinato.sdk.transaction.recognize import open_async, open_sync
from ostinato.sdk.transaction.statements import Statement
from ostinato.sdk.transaction.steps import Rows, Situation, check_steps, submit_steps
from ostinato.store.batches import SubmitReceipt

T = TypeVar("T")


def submit_within(
    connection: object, requests: Sequence[SubmitRequest], *, clock: Clock, rng: Random
) -> list[SubmitReceipt]:
    """Submit in the transaction of `connection`, in the calling thread; receipts in the same order.

    All requests are of one task. `clock` is asked only for SQLite, whose time is the machine's. Raises
    ``INVALID_VALUE`` for a connection that cannot be used, ``DATABASE_UNUSABLE`` and ``SCHEMA_VERSION`` for
    its database, as ``control.submit`` for what is submitted, and what the driver raises.
    """
    opened = open_sync(connection)
    if not requests:
        return []
    if not is_checked(opened.driver):
        _carry_out(opened, check_steps(opened.dialect))
        remember_checked(opened.driver)
    return _carry_out(opened, submit_steps(requests, _situation(opened, clock=clock, rng=rng)))


async def submit_within_async(
    connection: object, requests: Sequence[SubmitRequest], *, clock: Clock, rng: Random
) -> list[SubmitReceipt]:
    """As `submit_within`, on the running loop, which is the connection's."""
    opened = await open_async(connection)
    if not requests:
        return []
    if not is_checked(opened.driver):
        await _carry_out_async(opened, check_steps(opened.dialect))
        remember_checked(opened.driver)
    return await _carry_out_async(opened, submit_steps(requests, _situation(opened, clock=clock, rng=rng)))


def _situation(opened: SyncConnection | AsyncConnection, *, clock: Clock, rng: Random) -> Situation:
    return Situation(
        dialect=opened.dialect,
        require_transaction=lambda: require_transaction(opened.driver),
        wall_us=clock.wall_us,
        rng=rng,
    )


def _carry_out(opened: SyncConnection, steps: Generator[Statement, Rows, T]) -> T:
    try:
        statement = next(steps)
        while True:
            statement = steps.send(opened.run(statement))
    except StopIteration as stop:
        result: T = stop.value
        return result


async def _carry_out_async(opened: AsyncConnection, steps: Generator[Statement, Rows, T]) -> T:
    try:
        statement = next(steps)
        while True:
            statement = steps.send(await opened.run(statement))
    except StopIteration as stop:
        result: T = stop.value
        return result
