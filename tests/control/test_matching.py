"""Cancel and replay of everything that a filter matches."""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import pytest
from support.cluster import Cluster, python_task, worker_of

from ostinato.clock import Clock
from ostinato.control.cancel import cancel, cancel_matching
from ostinato.control.matching import Matched
from ostinato.control.replay import replay_matching
from ostinato.control.requests import Asker
from ostinato.core.definition import Parameter, PythonSpec
from ostinato.core.failure.failure import safe_failure
from ostinato.core.instants import HOUR
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.errors import UnavailableError, UserError
from ostinato.store.batches import InstanceFilter, Request
from ostinato.store.memory import MemoryStore
from ostinato.testing.virtual_clock import run_virtual

TASK = python_task(retry=RetryPolicy(max_retry=0))
MINE = InstanceFilter(namespace="default")
Verb = Callable[..., Awaitable[list[Matched]]]


def asker_of(cluster: Cluster, **changes: object) -> Asker:
    return Asker(**{"clock": cluster.clock, "rng": cluster.rng, "by": "ada", **changes})  # type: ignore[arg-type]  # chosen per test


def codes(matched: list[Matched]) -> Counter[str]:
    return Counter(item.answer.code for item in matched if item.answer is not None)


async def later(cluster: Cluster, count: int) -> list[str]:
    due_us = cluster.clock.wall_us() + HOUR
    return [await cluster.submit(TASK, due_us=due_us) for _ in range(count)]


def test_all_that_is_live_is_cancelled_newest_first_and_the_answer_says_how() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        worker = await worker_of(cluster, lambda item: None)
        runs = await cluster.submit(TASK)
        await cluster.in_state(runs, State.RUNNING)
        await cluster.sleep(1000)
        waits = await later(cluster, 3)
        matched = await cancel_matching(cluster.store, MINE, asker=asker_of(cluster), reason="all")
        ids = [item.instance.id for item in matched]
        assert ids == sorted([runs, *waits], reverse=True)
        messages = {item.instance.id: item.answer.message for item in matched if item.answer is not None}
        assert messages.pop(runs) == "cancel requested; it ends when the attempt has"
        assert set(messages.values()) == {"cancelled"}
        assert await cancel_matching(cluster.store, MINE, asker=asker_of(cluster), limit=1) != []
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_the_failed_ones_are_replayed_as_many_as_the_limit_says() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        worker = await worker_of(cluster, lambda item: safe_failure("ValueError", "bad"))
        ids = [await cluster.submit(TASK) for _ in range(6)]
        for identity in ids:
            await cluster.in_state(identity, State.FAILED)
        await worker.disconnect()
        waits = await later(cluster, 1)
        newest = sorted(ids, reverse=True)[:4]
        shown = await replay_matching(cluster.store, MINE, limit=4, asker=asker_of(cluster), dry_run=True)
        assert [(item.instance.id, item.answer) for item in shown] == [(one, None) for one in newest]
        assert {row.state for row in await cluster.instances() if row.id not in waits} == {State.FAILED}
        matched = await replay_matching(cluster.store, MINE, limit=4, asker=asker_of(cluster))
        assert [item.instance.id for item in matched] == newest
        assert codes(matched) == {"OK": 4}
        assert Counter(row.generation for row in await cluster.instances()) == {2: 4, 1: 3}
        await cluster.stop()

    run_virtual(story())


def test_states_that_the_filter_names_are_asked_about_and_answered() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        ids = await later(cluster, 4)
        await cancel(cluster.store, ids[:1], asker=asker_of(cluster))
        named = InstanceFilter(namespace="default", states=(State.PENDING, State.CANCELLED))
        matched = await replay_matching(cluster.store, named, asker=asker_of(cluster))
        assert codes(matched) == {"INSTANCE_NOT_TERMINAL": 3, "OK": 1}
        await cluster.store.apply([python_task()], now_us=cluster.clock.wall_us())
        assert await replay_matching(cluster.store, MINE, asker=asker_of(cluster)) == []
        await cluster.stop()

    run_virtual(story())


def test_what_cannot_be_replayed_is_answered_and_the_rest_is() -> None:
    async def story() -> None:
        cluster = Cluster()
        kinds = [python_task(name) for name in ("free", "disabled", "deleted")]
        await cluster.start(*kinds)
        ids = [await cluster.submit(task) for task in kinds]
        await cancel(cluster.store, ids, asker=asker_of(cluster))
        assert await cluster.ask("disable", task="disabled") == "OK"
        assert await cluster.ask("delete", task="deleted") == "OK"
        named = InstanceFilter(states=(State.CANCELLED,))
        matched = await replay_matching(cluster.store, named, asker=asker_of(cluster), payload=b'{"a":1}')
        found = {item.instance.task: item.answer.code for item in matched if item.answer is not None}
        assert found == {"free": "OK", "disabled": "TASK_DISABLED", "deleted": "TASK_NOT_FOUND"}
        assert (await cluster.instance(ids[0])).payload == b'{"a":1}'
        await cluster.stop()

    run_virtual(story())


def test_a_payload_that_fits_one_of_them_not_is_refused_before_anything_is_asked() -> None:
    async def story() -> None:
        cluster = Cluster()
        strict = python_task(executor=PythonSpec("m:f", is_async=True, parameters=(Parameter("day"),)))
        await cluster.start(strict)
        identity = await cluster.submit(strict)
        await cancel(cluster.store, [identity], asker=asker_of(cluster))
        named = InstanceFilter(states=(State.CANCELLED,))
        with pytest.raises(UserError) as caught:
            await replay_matching(cluster.store, named, asker=asker_of(cluster), payload=b'{"week":1}')
        assert caught.value.code == "INVALID_PAYLOAD"
        assert (await cluster.instance(identity)).generation == 1
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("verb", [cancel_matching, replay_matching])
@pytest.mark.parametrize(
    ("where", "changes", "field"),
    [
        (InstanceFilter(), {}, "filter"),
        (InstanceFilter(), {"dry_run": True}, "filter"),
        (MINE, {"limit": 0}, "limit"),
        (MINE, {"limit": 100_001}, "limit"),
        (MINE, {"limit": True}, "limit"),
        (MINE, {"reason": "a\0"}, "reason"),
        (InstanceFilter(namespace="a b"), {}, "namespace"),
    ],
)
def test_a_filter_that_says_nothing_and_other_bad_input_is_refused(
    verb: Verb, where: InstanceFilter, changes: dict[str, object], field: str
) -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        (identity,) = await later(cluster, 1)
        with pytest.raises(UserError) as caught:
            await verb(cluster.store, where, asker=asker_of(cluster), **changes)
        assert caught.value.field == field
        assert (await cluster.instance(identity)).state is State.PENDING
        await cluster.stop()

    run_virtual(story())


class Watched(MemoryStore):
    """Knows the size of each batch of requests, and what is to happen before it."""

    def __init__(self, clock: Clock) -> None:
        super().__init__(clock)
        self.batches: list[int] = []
        self.before: Callable[[], Awaitable[None]] | None = None

    async def add_requests(self, requests: list[Request]) -> None:  # type: ignore[override]  # a list here
        self.batches.append(len(requests))
        if self.before is not None and len(self.batches) == 2:
            await self.before()
        await super().add_requests(requests)


def watched_cluster() -> tuple[Cluster, Watched]:
    cluster = Cluster()
    store = Watched(cluster.clock)
    cluster.store = store
    cluster.node = cluster._node()
    return cluster, store


def test_many_are_asked_about_in_batches_and_one_that_has_changed_meanwhile_is_answered() -> None:
    async def story() -> None:
        cluster, store = watched_cluster()
        await cluster.start(TASK)
        ids = await later(cluster, 1_203)
        oldest = sorted(ids)[0]

        async def end_one() -> None:
            row: Instance = store._tables.instances[oldest]
            row = await cluster.instance(row.id)
            row.state, row.finished_us = State.SKIPPED, cluster.clock.wall_us()
            store._tables.put(row)

        store.before = end_one
        matched = await cancel_matching(store, MINE, limit=2_000, asker=asker_of(cluster))
        assert store.batches == [500, 500, 203]
        assert [item.instance.id for item in matched] == sorted(ids, reverse=True)
        assert codes(matched) == {"OK": 1_202, "INSTANCE_TERMINAL": 1}
        assert matched[-1].answer is not None
        assert matched[-1].answer.code == "INSTANCE_TERMINAL"
        await cluster.stop()

    run_virtual(story())


def test_a_scheduler_that_stops_in_between_is_told_with_what_was_done() -> None:
    async def story() -> None:
        cluster, store = watched_cluster()
        await cluster.start(TASK)
        await later(cluster, 1_203)
        store.before = cluster.node.stop
        with pytest.raises(UnavailableError) as caught:
            await cancel_matching(store, MINE, limit=2_000, asker=asker_of(cluster))
        assert caught.value.code == "SCHEDULER_UNREACHABLE"
        assert "500 were answered before, 203 not asked" in caught.value.message
        await store.close()

    run_virtual(story())
