"""What an operator says about a worker, checked once."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ostinato.control.names import validate_label_value, validate_name
from ostinato.core.definition import Pool
from ostinato.core.instants import SECOND
from ostinato.errors import UserError

#: Their default sizes are the assembly's: CPU count and 100 (design section 11).
POOLS: tuple[Pool, ...] = ("process", "async")


class WorkerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one worker. `validate` raises ``INVALID_SETTING``, or as names and labels do (C157).

    `app` names what declares the tasks, ``module:attr`` or ``path.py[:attr]``, several separated by commas;
    None for a worker that runs shell and http tasks only. `scheduler` is the address of a node, or of
    several, separated by commas; each tells of all others. `capacity` gives the slots of each pool.
    `drain_timeout_us` bounds a drain as a whole: what still runs when a tenth of it is left is ended and
    handed back.
    """

    worker_name: str
    scheduler: str
    capacity: dict[str, int]
    data_dir: Path
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    app: str | None = None
    token: str = ""
    #: There is a token and no TLS: only nodes of this machine may see it.
    is_token_open: bool = False
    drain_timeout_us: int = 25 * SECOND
    #: Longest wait for a connection and for the answer to ``Hello``.
    connect_timeout_us: int = 5 * SECOND
    #: Whether messages gather for a moment under load; not where time is virtual and a moment is seen.
    gathers: bool = True

    @property
    def addresses(self) -> list[str]:
        """The addresses of nodes that are given, each once."""
        return list(dict.fromkeys(part.strip() for part in self.scheduler.split(",") if part.strip()))

    def validate(self) -> WorkerConfig:
        """The same configuration, once it has been found usable."""
        if not self.worker_name:
            raise UserError("INVALID_SETTING", "a worker needs a name", field="worker_name")
        # It is stored with every attempt, and shown.
        validate_label_value(self.worker_name, field="worker_name")
        for name, value in self.labels.items():
            validate_name(name, field="labels")
            validate_label_value(value, field=f"labels.{name}")
        if not self.addresses:
            raise UserError(
                "INVALID_SETTING", "no scheduler is given", field="scheduler", hint="such as 127.0.0.1:8641"
            )
        for pool, slot_count in self.capacity.items():
            if pool not in POOLS:
                raise UserError(
                    "INVALID_SETTING",
                    f"{pool!r} is not a pool",
                    field="capacity",
                    hint=f"use {' or '.join(POOLS)}",
                )
            if slot_count < 0:
                raise UserError("INVALID_SETTING", f"{pool} has {slot_count} slots", field="capacity")
        if self.drain_timeout_us < 0:
            raise UserError("INVALID_SETTING", "the drain time-out is negative", field="drain_timeout")
        return self
