"""Hooks: one that fails breaks nothing, is counted, and is logged once."""

from __future__ import annotations

import logging

import pytest
from prometheus_client import CollectorRegistry

from ostinato.observe.hooks import Hooks
from ostinato.observe.metrics import MetricsHook
from ostinato.observe.records import NodeStopped, Record

_RECORD = NodeStopped(node_id="n1")


class _Broken:
    def on(self, record: Record) -> None:
        raise ValueError(f"cannot take {type(record).__name__}")


class _Collecting:
    def __init__(self) -> None:
        self.seen: list[Record] = []

    def on(self, record: Record) -> None:
        self.seen.append(record)


def test_failing_hook_does_not_break_the_caller_nor_the_other_hooks() -> None:
    collecting = _Collecting()
    Hooks([_Broken(), collecting]).emit(_RECORD)
    assert collecting.seen == [_RECORD]


def test_failing_hook_is_counted_each_time_and_logged_once(caplog: pytest.LogCaptureFixture) -> None:
    hooks = Hooks([_Broken()])
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            hooks.emit(_RECORD)
    assert hooks.failures == {"_Broken": 3}
    assert [entry.message for entry in caplog.records] == ["hook_failed"]
    assert caplog.records[0].exc_info is not None


def test_failures_of_hooks_are_a_metric() -> None:
    registry = CollectorRegistry()
    metrics = MetricsHook(registry)
    hooks = Hooks([metrics, _Broken()])
    metrics.watch(hooks)
    hooks.emit(_RECORD)
    assert registry.get_sample_value("ostinato_hook_failures_total", {"hook": "_Broken"}) == 1
