"""Lists and counts of instances in memory: a walk by id, newest first, of bounded length."""

from __future__ import annotations

from collections import Counter
from itertools import islice

from ostinato.core.model import Instance
from ostinato.store.batches import InstanceCounts, InstanceFilter, InstancePage
from ostinato.store.memory.tables import Tables, without_payload
from ostinato.store.paging import SCANNED_ROWS_MAX, created_bounds, matches, read_cursor, write_cursor


def list_instances(tables: Tables, where: InstanceFilter, *, cursor: str | None, limit: int) -> InstancePage:
    first, before = created_bounds(where)
    last_id = read_cursor(cursor)
    ids = tables.by_id.before(before if last_id is None else min(before, last_id))
    found: list[Instance] = []
    for identifier in islice(ids, max(SCANNED_ROWS_MAX, limit + 1)):
        if identifier < first:
            break
        if matches(tables.instances[identifier], where):
            if len(found) == limit:
                return InstancePage(found, write_cursor(found[-1].id))
            found.append(without_payload(tables.instances[identifier]))
    else:
        return InstancePage(found, None if next(ids, None) is None else write_cursor(identifier))
    return InstancePage(found, None)


def count_instances(tables: Tables, where: InstanceFilter, *, limit: int) -> InstanceCounts:
    """States are counted whole, as the databases' indexes do; for anything else rows are looked at."""
    is_whole = where == InstanceFilter(states=where.states)
    first, before = created_bounds(where)
    ids = tables.by_id.before(before)
    within = (identifier for identifier in ids if identifier >= first)
    looked_at = islice(within, None if is_whole else max(limit, 1))
    chosen = (tables.instances[identifier] for identifier in looked_at)
    counts = Counter(str(instance.state) for instance in chosen if matches(instance, where))
    return InstanceCounts(dict(sorted(counts.items())), exact=is_whole or next(within, None) is None)
