"""Waits that do not follow the policy's backoff: after a lost attempt, a refusal, a hand-back."""

from __future__ import annotations

from ostinato.core.instants import MINUTE, SECOND

#: Codes that use nothing up. A refusal never started; the others did.
REFUSAL_CODES = frozenset({"REFUSED"})
HAND_BACK_CODES = frozenset({"HANDED_BACK", "COLLATERAL"})

LOST_DELAY_MAX_US = MINUTE
#: So many uncounted returns are repeated at once, later ones 30 s apart (design section 11).
UNCOUNTED_AT_ONCE = 100
UNCOUNTED_DELAY_US = 30 * SECOND


def lost_delay_us(lost_count: int) -> int:
    """Wait after the `lost_count`-th loss of this generation: 0 s, then 1, 2, 4 … s, at most 60 s."""
    if lost_count <= 1:
        return 0
    # 2⁶ s is already beyond the cap, and an unbounded shift by a large count would not be cheap.
    return min(SECOND << min(lost_count - 2, 6), LOST_DELAY_MAX_US)


def uncounted_delay_us(count: int) -> int:
    """Wait after the `count`-th refusal or hand-back: none for the first hundred, then 30 s."""
    return 0 if count <= UNCOUNTED_AT_ONCE else UNCOUNTED_DELAY_US
