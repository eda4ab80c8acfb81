"""One seed: build the cluster, let faults come and go, mend everything, wait until all has ended, report."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Iterable
from hashlib import blake2b

import msgspec

from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.model import Instance
from ostinato.simulation.checkers.checker import Checker
from ostinato.simulation.checkers.judge import CHECKERS, Judge
from ostinato.simulation.checkers.liveness import Liveness
from ostinato.simulation.cluster import Cluster
from ostinato.simulation.event_loop import SimulatedLoop, StuckError
from ostinato.simulation.faults import FaultDriver
from ostinato.simulation.history import (
    Event,
    ExecutionBegan,
    Fault,
    HistoryCommitted,
    Listener,
    Phase,
    RowCommitted,
    Tick,
    Violation,
)
from ostinato.simulation.swarm import SwarmOptions

#: Whatever is left to do, no instance may stand still for so long beyond leases and its own work.
_WORK_US_MAX = 4 * MINUTE
_HEALED_US_MAX = 120 * MINUTE
#: In a run of hours memory is given back so often, of processes that have been dead for so long.
TIDY_US = 10 * MINUTE
DEAD_US = 5 * MINUTE


class RunReport(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has shown. Two runs of the same options have the same digest."""

    seed: int
    digest: str
    violations: list[Violation]
    simulated_us: int
    fault_count: int
    event_count: int
    execution_count: int
    commit_count: int

    def sentences(self) -> list[str]:
        """Each violation with the seed that repeats it."""
        return [
            f"seed {self.seed} at {violation.at_us / SECOND:.6f}s: {violation.invariant} of "
            f"{violation.subject}: {violation.sentence}"
            for violation in self.violations
        ]


class _Counter:
    """Counts and digests the stream of events."""

    def __init__(self) -> None:
        self.fault_count = self.event_count = self.execution_count = self.commit_count = 0
        self._digest = blake2b(digest_size=16)
        self._encode = msgspec.msgpack.Encoder().encode
        self._transaction = 0

    def __call__(self, event: Event) -> None:
        self.event_count += 1
        self._digest.update(type(event).__name__.encode())
        self._digest.update(self._encode(event))
        match event:
            case Fault() if not event.ends:
                self.fault_count += 1
            case ExecutionBegan():
                self.execution_count += 1
            case RowCommitted() | HistoryCommitted() if event.transaction != self._transaction:
                self._transaction = event.transaction
                self.commit_count += 1

    @property
    def digest(self) -> str:
        return self._digest.hexdigest()


def run_seed(
    options: SwarmOptions,
    *,
    checkers: Iterable[type[Checker]] = CHECKERS,
    listeners: Iterable[Listener] = (),
    ends_early: bool = False,
) -> RunReport:
    """Run one seed to its end, or `ends_early`: to the first violation. `listeners` hear every event too."""
    # Whatever the collector would finalise in the middle of a run, it would do at another moment each time.
    was_enabled = gc.isenabled()
    gc.disable()
    # What there was before is no garbage of this run.
    gc.freeze()
    loop = SimulatedLoop(options.seed)  # type: ignore[abstract]  # the rest of a loop is never asked for
    try:
        return _run(loop, options, checkers=checkers, listeners=listeners, ends_early=ends_early)
    finally:
        loop.close()
        gc.collect()
        gc.unfreeze()
        if was_enabled:
            gc.enable()


def _run(
    loop: SimulatedLoop,
    options: SwarmOptions,
    *,
    checkers: Iterable[type[Checker]],
    listeners: Iterable[Listener],
    ends_early: bool,
) -> RunReport:
    cluster = Cluster(loop, options)
    counter = _Counter()
    judge = Judge(cluster, checkers)
    cluster.history.listen(counter)
    for listener in listeners:
        cluster.history.listen(listener)
    cluster.history.listen(judge)
    violations: list[Violation] = []
    try:
        loop.run(_story(cluster, judge) if not ends_early else _first_part(cluster, judge))
    except StuckError as error:
        violations.append(_ours(loop, "the run", str(error)))
    violations += judge.finish(loop.true_us)
    violations += [_ours(loop, "a task", _unhandled(context)) for context in loop.unhandled]
    return RunReport(
        seed=options.seed,
        digest=counter.digest,
        violations=violations,
        simulated_us=loop.true_us,
        fault_count=counter.fault_count,
        event_count=counter.event_count,
        execution_count=counter.execution_count,
        commit_count=counter.commit_count,
    )


async def _story(cluster: Cluster, judge: Judge) -> None:
    options = cluster.options
    await cluster.start()
    cluster.tell(Phase(at_us=cluster.loop.true_us, name="safety"))
    cluster.begin_work()
    driver = FaultDriver(cluster)
    driver.start()
    if options.is_long:
        cluster.loop.world.spawn(_tidy(cluster), name="tidy")
    await cluster.sleep(options.safety_us)
    cluster.end_work()
    await driver.heal()
    cluster.tell(Phase(at_us=cluster.loop.true_us, name="healed"))
    liveness = next((checker for checker in judge.checkers if isinstance(checker, Liveness)), None)

    def unfinished() -> list[Instance]:
        return [] if liveness is None else liveness.unfinished(cluster.loop.true_us)

    settling = cluster.loop.world.spawn(cluster.settle(unfinished), name="settle")
    await _until_all_has_ended(cluster, liveness, settling)
    cluster.tell(Phase(at_us=cluster.loop.true_us, name="ended"))


async def _tidy(cluster: Cluster) -> None:
    """Give back memory at times of the run that are always the same, as what is garbage then is, too."""
    while True:
        await cluster.sleep(TIDY_US)
        cluster.loop.let_go(died_before_us=cluster.loop.true_us - DEAD_US)
        gc.collect()


async def _first_part(cluster: Cluster, judge: Judge) -> None:
    """The story as far as the first violation."""
    violated = cluster.loop.create_future()

    def notice() -> None:
        if not violated.done():
            violated.set_result(None)

    judge.on_violated = notice
    story = asyncio.ensure_future(_story(cluster, judge))
    await asyncio.wait([story, violated], return_when=asyncio.FIRST_COMPLETED)
    if story.done():
        story.result()


async def _until_all_has_ended(
    cluster: Cluster, liveness: Liveness | None, settling: asyncio.Task[None]
) -> None:
    began_us = cluster.loop.true_us
    patience_us = 2 * cluster.ownership_lease_us + cluster.worker_lease_us + _WORK_US_MAX
    while cluster.loop.true_us - began_us < _HEALED_US_MAX:
        await cluster.sleep(SECOND)
        cluster.tell(Tick(at_us=cluster.loop.true_us))
        now_us = cluster.loop.true_us
        if settling.done() and (liveness is None or not liveness.unfinished(now_us)):
            return
        if liveness is None or now_us - max(liveness.moved_us, began_us) > patience_us:
            return


def _ours(loop: SimulatedLoop, subject: str, sentence: str) -> Violation:
    return Violation(invariant="breakage", at_us=loop.true_us, subject=subject, sentence=sentence)


def _unhandled(context: dict[str, object]) -> str:
    error = context.get("exception")
    return f"{context.get('message', '')}: {type(error).__name__}: {error}"
