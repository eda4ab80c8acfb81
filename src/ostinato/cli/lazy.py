"""The commands by name, each imported and built when it is asked for: a command pays for no other's start."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import typer
import typer.main

from ostinato.cli.plain_values import spare_conversions


def _dev() -> Callable[..., None]:
    from ostinato.cli.commands import run

    return run.dev


def _scheduler() -> Callable[..., None]:
    from ostinato.cli.commands import run

    return run.scheduler


def _worker() -> typer.Typer:
    from ostinato.cli.commands import worker

    return worker.app


def _apply() -> Callable[..., None]:
    from ostinato.cli.commands import apply

    return apply.apply


def _export() -> Callable[..., None]:
    from ostinato.cli.commands import apply

    return apply.export


def _schema() -> Callable[..., None]:
    from ostinato.cli.commands import apply

    return apply.schema


def _task() -> typer.Typer:
    from ostinato.cli.commands import task, task_acts, task_trigger

    del task_acts, task_trigger  # they have added their commands to those of the noun
    return task.app


def _instance() -> typer.Typer:
    from ostinato.cli.commands import instance, instance_acts, instance_logs

    del instance_acts, instance_logs  # they have added their commands to those of the noun
    return instance.app


def _node() -> typer.Typer:
    from ostinato.cli.commands import cluster

    return cluster.node_app


def _partition() -> typer.Typer:
    from ostinato.cli.commands import cluster

    return cluster.partition_app


def _namespace() -> typer.Typer:
    from ostinato.cli.commands import cluster

    return cluster.namespace_app


def _db() -> typer.Typer:
    from ostinato.cli.commands import database

    return database.app


def _doctor() -> Callable[..., None]:
    from ostinato.cli.commands import doctor

    return doctor.doctor


def _chaos() -> Callable[..., None]:
    from ostinato.cli.commands import chaos

    return chaos.chaos


def _cron() -> typer.Typer:
    from ostinato.cli.commands import cron

    return cron.app


def _completion() -> Callable[..., None]:
    from ostinato.cli.commands import completion

    return completion.completion


def _version() -> Callable[..., None]:
    from ostinato.cli.commands import version

    return version.version


class Lazy(NamedTuple):
    """A command that is not there yet: what it does, for the list of commands, and what imports it."""

    help: str
    load: Callable[[], Callable[..., None] | typer.Typer]


COMMANDS: dict[str, Lazy] = {
    "dev": Lazy("Run scheduler, worker and API for APP in one command, until Ctrl-C.", _dev),
    "scheduler": Lazy("Run a scheduler node, which decides what runs when.", _scheduler),
    "worker": Lazy("Run a worker; worker list, show, drain: ask about those that run.", _worker),
    "apply": Lazy("Create and change tasks so that they are as files say.", _apply),
    "export": Lazy("Write the tasks of a namespace as a tasks.yaml.", _export),
    "schema": Lazy("Write the JSON Schema of tasks.yaml, for editors.", _schema),
    "task": Lazy("Tasks: list, show, trigger, pause, resume, disable, enable, delete.", _task),
    "instance": Lazy("Instances, each one run of a task: list, show, logs, retry, cancel.", _instance),
    "node": Lazy("Scheduler nodes: list.", _node),
    "partition": Lazy("Partitions and their owners: list.", _partition),
    "namespace": Lazy("Namespaces that have tasks: list.", _namespace),
    "db": Lazy("The database's schema: status, upgrade, downgrade; copy.", _db),
    "doctor": Lazy("Look for what is wrong on this machine, and say what to do.", _doctor),
    "chaos": Lazy("Break your own cluster as a scenario says, and tell what was violated.", _chaos),
    "cron": Lazy("Try out cron expressions: next.", _cron),
    "completion": Lazy("Print the script that makes a shell complete commands and names.", _completion),
    "version": Lazy("Show the version of Ostinato and of Python.", _version),
}


class LazyCommands(Mapping[str, Any]):
    """The built commands of `rows` by name."""

    def __init__(self, rows: Mapping[str, Lazy]) -> None:
        self._rows = rows
        self._built: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._built:
            self._built[name] = _built(name, self._rows[name].load())
        return self._built[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)


def _built(name: str, found: Callable[..., None] | typer.Typer) -> Any:
    if not isinstance(found, typer.Typer):
        single = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
        single.command(name)(found)
        found = single
    command = typer.main.get_command(found)
    command.name = name
    spare_conversions(command, typer.Context(command))
    for each in getattr(command, "commands", {}).values():
        spare_conversions(each, typer.Context(each))
        # A summary that is not given is made by cutting the help off, in the middle of a sentence.
        each.short_help = (each.help or "").partition("\n\n")[0].replace("\n", " ")
    return command
