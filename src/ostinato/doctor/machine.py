"""Checks of the machine: Python and packages, clock and time zones, limits of processes."""

from __future__ import annotations

import asyncio
import re
import resource
import shutil
import subprocess
import sys
import zoneinfo
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from ostinato.clock import SystemClock
from ostinato.core.instants import SECOND
from ostinato.core.schedule.zone import load_zone
from ostinato.core.sizes import format_size
from ostinato.doctor.report import Status
from ostinato.errors import OstinatoError
from ostinato.settings import Settings
from ostinato.worker.delegation import CgroupUnavailable, find_delegated_cgroup

Found = Iterator[tuple[Status, str, str]]

_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(?:\[[^]]*\])?\s*(?:>=\s*([0-9.]+))?")
#: What is worth having but not needed, and what it is for.
_OPTIONAL = {"uvloop": "a faster event loop"}
#: 2025-01-01: no machine that runs this is older.
_WALL_US_MIN = 1_735_689_600 * SECOND
_JUMP_US_MAX = 20_000
_WATCHED_US = SECOND // 2
#: Streams, databases and pipes of the process itself, and of each task process.
_FILES_BASE, _FILES_PER_SLOT = 256, 16
_PROCESSES_BASE, _PROCESSES_PER_SLOT = 64, 8
_MEMORY_MIN_BYTES = 256 * 1024 * 1024
_TOOL_SECONDS_MAX = 3


def check_python() -> Found:
    """Version of Python against what this version of Ostinato asks for."""
    shown = ".".join(map(str, sys.version_info[:3]))
    wanted = str(metadata.metadata("ostinato")["Requires-Python"] or "")
    least = wanted.removeprefix(">=").strip()
    if least and _version(shown) < _version(least):
        yield "fail", f"Python {shown} is older than {least}", f"install Python {least} or newer"
    else:
        yield "ok", f"Python {shown} ({sys.executable}), {wanted or 'any version'} is needed", ""


def check_packages() -> Found:
    """Installed versions against the requirements of this version of Ostinato."""
    found = 0
    for text in metadata.requires("ostinato") or []:
        requirement, _, marker = text.partition(";")
        if "extra ==" in marker:
            continue
        matched = _REQUIREMENT.match(requirement.strip())
        assert matched is not None, f"a requirement begins with a name: {text}"
        name, least = matched[1], matched[2] or "0"
        try:
            installed = metadata.version(name)
        except metadata.PackageNotFoundError:
            status: Status = "warn" if name in _OPTIONAL else "fail"
            use = f", {_OPTIONAL[name]}," if name in _OPTIONAL else ""
            yield status, f"package {name}{use} is missing", f"pip install '{requirement.strip()}'"
            continue
        if _version(installed) < _version(least):
            hint = f"pip install '{requirement.strip()}'"
            yield "fail", f"package {name} {installed} is older than {least}", hint
        found += 1
    yield "ok", f"ostinato {metadata.version('ostinato')} with {found} packages that it needs", ""


def _version(text: str) -> tuple[int, ...]:
    """Leading numbers of a version; what follows them decides nothing here."""
    numbers = re.match(r"\d+(?:\.\d+)*", text)
    return tuple(int(part) for part in numbers[0].split(".")) if numbers else ()


def check_clock() -> Found:
    """The wall clock: plausible, steady against the monotonic one, kept by somebody."""
    clock = SystemClock()
    wall_us, boot_us = clock.wall_us(), clock.boot_us()
    if wall_us < _WALL_US_MIN:
        yield "fail", "the machine's clock is years behind", "set it, and let NTP keep it"
    asyncio.run(clock.sleep_until_us(boot_us + _WATCHED_US))
    drift_us = (clock.wall_us() - wall_us) - (clock.boot_us() - boot_us)
    if abs(drift_us) > _JUMP_US_MAX:
        what = f"the clock jumped by {drift_us / 1000:.0f} ms within {_WATCHED_US / SECOND:.1f} s"
        yield "warn", what, "find out who sets it; NTP should slew, not step"
    else:
        yield "ok", "the clock is steady", ""
    is_kept = _is_kept_by_ntp()
    if is_kept is None:
        yield "ok", "whether NTP keeps the clock cannot be seen from here", ""
    elif is_kept:
        yield "ok", "NTP keeps the clock", ""
    else:
        yield "warn", "NTP does not keep the clock", "switch it on: timedatectl set-ntp true"


def _is_kept_by_ntp() -> bool | None:
    """None where nothing here knows: in most containers the host keeps the clock."""
    tool = shutil.which("timedatectl")
    if tool is None:
        return None
    try:
        done = subprocess.run(
            [tool, "show", "--property=NTPSynchronized", "--value"],
            capture_output=True,
            text=True,
            timeout=_TOOL_SECONDS_MAX,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return {"yes": True, "no": False}.get(done.stdout.strip())


def check_time_zones() -> Found:
    """Whether there is zone data, and which."""
    try:
        load_zone("America/New_York")
    except OstinatoError:
        yield "fail", "there is no time zone data", "pip install tzdata"
        return
    source = next((Path(folder) for folder in zoneinfo.TZPATH if Path(folder, "America").is_dir()), None)
    if source is None:
        yield "ok", f"time zones of package tzdata {metadata.version('tzdata')}", ""
        return
    names = source / "tzdata.zi"
    first = names.read_text(encoding="utf-8").partition("\n")[0] if names.is_file() else ""
    version = first.removeprefix("# version ").strip() or "of a version that it does not say"
    yield "ok", f"time zones of {source}, {version}", ""


def check_limits(settings: Settings) -> Found:
    """Open files, processes and memory of this process, and how limits of tasks are enforced."""
    slots = settings.slots
    for kind, what, least in (
        (resource.RLIMIT_NOFILE, "open files", _FILES_BASE + _FILES_PER_SLOT * slots),
        (resource.RLIMIT_NPROC, "processes", _PROCESSES_BASE + _PROCESSES_PER_SLOT * slots),
    ):
        soft, hard = resource.getrlimit(kind)
        if soft != resource.RLIM_INFINITY and soft < least:
            option = "-n" if kind == resource.RLIMIT_NOFILE else "-u"
            hint = f"raise it to {least}: ulimit {option} {least}" + (
                "" if hard == resource.RLIM_INFINITY or hard >= least else ", which root must allow"
            )
            yield "warn", f"{soft} {what} at most, for {slots} slots", hint
        else:
            yield "ok", f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} {what} at most", ""
    memory_bytes = _memory_limit_bytes()
    if memory_bytes is not None and memory_bytes < _MEMORY_MIN_BYTES:
        yield "warn", f"{format_size(memory_bytes)} of memory at most", "give it 256 MiB or more"
    else:
        shown = "no limit" if memory_bytes is None else f"{format_size(memory_bytes)} at most"
        yield "ok", f"memory of the control group: {shown}", ""
    try:
        where = find_delegated_cgroup()
        yield "ok", f"limits of tasks are enforced by control groups below {where}", ""
    except (CgroupUnavailable, OSError) as error:
        hint = "systemd: Delegate=yes, if tasks have limits that all their processes share"
        yield "ok", f"limits of tasks are enforced by rlimits, in each process: {error}", hint


def _memory_limit_bytes() -> int | None:
    """Least limit of the control groups that this process is in; None: none, or not to be seen."""
    found: list[int] = []
    for line in _text(Path("/proc/self/cgroup")).splitlines():
        if line.startswith("0::"):
            path = Path("/sys/fs/cgroup") / line[3:].strip().lstrip("/")
            for folder in (path, *path.parents):
                said = _text(folder / "memory.max").strip()
                if said.isdigit():
                    found.append(int(said))
    return min(found, default=None)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
