"""Tests of users' tasks: the real scheduler and worker on virtual time, without servers, processes, files.

``Cluster`` is what tests use, by itself or through the pytest fixture ``ostinato_cluster``. Names are loaded
when they are first used, so that pytest, which imports this package's plugin, imports no scheduler.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ostinato.testing.cluster import Cluster
    from ostinato.testing.engine import NotEnded
    from ostinato.testing.instance import Attempt, Instance, RetryDecision
    from ostinato.testing.plugin import MakeCluster

__all__ = ["Attempt", "Cluster", "Instance", "MakeCluster", "NotEnded", "RetryDecision"]

_HOMES = {
    "Attempt": "instance",
    "Cluster": "cluster",
    "Instance": "instance",
    "MakeCluster": "plugin",
    "NotEnded": "engine",
    "RetryDecision": "instance",
}


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value: object = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
