"""Contract of stores: submissions, their keys, and their number."""

from __future__ import annotations

import asyncio

import pytest

from ostinato.core.states import Hold, State
from ostinato.errors import UserError
from ostinato.store.batches import Submission, SubmitReceipt
from ostinato.store.hints import named
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    ALL,
    MINUTE,
    REF,
    T0,
    ContractClock,
    Owner,
    counts,
    make_assign,
    make_definition,
    make_instance,
    make_submission,
)


class SubmitContract:
    async def test_nothing_submitted_is_nothing_received(self, store: Store) -> None:
        assert await store.submit([]) == []

    async def test_a_submission_comes_back_as_it_was(self, store: Store) -> None:
        row = make_instance(
            1,
            expires_us=T0 + MINUTE,
            shard=1,
            shard_total=3,
            reason="é \U0001f600",
            key="k",
            fire_trigger="t",
        )
        assert await store.submit([Submission(instance=row)]) == [SubmitReceipt(row.id, created=True)]
        assert await store.get_instances([row.id, "nobody", row.id]) == {row.id: row}
        assert await store.get_instances([]) == {}

    async def test_a_stored_row_does_not_change_with_its_submitter(self, store: Store) -> None:
        row = make_instance(1)
        await store.submit([Submission(instance=row)])
        row.state = State.RUNNING
        found = (await store.get_instances([row.id]))[row.id]
        assert found.state is State.PENDING
        found.state = State.FAILED
        assert (await store.get_instances([row.id]))[row.id].state is State.PENDING

    @pytest.mark.parametrize("count", [1, 999, 1_000, 32_767])
    async def test_c121_any_number_is_accepted_whole(self, store: Store, count: int) -> None:
        receipts = await store.submit([make_submission(number) for number in range(count)])
        assert len(receipts) == count
        assert all(receipt.created for receipt in receipts)
        assert await counts(store) == {"pending": count}

    async def test_c141_a_repeated_submission_creates_nothing(self, store: Store) -> None:
        """The answer to the first was lost: known ids count as created before."""
        await store.submit([make_submission(number) for number in range(0, 300, 2)])
        receipts = await store.submit([make_submission(number) for number in range(300)])
        assert [receipt.created for receipt in receipts] == [number % 2 == 1 for number in range(300)]
        assert not any(receipt.conflict for receipt in receipts)
        assert await counts(store) == {"pending": 300}

    async def test_a_submission_for_a_task_as_it_was_seen_is_none_where_that_has_changed(
        self, store: Store
    ) -> None:
        async def submitted(number: int, *, version: int) -> SubmitReceipt | None:
            row = make_instance(number, task_version=version, reason="é", expires_us=T0 + MINUTE)
            return await store.submit_if_newest(Submission(instance=row))

        owner = await Owner.of(store)
        assert await submitted(1, version=1) is None
        await store.apply([make_definition()], now_us=T0)
        assert await submitted(1, version=1) == SubmitReceipt("i000001", created=True)
        assert await submitted(1, version=1) == SubmitReceipt("i000001", created=False)
        expected = make_instance(1, task_version=1, reason="é", expires_us=T0 + MINUTE)
        assert await owner.get("i000001") == expected
        await store.apply([make_definition(command="false")], now_us=T0)
        assert await submitted(2, version=1) is None
        assert await submitted(2, version=2) == SubmitReceipt("i000002", created=True)
        await owner.disable(REF)
        assert await submitted(3, version=2) is None
        await owner.delete(REF)
        assert await submitted(3, version=2) is None
        assert await counts(store) == {"pending": 2}

    @pytest.mark.parametrize("fields", [{"reason": "\ud800"}, {"partition": -1}, {"priority": 10}])
    async def test_a_submission_for_a_task_as_it_was_seen_is_refused_as_any_other(
        self, store: Store, fields: dict[str, object]
    ) -> None:
        await store.apply([make_definition()], now_us=T0)
        submission = Submission(instance=make_instance(1, **fields))
        with pytest.raises(UserError) as alone:
            await store.submit_if_newest(submission)
        with pytest.raises(UserError) as listed:
            await store.submit([submission])
        assert str(alone.value) == str(listed.value)
        assert await counts(store) == {}

    async def test_a_repeat_does_not_touch_a_row_that_has_moved_on(self, store: Store) -> None:
        owner = await Owner.of(store)
        (finished,) = await owner.finish(make_instance(1))
        assert await store.submit([make_submission(1)]) == [SubmitReceipt("i000001", created=False)]
        assert await owner.get("i000001") == finished

    @pytest.mark.parametrize(
        "fields",
        [
            {"reason": "\ud800"},
            {"due_us": 2**63},
            {"priority": -1},
            {"priority": 1.5},
            {"priority": True},
            {"priority": "5"},
            {"due_us": float(T0)},
            {"created_us": None},
            {"expires_us": 0.5},
            {"fire_us": "1"},
            {"shard": False},
            {"shard_total": 2.0},
            {"payload": "{}"},
            {"reason": 5},
            {"state": State.RUNNING},
            {"partition": 64},
            {"shard_total": 0},
        ],
    )
    async def test_a_row_that_cannot_be_stored_refuses_them_all(
        self, store: Store, fields: dict[str, object]
    ) -> None:
        good = [make_submission(number) for number in range(200)]
        bad = Submission(instance=make_instance(200, **fields))
        with pytest.raises(UserError) as caught:
            await store.submit([*good, bad, make_submission(201, key="k")])
        assert (caught.value.code, caught.value.subject) == ("INVALID_VALUE", "i000200")
        assert await counts(store) == {}
        assert (await store.submit([make_submission(300, key="k")]))[0].created

    async def test_what_a_hint_names_is_assigned_without_a_look(self, store: Store) -> None:
        """Where hints name nothing there is nothing to assign so."""
        owner = await Owner.of(store)
        rows = [
            make_instance(1, created_us=T0, due_us=T0, payload=b'{"a":1}', expires_us=T0 + MINUTE),
            make_instance(2, created_us=T0, due_us=T0 + 1),
            make_instance(3, created_us=T0, due_us=T0, hold=Hold.PAUSED),
            make_instance(4, created_us=T0, due_us=T0),
        ]
        for row in rows:
            await store.submit([Submission(instance=row)])
        hinted = store.take_hinted()
        assert hinted in ([], [named(rows[0]), named(rows[3])])
        assert store.take_hinted() == []
        batch = owner.batch()
        batch.assigns = [make_assign(row, wants_payload=True) for row in hinted]
        assert (await store.commit(batch)).payloads == {row.id: rows[0].payload for row in hinted[:1]} | {
            row.id: rows[3].payload for row in hinted[1:]
        }
        # Nobody is told the payload of what somebody else has moved.
        report = await store.commit(batch)
        assert report.unmatched == {row.id for row in hinted}
        assert report.payloads == {}

    # ── keys ─────────────────────────────────────────────────────────────────────────────────────────

    async def test_a_live_key_answers_with_its_instance(self, store: Store) -> None:
        assert await store.submit([make_submission(1, key="order-1")]) == [SubmitReceipt("i000001", True)]
        assert await store.submit([make_submission(2, key="order-1")]) == [SubmitReceipt("i000001", False)]
        other = make_submission(3, key="order-1")
        other.request_hash = "different"
        assert await store.submit([other]) == [SubmitReceipt("i000001", created=False, conflict=True)]
        assert await counts(store) == {"pending": 1}

    async def test_a_key_belongs_to_its_task(self, store: Store) -> None:
        receipts = await store.submit(
            [
                make_submission(1, key="k"),
                make_submission(2, key="k", task="other"),
                make_submission(3, key="k", namespace="else"),
                make_submission(4, key="K"),
            ]
        )
        assert [receipt.created for receipt in receipts] == [True] * 4

    async def test_repeats_within_one_list_meet_the_first(self, store: Store) -> None:
        conflict = make_submission(3, key="k")
        conflict.request_hash = "different"
        receipts = await store.submit(
            [
                make_submission(1, key="k"),
                make_submission(2, key="k"),
                conflict,
                make_submission(4),
                make_submission(4),
            ]
        )
        assert receipts == [
            SubmitReceipt("i000001", created=True),
            SubmitReceipt("i000001", created=False),
            SubmitReceipt("i000001", created=False, conflict=True),
            SubmitReceipt("i000004", created=True),
            SubmitReceipt("i000004", created=False),
        ]

    async def test_c143_a_key_is_replaced_exactly_when_it_has_expired(
        self, store: Store, clock: ContractClock
    ) -> None:
        await store.submit([make_submission(1, key="k")])
        clock.now_us = T0 + MINUTE - 1
        assert await store.submit([make_submission(2, key="k")]) == [SubmitReceipt("i000001", created=False)]
        clock.now_us = T0 + MINUTE
        # Made while the key was alive, however late it comes.
        slow = make_submission(2, key="k", created_us=T0 + MINUTE - 1)
        assert await store.submit([slow]) == [SubmitReceipt("i000001", created=False)]
        late = make_submission(3, key="k", created_us=T0 + MINUTE)
        late.request_hash, late.key_expires_us = "different", T0 + 2 * MINUTE
        assert await store.submit([late]) == [SubmitReceipt("i000003", created=True)]
        assert (await store.submit([make_submission(4, key="k")]))[0].conflict
        # C139: the first instance goes on beside the second.
        found = await store.find_work(ALL, now_us=T0, limit=9)
        assert [row.id for row in found.instances] == ["i000001", "i000003"]

    async def test_c137_parallel_submissions_of_one_key_agree(self, store: Store) -> None:
        receipts = await asyncio.gather(
            *(store.submit([make_submission(number, key="k")]) for number in range(200))
        )
        flat = [receipt for answer in receipts for receipt in answer]
        assert len({receipt.instance_id for receipt in flat}) == 1
        assert sum(receipt.created for receipt in flat) == 1
        assert await counts(store) == {"pending": 1}
