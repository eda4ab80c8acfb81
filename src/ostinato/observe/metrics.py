"""Prometheus metrics from records; seconds and totals, in a registry of the caller's own.

Labels are bounded: task names beyond `series_max` pairs of (namespace, task) are counted under ``other``, so
that a user who makes a task per customer cannot grow the scheduler's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics
from prometheus_client.core import CounterMetricFamily
from prometheus_client.registry import Collector

from ostinato.observe import records as r
from ostinato.observe.histogram import LoopHistogram
from ostinato.observe.hooks import Hooks
from ostinato.observe.records import Record

OTHER = "other"
_SHORT_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60)
_LONG_S = (0.001, 0.005, 0.025, 0.1, 0.5, 1, 5, 15, 60, 300, 900, 3600, 14400, 86400)
_ROWS = (1, 2, 5, 10, 25, 50, 100, 250, 500, 1000)


class _Names:
    """The first `limit` label values (or tuples of them) as they are; the rest as ``other``."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._known: set[tuple[str, ...]] = set()

    def bounded(self, *values: str) -> tuple[str, ...]:
        if values in self._known:
            return values
        if len(self._known) >= self._limit:
            return (OTHER,) * len(values)
        self._known.add(values)
        return values


class _HookFailures(Collector):
    """Failed calls of hooks, read when asked."""

    def __init__(self, hooks: Hooks) -> None:
        self._hooks = hooks

    def collect(self) -> Iterator[CounterMetricFamily]:
        family = CounterMetricFamily("ostinato_hook_failures", "Failed calls of hooks.", labels=["hook"])
        for name, count in list(self._hooks.failures.items()):
            family.add_metric([name], count)
        yield family


class _StoreCounters(Collector):
    """What a store has had to repeat, read when asked."""

    def __init__(self, repeats: Callable[[], Mapping[str, int]], listener_losses: Callable[[], int]) -> None:
        self._repeats = repeats
        self._listener_losses = listener_losses

    def collect(self) -> Iterator[CounterMetricFamily]:
        repeats = CounterMetricFamily(
            "ostinato_database_repeats", "Transactions that were repeated, by cause.", labels=["cause"]
        )
        for cause, count in sorted(self._repeats().items()):
            repeats.add_metric([cause], count)
        yield repeats
        yield CounterMetricFamily(
            "ostinato_listener_losses",
            "Connections that listened for announcements and were lost.",
            value=self._listener_losses(),
        )


def export_store(
    registry: CollectorRegistry,
    *,
    repeats: Callable[[], Mapping[str, int]],
    listener_losses: Callable[[], int],
) -> None:
    """Report the counters of a store, which it keeps itself; both are called at each scrape."""
    registry.register(_StoreCounters(repeats, listener_losses))


class MetricsHook:
    """Counts every record; names are listed in ``docs/observation.md``."""

    def __init__(self, registry: CollectorRegistry, *, series_max: int = 200) -> None:
        # A ``_created`` beside each series doubles what is scraped and says nothing that is asked here.
        disable_created_metrics()  # type: ignore[no-untyped-call]  # the library gives it no types
        self._registry = registry
        self._tasks = _Names(series_max)
        self._codes = _Names(series_max)
        self._rules = _Names(50)
        self._loops = _Names(50)
        task = ["namespace", "task"]
        self.fires = self._counter("fires", "Fires that made an instance.", labels=[*task])
        self.fires_skipped = self._counter("fires_skipped", "Fires that made none that runs.", labels=[*task])
        self.fire_lateness = self._histogram(
            "fire_lateness_seconds", "Fire committed after its instant.", buckets=_SHORT_S
        )
        self.attempts = self._counter(
            "attempts", "Attempts that ended.", labels=[*task, "outcome", "category"]
        )
        self.attempt_errors = self._counter(
            "attempt_errors", "Attempts that ended badly, by code.", labels=["code"]
        )
        self.retries = self._counter("retries", "Retries granted, by the rule that decided.", labels=["rule"])
        self.give_ups = self._counter(
            "give_ups", "Retries refused, by the rule that decided.", labels=["rule"]
        )
        self.ended = self._counter("instances_ended", "Instances that ended, by state.", labels=["state"])
        self.refused = self._counter("results_refused", "Results that did not count (I6).", labels=[])
        self._time_metrics(registry)
        self.live = Gauge(
            "ostinato_live_instances", "Instances that have not ended.", ["state"], registry=registry
        )
        self.workers = Gauge(
            "ostinato_workers_connected", "Workers connected to this node.", registry=registry
        )
        self.loop_lag = self._histogram(
            "loop_lag_seconds", "Round began after it was due.", buckets=_SHORT_S, labels=["loop"]
        )
        self.loop_failures = self._counter(
            "loop_failures", "Rounds that ended with an error.", labels=["loop"]
        )
        self.database_full = Gauge(
            "ostinato_database_full", "1 while the database's disk takes no writes.", registry=registry
        )
        self.clock_jump = Gauge(
            "ostinato_clock_jump_seconds",
            "How far the database's time has jumped, while no trigger fires for it, else 0.",
            registry=registry,
        )
        self.group_rows = self._histogram("group_commit_rows", "Moves in one transaction.", buckets=_ROWS)
        self.group_time = self._histogram(
            "group_commit_seconds", "Time of one transaction.", buckets=_SHORT_S
        )
        self.broken = self._counter("invariants_broken", "Rules broken that must always hold.", labels=[])
        self._ownership_metrics(registry)
        self._pressure_metrics(registry)
        self._states: set[str] = set()
        #: Several of these a task, whereas looking up a labelled series costs as much as counting in it.
        self._attempt_series: dict[tuple[str, ...], Counter] = {}
        self._ended_series: dict[str, Counter] = {}

    def _time_metrics(self, registry: CollectorRegistry) -> None:
        self.queue_wait = LoopHistogram(
            "ostinato_queue_wait_seconds",
            "Assignment after the due time.",
            bounds=_LONG_S,
            registry=registry,
        )
        self.run_time = LoopHistogram(
            "ostinato_run_seconds", "Run time of attempts.", bounds=_LONG_S, registry=registry
        )

    def _ownership_metrics(self, registry: CollectorRegistry) -> None:
        self.partitions = Gauge(
            "ostinato_owned_partitions", "Partitions that this node decides about.", registry=registry
        )
        self.idle = Gauge(
            "ostinato_node_idle",
            "1 while no worker reaches this node and its partitions are others'.",
            registry=registry,
        )
        self.partition_moves = self._counter(
            "partition_moves", "Partitions taken, handed over or lost by this node.", labels=["how"]
        )
        self.refused_writes = self._counter(
            "refused_writes", "Rows of a former owner that were not written (I5).", labels=[]
        )
        self.nodes_declared_dead = self._counter(
            "nodes_declared_dead", "Other nodes that this node has declared dead.", labels=[]
        )

    def _pressure_metrics(self, registry: CollectorRegistry) -> None:
        self.pressure_level = Gauge(
            "ostinato_pressure_level", "Backpressure: 0 green, 1 yellow, 2 red.", registry=registry
        )
        self.pressure_waiting = Gauge(
            "ostinato_pressure_waiting_instances",
            "Due instances that have not started, counted up to what makes a difference.",
            registry=registry,
        )
        self.held_back = self._counter(
            "submissions_held_back", "Instances whose submission was delayed or refused.", labels=["how"]
        )

    def watch(self, hooks: Hooks) -> None:
        """Report the failures of `hooks` too."""
        self._registry.register(_HookFailures(hooks))

    def _counter(self, name: str, text: str, *, labels: list[str]) -> Counter:
        return Counter(f"ostinato_{name}_total", text, labels, registry=self._registry)

    def _histogram(
        self, name: str, text: str, *, buckets: tuple[float, ...], labels: list[str] | None = None
    ) -> Histogram:
        return Histogram(f"ostinato_{name}", text, labels or [], buckets=buckets, registry=self._registry)

    def on(self, record: Record) -> None:
        match record:
            case r.AttemptEnded():
                self._attempt_ended(record)
            case r.AttemptAssigned():
                self.queue_wait.observe(max(0, record.queue_wait_us) / 1e6)
            case r.GroupCommitted():
                self.group_rows.observe(record.count)
                self.group_time.observe(record.duration_us / 1e6)
            case r.LoopTurned():
                self.loop_lag.labels(*self._loops.bounded(record.loop)).observe(max(0, record.lag_us) / 1e6)
            case r.InstanceEnded():
                series = self._ended_series.get(record.state)
                if series is None:
                    series = self._ended_series[record.state] = self.ended.labels(record.state)
                series.inc()
            case r.RetryDecided():
                counter = self.give_ups if record.due_us is None else self.retries
                counter.labels(*self._rules.bounded(record.rule)).inc()
            case r.Fired():
                self.fires.labels(*self._tasks.bounded(record.namespace, record.task)).inc()
                self.fire_lateness.observe(max(0, record.lateness_us) / 1e6)
            case _:
                self._rare(record)

    def _attempt_ended(self, record: r.AttemptEnded) -> None:
        key = (*self._tasks.bounded(record.namespace, record.task), record.outcome, record.category)
        series = self._attempt_series.get(key)
        if series is None:
            series = self._attempt_series[key] = self.attempts.labels(*key)
        series.inc()
        if record.error_code:
            self.attempt_errors.labels(*self._codes.bounded(record.error_code)).inc()
        if record.run_us is not None:
            self.run_time.observe(max(0, record.run_us) / 1e6)

    def _rare(self, record: Record) -> None:
        match record:
            case r.FireSkipped():
                self.fires_skipped.labels(*self._tasks.bounded(record.namespace, record.task)).inc(
                    record.count
                )
            case r.ResultRefused():
                self.refused.inc()
            case r.WorkerConnected():
                self.workers.inc()
            case r.WorkerDisconnected():
                self.workers.dec()
            case r.LoopFailed():
                self.loop_failures.labels(*self._loops.bounded(record.loop)).inc()
            case r.DatabaseFull():
                self.database_full.set(1)
            case r.DatabaseWritable():
                self.database_full.set(0)
            case r.ClockJumped():
                self.clock_jump.set(record.off_us / 1e6)
            case r.ClockTrusted():
                self.clock_jump.set(0)
            case r.InvariantBroken():
                self.broken.inc()
            case r.BacklogMeasured():
                self._states |= set(record.by_state)
                for state in self._states:
                    self.live.labels(state).set(record.by_state.get(state, 0))
            case r.PressureMeasured():
                self.pressure_level.set(record.level)
                self.pressure_waiting.set(record.waiting_count)
            case r.SubmissionsHeldBack():
                self.held_back.labels(record.how).inc(record.count)
            case r.WritesRefused():
                self.refused_writes.inc(record.count)
            case r.NodeDeclaredDead():
                self.nodes_declared_dead.inc()
            case r.NodeIdle():
                self.idle.set(1)
            case r.NodeServing() | r.NodeRejoined():
                self.idle.set(0)
            case r.PartitionsTaken():
                self._partitions_moved("taken", record.count, owned=record.owned_count)
            case r.PartitionsReleased():
                self._partitions_moved("released", record.count, owned=record.owned_count)
            case r.PartitionsLost():
                self._partitions_moved("lost", record.count, owned=record.owned_count)
            case r.NodeStopped():
                self.partitions.set(0)
            case _:
                pass  # start and end of nodes and the like are log lines only

    def _partitions_moved(self, how: str, count: int, *, owned: int) -> None:
        self.partition_moves.labels(how).inc(count)
        self.partitions.set(owned)
