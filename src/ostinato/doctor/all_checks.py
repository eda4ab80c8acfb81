"""Every check, in the order of the report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from ostinato.core.instants import SECOND
from ostinato.doctor import engine, files, machine, processes, services
from ostinato.doctor.database import DatabaseLook, check_database
from ostinato.doctor.report import Check, Status
from ostinato.settings import Settings

#: A large file on a slow disk takes its time.
_DATABASE_US_MAX = 60 * SECOND

SettingsCheck: TypeAlias = Callable[[Settings], Iterable[tuple[Status, str, str]]]


def machine_checks() -> list[Check]:
    """What can be checked where the settings cannot be read."""
    return [
        Check("python", machine.check_python),
        Check("packages", machine.check_packages),
        Check("clock", machine.check_clock),
        Check("time zones", machine.check_time_zones),
        Check("processes", processes.check_processes),
    ]


def all_checks(settings: Settings) -> list[Check]:
    """All of them."""

    def of(name: str, check: SettingsCheck, *, limit_us: int = 15 * SECOND) -> Check:
        return Check(name, lambda: check(settings), limit_us)

    look = DatabaseLook(settings)

    def of_database(name: str, check: Callable[[DatabaseLook], Iterable[tuple[Status, str, str]]]) -> Check:
        return Check(name, lambda: check(look), _DATABASE_US_MAX)

    return [
        *machine_checks(),
        of("settings", files.check_settings),
        of_database("database", check_database),
        of_database("ports", services.check_ports),
        of_database("scheduler", services.check_scheduler),
        of_database("workers", services.check_workers),
        of("limits", machine.check_limits),
        of("container engine", engine.check_engine),
        of("app", files.check_app, limit_us=files.APP_US_MAX + 5 * SECOND),
        of("data directory", files.check_data_dir),
        of("tls", files.check_tls),
        of("join token", files.check_secrets),
    ]
