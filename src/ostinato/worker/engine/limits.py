"""How long an engine may take for what."""

from __future__ import annotations

import msgspec

from ostinato.core.instants import MINUTE, SECOND


class EngineLimits(msgspec.Struct, frozen=True):
    """How long things may take, in microseconds."""

    #: An answer that the engine has at hand.
    call_us: int = 10 * SECOND
    #: A start, a kill, a removal.
    act_us: int = 30 * SECOND
    #: Between looks at a container that runs.
    look_us: int = 15 * SECOND
    #: How long the engine may be away until a container that runs is given up.
    away_us: int = MINUTE
    #: Silence while an image is fetched.
    pull_silence_us: int = 5 * MINUTE
    #: For the rest of the output, once the container has ended.
    output_us: int = 5 * SECOND
    #: Between looks at the engine itself.
    watch_us: int = 5 * SECOND
