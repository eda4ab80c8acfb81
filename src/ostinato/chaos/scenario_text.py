"""Scenario files: read with every fault at once, each with its line and field; and their JSON Schema."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from ostinato.chaos.entry_fields import PROCESS_WAYS
from ostinato.chaos.own_process import own_words
from ostinato.chaos.scenario import Command, Process, Scenario, Step
from ostinato.chaos.scenario_fields import SCENARIO, SCHEDULE_US_MAX
from ostinato.control.document.errors import InvalidDocument, joined, shown_key
from ostinato.control.document.reading import FAULTY, Reading, wrong_type
from ostinato.control.document.yaml_nodes import Node, plain_value
from ostinato.control.document.yaml_text import read_roots
from ostinato.control.names import did_you_mean
from ostinato.core.instants import format_duration
from ostinato.errors import UserError
from ostinato.sdk.gateway.address import said_url
from ostinato.settings_readers import Address

_HINT = "write version: 1, what may be touched (processes:, proxies:, disks:, commands:), and steps:"
#: Of all steps with their repetitions.
_FAULTS_COUNT_MAX = 10_000
#: Which section a step's target is of.
_SECTIONS = {
    "kill": "processes",
    "pause": "processes",
    "cut": "proxies",
    "delay": "proxies",
    "fill": "disks",
    "run": "commands",
}


def read_scenario(text: str | bytes, *, name: str, folder: Path) -> Scenario:
    """The scenario of a file; relative paths of it begin at `folder`.

    Raises ``InvalidDocument`` with every fault, as ``read_yaml``.
    """
    found = read_roots(text, lambda root: _read_root(root), name=name, hint=_HINT)
    if len(found) != 1:
        message = f"holds {len(found)} documents, not one"
        raise UserError("INVALID_DOCUMENT", message, place=name, hint="write a file for each scenario")
    return msgspec.structs.replace(found[0], folder=folder)


def scenario_schema() -> dict[str, Any]:
    """JSON Schema of a scenario file, draft 2020-12. Rules between fields are beyond it."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "urn:ostinato:schema:chaos",
        "title": "Chaos scenarios of Ostinato",
        "description": "A scenario, as `ostinato chaos` reads it.",
        **SCENARIO.schema(),
    }


def _read_root(root: Node) -> Scenario:
    reading = Reading()
    value = plain_value(root)
    if not isinstance(value, Mapping):
        fault = wrong_type(value, "a scenario", field="", code="INVALID_DOCUMENT", hint=_HINT)
        raise InvalidDocument([fault])
    members = SCENARIO.read_members(value, "", reading=reading)
    members.pop("version")
    _check_texts(value, "", reading)
    _check_processes(members.get("processes"), reading)
    _check_proxies(members.get("proxies"), reading)
    _check_commands(members.get("commands"), reading)
    _check_steps(members, reading)
    _check_workload(members.get("workload"), reading)
    if reading.faults:
        raise InvalidDocument(reading.faults)
    steps = [msgspec.structs.replace(step, index=index) for index, step in enumerate(members.pop("steps"))]
    return Scenario(steps=tuple(steps), **members)


def _check_texts(value: object, field: str, reading: Reading) -> None:
    """No path, no word of a command and no variable can hold what ends all of them in the system."""
    if isinstance(value, Mapping):
        for name, member in value.items():
            shown = shown_key(name)
            if isinstance(name, str) and "\0" in name:
                reading.refuse(
                    UserError("INVALID_VALUE", "holds a NUL character", field=joined(field, shown))
                )
            _check_texts(member, joined(field, shown), reading)
    elif isinstance(value, list):
        for index, member in enumerate(value):
            _check_texts(member, f"{field}[{index}]", reading)
    elif isinstance(value, str) and "\0" in value:
        reading.refuse(UserError("INVALID_VALUE", "holds a NUL character", field=field))


def _check_proxies(proxies: Any, reading: Reading) -> None:
    listening: dict[Address, str] = {}
    for proxy in () if proxies in (None, FAULTY) else proxies.values():
        field = f"proxies.{proxy.name}"
        if proxy.listen == proxy.target:
            message = f"{proxy.target} is where the proxy itself listens"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.target"))
        other = listening.setdefault(proxy.listen, proxy.name)
        if other != proxy.name:
            message = f"{proxy.listen} is where {other} listens"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.listen"))


def _check_commands(commands: Any, reading: Reading) -> None:
    for command in () if commands in (None, FAULTY) else commands.values():
        if _is_blank(command.run):
            reading.refuse(UserError("INVALID_VALUE", "is empty", field=f"commands.{command.name}.run"))


def _is_blank(command: Command) -> bool:
    return not (command.strip() if isinstance(command, str) else command)


def _check_processes(processes: Any, reading: Reading) -> None:
    for process in () if processes in (None, FAULTY) else processes.values():
        _check_process(process, f"processes.{process.name}", reading)


def _check_process(process: Process, field: str, reading: Reading) -> None:
    said = [way for way in PROCESS_WAYS if _is_said(getattr(process, way))]
    if len(said) != 1:
        message = f"says {' and '.join(said)}" if said else "does not say which process it is"
        hint = f"write one of {', '.join(PROCESS_WAYS)}"
        reading.refuse(UserError("INVALID_VALUE", message, field=field, hint=hint))
        return
    way = said[0]
    if way in ("pid", "pidfile") and not process.command.strip():
        hint = "a part of its command line, by which it is told from whoever has the pid by now"
        reading.refuse(UserError("INVALID_VALUE", "is missing", field=f"{field}.command", hint=hint))
    if way not in ("pid", "pidfile") and process.command:
        _refuse_beside(f"{field}.command", way, reading)
    if way != "pid" and process.started_us is not None:
        _refuse_beside(f"{field}.started", way, reading)
    for name, value in (("environment", process.environment), ("log", process.log)):
        if value and way != "start":
            _refuse_beside(f"{field}.{name}", way, reading)
    if way == "start":
        _check_start(process, field, reading)
    for name in process.environment:
        if not name or "=" in name:
            message = f"{name!r} is no name of a variable"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.environment"))
    if process.again and way == "start":
        _refuse_beside(f"{field}.again", way, reading)


def _is_said(way: object) -> bool:
    # A blank command line is that of every process that has none, such as the kernel's own.
    return bool(way.strip() if isinstance(way, str) else way)


def _check_start(process: Process, field: str, reading: Reading) -> None:
    try:
        words = own_words(process.start)
    except ValueError as error:
        message = f"cannot be split into words: {error}"
        reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.start", hint="close the quotes"))
        return
    if not words:
        reading.refuse(UserError("INVALID_VALUE", "is empty", field=f"{field}.start"))


def _refuse_beside(field: str, way: str, reading: Reading) -> None:
    reading.refuse(
        UserError("INVALID_VALUE", f"means nothing beside {way}", field=field, hint="leave it out")
    )


def _check_workload(workload: Any, reading: Reading) -> None:
    if workload in (None, FAULTY):
        return
    try:
        said_url(workload.url)
    except UserError as fault:
        reading.refuse(UserError("INVALID_VALUE", fault.message, field="workload.url", hint=fault.hint))


def _check_steps(members: Mapping[str, Any], reading: Reading) -> None:
    steps = members["steps"]
    for index, step in enumerate(() if steps is FAULTY else steps):
        field = f"steps[{index}]"
        section = _SECTIONS[step.verb]
        known = members.get(section) or {}
        if known is FAULTY:
            continue
        if step.target not in known:
            hint = did_you_mean(step.target, known) or _known(section, known)
            message = f"{step.target!r} is not among the {section} of this scenario"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.{step.verb}", hint=hint))
            continue
        _check_step(step, field, known=known, reading=reading)
    if steps is not FAULTY and _is_bounded(steps, reading):
        _check_overlaps(steps, reading)


def _is_bounded(steps: Sequence[Step], reading: Reading) -> bool:
    """Whether there is an end to it: each fault is kept in memory, and told."""
    is_bounded = True
    for index, step in enumerate(steps):
        last_end_us = step.end_us + (step.times - 1) * (step.every_us or 0)
        if last_end_us > SCHEDULE_US_MAX:
            message = f"its last time ends {format_duration(last_end_us)} after the beginning"
            hint = f"at most {format_duration(SCHEDULE_US_MAX)}; repeat it less often"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"steps[{index}].times", hint=hint))
            is_bounded = False
    count = sum(step.times for step in steps)
    if count > _FAULTS_COUNT_MAX:
        message = f"are {count} faults with their repetitions, at most {_FAULTS_COUNT_MAX}"
        hint = "repeat them less often, or run the scenario more than once"
        reading.refuse(UserError("INVALID_VALUE", message, field="steps", hint=hint))
        is_bounded = False
    return is_bounded


def _known(section: str, known: Iterable[str]) -> str:
    names = ", ".join(known)
    return f"known are {names}" if names else f"write it under {section}:"


def _check_step(step: Step, field: str, *, known: Mapping[str, Any], reading: Reading) -> None:
    if (step.every_us is None) != (step.times == 1):
        missing = "every" if step.every_us is None else "times"
        hint = "a step that is repeated has both"
        reading.refuse(UserError("INVALID_VALUE", "is missing", field=f"{field}.{missing}", hint=hint))
    if step.verb == "run" and step.for_us is not None and not known[step.target].undo:
        hint = f"give commands.{step.target} an undo, or leave it out"
        message = "says how long, and the command has no undo"
        reading.refuse(UserError("INVALID_VALUE", message, field=f"{field}.for", hint=hint))


def _check_overlaps(steps: Iterable[Step], reading: Reading) -> None:
    """Two faults of one kind on one target at a time: the end of the first would end the second."""
    last: dict[tuple[str, str], tuple[int, int]] = {}
    numbered = [msgspec.structs.replace(step, index=index) for index, step in enumerate(steps)]
    for step in Scenario(steps=tuple(numbered)).schedule:
        if step.for_us is None:
            continue
        index, end_us = last.get((step.verb, step.target), (step.index, 0))
        if step.at_us < end_us:
            message = f"{step.words}, at {format_duration(step.at_us)}: that of steps[{index}] is not over"
            hint = "let it begin later, or make the other one shorter"
            reading.refuse(UserError("INVALID_VALUE", message, field=f"steps[{step.index}].at", hint=hint))
        last[step.verb, step.target] = (step.index, max(end_us, step.end_us))
