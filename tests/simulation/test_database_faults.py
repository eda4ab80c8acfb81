"""What can be wrong with the simulated database: each fault does what it says, and mending it helps."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from support.simulated_database import DatabaseStage

from ostinato.core.instants import MILLISECOND, SECOND
from ostinato.errors import UnavailableError
from ostinato.simulation.database_calls import Transaction
from ostinato.simulation.database_clock import BELIEVED_US
from ostinato.simulation.database_locks import exclusive
from ostinato.simulation.database_store import SimulatedStore
from ostinato.simulation.history import RowCommitted
from ostinato.store.batches import NodeRow
from ostinato.testing.contracts.store_kit import T0, make_submission
from ostinato.testing.virtual_clock import START_US, run_virtual

MINUTE = 60 * SECOND


async def code_of(call: Awaitable[object]) -> str:
    """Code of the error with which a call ends; ``OK`` for none."""
    try:
        await call
    except UnavailableError as error:
        return error.code
    return "OK"


async def is_there(store: SimulatedStore, number: int) -> bool:
    return bool(await store.get_instances([f"i{number:06}"]))


def test_an_answer_that_is_lost_leaves_it_open_whether_it_was_written() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store, other = stage.store("client"), stage.store("other")
        told: list[tuple[str, bool]] = []
        for number in range(100):
            stage.server.break_connections("client", there_share=0.15, back_share=0.15)
            code = await code_of(store.submit([make_submission(number)]))
            stage.server.keep_connections("client")
            await stage.pass_us(20 * SECOND)
            told.append((code, await is_there(other, number)))
        assert {pair for pair in told if pair[0] == "OK"} == {("OK", True)}
        assert ("DATABASE_UNAVAILABLE", True) in told
        assert ("DATABASE_UNAVAILABLE", False) in told

    run_virtual(main())


def test_a_slow_commit_is_seen_after_its_caller_has_given_up() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store, other = stage.store("client"), stage.store("other")
        stage.server.slow_commits(1.0, (15 * SECOND, 15 * SECOND + 1))
        began_us = stage.loop.elapsed_us
        assert await code_of(store.submit([make_submission(1)])) == "DATABASE_UNAVAILABLE"
        assert 10 * SECOND <= stage.loop.elapsed_us - began_us < 11 * SECOND
        stage.server.full_speed()
        assert not await is_there(other, 1)
        await stage.pass_us(6 * SECOND)
        assert await is_there(other, 1)

    run_virtual(main())


def test_rows_become_visible_out_of_order_and_after_their_instants() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        first, second = stage.store("first"), stage.store("second")
        stage.server.slow_commits(1.0, (3 * SECOND, 3 * SECOND + 1))
        early = asyncio.create_task(first.submit([make_submission(1, created_us=T0)]))
        await stage.pass_us(SECOND)
        stage.server.full_speed()
        await second.submit([make_submission(2, created_us=T0 + SECOND)])
        assert [await is_there(second, 1), await is_there(second, 2)] == [False, True]
        await early
        created = [told.after.created_us for told in stage.of(RowCommitted) if told.after is not None]
        assert created == [T0 + SECOND, T0]

    run_virtual(main())


def test_a_slow_statement_keeps_its_locks_and_ends_within_the_deadline() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        stage.server.slow_statements(1.0, (MINUTE, MINUTE + 1))
        began_us = stage.loop.elapsed_us
        assert await code_of(store.now_us()) == "DATABASE_UNAVAILABLE"
        assert stage.loop.elapsed_us - began_us == 10 * SECOND
        stage.server.full_speed()
        assert await code_of(store.now_us()) == "OK"

    run_virtual(main())


def test_a_stalled_server_hangs_every_call_to_its_deadline_and_carries_out_late_what_had_come_in() -> None:
    async def main() -> None:
        happened: list[bool] = []
        for seed in range(12):
            stage = DatabaseStage(seed)
            store, node = stage.store("client"), stage.store("node")
            await store.submit([make_submission(0)])
            await node.register_node(NodeRow("node-1", 0, "", T0))
            has_locked = asyncio.Event()

            async def insert(
                transaction: Transaction, stage: DatabaseStage = stage, has_locked: asyncio.Event = has_locked
            ) -> None:
                await transaction.lock(exclusive([("key", "k")]))
                has_locked.set()
                rows = [make_submission(1).instance]
                await transaction.commit(lambda: [stage.server.tables.put(row) for row in rows])

            submitting = asyncio.create_task(store.calls.run("submitting", insert, role="people"))
            await has_locked.wait()
            stage.server.stall()
            began_us = stage.loop.elapsed_us
            assert await code_of(node.renew_node("node-1")) == "DATABASE_UNAVAILABLE"
            # Half a second more than a renewal may take.
            assert stage.loop.elapsed_us - began_us <= 2 * SECOND
            assert await code_of(submitting) == "DATABASE_UNAVAILABLE"
            assert stage.loop.elapsed_us - began_us <= 10 * SECOND
            stage.server.resume()
            assert await node.renew_node("node-1")
            await stage.pass_us(SECOND)
            happened.append(await is_there(node, 1))
        assert set(happened) == {True, False}

    run_virtual(main())


def test_a_restart_ends_sessions_and_their_locks_and_calls_fail_until_it_is_up_again() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        first, second = stage.store("first"), stage.store("second")
        await first.register_node(NodeRow("node-1", 0, "", T0))
        await second.watch_nodes()
        identity = await first.identity()
        stage.server.restart(3 * SECOND)
        assert await code_of(first.renew_node("node-1")) == "DATABASE_UNAVAILABLE"
        await stage.pass_us(3 * SECOND)
        # All locks are free, but this session has not seen any of them held.
        assert (await second.watch_nodes()).freed == frozenset()
        assert await first.renew_node("node-1")
        assert await first.identity() == identity

    run_virtual(main())


def test_a_stalled_server_that_is_replaced_answers_again() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        await store.submit([make_submission(1)])
        stage.server.stall()
        reading = asyncio.create_task(store.nodes())
        await stage.pass_us(SECOND)
        stage.server.fail_over(0)
        await stage.pass_us(SECOND)
        assert reading.done()
        assert await is_there(store, 1)

    run_virtual(main())


def test_a_short_restart_is_repeated_over() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        await store.submit([make_submission(1)])
        stage.server.restart(50 * MILLISECOND)
        assert await code_of(store.submit([make_submission(2)])) == "OK"
        assert len(stage.of(RowCommitted)) == 2

    run_virtual(main())


def test_a_failover_keeps_the_rows_and_changes_the_identity() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        await store.submit([make_submission(1)])
        before = await store.identity()
        stage.server.fail_over(SECOND)
        await stage.pass_us(2 * SECOND)
        assert await store.identity() != before
        assert await is_there(store, 1)

    run_virtual(main())


def test_a_full_disk_refuses_rows_for_certain_and_small_writes_only_if_it_says_so() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("node")
        await store.register_node(NodeRow("node-1", 0, "", T0))
        stage.server.fill_disk(small_writes_fit=True)
        assert await code_of(store.submit([make_submission(1)])) == "DATABASE_FULL"
        assert await store.renew_node("node-1")
        stage.server.fill_disk(small_writes_fit=False)
        assert await code_of(store.renew_node("node-1")) == "DATABASE_FULL"
        assert not await is_there(store, 1)
        stage.server.free_disk()
        assert await code_of(store.submit([make_submission(1)])) == "OK"
        assert [row.renewals for row in await store.nodes()] == [1]

    run_virtual(main())


def test_a_read_only_server_answers_reads_alone() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        stage.server.set_read_only()
        assert await code_of(store.submit([make_submission(1)])) == "DATABASE_UNAVAILABLE"
        assert not await is_there(store, 1)
        stage.server.set_writable()
        assert await code_of(store.submit([make_submission(1)])) == "OK"

    run_virtual(main())


async def _cut(stage: DatabaseStage) -> None:
    stage.server.silence("node")


async def _cut_answers(stage: DatabaseStage) -> None:
    stage.server.silence("node", there=False)


async def _refuse(stage: DatabaseStage) -> None:
    stage.server.refuse("node")


@pytest.mark.parametrize("cut", [_cut, _cut_answers, _refuse])
def test_a_process_that_is_cut_off_loses_its_lock_after_seconds_and_comes_back_when_mended(
    cut: Callable[[DatabaseStage], Awaitable[None]],
) -> None:
    async def main() -> None:
        stage = DatabaseStage()
        node, watcher = stage.store("node"), stage.store("watcher")
        await node.register_node(NodeRow("node-1", 0, "", T0))
        await watcher.watch_nodes()
        await cut(stage)
        began_us = stage.loop.elapsed_us
        assert await code_of(node.renew_node("node-1")) == "DATABASE_UNAVAILABLE"
        assert await code_of(node.now_us()) == "DATABASE_UNAVAILABLE"
        assert stage.loop.elapsed_us - began_us <= 12 * SECOND
        await stage.pass_us(SECOND)
        assert (await watcher.watch_nodes()).freed == {"node-1"}
        stage.server.reconnect("node")
        assert await node.renew_node("node-1")
        assert (await watcher.watch_nodes()).freed == frozenset()

    run_virtual(main())


def test_what_was_sent_in_a_short_silence_arrives_when_it_ends() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        store = stage.store("client")
        await store.submit([make_submission(1)])
        stage.server.silence("client")
        submitting = asyncio.create_task(store.submit([make_submission(2)]))
        await stage.pass_us(SECOND)
        assert not submitting.done()
        stage.server.reconnect("client")
        assert [receipt.created for receipt in await submitting] == [True]

    run_virtual(main())


def test_a_lock_that_is_lost_unnoticed_looks_free_while_its_node_renews_itself() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        node, watcher = stage.store("node"), stage.store("watcher")
        await node.register_node(NodeRow("node-1", 0, "", T0))
        await watcher.watch_nodes()
        stage.server.lose_node_locks("node")
        assert await node.renew_node("node-1")
        assert (await watcher.watch_nodes()).freed == {"node-1"}
        stage.server.end_sessions("node")
        assert await node.renew_node("node-1")
        assert (await watcher.watch_nodes()).freed == frozenset()

    run_virtual(main())


def test_hints_are_lost_or_late_and_the_wait_ends_at_its_time_all_the_same() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        node, client = stage.store("node"), stage.store("client")
        ends_us: list[int] = []
        for lost_share, delay_us in ((1.0, (0, 1)), (0.0, (2 * SECOND, 2 * SECOND + 1)), (0.0, (0, 1))):
            stage.server.disturb_hints(lost_share=lost_share, delay_us=delay_us)
            began_us = stage.loop.elapsed_us
            waiter = asyncio.create_task(node.wait_for_change(stage.clock.boot_us() + 5 * SECOND))
            await stage.pass_us(MILLISECOND)
            await client.submit([make_submission(len(ends_us))])
            await waiter
            ends_us.append((stage.loop.elapsed_us - began_us) // (100 * MILLISECOND))
        assert ends_us == [50, 20, 0]

    run_virtual(main())


def test_the_clock_of_the_database_jumps_drifts_and_is_corrected() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        clock = stage.server.clock
        await stage.pass_us(10 * SECOND)
        assert clock.wall_us() == START_US + 10 * SECOND
        stage.server.jump_clock(-3 * SECOND)
        stage.server.drift_clock(100_000)
        await stage.pass_us(10 * SECOND)
        assert clock.wall_us() == START_US + 18 * SECOND
        stage.server.correct_clock()
        await stage.pass_us(SECOND)
        assert clock.wall_us() == START_US + 21 * SECOND

    run_virtual(main())


def test_what_the_clock_has_shown_may_be_believed_for_a_minute() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        clock = stage.server.clock
        clock.is_told("n")
        clock.jump(-20 * SECOND)
        for _ in range(6):
            await stage.pass_us(10 * SECOND)
            # It is told in time, and after that another has asked that never was.
            clock.is_told("n")
            clock.asks("new")
            assert clock.believed_us() == (clock.wall_us(), clock.wall_us() + 20 * SECOND)
        await stage.pass_us(SECOND)
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())

    run_virtual(main())


@pytest.mark.parametrize("told_again", ["asks", "is_told"])
def test_the_minute_begins_anew_for_a_node_that_has_been_told_nothing_meanwhile(told_again: str) -> None:
    """It was cut off and asked in vain, or stood still while its answer waited."""

    async def main() -> None:
        stage = DatabaseStage()
        clock = stage.server.clock
        clock.is_told("n")
        clock.jump(-20 * SECOND)
        await stage.pass_us(90 * SECOND)
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())
        getattr(clock, told_again)("n")
        await stage.pass_us(BELIEVED_US)
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us() + 20 * SECOND)
        await stage.pass_us(SECOND)
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())

    run_virtual(main())


def test_a_time_whose_minute_was_over_when_the_node_was_told_is_believed_no_more() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        clock = stage.server.clock
        clock.jump(-20 * SECOND)
        await stage.pass_us(BELIEVED_US + SECOND)
        clock.is_told("n")
        await stage.pass_us(90 * SECOND)
        clock.asks("n")
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())

    run_virtual(main())


def test_a_store_that_keeps_time_tells_the_clock_of_its_questions_and_answers() -> None:
    async def main() -> None:
        stage = DatabaseStage()
        clock = stage.server.clock
        node, client = stage.store("n"), stage.store("c")
        node.keeps_time = True
        await node.now_us()
        await client.now_us()
        clock.jump(-20 * SECOND)
        await stage.pass_us(90 * SECOND)
        await client.now_us()
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())
        stage.server.stall()
        question = asyncio.ensure_future(node.now_us())
        await stage.pass_us(SECOND)
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us() + 20 * SECOND)
        stage.server.resume()
        assert await question <= clock.wall_us()
        for _ in range(7):
            await stage.pass_us(9 * SECOND)
            await node.now_us()
        assert clock.believed_us() == (clock.wall_us(), clock.wall_us())

    run_virtual(main())
