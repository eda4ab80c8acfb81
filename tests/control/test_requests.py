"""Cancel, replay, pause: asked of a real node over the in-memory store."""

from __future__ import annotations

import asyncio

import pytest
from support.cluster import ADDRESS, Cluster, python_task
from support.scripted_worker import HEARTBEAT_US, Script, ScriptedWorker

from ostinato.control.cancel import cancel
from ostinato.control.delete import delete_task
from ostinato.control.pause import set_task_flag
from ostinato.control.queries import get_instance, list_instances, list_tasks, task_triggers
from ostinato.control.replay import replay, replay_matching
from ostinato.control.requests import Asker, refusal_of, require_ok
from ostinato.core.definition import Parameter, PythonSpec, TaskRef
from ostinato.core.instants import MINUTE, SECOND
from ostinato.core.schedule.trigger import DateTrigger, IntervalTrigger
from ostinato.core.states import State
from ostinato.errors import ConflictError, InternalError, OstinatoError, UnavailableError, UserError
from ostinato.store.batches import InstanceFilter, RequestAnswer
from ostinato.testing.virtual_clock import START_US, run_virtual

TASK = python_task()
REF = TASK.ref


def asker_of(cluster: Cluster, **changes: object) -> Asker:
    base: dict[str, object] = {"clock": cluster.clock, "rng": cluster.rng, "by": "ada"}
    return Asker(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


async def worker_of(cluster: Cluster, script: Script) -> ScriptedWorker:
    worker = ScriptedWorker(cluster.network, cluster.clock, script, tasks=["t"])
    await worker.connect(ADDRESS)
    worker.beat(HEARTBEAT_US)
    return worker


def test_waiting_instances_are_cancelled_and_a_second_cancel_is_fine() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        ids = [await cluster.submit(TASK) for _ in range(3)]
        for _ in range(2):
            answers = await cancel(cluster.store, ids, asker=asker_of(cluster), reason="not needed")
            assert [require_ok(answer).code for answer in answers] == ["OK"] * 3
        instance = await get_instance(cluster.store, ids[0])
        assert instance.state is State.CANCELLED
        assert "not needed" in instance.reason
        history = await cluster.store.history(ids[0])
        assert [(row.kind, row.by) for row in history] == [("cancelled", "ada")]
        assert await cancel(cluster.store, [], asker=asker_of(cluster)) == []
        await cluster.stop()

    run_virtual(story())


def test_an_instance_that_has_ended_is_not_cancelled_but_may_be_replayed() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        worker = await worker_of(cluster, lambda item: item.payload)
        identity = await cluster.submit(TASK, payload=b'{"n":1}')
        await cluster.in_state(identity, State.SUCCESS)
        refused = (await cancel(cluster.store, [identity], asker=asker_of(cluster)))[0]
        with pytest.raises(ConflictError) as caught:
            require_ok(refused)
        assert caught.value.code == "INSTANCE_TERMINAL"

        answers = await replay(
            cluster.store, [identity], asker=asker_of(cluster), payload=b'{"n":2}', force=True
        )
        assert answers[0].code == "OK"
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.generation, done.result) == (2, b'{"n":2}')
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_success_is_replayed_only_by_force() -> None:
    """Nobody runs a payment twice by a slip in the list of failures."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        worker = await worker_of(cluster, lambda item: item.payload)
        identity = await cluster.submit(TASK)
        await cluster.in_state(identity, State.SUCCESS)
        asker = asker_of(cluster)
        with pytest.raises(ConflictError) as caught:
            await replay(cluster.store, [identity], asker=asker)
        assert (caught.value.code, caught.value.subject) == ("INSTANCE_SUCCEEDED", identity)
        assert "--force" in caught.value.hint
        # The owner says so too: with a key it is asked, as it may have answered before.
        answers = await replay(cluster.store, [identity], asker=asker, key="page-1")
        assert answers[0].code == "INSTANCE_SUCCEEDED"
        assert (await get_instance(cluster.store, identity)).generation == 1

        named = InstanceFilter(namespace=TASK.namespace, states=(State.SUCCESS, State.FAILED))
        with pytest.raises(ConflictError) as caught:
            await replay_matching(cluster.store, named, asker=asker, dry_run=True)
        assert caught.value.code == "INSTANCE_SUCCEEDED"
        unnamed = InstanceFilter(namespace=TASK.namespace)
        assert await replay_matching(cluster.store, unnamed, asker=asker, force=True) == []
        matched = await replay_matching(cluster.store, named, asker=asker, force=True)
        assert [one.answer and one.answer.code for one in matched] == ["OK"]
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_c193_of_two_who_replay_what_both_have_seen_end_only_one_does() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        await cancel(cluster.store, [identity], asker=asker_of(cluster))
        twice = await asyncio.gather(
            *(replay(cluster.store, [identity], asker=asker_of(cluster)) for _ in range(2))
        )
        answers = sorted((answer for (answer,) in twice), key=lambda answer: answer.code)
        assert [answer.code for answer in answers] == ["OK", "VERSION_CONFLICT"]
        assert "has been replayed meanwhile: it is at generation 2, not 1" in answers[1].message
        await cancel(cluster.store, [identity], asker=asker_of(cluster))
        for generation in (1, 3):
            with pytest.raises(ConflictError) as caught:
                await replay(cluster.store, [identity], asker=asker_of(cluster), generation=generation)
            assert (caught.value.code, caught.value.field) == ("VERSION_CONFLICT", "generation")
        answers = await replay(cluster.store, [identity], asker=asker_of(cluster), generation=2)
        assert answers[0].code == "OK"
        assert (await get_instance(cluster.store, identity)).generation == 3
        for wrong in (0, -1, 10**30):
            with pytest.raises(UserError) as refused:
                await replay(cluster.store, [identity], asker=asker_of(cluster), generation=wrong)
            assert (refused.value.code, refused.value.field) == ("INVALID_VALUE", "generation")
        await cluster.stop()

    run_virtual(story())


def test_an_instance_of_a_disabled_task_is_not_replayed() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        await cancel(cluster.store, [identity], asker=asker_of(cluster))
        require_ok(await set_task_flag(cluster.store, REF, verb="disable", asker=asker_of(cluster)))
        with pytest.raises(ConflictError) as caught:
            await replay(cluster.store, [identity], asker=asker_of(cluster))
        assert (caught.value.code, caught.value.subject) == ("TASK_DISABLED", str(REF))
        assert (await get_instance(cluster.store, identity)).generation == 1
        await cluster.stop()

    run_virtual(story())


def test_a_live_instance_is_not_replayed() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        answers = await replay(cluster.store, [identity], asker=asker_of(cluster), latest=True)
        assert answers[0].code == "INSTANCE_NOT_TERMINAL"
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("latest", [False, True])
def test_the_payload_of_a_replay_must_fit_the_version_that_it_will_run(latest: bool) -> None:
    async def story() -> None:
        cluster = Cluster()
        old = python_task(executor=PythonSpec("m:f", is_async=True, parameters=(Parameter("day"),)))
        new = python_task(executor=PythonSpec("m:f", is_async=True, parameters=(Parameter("week"),)))
        await cluster.start(old)
        identity = await cluster.submit(old)
        await cluster.store.apply([new], now_us=cluster.clock.wall_us())
        require_ok((await cancel(cluster.store, [identity], asker=asker_of(cluster)))[0])
        right, wrong = (b'{"week":1}', b'{"day":1}') if latest else (b'{"day":1}', b'{"week":1}')
        with pytest.raises(UserError) as caught:
            await replay(cluster.store, [identity], asker=asker_of(cluster), latest=latest, payload=wrong)
        assert caught.value.code == "INVALID_PAYLOAD"
        answers = await replay(
            cluster.store, [identity], asker=asker_of(cluster), latest=latest, payload=right
        )
        assert require_ok(answers[0]).code == "OK"
        assert (await get_instance(cluster.store, identity)).payload == right
        await cluster.stop()

    run_virtual(story())


def test_pause_and_disable_are_confirmed_once_the_owner_has_done_them() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        for verb, flags in (
            ("pause", (True, False)),
            ("pause", (True, False)),
            ("resume", (False, False)),
            ("disable", (False, True)),
            ("enable", (False, False)),
        ):
            await set_task_flag(cluster.store, REF, verb=verb, asker=asker_of(cluster))  # type: ignore[arg-type]  # words of the literal
            row = (await cluster.store.get_tasks([REF]))[REF]
            assert (row.paused, row.disabled) == flags
        with pytest.raises(UserError, match=r"default/tt does not exist \(did you mean t\?\)"):
            await set_task_flag(
                cluster.store, TaskRef("default", "tt"), verb="pause", asker=asker_of(cluster)
            )
        await cluster.stop()

    run_virtual(story())


def test_without_a_scheduler_the_request_is_recorded_and_said_to_be() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        await cluster.node.stop()
        began_us = cluster.clock.boot_us()
        with pytest.raises(
            UnavailableError, match="the request is recorded; no scheduler is running"
        ) as caught:
            await cancel(cluster.store, [identity], asker=asker_of(cluster))
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        assert cluster.clock.boot_us() == began_us
        await cluster.restart()
        await cluster.in_state(identity, State.CANCELLED)
        await cluster.stop()

    run_virtual(story())


def test_a_scheduler_that_was_killed_is_told_from_one_that_is_slow() -> None:
    """A killed node leaves its row behind, but its counter stands still."""

    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        nodes = await cluster.store.nodes()
        await cluster.node.stop()
        await cluster.store.register_node(nodes[0])
        with pytest.raises(UnavailableError, match="no scheduler is running"):
            await cancel(cluster.store, [identity], asker=asker_of(cluster))

        async def renew() -> None:
            await cluster.store.renew_node(nodes[0].id)

        slow = SlowStore(cluster.store, renew)
        with pytest.raises(UnavailableError, match="the scheduler has not answered within 10s"):
            await cancel(slow, [identity], asker=asker_of(cluster))  # type: ignore[arg-type]  # a store by delegation
        await cluster.store.close()

    run_virtual(story())


class SlowStore:
    """A store whose node renews itself but answers nothing."""

    def __init__(self, store: object, renew: object) -> None:
        self._store = store
        self._renew = renew

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def answers(self, request_ids: object) -> dict[str, RequestAnswer]:
        await self._renew()  # type: ignore[operator]  # an async function without arguments
        return {}


def test_an_answer_becomes_the_error_that_its_code_means() -> None:
    def answer(code: str) -> RequestAnswer:
        return RequestAnswer("r", 0, code, "said", "i")

    assert isinstance(refusal_of(answer("INSTANCE_TERMINAL")), ConflictError)
    assert refusal_of(answer("TASK_NOT_FOUND")).exit_code == 5
    unknown = refusal_of(answer("FROM_THE_FUTURE"))
    assert isinstance(unknown, InternalError)
    assert str(unknown) == "FROM_THE_FUTURE: said"


@pytest.mark.parametrize(
    ("changes", "field"), [({"reason": "a\0"}, "reason"), ({"reason": "x" * 1001}, "reason")]
)
def test_a_reason_that_no_store_could_hold_is_refused(changes: dict[str, str], field: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        with pytest.raises(UserError) as caught:
            await cancel(cluster.store, [], asker=asker_of(cluster), **changes)
        assert caught.value.field == field

    run_virtual(story())


@pytest.mark.parametrize("identity", ["nosuch", "", "a\0b", "ä", "'; drop table"])
def test_an_unknown_instance_is_said_to_be_so(identity: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        known = await cluster.submit(TASK)
        for act in (cancel, replay):
            with pytest.raises(UserError) as caught:
                await act(cluster.store, [identity], asker=asker_of(cluster))
            assert caught.value.code == "INSTANCE_NOT_FOUND"
        assert (await get_instance(cluster.store, known)).state is State.PENDING
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("identity", ["nosuch", "", "a\0b", "ä", "'; drop table"])
def test_of_several_instances_an_unknown_one_is_answered_and_the_others_are_carried_out(
    identity: str,
) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        known = [await cluster.submit(TASK) for _ in range(2)]
        named = [known[0], identity, known[1]]
        answers = await cancel(cluster.store, named, asker=asker_of(cluster))
        assert [answer.code for answer in answers] == ["OK", "INSTANCE_NOT_FOUND", "OK"]
        assert answers[1].instance_id == identity
        again = await replay(cluster.store, named, asker=asker_of(cluster))
        assert [answer.code for answer in again] == ["OK", "INSTANCE_NOT_FOUND", "OK"]
        unknown = await cancel(cluster.store, ["nothing", identity], asker=asker_of(cluster))
        assert [answer.code for answer in unknown] == ["INSTANCE_NOT_FOUND"] * 2
        await cluster.stop()

    run_virtual(story())


def test_of_several_instances_those_of_a_disabled_or_deleted_task_are_answered_by_themselves() -> None:
    async def story() -> None:
        cluster = Cluster()
        tasks = [python_task(name) for name in ("t", "off", "gone", "good")]
        await cluster.start(*tasks)
        ids = [await cluster.submit(task) for task in tasks]
        await cancel(cluster.store, ids, asker=asker_of(cluster))
        succeeded = await cluster.submit(tasks[0])
        await worker_of(cluster, lambda item: item.payload)
        await cluster.in_state(succeeded, State.SUCCESS)
        await set_task_flag(cluster.store, tasks[1].ref, verb="disable", asker=asker_of(cluster))
        await delete_task(cluster.store, tasks[2].ref, asker=asker_of(cluster))
        answers = await replay(cluster.store, [*ids, succeeded], asker=asker_of(cluster))
        assert [answer.code for answer in answers] == [
            "OK",
            "TASK_DISABLED",
            "TASK_NOT_FOUND",
            "OK",
            "INSTANCE_SUCCEEDED",
        ]
        assert [answer.instance_id for answer in answers][1:] == [*ids[1:], succeeded]
        for refused, code in ((ids[1], "TASK_DISABLED"), (ids[2], "TASK_NOT_FOUND")):
            with pytest.raises(OstinatoError) as caught:
                await replay(cluster.store, [refused], asker=asker_of(cluster))
            assert caught.value.code == code
        await cluster.stop()

    run_virtual(story())


def test_lists_are_whole_and_in_order() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        names = [f"t{number:04}" for number in range(2_345)]
        await cluster.store.apply([python_task(name) for name in names], now_us=START_US)
        rows = await list_tasks(cluster.store, "default")
        assert [row.ref.name for row in rows] == names
        assert len(await list_tasks(cluster.store, None, limit=1_001)) == 1_001
        with pytest.raises(UserError) as caught:
            await list_instances(cluster.store, InstanceFilter(), limit=0)
        assert caught.value.field == "limit"
        await cluster.stop()

    run_virtual(story())


def test_triggers_are_listed_by_their_next_fire() -> None:
    async def story() -> None:
        cluster = Cluster()
        triggers = (
            DateTrigger(at_us=START_US - 3 * 24 * 60 * MINUTE),
            IntervalTrigger(every_us=MINUTE),
            IntervalTrigger(every_us=SECOND),
        )
        task = python_task(triggers=triggers)
        await cluster.start(task)
        rows = await task_triggers(cluster.store, task.ref)
        assert [row.next_us is None for row in rows] == [False, False, True]
        assert rows[0].spec == triggers[2]
        await cluster.stop()

    run_virtual(story())
