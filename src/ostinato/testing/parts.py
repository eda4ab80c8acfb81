"""What a test's cluster is made of, other than in production: stretched leases, a patient clock.

Nothing here dies, so nothing has to be found out by silence: leases and the intervals of what only looks
around are stretched far beyond any test. A day of virtual time then takes some turns of a few loops instead
of hundreds of thousands of heartbeats. What decides about instances is untouched.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ostinato.core.definition import TaskDefinition
from ostinato.core.instants import DAY
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.virtual_clock import VirtualClock, VirtualTimeLoop
from ostinato.worker.config import WorkerConfig

ADDRESS = "node"
#: Longer than any test; a century, the longest duration that there is.
_NEVER_US = 100 * 365 * DAY
#: Between two rounds of loops that only look around.
_SELDOM_US = 365 * DAY
#: At once, in each pool of slots.
_SLOTS = 10_000


class _Config(NodeConfig, frozen=True, kw_only=True):
    @property
    def heartbeat_us(self) -> int:
        return _SELDOM_US


NODE_CONFIG = _Config(
    tells_nodes=False,
    ownership_lease_us=_NEVER_US,
    renewal_us=_SELDOM_US,
    look_us=_SELDOM_US,
    worker_lease_us=_NEVER_US,
    acknowledgement_us=_SELDOM_US,
    safety_poll_us=_SELDOM_US,
    backlog_us=_SELDOM_US,
    success_retention_us=_NEVER_US,
    other_retention_us=_NEVER_US,
)


def worker_config(number: int, labels: dict[str, str]) -> WorkerConfig:
    """Of the worker with that number; it has no spool, so no directory either."""
    return WorkerConfig(
        worker_name=f"inline-{number}",
        scheduler=ADDRESS,
        capacity={"process": _SLOTS, "async": _SLOTS},
        data_dir=Path(),
        labels=labels,
        gathers=False,
    )


def by_labels(
    definitions: Sequence[TaskDefinition],
) -> list[tuple[dict[str, str], list[TaskDefinition]]]:
    """Tasks that ask the same of their worker, together."""
    groups: list[tuple[dict[str, str], list[TaskDefinition]]] = []
    for definition in definitions:
        same = next((those for labels, those in groups if labels == definition.labels), None)
        if same is None:
            groups.append((definition.labels, [definition]))
        else:
            same.append(definition)
    return groups


class AskingClock(VirtualClock):
    """For those who ask an owner and look for its answer: what can be done now is done before time passes."""

    def __init__(self, *, start_us: int, loop: VirtualTimeLoop) -> None:
        super().__init__(start_us=start_us, loop=loop)
        self._of_loop = loop
        self._done_us: int | None = None

    async def sleep_until_us(self, boot_us: int) -> None:
        if self._done_us == self.boot_us():
            await super().sleep_until_us(boot_us)
            return
        self._done_us = self.boot_us()
        await self._of_loop.idle()
