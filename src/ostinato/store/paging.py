"""Pages of lists: opaque cursors, times of creation as bounds of ids, rows that one call may look at."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

from ostinato.core.instants import MILLISECOND
from ostinato.core.model import Instance
from ostinato.errors import UserError
from ostinato.store.batches import InstanceFilter
from ostinato.store.rules import data_problem

#: Rows that one call of ``list_instances`` looks at where no index gives both the filter and the order.
SCANNED_ROWS_MAX = 20_000
#: Entries of an index that one call of ``count_instances`` goes through; no row is read for them.
COUNTED_ENTRIES_MAX = 1_000_000

_ID_LENGTH_MAX = 64
_CHECK_BYTES = 3
_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"
#: An id begins with its milliseconds: 48 bits in ten characters (``core.ids``).
_TIME_CHARACTERS = 10
_MILLISECONDS_MAX = 2**48 - 1
#: Above every id.
_NO_ID = "~"


def write_cursor(last_id: str) -> str:
    """Cursor that continues a list behind `last_id`."""
    name = last_id.encode()
    return urlsafe_b64encode(_check(name) + name).decode("ascii").rstrip("=")


def read_cursor(cursor: str | None) -> str | None:
    """The id behind which the list goes on. Raises ``INVALID_VALUE`` for what `write_cursor` did not make."""
    if cursor is None:
        return None
    try:
        decoded = urlsafe_b64decode(cursor.encode("ascii") + b"=" * (-len(cursor) % 4))
        check, name = decoded[:_CHECK_BYTES], decoded[_CHECK_BYTES:]
        last_id = name.decode()
    except (UnicodeError, binascii.Error):
        raise _bad_cursor() from None
    if not 1 <= len(last_id) <= _ID_LENGTH_MAX or check != _check(name) or write_cursor(last_id) != cursor:
        raise _bad_cursor()
    return last_id


def _check(name: bytes) -> bytes:
    """Tells a cursor from a text that somebody made up or cut off; no secret."""
    return blake2b(name, digest_size=_CHECK_BYTES).digest()


def _bad_cursor() -> UserError:
    return UserError(
        "INVALID_VALUE",
        "the cursor is not one of this list",
        field="cursor",
        hint="leave it out to begin at the first page, or give the one that the last page came with",
    )


def created_bounds(where: InstanceFilter) -> tuple[str, str]:
    """Ids of instances created within the filter's times: at or after the first, before the second."""
    first, before = "", _NO_ID
    if where.created_from_us is not None:
        first = _first_id(where.created_from_us // MILLISECOND)
    if where.created_before_us is not None:
        before = _first_id((where.created_before_us - 1) // MILLISECOND + 1)
    return first, before


def _first_id(milliseconds: int) -> str:
    if milliseconds > _MILLISECONDS_MAX:
        return _NO_ID
    value = max(milliseconds, 0)
    return "".join(_ALPHABET[value >> 5 * place & 31] for place in range(_TIME_CHARACTERS - 1, -1, -1))


def matches(instance: Instance, where: InstanceFilter) -> bool:
    """Whether `instance` is meant by `where`; the twin of the adapters' conditions."""
    first, before = created_bounds(where)
    code = "" if instance.failure is None else instance.failure.code
    return (
        (where.namespace is None or instance.namespace == where.namespace)
        and (where.task is None or instance.task == where.task)
        and (not where.states or instance.state in where.states)
        and (where.key is None or instance.key == where.key)
        and (where.code is None or (instance.failure is not None and code == where.code))
        and first <= instance.id < before
        and (where.created_from_us is None or instance.created_us >= where.created_from_us)
        and (where.created_before_us is None or instance.created_us < where.created_before_us)
    )


def require_filter(where: InstanceFilter) -> None:
    """Raise ``INVALID_VALUE`` for a filter with a value that no database takes, naming it."""
    for name in ("namespace", "task", "key", "code", "created_from_us", "created_before_us"):
        problem = data_problem(InstanceFilter(**{name: getattr(where, name)}))
        if problem is not None:
            raise UserError("INVALID_VALUE", problem, field=name)


def fold(search: str) -> str:
    """What is looked for in names, upper and lower case alike; names are ASCII.

    Raises ``INVALID_VALUE`` for a text that UTF-8 cannot carry.
    """
    try:
        search.encode()
    except UnicodeEncodeError:
        raise UserError("INVALID_VALUE", "the text holds a lone surrogate", field="search") from None
    return search.lower() if search.isascii() else search
