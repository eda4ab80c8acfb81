"""Contract of stores: moves of instances, expected states, dependent history, data errors."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ostinato.core.failure.failure import Failure
from ostinato.core.model import HistoryKind, Instance
from ostinato.core.retry.counters import Counters
from ostinato.core.states import Hold, State
from ostinato.store.batches import (
    Assign,
    CommitBatch,
    CommitReport,
    EndAttempt,
    EndWaiting,
    HoldWaiting,
    Replay,
    RequestCancel,
    Submission,
    Success,
)
from ostinato.store.protocol import Store
from ostinato.store.rules import Move
from ostinato.testing.contracts.store_kit import (
    HOUR,
    MINUTE,
    SECOND,
    T0,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_assign,
    make_instance,
    make_success,
)

FAILURE = Failure("ECONNREFUSED", "transient", "no \u0000 answer \U0001f600", traceback="line\n" * 50)
SURROGATE = "\ud800"


def _replay(row: Instance) -> Replay:
    return Replay(
        instance_id=row.id,
        partition=row.partition,
        expected_state=row.state,
        expected_generation=row.generation,
        task_version=2,
        payload=b'{"again":true}',
        due_us=T0 + HOUR,
        expires_us=T0 + 2 * HOUR,
        reason="asked by ada",
    )


class CommitContract:
    async def test_an_empty_batch_is_no_error(self, store: Store) -> None:
        assert await store.commit(CommitBatch()) == CommitReport()

    async def test_assign_begins_the_next_attempt_and_clears_the_hold(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(1, expires_us=T0 + HOUR)
        await owner.submit(row)
        batch = owner.batch()
        batch.holds = [
            HoldWaiting(row.id, 3, State.PENDING, 0, Hold.NO_WORKER, "no worker knows default/report")
        ]
        assert await store.commit(batch) == CommitReport()
        held = await owner.get(row.id)
        assert (held.state, held.hold) == (State.PENDING, Hold.NO_WORKER)
        assert held.reason == "no worker knows default/report"
        batch = owner.batch()
        batch.assigns = [make_assign(held)]
        assert await store.commit(batch) == CommitReport()
        running = await owner.get(row.id)
        assert (running.state, running.attempt, running.attempt_id) == (State.RUNNING, 1, "a1-i000001")
        assert (running.worker_id, running.worker_name) == ("worker-1", "w1")
        assert (running.hold, running.reason) == (None, "")
        assert (running.assigned_us, running.started_us) == (T0 + SECOND, None)

    async def test_success_keeps_result_and_times(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.finish(make_instance(1))
        assert (row.state, row.result) == (State.SUCCESS, b'{"ok":true}')
        assert (row.started_us, row.finished_us) == (T0 + SECOND, T0 + 2 * SECOND)
        (without,) = await owner.run(make_instance(2))
        batch = owner.batch()
        batch.successes = [make_success(without, result=None, started_us=None)]
        await store.commit(batch)
        row = await owner.get(without.id)
        assert (row.result, row.started_us) == (None, None)

    async def test_a_failed_attempt_waits_for_its_retry(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        counters = Counters(2, 1, 3, 4, 5_000_000, T0)
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(row, counters=counters, failure=FAILURE)]
        batch.history = [history_row(row, failure=FAILURE, due_us=T0 + MINUTE, by="ada", code="X")]
        assert await store.commit(batch) == CommitReport()
        waiting = await owner.get(row.id)
        assert (waiting.state, waiting.reason) == (State.RETRY_WAITING, "retry 1 of 3")
        assert (waiting.counters, waiting.failure) == (counters, FAILURE)
        assert (waiting.due_us, waiting.expires_us) == (T0 + MINUTE, T0 + HOUR)
        assert (waiting.finished_us, waiting.attempt) == (None, 1)
        assert await store.history(row.id) == batch.history
        batch = owner.batch()
        batch.assigns = [make_assign(waiting)]
        await store.commit(batch)
        assert (await owner.get(row.id)).attempt == 2

    async def test_an_attempt_refused_unstarted_leaves_the_stored_failure(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        for failure in (FAILURE, None):
            batch = owner.batch()
            batch.ended_attempts = [end_attempt(row, failure=failure)]
            await store.commit(batch)
            batch = owner.batch()
            batch.assigns = [make_assign(await owner.get(row.id))]
            await store.commit(batch)
            row = await owner.get(row.id)
            assert row.failure == FAILURE

    @pytest.mark.parametrize("state", [State.FAILED, State.CANCELLED])
    async def test_a_terminal_end_ignores_the_due_time(self, store: Store, state: State) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(row, state, failure=FAILURE)]
        assert await store.commit(batch) == CommitReport()
        ended = await owner.get(row.id)
        assert (ended.state, ended.due_us, ended.expires_us) == (state, T0, None)
        assert (ended.finished_us, ended.failure) == (T0 + 2 * SECOND, FAILURE)

    @pytest.mark.parametrize(
        ("source", "target"),
        [
            (State.PENDING, State.FAILED),
            (State.PENDING, State.CANCELLED),
            (State.BLOCKED, State.SKIPPED),
            (State.BLOCKED, State.CANCELLED),
        ],
    )
    async def test_what_waits_can_end_without_an_attempt(
        self, store: Store, source: State, target: State
    ) -> None:
        owner = await Owner.of(store)
        hold = Hold.PAUSED if source is State.PENDING else None
        row = make_instance(1, state=source, hold=hold)
        await owner.submit(row)
        batch = owner.batch()
        batch.ended_waiting = [EndWaiting(row.id, 3, source, 0, target, "why", T0 + SECOND, FAILURE)]
        assert await store.commit(batch) == CommitReport()
        ended = await owner.get(row.id)
        assert (ended.state, ended.hold, ended.reason) == (target, None, "why")
        assert (ended.finished_us, ended.failure) == (T0 + SECOND, FAILURE)

    async def test_the_first_wish_to_cancel_stands(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        for number, reason in enumerate(("first", "second")):
            batch = owner.batch()
            batch.cancel_requests = [RequestCancel(row.id, 3, 1, T0 + number, reason)]
            assert await store.commit(batch) == CommitReport()
        row = await owner.get(row.id)
        assert (row.state, row.cancel_requested_us, row.cancel_reason) == (State.RUNNING, T0, "first")

    @pytest.mark.parametrize("target", [State.RETRY_WAITING, State.FAILED])
    async def test_c129_a_failure_decided_without_knowing_of_a_cancel_matches_nothing(
        self, store: Store, target: State
    ) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        batch = owner.batch()
        batch.cancel_requests = [RequestCancel(row.id, 3, 1, T0, "stop")]
        await store.commit(batch)
        for state, unmatched in ((target, {row.id}), (State.CANCELLED, set[str]())):
            batch = owner.batch()
            batch.ended_attempts = [end_attempt(row, state, failure=FAILURE)]
            assert (await store.commit(batch)).unmatched == unmatched
        assert (await owner.get(row.id)).state is State.CANCELLED

    async def test_replay_begins_a_generation_and_forgets_the_last(self, store: Store) -> None:
        """I7: only a replay leaves a terminal state; the attempt number only ever rises."""
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        batch = owner.batch()
        batch.cancel_requests = [RequestCancel(row.id, 3, 1, T0, "stop")]
        await store.commit(batch)
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(row, State.CANCELLED, failure=FAILURE)]
        await store.commit(batch)
        batch = owner.batch()
        batch.replays = [_replay(await owner.get(row.id))]
        assert await store.commit(batch) == CommitReport()
        expected = make_instance(
            1,
            generation=2,
            attempt=1,
            task_version=2,
            payload=b'{"again":true}',
            due_us=T0 + HOUR,
            expires_us=T0 + 2 * HOUR,
            reason="asked by ada",
        )
        assert await owner.get(row.id) == expected
        assert (await store.commit(batch)).unmatched == {row.id}

    # ── expected state ───────────────────────────────────────────────────────────────────────────────

    @pytest.mark.parametrize(
        "change",
        [
            lambda row: make_success(row, expected_attempt=2),
            lambda row: make_success(row, attempt_id="another"),
            lambda row: end_attempt(row, expected_attempt=0),
            lambda row: end_attempt(row, attempt_id="another"),
            lambda row: make_assign(row, expected_state=State.PENDING, expected_attempt=0),
            lambda row: make_assign(row, expected_state=State.RETRY_WAITING),
            lambda row: RequestCancel(row.id, 3, 2, T0, "stop"),
            lambda row: HoldWaiting(row.id, 3, State.PENDING, 1, Hold.BUSY, "busy"),
            lambda row: EndWaiting(row.id, 3, State.PENDING, 1, State.FAILED, "late", T0),
            lambda row: make_success(row, instance_id="nobody"),
        ],
    )
    async def test_a_row_in_another_state_or_attempt_is_left_alone(
        self, store: Store, change: Callable[[Instance], Move]
    ) -> None:
        """I6: a stale result is refused; what depends on it is not written, what does not is."""
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        move = change(row)
        batch = owner.batch()
        name = {
            Assign: "assigns",
            Success: "successes",
            EndAttempt: "ended_attempts",
            HoldWaiting: "holds",
            EndWaiting: "ended_waiting",
            RequestCancel: "cancel_requests",
        }[type(move)]
        setattr(batch, name, [move])
        late = history_row(row, HistoryKind.LATE_RESULT, unconditional=True)
        batch.history = [history_row(row), late]
        report = await store.commit(batch)
        assert report.unmatched in ({row.id}, {"nobody"})
        assert await owner.get(row.id) == row
        if report.unmatched == {row.id}:
            assert await store.history(row.id) == [late]

    async def test_of_many_moves_only_the_unmatched_is_left_out(self, store: Store) -> None:
        owner = await Owner.of(store)
        running = await owner.run(*[make_instance(number) for number in range(300)])
        batch = owner.batch()
        batch.successes = [
            make_success(row, attempt_id="stale" if number == 137 else row.attempt_id)
            for number, row in enumerate(running)
        ]
        batch.history = [history_row(row) for row in running]
        assert await store.commit(batch) == CommitReport(unmatched=frozenset({"i000137"}))
        assert await counts(store) == {"running": 1, "success": 299}
        assert await store.history("i000137") == []
        assert len(await store.history("i000136")) == 1

    async def test_history_stays_in_the_order_written(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(1)
        await owner.submit(row)
        for part in range(3):
            batch = owner.batch()
            batch.history = [history_row(row, at_us=T0 - part, sentence=f"{part}{n}") for n in range(3)]
            await store.commit(batch)
        sentences = [entry.sentence for entry in await store.history(row.id)]
        assert sentences == ["00", "01", "02", "10", "11", "12", "20", "21", "22"]

    # ── data that cannot be stored ───────────────────────────────────────────────────────────────────

    async def test_one_bad_row_does_not_stop_a_group(self, store: Store) -> None:
        """A lone surrogate in one of 300 rows: it is named, with nothing of it written, and the rest is."""
        owner = await Owner.of(store)
        running = await owner.run(*[make_instance(number) for number in range(300)])
        batch = owner.batch()
        batch.ended_attempts = [
            end_attempt(row, reason=SURROGATE if number == 41 else "ok") for number, row in enumerate(running)
        ]
        batch.history = [history_row(row) for row in running]
        report = await store.commit(batch)
        assert set(report.rejected) == {"i000041"}
        assert report.rejected["i000041"].isprintable()
        assert not report.unmatched
        assert await store.history("i000041") == []
        assert await counts(store) == {"running": 1, "retry_waiting": 299}

    async def test_bad_history_keeps_its_move_from_being_written(self, store: Store) -> None:
        owner = await Owner.of(store)
        rows = await owner.run(make_instance(1), make_instance(2))
        batch = owner.batch()
        batch.successes = [make_success(row) for row in rows]
        batch.history = [history_row(rows[0], sentence=SURROGATE), history_row(rows[1])]
        report = await store.commit(batch)
        assert set(report.rejected) == {"i000001"}
        assert await owner.get("i000001") == rows[0]
        assert (await owner.get("i000002")).state is State.SUCCESS

    @pytest.mark.parametrize(
        "fields",
        [
            {"state": State.RUNNING, "attempt": 1, "attempt_id": "a", "assigned_us": T0},
            {"state": State.SUCCESS, "finished_us": T0},
            {"state": State.SKIPPED},
            {"finished_us": T0},
            {"state": State.BLOCKED, "hold": Hold.BUSY},
            {"priority": 10},
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
            {"shard": 2, "shard_total": 2},
            {"attempt": 1},
            {"due_us": 2**63},
        ],
    )
    async def test_a_birth_that_breaks_the_table_of_states_is_rejected(
        self, store: Store, fields: dict[str, object]
    ) -> None:
        owner = await Owner.of(store)
        batch = owner.batch()
        batch.inserts = [make_instance(1, **fields), make_instance(2)]
        report = await store.commit(batch)
        assert set(report.rejected) == {"i000001"}
        assert set(await store.get_instances(["i000001", "i000002"])) == {"i000002"}

    async def test_a_move_outside_the_table_of_states_is_rejected(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.finish(make_instance(1))
        for name, move in (
            ("assigns", make_assign(row)),
            ("ended_waiting", EndWaiting(row.id, 3, State.SUCCESS, 1, State.FAILED, "no", T0)),
            ("ended_attempts", end_attempt(row, State.SUCCESS)),
            ("ended_attempts", end_attempt(row, State.FAILED, finished_us=None)),
            ("replays", _replay(make_instance(1, state=State.RUNNING))),
        ):
            batch = owner.batch()
            setattr(batch, name, [move])
            assert set((await store.commit(batch)).rejected) == {row.id}
        assert await owner.get(row.id) == row

    @pytest.mark.parametrize(
        "payload",
        [
            b"{}",
            b'{"n":' + b"9" * 400 + b"}",
            '{"text":"\\u0000 \U0001f600 é"}'.encode(),
            b"\x00raw\xff",
            b'{"long":"' + b"x" * 262_000 + b'"}',
        ],
        ids=["empty", "huge-integer", "unicode", "raw-bytes", "256-KiB"],
    )
    async def test_payload_and_result_come_back_byte_for_byte(self, store: Store, payload: bytes) -> None:
        owner = await Owner.of(store)
        rows = [make_instance(1, payload=payload), make_instance(2)]
        await store.submit([Submission(instance=row) for row in rows])
        found = await store.find_work(range(64), now_us=T0, limit=10)
        assert [row.payload for row in found.instances] == [payload, b'{"a":1}']
        batch = owner.batch()
        batch.assigns = [make_assign(row) for row in rows]
        await store.commit(batch)
        batch = owner.batch()
        batch.successes = [make_success(await owner.get(row.id), result=payload) for row in rows]
        await store.commit(batch)
        assert (await owner.get("i000001")).payload == payload
        assert (await owner.get("i000001")).result == payload
