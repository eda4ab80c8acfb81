"""Deleting a task, as a person asks for it: of a real node over the in-memory store."""

from __future__ import annotations

import asyncio

import pytest
from support.cluster import Cluster, python_task, worker_of

from ostinato.control.cancel import cancel
from ostinato.control.delete import delete_task
from ostinato.control.explain import story as tell_story
from ostinato.control.queries import get_instance
from ostinato.control.replay import replay
from ostinato.control.requests import Asker, require_ok
from ostinato.core.definition import TaskRef
from ostinato.core.instants import HOUR
from ostinato.core.states import State
from ostinato.errors import OstinatoError, UnavailableError, UserError
from ostinato.testing.virtual_clock import run_virtual

TASK = python_task()
REF = TASK.ref


def asker_of(cluster: Cluster) -> Asker:
    return Asker(clock=cluster.clock, rng=cluster.rng, by="ada")


def test_a_deleted_task_is_gone_and_its_instances_stay() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK, due_us=cluster.clock.wall_us() + HOUR)
        answer = await delete_task(cluster.store, REF, asker=asker_of(cluster))
        assert (answer.code, answer.message) == ("OK", "task default/t is deleted")
        assert await cluster.store.get_tasks([REF]) == {}
        row = await get_instance(cluster.store, identity)
        assert (row.state, row.reason) == (State.CANCELLED, "cancelled: task default/t was deleted by ada")
        with pytest.raises(UserError) as caught:
            await delete_task(cluster.store, REF, asker=asker_of(cluster))
        assert caught.value.code == "TASK_NOT_FOUND"
        await cluster.store.apply([TASK], now_us=cluster.clock.wall_us())
        with pytest.raises(UserError, match="did you mean t"):
            await delete_task(cluster.store, TaskRef("default", "tt"), asker=asker_of(cluster))
        await cluster.stop()

    run_virtual(story())


def test_two_who_delete_at_once_are_both_answered() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        found = await asyncio.gather(
            *(delete_task(cluster.store, REF, asker=asker_of(cluster)) for _ in range(2)),
            return_exceptions=True,
        )
        codes = sorted(item.code for item in found if not isinstance(item, BaseException))
        codes += [item.code for item in found if isinstance(item, OstinatoError)]
        assert codes == ["OK", "TASK_NOT_FOUND"]
        await cluster.stop()

    run_virtual(story())


def test_an_instance_of_a_deleted_task_is_not_replayed_until_it_is_applied_again() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK)
        require_ok((await cancel(cluster.store, [identity], asker=asker_of(cluster)))[0])
        await delete_task(cluster.store, REF, asker=asker_of(cluster))
        for latest in (False, True):
            with pytest.raises(UserError) as caught:
                await replay(cluster.store, [identity], asker=asker_of(cluster), latest=latest)
            assert (caught.value.code, caught.value.subject) == ("TASK_NOT_FOUND", identity)
            assert "apply it again" in caught.value.hint
        await cluster.store.apply([TASK], now_us=cluster.clock.wall_us())
        require_ok((await replay(cluster.store, [identity], asker=asker_of(cluster)))[0])
        await cluster.stop()

    run_virtual(story())


def test_without_a_scheduler_the_wish_to_delete_is_recorded_and_carried_out_later() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        await cluster.node.stop()
        with pytest.raises(UnavailableError) as caught:
            await delete_task(cluster.store, REF, asker=asker_of(cluster))
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        await cluster.restart()

        async def is_gone() -> bool:
            return not await cluster.store.get_tasks([REF])

        await cluster.until(is_gone)
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize(("verb", "cause"), [("delete", "was deleted"), ("disable", "is disabled")])
def test_the_story_of_what_still_runs_says_that_nothing_follows(verb: str, cause: str) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        worker = await worker_of(cluster, lambda item: None)
        identity = await cluster.submit(TASK)
        await cluster.in_state(identity, State.RUNNING)
        assert "it is the last" not in (await tell_story(cluster.store, identity)).next
        assert await cluster.ask(verb, task="t") == "OK"
        told = (await tell_story(cluster.store, identity)).next
        assert told == f"attempt 1 is running on scripted; it is the last, as its task {cause}"
        late = await cluster.store.get_instances([identity])
        assert late[identity].state is State.RUNNING
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())
