"""Contract of stores: definitions, requests, lists, output and retention."""

from __future__ import annotations

from functools import partial

import msgspec
import pytest

from ostinato.core.definition import ShellSpec, TaskDefinition, TaskRef
from ostinato.core.ids import partition_of
from ostinato.core.model import OutputChunk
from ostinato.core.states import Hold, State
from ostinato.errors import UserError
from ostinato.store.batches import ApplyReceipt, InstanceFilter, Request, RequestAnswer
from ostinato.store.paging import write_cursor
from ostinato.store.protocol import Store
from ostinato.testing.contracts.store_kit import (
    ALL,
    HOUR,
    MINUTE,
    REF,
    T0,
    ContractClock,
    Owner,
    counts,
    end_attempt,
    history_row,
    make_definition,
    make_instance,
    make_submission,
    make_success,
)


def _request(identifier: str, created_us: int = T0, *, partition: int = 3) -> Request:
    return Request(
        id=identifier,
        partition=partition,
        kind="cancel",
        namespace="default",
        created_us=created_us,
        task="report",
        instance_id="i000001",
        body=b'{"reason":"\\u0000"}',
        by="ada",
    )


def _chunk(sequence: int, *, attempt: int = 1, text: str = "line\n", attempt_id: str = "a1") -> OutputChunk:
    return OutputChunk(
        instance_id="i000001",
        attempt=attempt,
        attempt_id=attempt_id,
        sequence=sequence,
        at_us=T0 + sequence,
        stream="stdout",
        text=text,
    )


class DefinitionContract:
    async def test_equal_content_makes_no_new_version(self, store: Store) -> None:
        assert await store.apply([make_definition()], now_us=T0) == [ApplyReceipt(REF, 1, "created")]
        assert await store.apply([make_definition()], now_us=T0 + 1) == [ApplyReceipt(REF, 1, "unchanged")]
        changed = make_definition(command="false")
        assert await store.apply([changed], now_us=T0 + 2) == [ApplyReceipt(REF, 2, "changed")]
        task = (await store.get_tasks([REF, TaskRef("default", "none")]))[REF]
        assert (task.definition, task.version, task.scheduled_version) == (changed, 2, 0)
        assert (task.created_us, task.updated_us) == (T0, T0 + 2)
        assert (task.paused, task.disabled) == (False, False)
        assert task.partition == partition_of("default", "report", partition_count=store.partition_count)

    async def test_every_version_can_be_loaded_even_of_a_deleted_task(self, store: Store) -> None:
        await store.apply([make_definition()], now_us=T0)
        await store.apply([make_definition(command="false")], now_us=T0)
        await (await Owner.of(store)).delete(REF)
        assert await store.apply([make_definition()], now_us=T0) == [ApplyReceipt(REF, 3, "created")]
        wanted = [(REF, 1), (REF, 2), (REF, 3), (REF, 4), (TaskRef("x", "y"), 1)]
        assert await store.load_definitions(wanted) == {
            (REF, 1): make_definition(),
            (REF, 2): make_definition(command="false"),
            (REF, 3): make_definition(),
        }

    async def test_definitions_are_applied_all_or_none(self, store: Store) -> None:
        bad = TaskDefinition("default", "bad", ShellSpec(command="echo \ud800"))
        with pytest.raises(UserError) as caught:
            await store.apply([make_definition(), bad], now_us=T0)
        assert caught.value.code == "INVALID_VALUE"
        assert await store.get_tasks([REF]) == {}

    @pytest.mark.parametrize(
        "changes", [{"priority": 1.5}, {"timeout_us": "1h"}, {"queue_bound": True}, {"labels": {"zone": 1}}]
    )
    async def test_a_definition_that_could_not_be_read_back_is_refused(
        self, store: Store, changes: dict[str, object]
    ) -> None:
        bad = msgspec.structs.replace(make_definition(), **changes)
        with pytest.raises(UserError) as caught:
            await store.apply([make_definition("good"), bad], now_us=T0)
        assert caught.value.code == "INVALID_VALUE"
        assert await store.list_tasks(None, after=None, limit=9) == []

    async def test_tasks_are_listed_by_namespace_and_name(self, store: Store) -> None:
        names = [("b", "x"), ("a", "z"), ("a", "y"), ("c", "a")]
        await store.apply(
            [TaskDefinition(ns, name, ShellSpec(command="true")) for ns, name in names], now_us=T0
        )
        listed = await store.list_tasks(None, after=None, limit=3)
        assert [(task.ref.namespace, task.ref.name) for task in listed] == [
            ("a", "y"),
            ("a", "z"),
            ("b", "x"),
        ]
        rest = await store.list_tasks(None, after=listed[-1].ref, limit=3)
        assert [task.ref for task in rest] == [TaskRef("c", "a")]
        assert [task.ref.name for task in await store.list_tasks("a", after=None, limit=9)] == ["y", "z"]


class RequestContract:
    async def test_requests_wait_for_their_owner_oldest_first(self, store: Store) -> None:
        owner = await Owner.of(store)
        await store.add_requests([_request("b"), _request("a", T0 + 1), _request("c", T0 - 1, partition=4)])
        await store.add_requests([_request("b", T0 - HOUR)])
        assert await store.find_requests(ALL, limit=9) == [
            _request("c", T0 - 1, partition=4),
            _request("b"),
            _request("a", T0 + 1),
        ]
        assert [request.id for request in await store.find_requests([3], limit=1)] == ["b"]
        answer = RequestAnswer("b", 3, "OK", "cancelled", "i000001", T0)
        batch = owner.batch()
        batch.answers = [answer, RequestAnswer("nobody", 3, "OK", "")]
        await store.commit(batch)
        assert await store.answers(["a", "b", "nobody"]) == {"b": answer}
        assert [request.id for request in await store.find_requests(ALL, limit=9)] == ["c", "a"]
        batch.answers = [RequestAnswer("b", 3, "INTERNAL", "again")]
        await store.commit(batch)
        assert await store.answers(["b"]) == {"b": answer}

    async def test_an_answer_depends_on_the_move_that_it_reports(self, store: Store) -> None:
        owner = await Owner.of(store)
        (row,) = await owner.run(make_instance(1))
        await store.add_requests([_request("a"), _request("b")])
        batch = owner.batch()
        batch.successes = [make_success(row, attempt_id="stale")]
        batch.answers = [
            RequestAnswer("a", 3, "OK", "done", row.id, T0),
            RequestAnswer("b", 3, "OK", "other", "", T0),
        ]
        assert (await store.commit(batch)).unmatched == {row.id}
        assert set(await store.answers(["a", "b"])) == {"b"}

    async def test_a_request_that_cannot_be_stored_is_refused(self, store: Store) -> None:
        for request in (_request("\ud800"), _request("a", partition=64)):
            with pytest.raises(UserError) as caught:
                await store.add_requests([request])
            assert caught.value.code == "INVALID_VALUE"


class ListContract:
    async def test_pages_follow_each_other_newest_first(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(*[make_instance(number) for number in range(25)])
        seen: list[str] = []
        cursor: str | None = None
        sizes: list[int] = []
        while True:
            page = await store.list_instances(InstanceFilter(), cursor=cursor, limit=10)
            seen += [row.id for row in page.instances]
            sizes.append(len(page.instances))
            # New rows come before the cursor and do not move the pages behind it.
            await owner.submit(make_instance(100 + len(seen)))
            if page.cursor is None:
                break
            cursor = page.cursor
        assert seen == [f"i{number:06}" for number in reversed(range(25))]
        assert sizes == [10, 10, 5]
        exact = await store.list_instances(InstanceFilter(), cursor=write_cursor("i000010"), limit=10)
        assert (len(exact.instances), exact.cursor) == (10, None)
        assert exact.instances[0] == make_instance(9, payload=b"")

    async def test_filters_narrow_lists_and_counts(self, store: Store) -> None:
        owner = await Owner.of(store)
        failed, _ = await owner.run(make_instance("failed"), make_instance("running"))
        await owner.finish(make_instance("success"))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(failed, State.FAILED)]
        await store.commit(batch)
        await owner.submit(
            make_instance("pending"),
            make_instance("held", hold=Hold.BUSY),
            make_instance("blocked", state=State.BLOCKED),
            make_instance("other-task", task="other", key="k"),
            make_instance("other-namespace", namespace="else"),
        )

        async def names(**fields: object) -> list[str]:
            where = InstanceFilter(**fields)  # type: ignore[arg-type] # each call names fields of the filter
            page = await store.list_instances(where, cursor=None, limit=100)
            assert sum((await counts(store, where)).values()) == len(page.instances)
            return [row.id for row in page.instances]

        assert len(await names()) == 8
        assert await names(namespace="else") == ["other-namespace"]
        assert await names(namespace="default", task="other") == ["other-task"]
        assert await names(task="other") == ["other-task"]
        assert await names(key="k") == ["other-task"]
        assert await names(key="none") == []
        assert await names(states=(State.FAILED, State.RUNNING)) == ["running", "failed"]
        assert await names(states=(State.FAILED,)) == ["failed"]
        assert await names(states=(State.SUCCESS, State.BLOCKED)) == ["success", "blocked"]
        assert await names(namespace="default", task="report", states=(State.PENDING,)) == ["pending", "held"]
        assert await names(namespace="else", states=(State.FAILED,)) == []
        assert await counts(store) == {
            "blocked": 1,
            "failed": 1,
            "pending": 4,
            "running": 1,
            "success": 1,
        }
        assert await counts(store, InstanceFilter(states=(State.PENDING,))) == {"pending": 4}

    async def test_output_is_stored_once_and_read_in_order(self, store: Store) -> None:
        owner = await Owner.of(store)
        await owner.submit(make_instance(1))
        chunks = [_chunk(2), _chunk(1, text="é \U0001f600"), _chunk(1, attempt=2, attempt_id="a2")]
        await store.append_output(chunks)
        await store.append_output([_chunk(1, text="repeated"), _chunk(3)])
        expected = [chunks[1], chunks[0], _chunk(3), chunks[2]]
        assert await store.output("i000001", after=(0, 0), limit=9) == expected
        assert await store.output("i000001", after=(1, 2), limit=1) == [_chunk(3)]
        assert await store.output("i000001", after=(2, 1), limit=9) == []
        assert await store.output("nobody", after=(0, 0), limit=9) == []

    async def test_output_of_a_deleted_instance_is_dropped(self, store: Store) -> None:
        await store.append_output([_chunk(1)])
        assert await store.output("i000001", after=(0, 0), limit=9) == []


class RetentionContract:
    async def test_only_old_terminal_instances_are_deleted_with_all_that_is_theirs(
        self, store: Store
    ) -> None:
        owner = await Owner.of(store)
        await owner.finish(make_instance(1), make_instance(2), finished_us=T0)
        await owner.finish(make_instance(3), finished_us=T0 + HOUR)
        (failed,) = await owner.run(make_instance(4))
        await owner.run(make_instance(5))
        batch = owner.batch()
        batch.ended_attempts = [end_attempt(failed, State.FAILED, finished_us=T0)]
        batch.history = [history_row(make_instance(number)) for number in (1, 3)]
        await store.commit(batch)
        await store.append_output([_chunk(1)])
        delete = partial(store.delete_finished, keys_before_us=T0)
        assert await delete(success_before_us=T0, other_before_us=T0, limit=9) == 0
        assert await delete(success_before_us=T0 + 1, other_before_us=T0, limit=1) == 1
        assert await delete(success_before_us=T0 + 1, other_before_us=T0, limit=9) == 1
        assert await delete(success_before_us=T0 + 1, other_before_us=T0, limit=9) == 0
        left = await store.list_instances(InstanceFilter(), cursor=None, limit=9)
        assert [row.id for row in left.instances] == ["i000005", "i000004", "i000003"]
        assert await store.history("i000001") == []
        assert await store.output("i000001", after=(0, 0), limit=9) == []
        assert len(await store.history("i000003")) == 1
        assert await delete(success_before_us=T0 + 1, other_before_us=T0 + 1, limit=9) == 1

    async def test_a_deleted_fire_may_not_come_twice_while_it_is_kept(self, store: Store) -> None:
        owner = await Owner.of(store)
        row = make_instance(1, fire_trigger="t", fire_us=T0)
        await owner.finish(row, finished_us=T0)
        again = make_instance(2, fire_trigger="t", fire_us=T0)
        batch = owner.batch()
        batch.inserts = [again]
        assert (await store.commit(batch)).unmatched == {again.id}
        await store.delete_finished(success_before_us=T0 + 1, other_before_us=T0, keys_before_us=T0, limit=9)
        assert not (await store.commit(batch)).unmatched

    async def test_answered_requests_and_expired_keys_go_too(
        self, store: Store, clock: ContractClock
    ) -> None:
        owner = await Owner.of(store)
        await store.add_requests([_request("old"), _request("open")])
        batch = owner.batch()
        batch.answers = [RequestAnswer("old", 3, "OK", "", "", T0)]
        await store.commit(batch)
        await store.submit([make_submission(1, key="k")])
        # Its own clock may be wrong by years: who asks says by which time keys have ended.
        clock.now_us = T0 + HOUR
        delete = partial(store.delete_finished, success_before_us=T0, other_before_us=T0 + 1, limit=9)
        await delete(keys_before_us=T0 + MINUTE - 1)
        assert await store.answers(["old"]) == {}
        assert [request.id for request in await store.find_requests(ALL, limit=9)] == ["open"]
        assert not (await store.submit([make_submission(2, key="k")]))[0].created
        await delete(keys_before_us=T0 + MINUTE)
        assert (await store.submit([make_submission(3, key="k")]))[0].created
