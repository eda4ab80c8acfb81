"""Metrics: what records become, in seconds and totals, with bounded labels."""

from __future__ import annotations

import re

import pytest
from house.project import ROOT
from prometheus_client import CollectorRegistry, generate_latest

from ostinato.observe import records
from ostinato.observe.metrics import OTHER, MetricsHook, export_store


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


def _ended(task: str = "load", **fields: object) -> records.AttemptEnded:
    given: dict[str, object] = {"namespace": "n", "task": task, "instance_id": "i", "outcome": "success"}
    return records.AttemptEnded(**(given | fields))  # type: ignore[arg-type]  # fields are typed by the caller


def test_attempts_are_counted_by_outcome_category_and_code(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    hook.on(_ended(run_us=2_000_000))
    hook.on(_ended(outcome="failed", category="transient", error_code="HTTP_503"))
    labels = {"namespace": "n", "task": "load", "outcome": "failed", "category": "transient"}
    assert registry.get_sample_value("ostinato_attempts_total", labels) == 1
    assert registry.get_sample_value("ostinato_attempt_errors_total", {"code": "HTTP_503"}) == 1
    assert registry.get_sample_value("ostinato_run_seconds_sum") == 2
    assert registry.get_sample_value("ostinato_run_seconds_count") == 1


def test_no_series_tells_when_it_was_created(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    hook.on(_ended(run_us=2_000_000))
    assert "_created" not in generate_latest(registry).decode()


def test_retries_are_counted_by_the_rule_that_decided(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    for rule, due_us in (("retry_on", 5), ("retry_on", 6), ("max_retry", None)):
        hook.on(
            records.RetryDecided(
                namespace="n", task="t", instance_id="i", rule=rule, sentence="s", due_us=due_us
            )
        )
    assert registry.get_sample_value("ostinato_retries_total", {"rule": "retry_on"}) == 2
    assert registry.get_sample_value("ostinato_give_ups_total", {"rule": "max_retry"}) == 1


def test_fires_lateness_queue_wait_loops_and_commits_are_measured(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    of_instance = {"namespace": "n", "task": "t", "instance_id": "i"}
    hook.on(records.Fired(**of_instance, trigger_id="x", fire_us=0, lateness_us=20_000))  # type: ignore[arg-type]  # a dict of texts
    hook.on(records.AttemptAssigned(**of_instance, worker_name="w", queue_wait_us=500_000))  # type: ignore[arg-type]  # a dict of texts
    hook.on(records.LoopTurned(loop="trigger", lag_us=-5))
    hook.on(records.GroupCommitted(count=40, duration_us=3_000))
    hook.on(records.FireSkipped(namespace="n", task="t", trigger_id="x", count=3, reason="late"))
    assert registry.get_sample_value("ostinato_fires_total", {"namespace": "n", "task": "t"}) == 1
    assert registry.get_sample_value("ostinato_fire_lateness_seconds_sum") == 0.02
    assert registry.get_sample_value("ostinato_queue_wait_seconds_sum") == 0.5
    assert registry.get_sample_value("ostinato_loop_lag_seconds_sum", {"loop": "trigger"}) == 0
    assert registry.get_sample_value("ostinato_group_commit_rows_sum") == 40
    assert registry.get_sample_value("ostinato_fires_skipped_total", {"namespace": "n", "task": "t"}) == 3


def test_waiting_gauge_falls_to_zero_when_a_hold_is_gone(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    hook.on(records.BacklogMeasured(by_state={"pending": 3, "running": 2}))
    hook.on(records.BacklogMeasured(by_state={"pending": 1}))
    assert registry.get_sample_value("ostinato_live_instances", {"state": "pending"}) == 1
    assert registry.get_sample_value("ostinato_live_instances", {"state": "running"}) == 0


def test_pressure_is_a_level_a_count_and_what_was_held_back(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    assert registry.get_sample_value("ostinato_pressure_level") == 0
    hook.on(records.PressureMeasured(level=2, waiting_count=50))
    for how, count in (("delayed", 1), ("refused", 3), ("refused", 4)):
        hook.on(records.SubmissionsHeldBack(how=how, count=count))
    assert registry.get_sample_value("ostinato_pressure_level") == 2
    assert registry.get_sample_value("ostinato_pressure_waiting_instances") == 50
    assert registry.get_sample_value("ostinato_submissions_held_back_total", {"how": "refused"}) == 7


def test_a_task_per_customer_does_not_grow_the_series(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry, series_max=3)
    for number in range(50):
        hook.on(_ended(f"task-{number}"))
    labels = {"namespace": OTHER, "task": OTHER, "outcome": "success", "category": ""}
    assert registry.get_sample_value("ostinato_attempts_total", labels) == 47
    series = [s for f in registry.collect() for s in f.samples if s.name == "ostinato_attempts_total"]
    assert len(series) == 4


def test_every_metric_has_a_unit_in_its_name_and_is_documented(registry: CollectorRegistry) -> None:
    MetricsHook(registry)
    export_store(registry, repeats=dict, listener_losses=int)
    documented = (ROOT / "docs/observation.md").read_text(encoding="utf-8")
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        assert re.fullmatch(
            r"ostinato_[a-z_]+(_total|_seconds|_rows|_instances|_partitions|_connected|_full|_idle|_level)",
            name,
        )
        assert f"| `{name}` |" in documented, name


def test_owned_partitions_are_a_level_and_their_moves_and_refused_writes_totals(
    registry: CollectorRegistry,
) -> None:
    hook = MetricsHook(registry)
    hook.on(records.PartitionsTaken(node_id="a", count=64, owned_count=64))
    hook.on(records.PartitionsReleased(node_id="a", count=32, owned_count=32))
    hook.on(records.PartitionsLost(node_id="a", count=2, reason="x", owned_count=30))
    hook.on(records.WritesRefused(node_id="a", count=7, partition_count=2))
    hook.on(records.NodeDeclaredDead(node_id="a", dead_id="b", address="", count=1, reason="x"))
    assert registry.get_sample_value("ostinato_owned_partitions") == 30
    moves = [
        registry.get_sample_value("ostinato_partition_moves_total", {"how": how})
        for how in ("taken", "released", "lost")
    ]
    assert moves == [64, 32, 2]
    assert registry.get_sample_value("ostinato_refused_writes_total") == 7
    assert registry.get_sample_value("ostinato_nodes_declared_dead_total") == 1
    hook.on(records.NodeStopped(node_id="a"))
    assert registry.get_sample_value("ostinato_owned_partitions") == 0


def test_a_node_that_no_worker_reaches_is_a_gauge(registry: CollectorRegistry) -> None:
    hook = MetricsHook(registry)
    assert registry.get_sample_value("ostinato_node_idle") == 0
    hook.on(records.NodeIdle(node_id="a", count=32))
    assert registry.get_sample_value("ostinato_node_idle") == 1
    hook.on(records.NodeServing(node_id="a"))
    assert registry.get_sample_value("ostinato_node_idle") == 0


def test_what_a_store_has_had_to_repeat_is_read_at_each_scrape(registry: CollectorRegistry) -> None:
    repeats = {"deadlock": 2}
    losses = [0]
    export_store(registry, repeats=lambda: repeats, listener_losses=lambda: losses[0])
    assert registry.get_sample_value("ostinato_database_repeats_total", {"cause": "deadlock"}) == 2
    assert registry.get_sample_value("ostinato_listener_losses_total") == 0
    repeats["lost"], losses[0] = 3, 1
    assert registry.get_sample_value("ostinato_database_repeats_total", {"cause": "lost"}) == 3
    assert registry.get_sample_value("ostinato_listener_losses_total") == 1
