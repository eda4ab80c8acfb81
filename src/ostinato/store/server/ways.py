"""Ways through the table of instances: each one an index, walked from its newest entry for a bounded length.

A planner that chooses for itself may take another index, or read all that matches and sort it, wherever its
statistics are wrong; then the cost has no bound. So nothing is left to choose. MySQL and MariaDB are told the
index. PostgreSQL is asked for the order of the index's own columns, none of which is held to one value, so
that no other index gives it; and `pin_plans` keeps it from sorting.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from sqlalchemy import ColumnElement, Select, Text, and_, column, func, literal_column, select, tuple_
from sqlalchemy.ext.asyncio import AsyncConnection

from ostinato.core.states import State
from ostinato.store.schema import instance
from ostinato.store.server.dialect_sql import forced, is_mysql, rows_of

_C = instance.c
#: Literal, as a partial index serves only what is seen to imply its condition.
_IS_RARE_STATE = and_(_C.state != literal_column("'pending'"), _C.state != literal_column("'success'"))
_HAS_KEY = _C.key != literal_column("''")
_IS_LIVE = _C.finished_us.is_(None)
_PIN_PLANS = select(
    *(
        func.set_config(name, "off", True)
        for name in ("enable_seqscan", "enable_bitmapscan", "enable_sort", "enable_incremental_sort")
    ),
    # What is switched off counts as so dear that it would be worth compiling. `jit` itself is asyncpg's.
    func.set_config("jit_above_cost", "-1", True),
)


class Way(msgspec.Struct, frozen=True):
    """One index, and the values of its first columns."""

    index: str
    values: tuple[str, ...] = ()
    #: The rows are few and come in no order of ids: all of them are looked at.
    is_whole: bool = False
    #: Only rows in this state; empty: in any.
    state: str = ""


#: All instances by id.
EVERYTHING = Way("primary")

#: Columns of each index, as far as they matter here.
_COLUMNS: dict[str, tuple[ColumnElement[Any], ...]] = {
    "primary": (_C.id,),
    "instance_task": (_C.namespace, _C.task, _C.id),
    "instance_key": (_C.key, _C.id),
    "instance_state": (_C.state, _C.id),
    "instance_live": (_C.namespace, _C.task, _C.created_us),
    "instance_finished": (_C.state, _C.finished_us),
}
_PARTIAL: dict[str, tuple[ColumnElement[bool], ...]] = {
    "instance_key": (_HAS_KEY,),
    "instance_state": (_IS_RARE_STATE,),
    "instance_live": (_IS_LIVE,),
    "instance_finished": (_C.finished_us.is_not(None),),
}


def way_of_task(namespace: str, task: str) -> Way:
    return Way("instance_task", (namespace, task))


async def ways_of_task(connection: AsyncConnection, task: str, *, namespaces: Sequence[str]) -> list[Way]:
    """Those of the ways of `task` in each of `namespaces` on which there is anything."""
    wanted = rows_of(connection, [_C.namespace], rows=[(namespace,) for namespace in namespaces])
    newest = select(_C.id).limit(1)
    if is_mysql(connection):
        newest = forced(newest, instance, index="instance_task")
        newest = newest.where(_C.namespace == wanted.c.namespace, _C.task == task)
    else:
        names, key = tuple_(_C.namespace, _C.task), tuple_(wanted.c.namespace, task)
        newest = newest.where(names >= key, names <= key).order_by(*_COLUMNS["instance_task"])
    found = select(wanted.c.namespace).where(newest.correlate(wanted).scalar_subquery().is_not(None))
    return [way_of_task(namespace, task) for namespace in sorted(await connection.scalars(found))]


def way_of_key(key: str) -> Way:
    return Way("instance_key", (key,))


def way_of_state(state: State) -> Way:
    """Of a state that the index holds: on PostgreSQL neither pending nor success."""
    return Way("instance_state", (state.value,))


def has_index(connection: AsyncConnection, state: State) -> bool:
    """Whether `way_of_state` leads to the rows in `state`."""
    return is_mysql(connection) or state not in (State.PENDING, State.SUCCESS)


async def pin_plans(connection: AsyncConnection) -> None:
    """Keep PostgreSQL from sorting and from reading without an order, until the transaction ends."""
    if not is_mysql(connection):
        await connection.execute(_PIN_PLANS)


def walked(
    connection: AsyncConnection, way: Way, *, columns: Sequence[ColumnElement[Any]], bounds: tuple[str, str]
) -> Select[Any]:
    """`columns` of the way's rows with ids from the first of `bounds` to before the second, newest first."""
    first, before = bounds
    statement = _along(connection, way, columns)
    if way.is_whole:
        return statement.where(_C.id >= first, _C.id < before)
    if is_mysql(connection):
        return statement.where(_C.id >= first, _C.id < before).order_by(_C.id.desc())
    keys = _COLUMNS[way.index]
    return (
        statement.where(tuple_(*keys) >= tuple_(*way.values, first))
        .where(tuple_(*keys) < tuple_(*way.values, before))
        .order_by(*(key.desc() for key in keys))
    )


def entries(connection: AsyncConnection, way: Way) -> Select[Any]:
    """The way's entries, from the index alone where the way has no `state`."""
    one: ColumnElement[int] = literal_column("1").label("one")
    return _along(connection, msgspec.structs.replace(way, is_whole=True), [one])


def _along(connection: AsyncConnection, way: Way, columns: Sequence[ColumnElement[Any]]) -> Select[Any]:
    statement = select(*columns)
    if way.state:
        statement = statement.where(_C.state == way.state)
    if is_mysql(connection):
        index = "PRIMARY" if way.index == "primary" else way.index
        statement = forced(statement, instance, index=index)
        return statement.where(*_equal(way))
    statement = statement.where(*_PARTIAL.get(way.index, ()))
    if way.is_whole:
        keys = _COLUMNS[way.index]
        statement = statement.order_by(*keys)
        if way.values:
            prefix = tuple_(*keys[: len(way.values)])
            values = tuple_(*way.values)
            statement = statement.where(prefix >= values, prefix <= values)
    return statement


def _equal(way: Way) -> list[ColumnElement[bool]]:
    keys = _COLUMNS[way.index]
    if way.index == "instance_key":
        keys = (column("listed_key", Text),)
    return [key == value for key, value in zip(keys, way.values, strict=False)]
