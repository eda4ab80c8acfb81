"""Contract of stores: the workers that nodes record, for people."""

from __future__ import annotations

import msgspec
import pytest

from ostinato.errors import UserError
from ostinato.store.batches import NodeRow, WorkerRow
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import NODE, SECOND, T0, Owner


def _worker(identifier: str, **fields: object) -> WorkerRow:
    row = WorkerRow(
        worker_id=identifier, worker_name=f"name-{identifier}", node_id=NODE, state="connected", seen_us=T0
    )
    return msgspec.structs.replace(row, **fields)


class WorkerContract:
    async def test_a_worker_is_kept_with_all_that_is_known_of_it(self, store: Store) -> None:
        await Owner.of(store)
        assert await store.workers() == []
        full = _worker(
            "a",
            worker_name="é \U0001f600",
            state="draining",
            labels={"zone": "a b", "": "\u0000"},
            capacity={"process": 4, "async": 100},
            running_count=3,
            tasks=["default/report"],
            executors=["python", "shell"],
            problems=["app: No module named 'x'\n"],
            protocol=2,
            connected_us=T0 - SECOND,
        )
        await store.record_workers([_worker("b"), full], gone_before_us=0)
        assert await store.workers() == [_worker("b"), full]

    async def test_a_later_record_replaces_the_row_of_its_node_alone(self, store: Store) -> None:
        await store.register_node(NodeRow(NODE, 0, "", T0))
        await store.record_workers([_worker("a"), _worker("b")], gone_before_us=0)
        later = _worker("a", running_count=7, seen_us=T0 + SECOND)
        elsewhere = _worker("a", node_id="node-0", state="gone")
        await store.record_workers([later, elsewhere], gone_before_us=0)
        await store.record_workers([], gone_before_us=0)
        assert await store.workers() == [elsewhere, later, _worker("b")]

    async def test_workers_of_a_node_that_is_no_more_are_gone(self, store: Store) -> None:
        await store.register_node(NodeRow(NODE, 0, "", T0))
        await store.record_workers([_worker("a")], gone_before_us=0)
        await store.remove_node(NODE)
        await store.register_node(NodeRow("node-2", 0, "", T0))
        new = _worker("a", node_id="node-2")
        await store.record_workers([new], gone_before_us=0)
        assert await store.workers() == [_worker("a", state="gone"), new]

    async def test_what_is_gone_is_deleted_after_a_while_and_nothing_else(self, store: Store) -> None:
        await store.register_node(NodeRow(NODE, 0, "", T0))
        old = _worker("a", seen_us=T0 - 9 * SECOND)
        rows = [old, _worker("b", state="gone"), _worker("c", state="gone", seen_us=T0 - 1)]
        await store.record_workers(rows, gone_before_us=T0)
        assert await store.workers() == [old, _worker("b", state="gone")]

    @pytest.mark.parametrize(
        "fields",
        [
            {"worker_name": "\ud800"},
            {"labels": {"zone": "\ud800"}},
            {"labels": {"\ud800": "a"}},
            {"problems": ["\ud800"]},
            {"seen_us": 2**63},
        ],
    )
    async def test_rows_that_cannot_be_stored_are_refused_all_together(
        self, store: Store, fields: dict[str, object]
    ) -> None:
        await store.register_node(NodeRow(NODE, 0, "", T0))
        with pytest.raises(UserError) as caught:
            await store.record_workers([_worker("a"), _worker("b", **fields)], gone_before_us=0)
        assert caught.value.code == "INVALID_VALUE"
        assert await store.workers() == []
