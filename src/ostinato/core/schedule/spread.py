"""A stable offset that scatters fires which would otherwise fall on one instant."""

from __future__ import annotations

from ostinato.core.ids import stable_hash
from ostinato.core.instants import SECOND


def spread_offset_us(spread_us: int, spread_key: str) -> int:
    """Offset in [0, `spread_us`), whole seconds where the spread allows, equal for equal `spread_key`.

    Never negative, so that a fire is never before the time its expression names (I4).
    """
    if spread_us <= 0:
        return 0
    if spread_us < 2 * SECOND:
        return stable_hash("spread", spread_key) % spread_us
    return stable_hash("spread", spread_key) % (spread_us // SECOND) * SECOND
