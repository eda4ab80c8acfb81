"""A deliberate bug: what it breaks, how it is put in place of a part of the product, and taken out again."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, TypeAlias

import msgspec

from ostinato.core.instants import SECOND
from ostinato.simulation.swarm import FAULT_KINDS, SwarmOptions, options_of

#: A class or module, the name in it, and what makes the bug of what is there.
Patch: TypeAlias = tuple[Any, str, Callable[[Any], Any]]


class Mutation(msgspec.Struct, frozen=True, kw_only=True):
    """`meaning` completes "the code …". `seed_count`: so many seeds, from 0, show it to some checker."""

    name: str
    meaning: str
    patches: tuple[Patch, ...]
    seed_count: int
    #: Of checkers that may be the ones to find it.
    found_by: tuple[str, ...]
    #: The first seed that is tried.
    first_seed: int = 0
    #: Kinds of fault that the seeds have, instead of their own; empty: their own.
    kinds: tuple[str, ...] = ()
    #: Longest fault, where `kinds` are given.
    fault_us_max: int = 20 * SECOND

    #: What else differs from the seed's own options.
    shape: dict[str, Any] = {}

    def options(self) -> Iterator[SwarmOptions]:
        """What is run until the bug shows."""
        for seed in range(self.first_seed, self.first_seed + self.seed_count):
            options = options_of(seed)
            if self.kinds:
                faults = {kind: FAULT_KINDS[kind] // 2 for kind in self.kinds}
                options = msgspec.structs.replace(
                    options, faults=faults, fault_us_max=self.fault_us_max, worker_lease_us=6 * SECOND
                )
            yield msgspec.structs.replace(options, **self.shape)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The bug is there, for every run that is made meanwhile."""
        with ExitStack() as stack:
            for owner, name, make in self.patches:
                stack.enter_context(_replaced(owner, name, make))
            yield


@contextmanager
def _replaced(owner: Any, name: str, make: Callable[[Any], Any]) -> Iterator[None]:
    original = vars(owner)[name]
    setattr(owner, name, make(original))
    try:
        yield
    finally:
        setattr(owner, name, original)
