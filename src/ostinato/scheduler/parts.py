"""What all loops of a node share."""

from __future__ import annotations

from random import Random

import msgspec

from ostinato.clock import Clock
from ostinato.observe.hooks import Hooks
from ostinato.scheduler.committer import Committer
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.definitions import Definitions
from ostinato.scheduler.held_work import HeldWork
from ostinato.scheduler.ownership import Ownership
from ostinato.scheduler.retry_budgets import RetryBudgets
from ostinato.scheduler.sessions import Sessions
from ostinato.scheduler.shared_time import SharedTime
from ostinato.store.protocol import Store


class NodeParts(msgspec.Struct, frozen=True, kw_only=True):
    """Built once by the node; each loop takes what it needs of it."""

    config: NodeConfig
    store: Store
    clock: Clock
    rng: Random
    hooks: Hooks
    time: SharedTime
    ownership: Ownership
    committer: Committer
    definitions: Definitions
    sessions: Sessions
    held: HeldWork
    budgets: RetryBudgets


def build_parts(config: NodeConfig, *, store: Store, clock: Clock, rng: Random, hooks: Hooks) -> NodeParts:
    """The shared parts of one node, over an open or still closed store."""
    ownership = Ownership(config, store=store, clock=clock, rng=rng, hooks=hooks)
    held = HeldWork()
    definitions = Definitions(store)
    return NodeParts(
        config=config,
        store=store,
        clock=clock,
        rng=rng,
        hooks=hooks,
        time=SharedTime(store, clock),
        ownership=ownership,
        committer=Committer(ownership, held, store=store, clock=clock, hooks=hooks),
        definitions=definitions,
        sessions=Sessions(),
        held=held,
        budgets=RetryBudgets(held, definitions, clock=clock),
    )
