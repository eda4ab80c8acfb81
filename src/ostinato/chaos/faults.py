"""Faults: what each verb of a step breaks, how that is restored, and what is known once it is over."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ostinato.chaos.ballast import Ballast, free_bytes, shown_size
from ostinato.chaos.commands import CommandFailed, CommandRun, shown_command
from ostinato.chaos.keeper import restore
from ostinato.chaos.ledger import Held, Ledger
from ostinato.chaos.own_process import OwnProcess
from ostinato.chaos.plan import check_targets
from ostinato.chaos.proxy import Proxy
from ostinato.chaos.scenario import Command, Scenario, Step
from ostinato.chaos.targets import Target, find_target, is_alive, is_stopped, signal_target
from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.errors import UserError

_LOOK_US = 50 * MILLISECOND
#: Of the command that starts a killed process again.
_AGAIN_LIMIT_US = MINUTE


class FaultFailed(Exception):
    """A fault could not be done as the scenario says; the text says why."""


class Done(msgspec.Struct, frozen=True):
    """What was done: to what exactly, and which process has to have a successor."""

    detail: str
    killed: Target | None = None


class Scene:
    """What a scenario may touch, opened: proxies listen, its own processes run, the others were found."""

    def __init__(self, scenario: Scenario, *, ledger: Ledger, clock: Clock) -> None:
        self.scenario = scenario
        self.ledger = ledger
        self.clock = clock
        self.proxies: dict[str, Proxy] = {}
        self.own: dict[str, OwnProcess] = {}
        #: As they were at the beginning.
        self.targets: dict[str, Target] = {}
        #: What lasts until the end of the schedule.
        self.until_end: list[Held] = []
        self._own_held: dict[str, Held] = {}

    def open(self) -> None:
        """Find, check, listen and start. Raises ``CHAOS_REFUSED``, ``PORT_IN_USE``."""
        self.check()
        for name, entry in self.scenario.proxies.items():
            proxy = Proxy(str(entry.target), listen=entry.listen)
            self.ledger.hold(f"proxy {name} closed", proxy.close, is_fault=False)
            self.proxies[name] = proxy
        for name in self.own:
            self.start_own(name)

    def check(self) -> None:
        """Everything that can be known before anything is broken. Raises ``CHAOS_REFUSED``."""
        self.targets = check_targets(self.scenario)
        self.own = {
            name: OwnProcess(process, self.scenario)
            for name, process in self.scenario.processes.items()
            if process.start
        }

    def start_own(self, name: str) -> None:
        """Start a process of the scenario's own, which ends with the scenario."""
        own = self.own[name]
        before = self._own_held.pop(name, None)
        if before is not None:
            self.ledger.forget(before)

        def hold(by_keeper: dict[str, Any]) -> None:
            self._own_held[name] = self.ledger.hold(
                f"{name} ended", own.stop, by_keeper=by_keeper, is_fault=False
            )

        own.start(hold)

    def require_own(self) -> None:
        """Raise ``CHAOS_REFUSED`` if a process of the scenario's own has ended by itself."""
        for name, own in self.own.items():
            if not own.is_running:
                message = "has ended by itself, before anything is broken"
                hint = f"{own.log} says why"
                raise UserError("CHAOS_REFUSED", message, subject=name, field=f"processes.{name}", hint=hint)

    async def sleep(self, duration_us: int) -> None:
        await self.clock.sleep_until_us(self.clock.boot_us() + duration_us)

    def target_of(self, name: str) -> Target:
        """The process as it is now. Raises `FaultFailed` if it is not there, or not the one it was."""
        process = self.scenario.processes[name]
        try:
            target = find_target(process, self.scenario)
        except UserError as error:
            raise FaultFailed(str(error)) from None
        if process.pid is not None and target.process != self.targets[name].process:
            raise FaultFailed(f"{target.words}: not the process of the beginning")
        return target


async def break_and_restore(step: Step, scene: Scene) -> Done:
    """Do what the step says, and restore it when it is over. Raises `FaultFailed`."""
    try:
        match step.verb:
            case "kill":
                return await _kill(step, scene)
            case "pause":
                return await _pause(step, scene)
            case "cut" | "delay":
                return await _disturb(step, scene)
            case "fill":
                return await _fill(step, scene)
            case "run":
                return await _run(step, scene)
    except (CommandFailed, OSError, UserError) as error:
        raise FaultFailed(str(error)) from None


async def until_back(killed: Target, step: Step, *, scene: Scene, limit_us: int) -> bool:
    """Whether a killed process has a successor within the limit, where the scenario says how to find it."""
    process = scene.scenario.processes[step.target]
    if not (process.pidfile or process.command_line):
        return True
    end_us = scene.clock.boot_us() + limit_us
    while True:
        # Not found is what is waited out: the pidfile is gone, old, or names nobody.
        with suppress(UserError):
            if find_target(process, scene.scenario).process != killed.process:
                return True
        if scene.clock.boot_us() >= end_us:
            return False
        await scene.sleep(_LOOK_US)


async def _kill(step: Step, scene: Scene) -> Done:
    process = scene.scenario.processes[step.target]
    if process.start:
        own = scene.own[step.target]
        if not own.is_running:
            raise FaultFailed("it had ended already")
        pid = own.identity.pid
        await asyncio.to_thread(own.kill)
        await scene.sleep(process.again_after_us)
        scene.start_own(step.target)
        return Done(f"pid {pid}, then pid {own.identity.pid}")
    target = scene.target_of(step.target)
    again = _hold_command(f"{step.target} started again", process.again, scene) if process.again else None
    if not await asyncio.to_thread(signal_target, target, signal.SIGKILL):
        raise FaultFailed("it had ended already")
    if again is not None:
        await scene.sleep(process.again_after_us)
        await asyncio.to_thread(again.restore)
    return Done(f"pid {target.pid}", killed=target)


async def _pause(step: Step, scene: Scene) -> Done:
    if scene.scenario.processes[step.target].start:
        own = scene.own[step.target]
        if not own.is_running:
            raise FaultFailed("it had ended already")
        target = Target(own.identity, step.target, 0)
    else:
        target = scene.target_of(step.target)
    if is_stopped(target):
        raise FaultFailed("it is stopped already, and not by chaos")
    held = scene.ledger.hold(
        f"{step.target} (pid {target.pid}) continued",
        lambda: _continue(target),
        by_keeper={
            "signal": signal.SIGCONT,
            "pid": target.pid,
            "start_ticks": target.process.start_ticks,
        },
    )
    if not signal_target(target, signal.SIGSTOP):
        raise FaultFailed("it had ended already")
    await scene.sleep(step.for_us or 0)
    was_alive = is_alive(target)
    held.restore()
    return Done(f"pid {target.pid}" + ("" if was_alive else ", which ended meanwhile"))


def _continue(target: Target) -> None:
    signal_target(target, signal.SIGCONT)


async def _disturb(step: Step, scene: Scene) -> Done:
    proxy = scene.proxies[step.target]
    entry = scene.scenario.proxies[step.target]
    open_count = proxy.open_count
    if step.verb == "delay":
        held = scene.ledger.hold(f"{step.target} no longer delayed", lambda: _set_delay(proxy, 0))
        _set_delay(proxy, step.by_us)
    else:
        held = scene.ledger.hold(f"{step.target} no longer cut", proxy.resume)
        if step.how == "silent":
            proxy.blackhole()
        else:
            proxy.refuse()
            proxy.cut()
    await scene.sleep(step.for_us or 0)
    held.restore()
    return Done(f"{entry.listen} to {entry.target}, {open_count} connections open")


def _set_delay(proxy: Proxy, delay_us: int) -> None:
    proxy.delay_s = delay_us / SECOND


async def _fill(step: Step, scene: Scene) -> Done:
    disk = scene.scenario.disks[step.target]
    folder = scene.scenario.path(disk.folder)
    ballast = Ballast(folder)
    held = scene.ledger.hold(f"{step.target} emptied", ballast.close)
    end_us = scene.clock.boot_us() + (step.for_us or 0)
    size_bytes = await asyncio.to_thread(ballast.fill, disk.leave_free_bytes)
    left_bytes = free_bytes(folder)
    if not size_bytes:
        held.restore()
        raise FaultFailed(f"{folder} has {shown_size(left_bytes)} free, and nothing could be taken")
    await scene.clock.sleep_until_us(end_us)
    held.restore()
    return Done(f"{folder}: {shown_size(size_bytes)} taken, {shown_size(left_bytes)} left free")


async def _run(step: Step, scene: Scene) -> Done:
    command = scene.scenario.commands[step.target]
    held = None
    if command.undo:
        what = f"{step.target} undone: {shown_command(command.undo)}"
        held = _hold_command(what, command.undo, scene, limit_us=command.limit_us)
    run = CommandRun(command.run, folder=scene.scenario.folder)
    try:
        await asyncio.to_thread(run.finish, command.limit_us)
    except asyncio.CancelledError:
        run.kill()
        raise
    if held is not None and step.for_us is None:
        scene.until_end.append(held)
    elif held is not None:
        await scene.sleep(step.for_us or 0)
        await asyncio.to_thread(held.restore)
    return Done(shown_command(command.run))


def _hold_command(what: str, command: Command, scene: Scene, *, limit_us: int = _AGAIN_LIMIT_US) -> Held:
    folder: Path = scene.scenario.folder
    how = {
        "command": command if isinstance(command, str) else list(command),
        "folder": str(folder),
        "limit_us": limit_us,
    }
    return scene.ledger.hold(what, lambda: restore(how), by_keeper=how)
