"""What a seed is: the shape of its cluster, its work, and which faults come how often.

Each seed has its own mixture (swarm testing): a few kinds of fault often show more than all of them at once,
and some seeds are calm, so that what must work on a good day is watched too.
"""

from __future__ import annotations

from random import Random
from typing import Literal

import msgspec

from ostinato.control.submit import KEY_LIFETIME_US
from ostinato.core.instants import HOUR, MILLISECOND, MINUTE, SECOND

Temper = Literal["calm", "rough", "wild"]

#: Every kind of fault that the driver knows, with how often it comes in a rough seed (mean interval). The
#: table of docs/simulation.md says what each is.
FAULT_KINDS: dict[str, int] = {
    "node_killed": 40 * SECOND,
    "node_stopped": 40 * SECOND,
    "node_frozen": 30 * SECOND,
    "node_suspended": 60 * SECOND,
    "node_machine_lost": 60 * SECOND,
    "worker_killed": 40 * SECOND,
    "worker_drained": 60 * SECOND,
    "supervisor_frozen": 40 * SECOND,
    "guardian_killed": 60 * SECOND,
    "guardian_frozen": 60 * SECOND,
    "machine_frozen": 40 * SECOND,
    "machine_lost": 60 * SECOND,
    "machine_replaced": 90 * SECOND,
    "disk_full": 60 * SECOND,
    "disk_slow": 60 * SECOND,
    "clock_jumped": 40 * SECOND,
    "clock_drifting": 60 * SECOND,
    "database_clock_jumped": 40 * SECOND,
    "link_silent": 20 * SECOND,
    "worker_cut_off": 30 * SECOND,
    "stream_broken": 15 * SECOND,
    "network_slow": 40 * SECOND,
    "address_refused": 40 * SECOND,
    "database_restarted": 60 * SECOND,
    "database_failed_over": 90 * SECOND,
    "database_stalled": 40 * SECOND,
    "database_slow": 40 * SECOND,
    "commits_slow": 40 * SECOND,
    "database_full": 90 * SECOND,
    "database_read_only": 90 * SECOND,
    "database_refuses": 40 * SECOND,
    "database_silent": 40 * SECOND,
    "wire_slow": 40 * SECOND,
    "answers_lost": 40 * SECOND,
    "sessions_ended": 40 * SECOND,
    "node_locks_lost": 60 * SECOND,
    "hints_disturbed": 40 * SECOND,
}
#: Kinds that came later than the others: a seed keeps of the others what it had.
_DRAWN_APART = ("database_clock_jumped",)
#: In a wild seed faults come so much oftener.
_WILD = 3
#: Of every kind at once there are never more than this many under way.
UNDER_WAY_MAX = 6


class SwarmOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that a run is made of; shrinking makes some of it smaller."""

    seed: int
    temper: Temper
    partition_count: int
    node_count: int
    worker_count: int
    slot_count: int
    worker_lease_us: int
    #: How long faults come and go.
    safety_us: int
    #: Mean interval of each kind; kinds that are not here do not come.
    faults: dict[str, int]
    #: Longest time for which a fault lasts.
    fault_us_max: int
    task_count: int
    client_count: int
    #: Mean interval between two acts of a client.
    act_us: int
    #: Wall clocks differ by up to this much, and run off by up to this much a million.
    skew_us_max: int
    drift_ppm_max: int
    has_session_locks: bool
    #: How long an idempotency key lives: short, so that it ends within the run, or the product's day.
    key_lifetime_us: int = KEY_LIFETIME_US
    #: So many of its tasks have a retry budget.
    budget_share: float = 0.0
    #: Faults behind this number do not come, for shrinking.
    fault_count_max: int = 1_000_000
    #: It lives for hours: work is sparse, and what has ended is deleted soon.
    is_long: bool = False


def options_of(seed: int) -> SwarmOptions:
    """The options of a seed, always the same."""
    rng = Random(f"swarm {seed}")
    temper: Temper = rng.choices(("calm", "rough", "wild"), weights=(1, 5, 3))[0]
    worker_lease_us = rng.choices((6 * SECOND, 60 * SECOND), weights=(3, 1))[0]
    safety_us = rng.randrange(30, 90) * SECOND
    return SwarmOptions(
        seed=seed,
        temper=temper,
        partition_count=rng.choice((4, 4, 8, 16)),
        node_count=rng.choices((1, 2, 3, 4), weights=(3, 5, 2, 1))[0],
        worker_count=rng.choices((1, 2, 3, 4), weights=(4, 5, 2, 1))[0],
        slot_count=rng.choice((1, 2, 4, 8)),
        worker_lease_us=worker_lease_us,
        safety_us=safety_us,
        faults=_faults(rng, seed, temper=temper),
        fault_us_max=rng.choice((2, 5, 10, 20, 30)) * SECOND + (worker_lease_us if rng.random() < 0.3 else 0),
        task_count=rng.randrange(2, 7),
        client_count=rng.choice((1, 1, 2)),
        act_us=rng.choice((400 * MILLISECOND, SECOND, 3 * SECOND)),
        skew_us_max=rng.choice((0, 0, SECOND, 10 * MINUTE)),
        drift_ppm_max=rng.choice((0, 0, 50, 200)),
        has_session_locks=rng.random() < 0.7,
        key_lifetime_us=_drawn(seed, "keys").choice((5 * SECOND, 15 * SECOND, KEY_LIFETIME_US)),
        budget_share=_drawn(seed, "budgets").choice((0.0, 0.0, 0.0, 0.7)),
    )


def long_options_of(seed: int, hours: float) -> SwarmOptions:
    """The options of a seed that lives for so many hours; always the same, and those of more hours go on.

    Faults are further apart than in minutes, and less happens in between, since an hour costs what happens in
    it. None is calm: minutes show what must work on a good day.
    """
    rng = Random(f"long swarm {seed}")
    worker_lease_us = rng.choices((12 * SECOND, 60 * SECOND), weights=(1, 6))[0]
    return SwarmOptions(
        seed=seed,
        temper="rough",
        partition_count=rng.choice((4, 4, 8, 16)),
        node_count=rng.choices((1, 2, 3), weights=(2, 6, 1))[0],
        worker_count=rng.choices((1, 2, 3), weights=(4, 5, 1))[0],
        slot_count=rng.choice((2, 4, 8)),
        worker_lease_us=worker_lease_us,
        safety_us=int(hours * HOUR),
        faults=_apart(
            _faults(rng, seed=seed, temper=rng.choice(("rough", "wild"))), rng.randrange(12, 20) * SECOND
        ),
        fault_us_max=rng.choice((2, 5, 10, 20, 30)) * SECOND + (worker_lease_us if rng.random() < 0.1 else 0),
        task_count=rng.randrange(2, 6),
        client_count=rng.choice((1, 1, 2)),
        act_us=rng.choice((10, 20, 30)) * SECOND,
        skew_us_max=rng.choice((0, 0, SECOND, 10 * MINUTE)),
        drift_ppm_max=rng.choice((0, 0, 50, 200)),
        has_session_locks=rng.random() < 0.7,
        is_long=True,
    )


def _apart(faults: dict[str, int], mean_us: int) -> dict[str, int]:
    """The same kinds in the same proportion, a fault of any of them every `mean_us`."""
    together_us = 1 / sum(1 / kind_us for kind_us in faults.values())
    return {kind: int(kind_us * mean_us / together_us) for kind, kind_us in faults.items()}


def _drawn(seed: int, name: str) -> Random:
    """For an option of its own, so that it changes none of the others."""
    return Random(f"swarm {seed} {name}")


def _faults(rng: Random, seed: int, *, temper: Temper) -> dict[str, int]:
    """A random part of all kinds, each oftener or more seldom."""
    share = {"calm": 0.05, "rough": 0.25, "wild": 0.4}[temper]
    hurry = _WILD if temper == "wild" else 1
    kinds = [kind for kind in FAULT_KINDS if kind not in _DRAWN_APART]
    chosen = [kind for kind in kinds if rng.random() < share]
    if not chosen and temper != "calm":
        chosen = [rng.choice(kinds)]
    draws = {kind: rng for kind in chosen}
    for kind in _DRAWN_APART:
        apart = _drawn(seed, kind)
        if apart.random() < share:
            draws[kind] = apart
    return {
        kind: max(SECOND, int(FAULT_KINDS[kind] * draw.choice((0.3, 0.6, 1.0, 2.0)) / hurry))
        for kind, draw in draws.items()
    }
