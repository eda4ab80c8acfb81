"""Deliberate bugs of workers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ostinato.simulation.guardian import GuardianProgram
from ostinato.simulation.mutations.mutation import Mutation
from ostinato.simulation.spool_disk import SimulatedSpoolDisk
from ostinato.worker.attempts import Attempts
from ostinato.worker.lease_guard import LeaseGuard
from ostinato.worker.spool_file import Contents
from ostinato.worker.task_run import AttemptRun

Function = Callable[..., Any]


def _nothing_overdue(original: Function) -> Function:
    return lambda self, now_us: None


def _never_looks(original: Function) -> Function:
    return lambda self: None


def _always_covers(original: Function) -> Function:
    return lambda self, stream, heartbeat_sequence, *, now_us: self.worker_lease_us is not None


def _no_last_look(original: Function) -> Function:
    def begin(self: AttemptRun) -> Any:
        self.started_us = self._clock.wall_us()
        return None

    return begin


def _spool_forgotten(original: Function) -> Function:
    async def read(self: SimulatedSpoolDisk, worker_id: str) -> Contents:
        await original(self, worker_id)
        return Contents([], "")

    return read


def _leases_from_receipt(original: Function) -> Function:
    """The acknowledgement counts from now, not from when its heartbeat was sent."""

    def stop_us(self: LeaseGuard, partition: int, grace_us: int) -> int | None:
        found = original(self, partition, grace_us)
        return None if found is None or self.worker_lease_us is None else found + self.worker_lease_us // 2

    return stop_us


def _wall_clock(original: Function) -> Function:
    """Looks at the wall clock where it should look at the one that never jumps."""

    def stop_overdue(self: Attempts) -> int | None:
        clock = self._clock
        origin_us = self.__dict__.setdefault("_origin_us", clock.wall_us() - clock.boot_us())
        shifted_us = clock.wall_us() - origin_us
        for deadline in self._deadlines.pop_due(clock.boot_us()):
            self._on_due(deadline, clock.boot_us())
        lease_us = self._stop_unleased(shifted_us)
        later_us = None if lease_us is None else max(lease_us, clock.boot_us() + 100_000)
        times = [self._deadlines.next_us, later_us]
        return min((at_us for at_us in times if at_us is not None), default=None)

    return stop_overdue


_I6 = "I6"
_NO_GUARDIAN = (GuardianProgram, "_look_again", _never_looks)

WORKER: tuple[Mutation, ...] = (
    Mutation(
        name="lease_end_ignored",
        meaning="goes on with strict attempts after the end of their lease",
        patches=((Attempts, "_stop_unleased", _nothing_overdue), _NO_GUARDIAN),
        seed_count=20,
        first_seed=5,
        found_by=("I1",),
        kinds=("worker_cut_off",),
    ),
    Mutation(
        name="stale_assignment_started",
        meaning="starts assignments whose first lease was over when they arrived, without a last look",
        patches=((LeaseGuard, "covers", _always_covers), (AttemptRun, "begin", _no_last_look), _NO_GUARDIAN),
        seed_count=20,
        first_seed=5,
        found_by=("I1",),
        kinds=("network_slow", "supervisor_frozen", "machine_frozen"),
    ),
    Mutation(
        name="spool_dropped",
        meaning="forgets the results that a former worker has left on the disk of a machine that lost power",
        patches=((SimulatedSpoolDisk, "read", _spool_forgotten),),
        seed_count=30,
        found_by=(_I6,),
        kinds=("machine_lost", "worker_cut_off", "database_read_only"),
    ),
    Mutation(
        name="lease_too_long",
        meaning="counts half a lease more than it was given",
        patches=((LeaseGuard, "stop_us", _leases_from_receipt), _NO_GUARDIAN),
        seed_count=20,
        first_seed=5,
        found_by=("I1",),
        kinds=("worker_cut_off",),
    ),
    Mutation(
        name="lease_on_wall_clock",
        meaning="counts its leases on the wall clock",
        patches=((Attempts, "stop_overdue", _wall_clock), _NO_GUARDIAN),
        seed_count=20,
        first_seed=24,
        found_by=("I1",),
        kinds=("worker_cut_off", "clock_jumped"),
    ),
)
