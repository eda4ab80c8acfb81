"""Questions about tasks and instances that change nothing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence

from ostinato.clock import Clock
from ostinato.control.names import instance_not_found, may_be_id, validate_name, validate_text
from ostinato.control.submit import task_not_found
from ostinato.core.definition import TaskRef, TaskRow
from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.core.model import HistoryRow, Instance, OutputChunk
from ostinato.errors import UserError
from ostinato.store.batches import InstanceCounts, InstanceFilter, InstancePage, TriggerRow
from ostinato.store.paging import write_cursor
from ostinato.store.protocol import Store

PAGE_MAX = 1_000
#: So much of an id at least stands for all of it; and so long is one that was made here.
ID_PREFIX_LENGTH_MIN = 8
_ID_LENGTH = 26
#: Ids with the same beginning that are counted.
_ALIKE_COUNT_MAX = 100
#: Rows that a count looks at where no index alone tells.
COUNTED_ROWS_MAX = 20_000
NAMESPACES_MAX = 10_000
#: Pieces of output that are held at once, of 64 KiB at most each.
OUTPUT_CHUNKS_MAX = 64
#: A node renews its counter once a second, so one that has not in so long is gone or frozen.
RENEWAL_SEEN_US = 3 * SECOND
_RENEWAL_POLL_US = 50 * MILLISECOND


async def list_tasks(
    store: Store,
    namespace: str | None,
    *,
    limit: int | None = None,
    search: str = "",
    after: TaskRef | None = None,
) -> list[TaskRow]:
    """Tasks by namespace and name, all of them where `limit` is None; `namespace` None means every one.

    `search` is a part of the name, upper and lower case alike; `after` the last task of the page before.
    """
    if namespace is not None:
        validate_name(namespace, field="namespace")
    validate_text(search, field="search")
    rows: list[TaskRow] = []
    while limit is None or len(rows) < limit:
        wanted = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(rows))
        page = await store.list_tasks(namespace, after=after, limit=wanted, search=search)
        rows += page
        if len(page) < wanted:
            break
        after = page[-1].ref
    return rows


async def list_namespaces(store: Store, *, limit: int = NAMESPACES_MAX) -> list[str]:
    """Namespaces that have tasks, by name."""
    return await store.namespaces(limit=limit)


async def get_task(store: Store, ref: TaskRef) -> TaskRow:
    """The task as it stands. Raises ``INVALID_NAME``, ``TASK_NOT_FOUND`` with the closest name."""
    validate_name(ref.namespace, field="namespace")
    validate_name(ref.name, field="task")
    row = (await store.get_tasks([ref])).get(ref)
    if row is None:
        raise await task_not_found(store, ref)
    return row


async def task_triggers(store: Store, ref: TaskRef) -> list[TriggerRow]:
    """Triggers in force, earliest next fire first; those without a further fire last."""
    rows = await store.triggers_of(ref)
    return sorted(rows, key=lambda row: (row.next_us is None, row.next_us or 0, row.id))


def validate_limit(limit: int) -> None:
    """Raise ``INVALID_VALUE`` for a page of none, or of more than `PAGE_MAX`."""
    if not 1 <= limit <= PAGE_MAX:
        raise UserError("INVALID_VALUE", f"{limit} is not within 1 to {PAGE_MAX}", field="limit")


async def list_instances(
    store: Store, where: InstanceFilter, *, cursor: str | None = None, limit: int = 50
) -> InstancePage:
    """One page of instances, newest first, without payload and result. Raises ``INVALID_VALUE``."""
    validate_limit(limit)
    _validate_filter(where)
    return await store.list_instances(where, cursor=cursor, limit=limit)


async def count_instances(
    store: Store, where: InstanceFilter, *, limit: int = COUNTED_ROWS_MAX
) -> InstanceCounts:
    """Instances by state, of at most `limit` rows where no index alone tells. Raises ``INVALID_NAME``."""
    _validate_filter(where)
    return await store.count_instances(where, limit=limit)


def _validate_filter(where: InstanceFilter) -> None:
    if where.namespace is not None:
        validate_name(where.namespace, field="namespace")
    if where.task is not None:
        validate_name(where.task, field="task")


async def collect_instances(
    store: Store, where: InstanceFilter, *, cursor: str | None = None, limit: int | None
) -> InstancePage:
    """As `list_instances`, page after page: `limit` of them or all that there are; None: all.

    One page may be short although there are more, as the store looks at a bounded number of rows.
    """
    found: list[Instance] = []
    while True:
        wanted = PAGE_MAX if limit is None else min(PAGE_MAX, limit - len(found))
        page = await list_instances(store, where, cursor=cursor, limit=wanted)
        found += page.instances
        cursor = page.cursor
        if cursor is None or len(found) == limit:
            return InstancePage(found, cursor)


async def get_instance(store: Store, instance_id: str) -> Instance:
    """One whole instance. Raises ``INSTANCE_NOT_FOUND``."""
    return (await get_instances(store, [instance_id]))[0]


async def get_instances(store: Store, instance_ids: Sequence[str]) -> list[Instance]:
    """Whole instances in the order asked for. Raises ``INSTANCE_NOT_FOUND`` for the first that is missing."""
    found = await find_instances(store, instance_ids)
    for identifier in instance_ids:
        if identifier not in found:
            raise instance_not_found(identifier)
    return [found[identifier] for identifier in instance_ids]


async def find_instances(store: Store, instance_ids: Sequence[str]) -> dict[str, Instance]:
    """Whole instances by id; those that are missing, or that are no ids, are left out."""
    return await store.get_instances([text for text in dict.fromkeys(instance_ids) if may_be_id(text)])


async def resolve_ids(store: Store, given: Sequence[str]) -> list[str]:
    """Whole ids for `given`, of which each is one or the beginning of one, of at least 8 characters.

    What no id begins with stays as it is, for whoever looks it up. Raises ``INVALID_VALUE`` for the beginning
    of several.
    """
    return [await _resolve_id(store, text) for text in given]


async def _resolve_id(store: Store, text: str) -> str:
    if not may_be_id(text) or not ID_PREFIX_LENGTH_MIN <= len(text) < _ID_LENGTH:
        return text
    if text in await store.get_instances([text]):
        return text
    # Newest first: those that begin so are the next ones before what would be the last of them.
    beginning = text.lower()
    cursor: str | None = write_cursor(beginning.ljust(_ID_LENGTH + 1, "z"))
    alike: list[str] = []
    while cursor is not None and len(alike) < _ALIKE_COUNT_MAX:
        page = await store.list_instances(InstanceFilter(), cursor=cursor, limit=_ALIKE_COUNT_MAX)
        found = [instance.id for instance in page.instances if instance.id.startswith(beginning)]
        alike += found
        cursor = page.cursor if len(found) == len(page.instances) else None
    if len(alike) > 1:
        count = f"at least {len(alike)}" if len(alike) >= _ALIKE_COUNT_MAX else str(len(alike))
        raise UserError(
            "INVALID_VALUE",
            f"{count} instances have an id that begins with {text}",
            subject=text,
            field="ID",
            hint=f"give more of it; the newest is {alike[0]}",
        )
    return alike[0] if alike else text


async def list_history(
    store: Store, instance_id: str, *, after: int = 0, limit: int = 50
) -> list[HistoryRow]:
    """History of an instance, oldest first: at most `limit` rows behind the first `after`.

    Raises ``INSTANCE_NOT_FOUND``, ``INVALID_VALUE``.
    """
    validate_limit(limit)
    await get_instance(store, instance_id)
    return await store.history(instance_id, after=after, limit=limit)


async def read_output(
    store: Store, instance_id: str, *, after: tuple[int, int] = (0, -1)
) -> AsyncIterator[OutputChunk]:
    """Output by (attempt, sequence), strictly after the pair `after`, until there is no more for now."""
    while True:
        chunks = await store.output(instance_id, after=after, limit=OUTPUT_CHUNKS_MAX)
        for chunk in chunks:
            yield chunk
        if len(chunks) < OUTPUT_CHUNKS_MAX:
            return
        after = (chunks[-1].attempt, chunks[-1].sequence)


async def scheduler_is_running(store: Store, *, clock: Clock) -> bool:
    """Whether a node renews its row: known at once if there is none, else within a second, at most three.

    The row of a node that was killed stays, so that only a renewal shows life.
    """
    before = {node.id: node.renewals for node in await store.nodes()}
    deadline_us = clock.boot_us() + RENEWAL_SEEN_US
    while before and clock.boot_us() < deadline_us:
        await clock.sleep_until_us(clock.boot_us() + _RENEWAL_POLL_US)
        if any(before.get(node.id) != node.renewals for node in await store.nodes()):
            return True
    return False
