"""Small facts for the steps of a partition."""

from __future__ import annotations

from random import Random

from ostinato.core.changes import Request, TriggerRow
from ostinato.core.definition import PythonSpec, TaskDefinition, TaskRow
from ostinato.core.failure.failure import Failure, safe_failure
from ostinato.core.instants import SECOND
from ostinato.core.model import Instance, Outcome
from ostinato.core.partition.running import RunningAttempt
from ostinato.core.retry.counters import Counters
from ostinato.core.schedule.trigger import CronTrigger, Trigger, next_fire, trigger_id
from ostinato.core.states import State

NOW_US = 1_767_225_600_000_000
SPEC = PythonSpec("m:f", is_async=True)


def rng() -> Random:
    return Random(7)


def task(**changes: object) -> TaskDefinition:
    base: dict[str, object] = {"namespace": "default", "name": "t", "executor": SPEC}
    return TaskDefinition(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def row(definition: TaskDefinition, *, version: int = 1, paused: bool = False) -> TaskRow:
    return TaskRow(
        definition=definition,
        version=version,
        partition=3,
        paused=paused,
        disabled=False,
        scheduled_version=version,
        created_us=NOW_US,
        updated_us=NOW_US,
    )


def instance(identity: str = "i1", **changes: object) -> Instance:
    base: dict[str, object] = {
        "id": identity,
        "namespace": "default",
        "task": "t",
        "task_version": 1,
        "partition": 3,
        "state": State.PENDING,
        "priority": 5,
        "due_us": NOW_US,
        "created_us": NOW_US,
    }
    return Instance(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def running(definition: TaskDefinition | None = None, **changes: object) -> RunningAttempt:
    base: dict[str, object] = {
        "instance_id": "i1",
        "partition": 3,
        "definition": definition if definition is not None else task(),
        "task_version": 1,
        "generation": 1,
        "attempt": 1,
        "attempt_id": "a1",
        "worker_id": "w1",
        "worker_name": "worker",
        "assigned_us": NOW_US,
        "due_us": NOW_US,
        "counters": Counters(),
    }
    return RunningAttempt(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def outcome(failure: Failure | None = None, **changes: object) -> Outcome:
    base: dict[str, object] = {
        "instance_id": "i1",
        "attempt": 1,
        "attempt_id": "a1",
        "started_us": NOW_US,
        "finished_us": NOW_US + SECOND,
        "failure": failure,
        "result": None if failure is not None else b"1",
    }
    return Outcome(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def refused_connection() -> Failure:
    return safe_failure("ECONNREFUSED", "connection refused")


def trigger(spec: Trigger | None = None, *, next_us: int | None = None) -> TriggerRow:
    spec = spec if spec is not None else CronTrigger(cron="0 * * * *")
    return TriggerRow(
        id=trigger_id("default", "t", spec),
        namespace="default",
        task="t",
        partition=3,
        task_version=1,
        spec=spec,
        created_us=NOW_US,
        next_us=(
            next_us
            if next_us is not None
            else next_fire(spec, NOW_US - 1, created_us=NOW_US, spread_key="default/t")
        ),
    )


def request(kind: str, *, body: bytes = b"{}", instance_id: str = "i1", task_name: str = "") -> Request:
    return Request(
        id="r1",
        partition=3,
        kind=kind,  # type: ignore[arg-type]  # a word of the literal, chosen per test
        namespace="default",
        created_us=NOW_US,
        task=task_name,
        instance_id=instance_id,
        body=body,
        by="ada",
    )
