"""The beginning of an id stands for the whole of it while only one begins so."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random

import pytest

from ostinato.clock import SystemClock
from ostinato.control.apply import apply
from ostinato.control.queries import resolve_ids
from ostinato.control.submit import SubmitRequest, submit
from ostinato.core.definition import ShellSpec, TaskDefinition
from ostinato.core.ids import new_id
from ostinato.core.instants import SECOND
from ostinato.errors import UserError
from ostinato.store.from_url import open_store_from_url
from ostinato.store.protocol import Store
from ostinato.testing.virtual_clock import START_US

#: Three of one moment, which share their first 10 characters, then one of a later second.
IDS = [new_id(START_US, Random(seed)) for seed in (1, 2, 3)] + [new_id(START_US + 60 * SECOND, Random(4))]


async def _store(url: str) -> Store:
    store = open_store_from_url(url, clock=SystemClock())
    await store.open()
    await apply(store, [TaskDefinition("default", "report", ShellSpec("true"))], now_us=START_US)
    requests = [SubmitRequest(task="report", id=identifier) for identifier in IDS]
    await submit(store, requests, now_us=START_US, rng=Random(5))
    return store


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_beginning_stands_for_the_only_id_that_begins_so(kind: str, tmp_path: Path) -> None:
    async def story() -> None:
        store = await _store("memory:" if kind == "memory" else f"sqlite:///{tmp_path}/ids.db")
        try:
            for identifier in IDS:
                assert await resolve_ids(store, [identifier]) == [identifier]
                assert await resolve_ids(store, [identifier[:18]]) == [identifier]
                assert await resolve_ids(store, [identifier[:25].upper()]) == [identifier]
            assert await resolve_ids(store, [IDS[3][:10], IDS[0]]) == [IDS[3], IDS[0]]
            with pytest.raises(UserError, match="3 instances have an id that begins with") as refused:
                await resolve_ids(store, [IDS[0][:10]])
            assert (refused.value.code, refused.value.field) == ("INVALID_VALUE", "ID")
            for unknown in (IDS[0][:7], "", "zzzzzzzzzz", "00000000", IDS[0][:9] + "~", "a b c d e f"):
                assert await resolve_ids(store, [unknown]) == [unknown]
        finally:
            await store.close()

    asyncio.run(story())
