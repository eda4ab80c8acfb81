"""What a cron expression will do, in words a person can check: the same search as the real fires."""

from __future__ import annotations

from ostinato.core.instants import to_datetime
from ostinato.core.schedule.cron_expression import parse_cron
from ostinato.core.schedule.cron_fires import DstFold, DstGap, next_cron_fire
from ostinato.core.schedule.zone import load_zone
from ostinato.errors import UserError, restated

COUNT_MAX = 1000


def preview_cron(
    expr: str,
    tz: str,
    start_us: int,
    count: int,
    *,
    dst_gap: DstGap = "run_after",
    dst_fold: DstFold = "first",
) -> list[str]:
    """The next `count` fires strictly after `start_us`, ISO 8601 with the zone's offset at each.

    Shorter than `count` only where the calendar ends: no further run. Raises ``INVALID_CRON``,
    ``INVALID_TIMEZONE``, ``INVALID_VALUE``.
    """
    if not 0 <= count <= COUNT_MAX:
        raise UserError("INVALID_VALUE", f"{count} is not within 0 to {COUNT_MAX}", field="count")
    try:
        expression = parse_cron(expr)
    except UserError as error:
        # As a trigger's error: the field is one that was given, and the message says which part of it.
        raise restated(error, field="expression") from None
    zone = load_zone(tz)
    shown: list[str] = []
    fire_us = next_cron_fire(expression, zone, start_us, dst_gap=dst_gap, dst_fold=dst_fold)
    while fire_us is not None and len(shown) < count:
        shown.append(to_datetime(fire_us).astimezone(zone).isoformat())
        fire_us = next_cron_fire(expression, zone, fire_us, dst_gap=dst_gap, dst_fold=dst_fold)
    return shown
