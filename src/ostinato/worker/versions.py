"""Task versions that nodes have told, and what follows from each: worked out once, not for every attempt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ostinato.core.definition import Pool, TaskRef, pool_of
from ostinato.wire.messages import Assignment, TaskSpec
from ostinato.worker.attempt import kind_of
from ostinato.worker.executors.protocol import Executor


class Version(NamedTuple):
    """A task version, the pool that its attempts occupy, and who runs them."""

    spec: TaskSpec
    pool: Pool
    #: None: the worker has none of that kind.
    executor: Executor | None


class Versions:
    """What each stream's node has told; every stream begins with nothing."""

    def __init__(self, executors: Mapping[str, Executor]) -> None:
        self._executors = executors
        self._known: dict[int, dict[tuple[TaskRef, int], Version]] = {}

    def learn(self, stream: int, specs: Sequence[TaskSpec]) -> None:
        """Versions that later assignments of a stream use."""
        known = self._known.setdefault(stream, {})
        for spec in specs:
            pool = pool_of(spec.executor, spec.isolation)
            known[(spec.ref, spec.version)] = Version(spec, pool, self._executors.get(kind_of(spec.executor)))

    def of(self, stream: int, assignment: Assignment) -> Version | None:
        """Version of an assignment; None if its stream's node has not told it."""
        return self._known.get(stream, {}).get((assignment.ref, assignment.version))

    def end_stream(self, stream: int) -> None:
        """Forget what was told on a stream. Idempotent."""
        self._known.pop(stream, None)
