"""Following an instance: its state, its result, its end."""

from __future__ import annotations

import asyncio

import msgspec
import pytest
from support.app_store import only

from ostinato import App, ConflictError, InstanceFailed, ResultNotReady, State, UnavailableError, UserError
from ostinato.core.changes import Assign, CommitBatch, EndWaiting, Request, RequestAnswer, Success
from ostinato.core.model import Instance
from ostinato.store.batches import NodeRow
from ostinato.store.memory import MemoryStore


async def end(store: MemoryStore, instance: Instance, *, result: bytes | None) -> None:
    """What the owner does when an attempt succeeds, or somebody cancels what waits."""
    await store.register_node(NodeRow("n", 0, "", 0))
    batch = CommitBatch(proofs=await store.take_partitions("n", [instance.partition]))
    if result is None:
        batch.ended_waiting = [
            EndWaiting(
                instance_id=instance.id,
                partition=instance.partition,
                expected_state=instance.state,
                expected_attempt=0,
                state=State.CANCELLED,
                reason="cancelled: not needed",
                finished_us=1,
            )
        ]
    else:
        assign = Assign(
            instance_id=instance.id,
            partition=instance.partition,
            expected_state=instance.state,
            expected_attempt=0,
            attempt_id="a",
            worker_id="w",
            worker_name="w",
            assigned_us=1,
        )
        await store.commit(CommitBatch(proofs=batch.proofs, assigns=[assign]))
        batch.successes = [
            Success(
                instance_id=instance.id,
                partition=instance.partition,
                expected_attempt=1,
                attempt_id="a",
                started_us=1,
                finished_us=2,
                result=result,
            )
        ]
    report = await store.commit(batch)
    assert not report.unmatched


def finish(store: MemoryStore, app: App, *, result: bytes | None) -> None:
    instance = only(store, app)

    async def owner(_: object) -> None:
        await end(store, instance, result=result)

    app._connection.client.call(owner)


def test_a_result_comes_back_as_the_declared_type(app: App, store: MemoryStore) -> None:
    @app.task
    def sizes() -> dict[int, tuple[int, int]]:
        return {1: (2, 3)}

    handle = sizes.submit()
    finish(store, app, result=sizes.encode_result(sizes()))
    assert handle.result(timeout=5) == {1: (2, 3)}
    assert handle.status() == "success"
    assert app.handle(handle.id).result() == {"1": [2, 3]}
    assert handle.story().attempts[0].ended == "success"


def test_a_result_that_is_not_there_in_time_says_what_it_waits_for(app: App) -> None:
    @app.task
    def report() -> None: ...

    handle = report.submit()
    for timeout in (0, 0.02):
        with pytest.raises(UnavailableError, match="is pending after a wait of") as caught:
            handle.result(timeout=timeout)
        assert caught.value.code == "RESULT_NOT_READY"
        assert isinstance(caught.value, TimeoutError)
        assert isinstance(caught.value, ResultNotReady)
    with pytest.raises(UserError) as refused:
        handle.result(timeout=-1)
    assert refused.value.field == "timeout"


def test_an_instance_that_ended_without_success_raises_what_became_of_it(
    app: App, store: MemoryStore
) -> None:
    @app.task
    def report() -> None: ...

    handle = report.submit()
    finish(store, app, result=None)
    with pytest.raises(InstanceFailed, match="is cancelled: cancelled: not needed") as caught:
        handle.result()
    assert (caught.value.code, caught.value.state) == ("INSTANCE_FAILED", State.CANCELLED)
    assert caught.value.failure is None


def test_a_cancel_that_nobody_answers_says_that_it_is_recorded(app: App) -> None:
    @app.task
    def report() -> None: ...

    with pytest.raises(UnavailableError, match="recorded; no scheduler is running"):
        report.submit().cancel("not needed")


async def test_a_cancel_returns_once_the_owner_has_answered(app: App, store: MemoryStore) -> None:
    @app.task
    def report() -> None: ...

    handle = await report.submit_async()
    instance = (await store.get_instances([handle.id]))[handle.id]
    client = app._connection.client

    async def own(_: object) -> None:
        await store.register_node(NodeRow("n", 0, "", 0))

    async def answer(_: object) -> list[Request]:
        requests = await store.find_requests([instance.partition], limit=1)
        answers = [
            RequestAnswer(request.id, instance.partition, code, "as it must be")
            for request, code in zip(requests, codes, strict=False)
        ]
        proofs = await store.take_partitions("n", [instance.partition])
        await store.commit(CommitBatch(proofs=proofs, answers=answers))
        return requests

    await client.call_async(own)
    for codes in (["OK"], ["INSTANCE_TERMINAL"]):
        cancelling = asyncio.create_task(handle.cancel_async("not needed"))
        requests: list[Request] = []
        while not requests:
            requests = await client.call_async(answer)
        assert (requests[0].kind, requests[0].by) == ("cancel", "shop")
        assert msgspec.json.decode(requests[0].body) == {"reason": "not needed"}
        if codes == ["OK"]:
            await cancelling
        else:
            with pytest.raises(ConflictError):
                await cancelling


def test_a_handle_on_nothing_says_so_when_it_is_used(app: App) -> None:
    handle = app.handle("nosuch")
    with pytest.raises(UserError) as caught:
        handle.status()
    assert caught.value.code == "INSTANCE_NOT_FOUND"
