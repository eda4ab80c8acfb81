"""The contract of ``ostinato.store.protocol.Store``, run unchanged on every adapter."""

from __future__ import annotations

from ostinato.testing.contracts.store_commit import CommitContract
from ostinato.testing.contracts.store_fires import FireContract
from ostinato.testing.contracts.store_lists import (
    DefinitionContract,
    ListContract,
    RequestContract,
    RetentionContract,
)
from ostinato.testing.contracts.store_ownership import OwnershipContract
from ostinato.testing.contracts.store_pages import PageContract
from ostinato.testing.contracts.store_submit import SubmitContract
from ostinato.testing.contracts.store_tasks import DeletionContract, TaskContract
from ostinato.testing.contracts.store_work import WorkContract
from ostinato.testing.contracts.store_workers import WorkerContract


class StoreContract(
    OwnershipContract,
    CommitContract,
    FireContract,
    WorkContract,
    SubmitContract,
    DefinitionContract,
    RequestContract,
    ListContract,
    RetentionContract,
    TaskContract,
    DeletionContract,
    PageContract,
    WorkerContract,
):
    """Derive and give two fixtures: ``clock``, a ``ContractClock``, and ``store``, open, new and empty, with
    that clock as the database's and 64 partitions. Register the modules for pytest's assertion rewriting.
    """
