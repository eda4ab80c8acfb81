"""Faults: what each verb of a step breaks, how that is restored, and what is known once it is over."""

from __future__ import annotations

import asyncio
import signal
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from ostinato.chaos.ballast import Ballast, free_bytes, shown_size
from ostinato.chaos.claims import Claims
from ostinato.chaos.commands import CommandFailed, CommandRun, shown_command
from ostinato.chaos.examine import examine
from ostinato.chaos.keeper import restore
from ostinato.chaos.ledger import Held, Ledger
from ostinato.chaos.own_process import OwnProcess
from ostinato.chaos.proxy import Proxy
from ostinato.chaos.report import shown_lag
from ostinato.chaos.scenario import Command, Scenario, Step
from ostinato.chaos.targets import Target, find_target, is_alive, is_stopped, signal_target
from ostinato.clock import Clock
from ostinato.core.instants import MILLISECOND, MINUTE, SECOND
from ostinato.errors import OstinatoError, UserError

_LOOK_US = 50 * MILLISECOND
#: Of the command that starts a killed process again.
_AGAIN_LIMIT_US = MINUTE


class FaultFailed(Exception):
    """A fault could not be done as the scenario says; the text says why."""


class Killed(msgspec.Struct, frozen=True):
    """A process that was killed, and when (boot time)."""

    target: Target
    boot_us: int


class Done(msgspec.Struct, frozen=True):
    """What was done: to what exactly, and which process has to have a successor."""

    detail: str
    killed: Killed | None = None
    #: What could not be restored, and why; empty: all of it was.
    unrestored: str = ""


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
        self._claims = Claims()

    def open(self) -> None:
        """Find, check, listen and start. Raises ``CHAOS_REFUSED``, ``PORT_IN_USE``."""
        self.check()
        self._claim()
        for name, entry in self.scenario.proxies.items():
            proxy = Proxy(str(entry.target), listen=entry.listen)
            self.ledger.hold(f"proxy {name} closed", proxy.close, is_fault=False)
            self.proxies[name] = proxy
        for name in self.own:
            self.start_own(name)

    def check(self) -> None:
        """Everything that can be known before anything is broken. Raises ``CHAOS_REFUSED``."""
        found = examine(self.scenario)
        found.require()
        self.targets = found.targets
        self.own = {
            name: OwnProcess(process, self.scenario)
            for name, process in self.scenario.processes.items()
            if process.start
        }

    def _claim(self) -> None:
        self.ledger.hold("claims let go", self._claims.close, is_fault=False)
        for name, target in self.targets.items():
            self._claims.take_process(target.process, name=name)
        for name, disk in self.scenario.disks.items():
            self._claims.take_disk(self.scenario.path(disk.folder).stat().st_dev, name=name)

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
            self._claims.take_process(target.process, name=name)
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


async def successor_of(killed: Killed, step: Step, *, scene: Scene, limit_us: int) -> Target | None:
    """The process that has come in place of a killed one; None if there is none within the limit.

    Asked only where the scenario says how to find it (`has_successor`).
    """
    process = scene.scenario.processes[step.target]
    end_us = scene.clock.boot_us() + limit_us
    while True:
        # Not found is what is waited out: the pidfile is gone, old, or names nobody.
        with suppress(UserError):
            target = find_target(process, scene.scenario)
            if target.process != killed.target.process:
                return target
        if scene.clock.boot_us() >= end_us:
            return None
        await scene.sleep(_LOOK_US)


def has_successor(step: Step, scenario: Scenario) -> bool:
    """Whether the scenario says how the successor of a killed process is found."""
    process = scenario.processes[step.target]
    return bool(process.pidfile or process.command_line)


async def _give_back(held: Held) -> str:
    """Restore it; why it could not be, empty where it was."""
    try:
        await asyncio.to_thread(held.restore)
    except (CommandFailed, OSError, OstinatoError) as error:
        return f"{held.what}: {error}"
    return ""


async def _kill(step: Step, scene: Scene) -> Done:
    process = scene.scenario.processes[step.target]
    if process.start:
        own = scene.own[step.target]
        if not own.is_running:
            raise FaultFailed("it had ended already")
        pid = own.identity.pid
        killed_us = scene.clock.boot_us()
        await asyncio.to_thread(own.kill)
        await scene.sleep(process.again_after_us)
        scene.start_own(step.target)
        after = shown_lag(scene.clock.boot_us() - killed_us)
        return Done(f"pid {pid}, then pid {own.identity.pid} after {after}")
    target = scene.target_of(step.target)
    again = _hold_command(f"{step.target} started again", process.again, scene) if process.again else None
    killed_us = scene.clock.boot_us()
    if not await asyncio.to_thread(signal_target, target, signal.SIGKILL):
        raise FaultFailed("it had ended already")
    killed = Killed(target, killed_us)
    unrestored = ""
    if again is not None:
        await scene.sleep(process.again_after_us)
        unrestored = await _give_back(again)
    return Done(f"pid {target.pid}", killed=killed, unrestored=unrestored)


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
    unrestored = await _give_back(held)
    detail = f"pid {target.pid}" + ("" if was_alive else ", which ended meanwhile")
    return Done(detail, unrestored=unrestored)


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
    unrestored = await _give_back(held)
    detail = f"{entry.listen} to {entry.target}, {open_count} connections open"
    return Done(detail, unrestored=unrestored)


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
    unrestored = await _give_back(held)
    detail = f"{folder}: {shown_size(size_bytes)} taken, {shown_size(left_bytes)} left free"
    return Done(detail, unrestored=unrestored)


async def _run(step: Step, scene: Scene) -> Done:
    command = scene.scenario.commands[step.target]
    held = None
    if command.undo:
        what = f"{step.target} undone: {shown_command(command.undo)}"
        held = _hold_command(what, command.undo, scene, limit_us=command.limit_us)
    run = CommandRun(command.run, folder=scene.scenario.folder, waits=True)
    # Before the undo, if nobody is left to wait for it: what breaks on would break what was mended.
    ending = scene.ledger.hold(
        f"{step.target} ended", run.kill, by_keeper={"session": run.pid, "start_ticks": run.start_ticks}
    )
    # Not before the keeper can end it: chaos may be killed at any moment.
    run.go()
    try:
        await asyncio.to_thread(run.finish, command.limit_us)
    except asyncio.CancelledError:
        run.kill()
        raise
    finally:
        scene.ledger.forget(ending)
    unrestored = ""
    if held is not None and step.for_us is None:
        scene.until_end.append(held)
    elif held is not None:
        await scene.sleep(step.for_us or 0)
        unrestored = await _give_back(held)
    return Done(shown_command(command.run), unrestored=unrestored)


def _hold_command(what: str, command: Command, scene: Scene, *, limit_us: int = _AGAIN_LIMIT_US) -> Held:
    folder: Path = scene.scenario.folder
    how = {
        "command": command if isinstance(command, str) else list(command),
        "folder": str(folder),
        "limit_us": limit_us,
    }
    return scene.ledger.hold(what, lambda: restore(how), by_keeper=how)
