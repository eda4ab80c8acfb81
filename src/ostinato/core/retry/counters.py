"""What a generation's attempts have used up so far: the whole memory of the retry decision."""

from __future__ import annotations

import msgspec


class Counters(msgspec.Struct, frozen=True):
    """Counters of one generation; a replay starts from a fresh one (design section 4).

    `failures` counts failures of the task itself and is the only number that drives backoff and
    ``max_retry``. `lost` counts lost attempts against ``max_lost``. `refusals` and `hand_backs` (drains and
    neighbours' kills) use nothing up; they only slow down what is repeated without end. `previous_delay_us`
    is the last delay that the policy's backoff chose. `window_opened_us` is the instant of the first failure
    of the task itself.
    """

    failures: int = 0
    lost: int = 0
    refusals: int = 0
    hand_backs: int = 0
    previous_delay_us: int = 0
    window_opened_us: int | None = None
