"""Tasks, instances, workers, nodes and partitions as cells of tables and lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from ostinato.cli.output import fact_lines, safe
from ostinato.control.shapes.text import duration as duration
from ostinato.control.shapes.text import instant as instant
from ostinato.core.definition import ContainerSpec, HttpSpec, PythonSpec, ShellSpec, TaskRow
from ostinato.core.instants import SECOND, to_datetime
from ostinato.core.model import Instance
from ostinato.core.url_text import without_passwords

if TYPE_CHECKING:
    from ostinato.control.shapes.cluster import NodeShape, PartitionShape, PressureShape, WorkerShape
    from ostinato.store.batches import TriggerRow

INSTANCE_COLUMNS = ("ID", "TASK", "STATE", "ATTEMPT", "CREATED", "DUE", "FINISHED", "REASON")
TASK_COLUMNS = ("NAME", "VERSION", "STATUS", "NEXT FIRE", "TIMEOUT", "RUNS")
WORKER_COLUMNS = ("NAME", "STATE", "RUNNING", "SLOTS", "LABELS", "SEEN", "ID")
NODE_COLUMNS = ("ID", "STATE", "ADDRESS", "STARTED", "PARTITIONS", "RENEWALS")
PARTITION_COLUMNS = ("PARTITION", "OWNER", "EPOCH")


def shown_instant(instant_us: int | None) -> str:
    """For tables: whole seconds of UTC, empty for none."""
    if instant_us is None:
        return ""
    return to_datetime(instant_us // SECOND * SECOND).isoformat().replace("+00:00", "Z")


def shown_text(said: str | None) -> str:
    """As `shown_instant`, of an instant that is a text already."""
    if said is None:
        return ""
    whole, point, _ = said.partition(".")
    return f"{whole}Z" if point else said


def instance_cells(instance: Instance) -> Sequence[object]:
    state = f"{instance.state} ({instance.hold})" if instance.hold is not None else instance.state
    shard = f" (shard {instance.shard} of {instance.shard_total})" if instance.shard_total > 1 else ""
    return (
        instance.id,
        f"{instance.task}{shard}",
        state,
        instance.attempt,
        shown_instant(instance.created_us),
        "" if instance.finished_us is not None else shown_instant(instance.due_us),
        shown_instant(instance.finished_us),
        instance.reason or _since(instance),
    )


def _since(instance: Instance) -> str:
    since = shown_instant(instance.running_since_us)
    return f"since {since}" if since else ""


def task_cells(row: TaskRow, triggers: Sequence[TriggerRow]) -> Sequence[object]:
    return (
        row.ref.name,
        row.version,
        task_status(row),
        _next_fire(row, triggers),
        duration(row.definition.timeout_us),
        runs(row),
    )


def _next_fire(row: TaskRow, triggers: Sequence[TriggerRow]) -> str:
    if row.paused or row.disabled or not triggers:
        return "-"  # what is planned is not made up later
    return shown_instant(triggers[0].next_us) or "-"


def task_status(row: TaskRow) -> str:
    if row.disabled:
        return "disabled"
    return "paused" if row.paused else "active"


def runs(row: TaskRow) -> str:
    """What the task runs, in one line."""
    match row.definition.executor:
        case PythonSpec(call=call):
            return f"python {call}"
        case ShellSpec(command=command):
            return "shell " + (command if isinstance(command, str) else " ".join(command))
        case ContainerSpec(image=image, command=command):
            words = () if command is None else (command,) if isinstance(command, str) else command
            return " ".join(("container", image, *words))
        case HttpSpec(method=method, url=url):
            return f"http {method} {without_passwords(url)}"


def task_lines(row: TaskRow, triggers: Sequence[TriggerRow]) -> Iterator[str]:
    """One task: how it stands, its triggers, its whole policy, and its definition as in ``tasks.yaml``."""
    from ostinato.control.document.write import document
    from ostinato.control.document.yaml_text import write_yaml
    from ostinato.core.retry.policy import policy_to_dict
    from ostinato.core.schedule.trigger import describe_trigger

    definition = row.definition
    switching = "" if row.scheduled_version == row.version else f" (triggers still {row.scheduled_version})"
    yield from fact_lines(
        [
            ("task", row.ref),
            ("description", definition.description),
            ("status", task_status(row)),
            ("version", f"{row.version}{switching}, changed {shown_instant(row.updated_us)}"),
            ("declared in", "an app" if row.origin == "app" else "a document (apply)"),
            ("runs", runs(row)),
            ("timeout", duration(definition.timeout_us)),
            ("overlap", definition.overlap or "forbid for fires, allow for submissions"),
            *(("retry " + name, _plain(value)) for name, value in policy_to_dict(definition.retry).items()),
        ]
    )
    for trigger in triggers:
        upcoming = instant(trigger.next_us)
        yield f"trigger: {safe(describe_trigger(trigger.spec))}, " + (
            f"next {upcoming}" if upcoming else "no further fire"
        )
    yield ""
    yield "# its definition, as apply reads it"
    for line in write_yaml(document(definition.namespace, [definition])).splitlines():
        yield safe(line)


def _plain(value: object) -> object:
    if isinstance(value, dict):
        return ", ".join(f"{name} {said}" for name, said in value.items())
    return ", ".join(map(str, value)) if isinstance(value, list) else value


def worker_cells(worker: WorkerShape) -> Sequence[object]:
    return (
        worker.name,
        worker.state,
        worker.running,
        _pairs(worker.capacity, " "),
        _pairs(worker.labels, "="),
        shown_text(worker.seen),
        worker.id,
    )


def worker_lines(worker: WorkerShape) -> list[str]:
    """One worker: what it can run, what it runs, and what it could not import."""
    return fact_lines(
        [
            ("worker", worker.name),
            ("id", worker.id),
            ("state", worker.state),
            ("running", worker.running),
            ("slots", _pairs(worker.capacity, " ")),
            ("labels", _pairs(worker.labels, "=")),
            ("executors", ", ".join(worker.executors)),
            ("protocol", worker.protocol),
            ("connected", worker.connected),
            ("seen", worker.seen),
            ("nodes", ", ".join(worker.nodes)),
            *(("task", task) for task in worker.tasks),
            *(("problem", problem) for problem in worker.problems),
        ]
    )


def _pairs(values: dict[str, str] | dict[str, int], sign: str) -> str:
    return ", ".join(f"{name}{sign}{value}" for name, value in values.items())


def node_cells(node: NodeShape) -> Sequence[object]:
    state = "" if node.alive is None else "alive" if node.alive else "silent"
    return (node.id, state, node.address, shown_text(node.started), node.partitions, node.renewals)


def pressure_note(pressure: PressureShape) -> str:
    """How much waits, against which limits."""
    limits = [
        f"{name} from {limit}"
        for name, limit in (("yellow", pressure.yellow), ("red", pressure.red))
        if limit is not None
    ]
    return f"pressure is {pressure.level}: {pressure.waiting} instances wait to start ({', '.join(limits)})"


def partition_cells(partition: PartitionShape) -> Sequence[object]:
    return (partition.partition, partition.owner or "nobody", partition.epoch)
