"""Signals end ``ostinato dev`` within seconds at any stage, and nothing of it is left."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from support.reloading import SHOP, ReloadingDev, start_dev

END_SECONDS = 5
BLOCKED = f"import time; time.sleep(1000)\n{SHOP}"
#: Fine where it is looked at, and without end in a process that is to run its tasks.
BLOCKED_IN_WORKER = f"import sys, time\nif 'app_probe' not in sys.argv[0]: time.sleep(1000)\n{SHOP}"


def _has_process(dev: ReloadingDev, module: str, *, count: int = 1) -> bool:
    found = [
        child
        for child in psutil.Process(dev.process.pid).children(recursive=True)
        if any(word.endswith(module) for word in _command(child))
    ]
    return len(found) >= count


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []


def _importing(folder: Path) -> ReloadingDev:
    (folder / "shop.py").write_text(BLOCKED, encoding="utf-8")
    dev = start_dev(folder, "shop.py")
    dev.until(lambda: _has_process(dev, "app_probe"))
    return dev


def _starting_worker(folder: Path) -> ReloadingDev:
    (folder / "shop.py").write_text(BLOCKED_IN_WORKER, encoding="utf-8")
    dev = start_dev(folder, "shop.py")
    dev.until(lambda: _has_process(dev, "slot_main"))
    return dev


def _running(folder: Path) -> ReloadingDev:
    (folder / "shop.py").write_text(SHOP, encoding="utf-8")
    dev = start_dev(folder, "shop.py", "--slots", "1")
    dev.until_said("Ctrl-C ends them")
    return dev


def _importing_anew(folder: Path) -> ReloadingDev:
    dev = _running(folder)
    dev.write("shop.py", BLOCKED)
    dev.until(lambda: _has_process(dev, "app_probe"))
    return dev


def _starting_worker_anew(folder: Path) -> ReloadingDev:
    dev = _running(folder)
    dev.write("shop.py", BLOCKED_IN_WORKER)
    dev.until(lambda: _has_process(dev, "slot_main", count=2))
    return dev


def _busy(folder: Path) -> ReloadingDev:
    dev = _running(folder)
    dev.json("task", "trigger", "slow")
    dev.until(lambda: list(folder.glob("ran-*")))
    return dev


@pytest.mark.parametrize(
    ("until", "signals"),
    # One signal alone waits for what runs, so a busy one gets two.
    [
        (until, signals)
        for until in (_importing, _starting_worker, _running, _importing_anew, _starting_worker_anew, _busy)
        for signals in (
            (signal.SIGINT, signal.SIGINT),
            (signal.SIGTERM, signal.SIGTERM),
            *([] if until is _busy else [(signal.SIGTERM,)]),
        )
    ],
)
def test_c195_signals_end_it_at_every_stage_and_nothing_is_left(
    tmp_path: Path, until: Callable[[Path], ReloadingDev], signals: tuple[signal.Signals, ...]
) -> None:
    dev = until(tmp_path)
    family = psutil.Process(dev.process.pid).children(recursive=True)
    assert family
    try:
        for number in signals:
            dev.process.send_signal(number)
            with suppress(subprocess.TimeoutExpired):
                dev.process.wait(0.3)
        status = dev.process.wait(END_SECONDS)
    finally:
        dev.process.kill()
    # Being told to end is a service's good end. A second signal may come when all is ended but the process.
    good = 130 if signal.SIGINT in signals else 0
    assert status in ({good, -signals[1]} if len(signals) > 1 else {good}), dev.complained
    assert "Traceback" not in dev.complained
    _, alive = psutil.wait_procs(family, timeout=END_SECONDS)
    assert alive == []
    data = tmp_path / ".ostinato"
    assert [path for path in data.rglob("*") if path.is_socket()] == []
