"""Which new instances the database has already, by their ids or by the fires that made them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from ostinato.core.model import Instance
from ostinato.store.mysql.literals import chunks, listed
from ostinato.store.mysql.session import Driver, fetch, read_rows

#: (trigger, instant, shard): unique in the database (I8).
Fire: TypeAlias = tuple[str, int, int]


def fire_of(row: Instance) -> Fire | None:
    """The fire that `row` is the instance of; None where no trigger has made it."""
    return None if row.fire_us is None else (row.fire_trigger, row.fire_us, row.shard)


def first_of_each(rows: Sequence[Instance]) -> list[Instance]:
    """`rows` without those whose id or fire an earlier one has."""
    ids = set[str]()
    fires = set[Fire]()
    first: list[Instance] = []
    for row in rows:
        fire = fire_of(row)
        if row.id in ids or fire in fires:
            continue
        ids.add(row.id)
        if fire is not None:
            fires.add(fire)
        first.append(row)
    return first


async def known_instances(driver: Driver, rows: Sequence[Instance]) -> dict[str, str]:
    """For the id of each of `rows` that the database has, the id under which it has it."""
    known: dict[str, str] = {}
    for chunk in chunks([row.id for row in rows]):
        found = await fetch(driver, f"SELECT id FROM instance WHERE id IN {listed(chunk)}")
        known |= {identifier: identifier for (identifier,) in found}
    fires = {fire: row.id for row in rows if row.id not in known and (fire := fire_of(row)) is not None}
    for identifier, trigger, fire_us, shard in await read_rows(driver, "find_fires", rows=sorted(fires)):
        known[fires[trigger, fire_us, shard]] = identifier
    return known
