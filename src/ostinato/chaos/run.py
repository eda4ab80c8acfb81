"""One run of a scenario: open, look that all is well, break on schedule, restore, wait, judge."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from ostinato.chaos.faults import FaultFailed, Killed, Scene, break_and_restore, has_successor, successor_of
from ostinato.chaos.interruption import Interruption
from ostinato.chaos.ledger import Ledger
from ostinato.chaos.probes import Probes
from ostinato.chaos.report import FaultReport, Report, shown_lag
from ostinato.chaos.scenario import Scenario
from ostinato.chaos.verdict import Outcome, Violation, judge_witness, judge_workload, workload_report
from ostinato.chaos.witness import now_ns, read_executions
from ostinato.clock import Clock
from ostinato.control.document.errors import InvalidDocument
from ostinato.core.instants import MILLISECOND, format_duration
from ostinato.errors import UserError

_LOOK_US = 50 * MILLISECOND

if TYPE_CHECKING:
    from ostinato.chaos.workload import Submitter

#: Told of what happens while it does.
Tell = Callable[[str], None]


def run_scenario(scenario: Scenario, *, name: str, clock: Clock, rng: Random, tell: Tell) -> Report:
    """Run it to its end, or until SIGINT, SIGTERM or SIGHUP; then everything has been restored.

    Raises ``CHAOS_REFUSED`` and ``PORT_IN_USE`` before anything is broken.
    """
    report = Report(scenario=name, began_us=clock.wall_us())
    with Interruption() as interruption:
        ledger = Ledger()
        try:
            with ledger:
                run = Run(scenario, report, ledger=ledger, clock=clock, rng=rng, tell=tell)
                interruption.run(run.run())
        finally:
            report.restored = [each.what for each in ledger.restored if each.is_fault and not each.error]
        report.interrupted = interruption.name
    report.violations += [
        Violation("restored", f"{each.what}: {each.error}") for each in ledger.restored if each.error
    ]
    report.ended_us = clock.wall_us()
    return report


class Run:
    """What one run works with."""

    def __init__(
        self, scenario: Scenario, report: Report, *, ledger: Ledger, clock: Clock, rng: Random, tell: Tell
    ) -> None:
        self._scenario = scenario
        self._report = report
        self._clock = clock
        self._rng = rng
        self._tell = tell
        self._ledger = ledger
        self._scene = Scene(scenario, ledger=ledger, clock=clock)
        self._began_boot_us = 0
        self._began_ns = now_ns()

    async def run(self) -> None:
        """The whole run but for what the ledger restores at the end."""
        self._scene.open()
        async with Probes(self._scenario.probes, clock=self._clock) as probes:
            await self._require_health(probes)
            submitter = self._submitter()
            try:
                await self._run_well(probes, submitter)
            finally:
                self._report.away_us = probes.away_us
                if submitter is not None:
                    await submitter.close()

    def _submitter(self) -> Submitter | None:
        workload = self._scenario.workload
        if workload is None:
            return None
        # Not at the top: it brings the whole SDK, which most scenarios do without.
        from ostinato.chaos.workload import Submitter

        return Submitter(workload, clock=self._clock, rng=self._rng)

    async def _run_well(self, probes: Probes, submitter: Submitter | None) -> None:
        if submitter is not None:
            await submitter.check(self._scenario.recover_within_us)
        self._began_boot_us = self._clock.boot_us()
        is_whole = False
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(probes.watch())
                submitting = None if submitter is None else group.create_task(submitter.run())
                await self._follow_schedule(probes)
                if submitter is not None and submitting is not None:
                    submitter.stop()
                    await submitting
                watching.cancel()
            is_whole = True
        except BaseExceptionGroup as group:
            raise _first(group) from None
        finally:
            # Before connections are closed and threads waited for, which may last as long as the faults.
            if not is_whole:
                self._ledger.restore_all()
        await self._judge(submitter)

    async def _require_health(self, probes: Probes) -> None:
        """What is not well before cannot be said to be broken by anything."""
        limit_us = self._scenario.recover_within_us
        end_us = self._clock.boot_us() + limit_us
        while silent := await probes.silent():
            # Its end is the cause then, and nothing to wait a minute for.
            self._scene.require_own()
            if self._clock.boot_us() >= end_us:
                raise InvalidDocument([_not_well(name, why, limit_us) for name, why in silent.items()])
            await self._scene.sleep(_LOOK_US)
        self._scene.require_own()

    async def _follow_schedule(self, probes: Probes) -> None:
        self._report.faults = [FaultReport(step=step) for step in self._scenario.schedule]
        async with asyncio.TaskGroup() as group:
            for fault in self._report.faults:
                group.create_task(self._do(fault, probes))
            await self._clock.sleep_until_us(self._began_boot_us + self._scenario.end_us)
        for held in self._scene.until_end:
            try:
                await asyncio.to_thread(held.restore)
            except Exception as error:  # noqa: BLE001 - whatever keeps it from being restored is told
                self._violated("restored", f"{held.what}: {error}")

    async def _do(self, fault: FaultReport, probes: Probes) -> None:
        step = fault.step
        await self._clock.sleep_until_us(self._began_boot_us + step.at_us)
        fault.began_us = self._clock.wall_us()
        self._tell(f"+{format_duration(step.at_us)} {step.words}")
        try:
            done = await break_and_restore(step, self._scene)
        except FaultFailed as error:
            fault.error = str(error)
            self._violated("carried out", f"steps[{step.index}] {step.words}: {error}")
            fault.ended_us = self._clock.wall_us()
            return
        fault.ended_us = self._clock.wall_us()
        fault.detail, fault.unrestored = done.detail, done.unrestored
        if done.unrestored:
            self._violated("restored", f"steps[{step.index}] {step.words}: {done.unrestored}")
        await self._until_recovered(fault, done.killed, probes)

    async def _until_recovered(self, fault: FaultReport, killed: Killed | None, probes: Probes) -> None:
        step, ended_boot_us = fault.step, self._clock.boot_us()
        limit_us = self._scenario.recover_within_us
        missing: list[str] = []
        if killed is not None and has_successor(step, self._scenario):
            successor = await successor_of(killed, step, scene=self._scene, limit_us=limit_us)
            if successor is None:
                missing.append(f"{step.target} has no successor")
            else:
                after = shown_lag(self._clock.boot_us() - killed.boot_us)
                fault.detail += f", then pid {successor.pid} after {after}"
        silent = await probes.until_all_answer(ended_boot_us + limit_us - self._clock.boot_us())
        missing += [f"probe {name} does not answer: {why}" for name, why in silent.items()]
        if not missing:
            fault.recovered_after_us = self._clock.boot_us() - ended_boot_us
            return
        within = format_duration(limit_us)
        self._violated("recovery", f"{within} after {step.words}: {'; '.join(missing)}")

    async def _judge(self, submitter: Submitter | None) -> None:
        outcomes: list[Outcome] = []
        workload = self._scenario.workload
        if submitter is not None and workload is not None:
            self._tell(f"waiting until {submitter.accepted_count} instances have ended")
            outcomes = await submitter.outcomes(workload.settle_us)
            if submitter.refusal:
                self._violated("accepted", f"submissions were refused: {submitter.refusal}")
            self._report.workload = workload_report(
                outcomes, unanswered=submitter.unanswered, repeated=submitter.repeated
            )
            last_fault_us = max((fault.ended_us or 0 for fault in self._report.faults), default=0)
            self._report.violations += judge_workload(
                outcomes, workload, last_fault_us=last_fault_us, now_us=self._clock.wall_us()
            )
        if self._scenario.witness:
            folder = self._scenario.path(self._scenario.witness)
            try:
                executions = await asyncio.to_thread(read_executions, folder, since_ns=self._began_ns)
            except OSError as error:
                # What was done and what came of it is told all the same.
                self._violated("carried out", f"the witness {folder} cannot be read: {error.strerror}")
                return
            self._report.executions = sum(map(len, executions.values()))
            self._report.violations += judge_witness(executions, outcomes=outcomes)

    def _violated(self, rule: str, what: str) -> None:
        self._report.violations.append(Violation(rule, what))


def _not_well(name: str, why: str, limit_us: int) -> UserError:
    return UserError(
        "CHAOS_REFUSED",
        f"does not answer within {format_duration(limit_us)}, before anything is broken: {why}",
        subject=name,
        field=f"probes.{name}",
        hint="nothing was broken; look whether the cluster is well and the address right",
    )


def _first(error: BaseException) -> BaseException:
    """The error itself, out of the groups that groups of tasks make of it."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
