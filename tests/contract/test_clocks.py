"""The contract of clocks, on each of them."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.clock import Clock, SystemClock
from ostinato.testing.contracts.clock import ClockContract, Run
from ostinato.testing.virtual_clock import VirtualClock, run_virtual


class TestSystemClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return SystemClock()

    @pytest.fixture
    def run(self) -> Run:
        return asyncio.run


class TestVirtualClock(ClockContract):
    @pytest.fixture
    def clock(self) -> Clock:
        return VirtualClock()

    @pytest.fixture
    def run(self) -> Run:
        return run_virtual


def test_every_process_s_monotonic_clock_has_an_origin_of_its_own() -> None:
    assert abs(SystemClock().boot_us() - SystemClock().boot_us()) > 1000
    shared = SystemClock(offset_us=5)
    assert abs(SystemClock(offset_us=5).boot_us() - shared.boot_us()) < 1_000_000
