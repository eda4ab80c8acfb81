"""Checks of files: settings and their sources, secrets, certificates, the data directory, the app."""

from __future__ import annotations

import asyncio
import fcntl
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from ostinato.clock import SystemClock
from ostinato.core.instants import DAY, SECOND, format_duration, format_instant
from ostinato.core.url_text import shown_url, without_passwords
from ostinato.doctor.report import Status
from ostinato.settings import SETTINGS, Settings, naming_sources, read_join_token
from ostinato.wire.tls import NodeTls, TlsFile, WorkerTls, end_of_validity_us
from ostinato.worker.app_probe import probe_app

Found = Iterator[tuple[Status, str, str]]

#: Time that an import may take before a person waits too long.
APP_US_MAX = 60 * SECOND
FREE_BYTES_MIN = 256 * 1024 * 1024
_EXPIRY_TOLD_US = 14 * DAY


def check_settings(settings: Settings) -> Found:
    """What was given and where; everything else has its default."""
    names = [setting.name for setting in SETTINGS if setting.name in settings.sources]
    for name in names:
        field = name if name in Settings.__struct_fields__ else f"{name}_us"
        yield "ok", f"{name} is {_shown(getattr(settings, field), field)} ({settings.sources[name]})", ""
    yield "ok", f"{len(SETTINGS) - len(names)} settings have their defaults", ""


def _shown(value: object, field: str) -> str:
    if field.endswith("_us") and isinstance(value, int):
        return format_duration(value)
    if isinstance(value, dict):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if field == "scheduler" and isinstance(value, tuple):
        return ", ".join(map(str, value))
    return shown_url(str(value)) if field == "database" else without_passwords(str(value))


def check_secrets(settings: Settings) -> Found:
    """The join token: there, usable, and nobody else's to read."""
    path = settings.join_token_file
    if path is None:
        yield "ok", "no join token: workers of this machine alone may connect", ""
        return
    read_join_token(settings)
    yield from _private(path, what="the join token")


def _private(path: Path, *, what: str) -> Found:
    mode = stat.S_IMODE(path.stat().st_mode)
    if mode & (stat.S_IRWXO | stat.S_IWGRP):
        yield "fail", f"{what} {path} can be read or changed by others (mode {mode:03o})", f"chmod 600 {path}"
    elif mode & stat.S_IRGRP:
        yield "warn", f"{what} {path} can be read by its group (mode {mode:03o})", f"chmod 600 {path}"
    else:
        yield "ok", f"{what} {path} is its owner's alone", ""


def check_tls(settings: Settings) -> Found:
    """Certificates: usable, in time, with their key."""
    clock = SystemClock()
    if settings.tls_certificate is None and settings.tls_ca is None:
        yield "ok", "no TLS: workers of this machine alone may connect", ""
    if settings.tls_certificate is not None and settings.tls_key is not None:
        certificate = TlsFile(settings.tls_certificate, settings.source("tls_certificate"))
        NodeTls(certificate, TlsFile(settings.tls_key, settings.source("tls_key")), wall_us=clock.wall_us)
        yield "ok", f"{settings.tls_certificate} and its key fit", ""
        yield from _validity(certificate, now_us=clock.wall_us())
        yield from _private(settings.tls_key, what="the key")
    if settings.tls_ca is not None:
        authority = TlsFile(settings.tls_ca, settings.source("tls_ca"))
        WorkerTls(authority)
        yield from _validity(authority, now_us=clock.wall_us())


def _validity(file: TlsFile, *, now_us: int) -> Found:
    end_us = end_of_validity_us(file)
    shown = format_instant(end_us)
    if end_us <= now_us:
        yield "fail", f"{file.path} has been out of date since {shown}", "renew it: workers refuse it"
    elif end_us - now_us < _EXPIRY_TOLD_US:
        yield "warn", f"{file.path} is valid only until {shown}", "renew it; nothing has to be restarted"
    else:
        yield "ok", f"{file.path} is valid until {shown}", ""


def check_data_dir(settings: Settings) -> Found:
    """The worker's directory: writable, with room, and what dead workers have left in it."""
    path = settings.data_dir
    field = settings.source("data_dir")
    existing = next(folder for folder in (path.absolute(), *path.absolute().parents) if folder.exists())
    if not existing.is_dir():
        yield "fail", f"{field}: {existing} is no folder", "name another one"
        return
    if not os.access(existing, os.W_OK | os.X_OK):
        yield "fail", f"{field}: {existing} is not writable", "give it to the worker's user"
        return
    shown = f"{path} is writable" if existing == path.absolute() else f"{path} will be made"
    yield "ok", shown, ""
    yield from check_room(existing, what="the data directory")
    damaged = sorted((path / "spool").glob("*.corrupt*"))
    if damaged:
        names = ", ".join(file.name for file in damaged[:3])
        yield (
            "warn",
            f"{len(damaged)} damaged spools: {names}",
            "their attempts were retried; delete them",
        )
    left = [file for file in sorted((path / "spool").glob("*.db")) if not _is_held(file)]
    if left:
        what = f"{len(left)} spools of workers that are gone"
        yield "warn", what, "start a worker with this data directory: it delivers their results"


def _is_held(spool: Path) -> bool:
    """Whether a worker that lives has the spool. Nothing is made; a lock is had for a moment at most."""
    try:
        descriptor = os.open(spool.with_suffix(".lock"), os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def check_room(folder: Path, *, what: str) -> Found:
    """Free space of the disk that `folder` is on."""
    free_bytes = shutil.disk_usage(folder).free
    shown = f"{human_size(free_bytes)} free on the disk of {what}"
    if free_bytes < FREE_BYTES_MIN // 16:
        yield "fail", shown, "free some space: results and submissions need it"
    elif free_bytes < FREE_BYTES_MIN:
        yield "warn", shown, "free some space"
    else:
        yield "ok", shown, ""


def human_size(size_bytes: int) -> str:
    """Rounded to what a person reads: ``77.7 GiB``."""
    for unit, factor in (("GiB", 2**30), ("MiB", 2**20)):
        if size_bytes >= factor:
            return f"{size_bytes / factor:.1f} {unit}"
    return f"{size_bytes // 1024} KiB"


def check_app(settings: Settings) -> Found:
    """Whether the app can be imported, in a process of its own."""
    if not settings.app:
        yield "ok", "no app is set: a worker runs commands and requests", ""
        return
    with naming_sources(settings):
        known = asyncio.run(probe_app(settings.app, limit_us=APP_US_MAX))
    for problem in known.problems:
        yield "fail", problem, "correct it; a worker runs the other apps"
    if known.declarations:
        yield "ok", f"{settings.app} declares {len(known.declarations)} tasks", ""
    elif not known.problems:
        yield "warn", f"{settings.app} declares no tasks", "decorate functions with @app.task"
