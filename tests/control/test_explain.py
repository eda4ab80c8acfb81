"""The story of an instance says what ran, who decided and what comes next."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
from support.cluster import ADDRESS, Cluster, python_task
from support.scripted_worker import HEARTBEAT_US, Script, ScriptedWorker

from ostinato.cli.views import instance_cells, shown_instant
from ostinato.control.cancel import cancel
from ostinato.control.explain import AttemptStory, Story, story, tell, whole_story
from ostinato.control.queries import scheduler_is_running
from ostinato.control.replay import replay
from ostinato.control.requests import Asker, require_ok
from ostinato.control.shapes.instance import instance_shape
from ostinato.control.story_text import story_lines
from ostinato.core.definition import TaskDefinition
from ostinato.core.failure.failure import Cause, Failure, safe_failure
from ostinato.core.instants import SECOND, format_instant
from ostinato.core.model import Instance
from ostinato.core.retry.policy import RetryPolicy
from ostinato.core.states import State
from ostinato.store.batches import NodeRow, WorkerRow
from ostinato.testing.virtual_clock import run_virtual

TASK = python_task(retry=RetryPolicy(interval_us=5 * SECOND, max_retry=2, retry_on=("ECONNREFUSED",)))
REFUSED = safe_failure(
    "ECONNREFUSED",
    "no answer\nfrom the server",
    chain=[Cause("app.Down", "no answer"), Cause("ConnectionRefusedError", "port 80")],
    traceback="Traceback …\n  line 1",
)


async def cluster_with(script: Script, task: TaskDefinition = TASK) -> tuple[Cluster, ScriptedWorker]:
    cluster = Cluster()
    await cluster.start(task)
    worker = ScriptedWorker(cluster.network, cluster.clock, script, tasks=["t"])
    await worker.connect(ADDRESS)
    worker.beat(HEARTBEAT_US)
    return cluster, worker


async def told(cluster: Cluster, identity: str) -> tuple[Story, str]:
    found = await story(cluster.store, identity)
    assert msgspec.json.decode(msgspec.json.encode(found))["id"] == identity
    return found, "\n".join(story_lines(found))


def test_a_success_after_retries_tells_each_attempt_and_its_rule() -> None:
    async def play() -> None:
        answers: Iterator[bytes | Failure] = iter([REFUSED, REFUSED, b"17"])
        cluster, worker = await cluster_with(lambda item: next(answers))
        identity = await cluster.submit(TASK)
        await cluster.in_state(identity, State.RETRY_WAITING)
        waiting, text = await told(cluster, identity)
        assert waiting.next.startswith("attempt 2 is due at ")
        assert "failure ECONNREFUSED (transient)" in text
        await cluster.in_state(identity, State.SUCCESS)
        found, text = await told(cluster, identity)
        assert [attempt.ended for attempt in found.attempts] == ["failed", "failed", "success"]
        assert [attempt.worker for attempt in found.attempts] == ["scripted"] * 3
        first, second, last = found.attempts
        assert "retry 1 of 2" in first.decision
        assert first.next_due_us is not None
        assert first.ended_us is not None
        assert first.next_due_us - first.ended_us == 5 * SECOND
        assert (second.code, second.category) == ("ECONNREFUSED", "transient")
        assert (last.code, last.decision) == ("", "")
        assert "caused by ConnectionRefusedError: port 80" in text
        assert "2 of 3 allowed failures" in text
        assert "from the server" in text
        assert "Traceback" not in text
        assert "  line 1" in "\n".join(story_lines(found, traceback=True))
        assert text.splitlines()[-1].startswith("next: nothing")
        await worker.disconnect()
        await cluster.stop()

    run_virtual(play())


def test_a_failure_that_is_not_retried_says_which_rule_decided() -> None:
    async def play() -> None:
        failure = safe_failure("EXIT_3", "bad input")
        cluster, worker = await cluster_with(lambda item: failure)
        identity = await cluster.submit(TASK)
        await cluster.in_state(identity, State.FAILED)
        found, text = await told(cluster, identity)
        assert found.attempts[0].ended == "failed"
        assert "retry_on" in found.attempts[0].decision
        assert "decided" in text
        await worker.disconnect()
        await cluster.stop()

    run_virtual(play())


def test_a_held_instance_says_why_it_waits() -> None:
    async def play() -> None:
        cluster = Cluster()
        await cluster.start(TASK)
        identity = await cluster.submit(TASK, expires_us=cluster.clock.wall_us() + 3600 * SECOND)

        async def is_held() -> bool:
            return (await cluster.instance(identity)).hold is not None

        await cluster.until(is_held)
        found, text = await told(cluster, identity)
        assert found.waits
        assert found.next.startswith("attempt 1 starts as soon as it can; it waits: ")
        assert "it fails if it has not started by" in found.next
        assert found.waits in text
        await cluster.stop()

    run_virtual(play())


def test_running_cancelled_and_replayed_are_told_in_order() -> None:
    async def play() -> None:
        cluster, worker = await cluster_with(lambda item: None)
        asker = Asker(clock=cluster.clock, rng=cluster.rng, by="ada")
        identity = await cluster.submit(TASK)
        await cluster.until(lambda: _is(bool(worker.running)))
        running, text = await told(cluster, identity)
        assert running.attempts[0].ended == "running"
        assert running.next == "attempt 1 is running on scripted"

        require_ok((await cancel(cluster.store, [identity], asker=asker, reason="wrong day"))[0])
        asked, text = await told(cluster, identity)
        assert asked.next == "attempt 1 has been asked to end; then it is cancelled"
        assert "wrong day" in text

        await worker.finish(next(iter(worker.running.values())), safe_failure("CANCELLED", "ended"))
        await cluster.in_state(identity, State.CANCELLED)
        ended, _ = await told(cluster, identity)
        assert [attempt.ended for attempt in ended.attempts] == ["cancelled"]

        require_ok((await replay(cluster.store, [identity], asker=asker, reason="right day"))[0])
        await cluster.until(lambda: _is(len(worker.assigned) == 2))
        again, text = await told(cluster, identity)
        assert (again.generation, again.failures) == (2, 0)
        assert [attempt.generation for attempt in again.attempts] == [1, 2]
        lines = text.splitlines()
        order = [
            next(index for index, line in enumerate(lines) if line.startswith(start))
            for start in ("attempt 1", "attempt 2", "next:")
        ]
        assert order == sorted(order)
        assert any("replayed by ada: right day" in line for line in lines)
        await worker.disconnect()
        await cluster.stop()

    run_virtual(play())


def test_without_a_scheduler_the_story_says_so_instead_of_a_due_time_that_passes() -> None:
    async def play() -> None:
        cluster, worker = await cluster_with(lambda item: None)
        identity = await cluster.submit(TASK)
        later = await cluster.submit(TASK)
        await cluster.until(lambda: _is(bool(worker.running)))
        assert await scheduler_is_running(cluster.store, clock=cluster.clock)
        alone = await story(cluster.store, identity, scheduler_runs=False)
        assert alone.next == ("attempt 1 was started on scripted; no scheduler is running to take its result")
        await worker.disconnect()
        await cluster.stop()
        assert not await scheduler_is_running(cluster.store, clock=cluster.clock)
        if (await cluster.instance(later)).state is State.PENDING:
            alone = await story(cluster.store, later, scheduler_runs=False)
            assert alone.next.startswith("no scheduler is running; attempt 1, due at ")

    run_virtual(play())


def test_node_that_was_killed_is_no_running_scheduler_although_its_row_stays() -> None:
    async def play() -> None:
        cluster = Cluster()
        await cluster.store.open()
        await cluster.store.register_node(NodeRow("killed", 7, "nowhere", 0))
        assert await cluster.store.nodes()
        assert not await scheduler_is_running(cluster.store, clock=cluster.clock)

    run_virtual(play())


def _told_story(**changes: object) -> Story:
    instance = Instance(
        id="i1",
        partition=0,
        namespace="n",
        task="t",
        task_version=1,
        priority=5,
        created_us=0,
        due_us=0,
        state=State.SUCCESS,
    )
    told = tell(instance, [], definition=None, task=None)
    return msgspec.structs.replace(told, **changes)


def test_a_run_below_a_millisecond_and_clocks_that_differ_are_told_sensibly() -> None:
    attempt = AttemptStory(
        number=1,
        generation=1,
        attempt_id="a",
        worker="w",
        started_us=5 * SECOND,
        ended_us=5 * SECOND + 400,
        ended="success",
    )
    text = "\n".join(story_lines(_told_story(finished_us=4 * SECOND, attempts=[attempt])))
    assert "attempt 1 on w: success after <1ms" in text
    assert "ended    1970-01-01T00:00:05.000400Z, 5s after its creation" in text


def test_payload_and_result_are_one_line_each_and_cut_where_they_are_long() -> None:
    lines = story_lines(_told_story(payload='{\n  "a": 1\n}', result='"' + "x" * 600 + '"'))
    assert 'payload  { "a": 1 }' in lines
    (result,) = [line for line in lines if line.startswith("result ")]
    assert result.endswith("x… (602 characters; --json shows all)")
    assert len(result) < 600


TRACEBACK = """Traceback (most recent call last):
  File "/srv/shop/tasks.py", line 12, in report
    fetch()
  File "/usr/lib/python3.11/site-packages/client/api.py", line 99, in fetch
    raise Down
client.Down: away
"""


def test_a_python_failure_tells_the_place_in_the_users_own_code_and_how_to_see_the_traceback() -> None:
    attempt = AttemptStory(
        number=1,
        generation=1,
        attempt_id="a",
        worker="w",
        started_us=0,
        ended_us=1,
        ended="failed",
        code="PYTHON_ERROR",
        category="transient",
        message="Down: away",
        traceback=TRACEBACK,
    )
    found = _told_story(state=State.FAILED, attempts=[attempt])
    lines = story_lines(found)
    assert "    at /srv/shop/tasks.py:12, in report" in lines
    assert "traceback: ostinato instance show i1 --traceback" in lines
    assert not any(line.startswith("traceback:") for line in story_lines(found, traceback=True))
    bad = msgspec.structs.replace(attempt, code="BAD_PAYLOAD", traceback="")
    told = story_lines(_told_story(state=State.FAILED, attempts=[bad]))
    assert told[-1].startswith("again: ostinato instance retry i1 --payload JSON")


async def _is(value: bool) -> bool:
    return value


def test_what_is_due_beyond_what_dispatch_looks_at_waits_for_the_workers_that_are_busy() -> None:
    """Such a row has no reason of its own; a node and its workers are on record, nobody else looks at it."""

    async def play() -> None:
        cluster = Cluster()
        await cluster.store.open()
        await cluster.store.apply([TASK], now_us=cluster.clock.wall_us())
        await cluster.store.register_node(NodeRow("node", 7, "somewhere", 0))
        identity = await cluster.submit(TASK)

        async def waits_with(*running: int, **changes: object) -> str:
            rows = [_worker(f"w{number}", 0, state="gone") for number in range(2)]
            rows += [_worker(f"w{number}", count, **changes) for number, count in enumerate(running)]
            await cluster.store.record_workers(rows, gone_before_us=0)
            return (await story(cluster.store, identity)).waits

        assert await waits_with(3) == ""
        assert await waits_with(3, 4) == ""
        assert await waits_with(4, 4) == "all 2 workers that can run it are busy"
        assert "no worker is connected" in await waits_with(1, state="draining")
        assert "none of the 1 connected knows it" in await waits_with(1, tasks=["default/other"])
        assert await waits_with(4) == "the worker that can run it is busy"
        found, text = await told(cluster, identity)
        assert found.next == f"attempt 1 starts as soon as it can; it waits: {found.waits}"
        assert f"waits    {found.waits}" in text
        later = await cluster.submit(TASK, due_us=cluster.clock.wall_us() + SECOND)
        assert (await story(cluster.store, later)).waits == ""

    run_virtual(play())


def _worker(name: str, running_count: int, **changes: object) -> WorkerRow:
    base: dict[str, object] = {
        "worker_id": name,
        "worker_name": name,
        "node_id": "node",
        "state": "connected",
        "capacity": {"async": 4, "process": 9},
        "running_count": running_count,
        "tasks": ["default/t"],
        "executors": ["python"],
    }
    return WorkerRow(**{**base, **changes})  # type: ignore[arg-type]  # chosen per test


def test_a_running_attempt_says_since_when_although_its_worker_tells_the_start_with_the_end() -> None:
    async def play() -> None:
        cluster, worker = await cluster_with(lambda item: None)
        identity = await cluster.submit(TASK)
        await cluster.until(lambda: _is(bool(worker.running)))
        await cluster.sleep(4 * SECOND)
        row = await cluster.instance(identity)
        assert row.assigned_us is not None
        whole = await whole_story(cluster.store, identity)
        text = "\n".join(story_lines(whole.story, now_us=whole.now_us))
        since = format_instant(row.assigned_us)
        assert f"attempt 1 on scripted: running for 4s10ms since {since}" in text
        assert instance_shape(row).running_since == since
        assert instance_cells(row)[-1] == f"since {shown_instant(row.assigned_us)}"
        await worker.finish(next(iter(worker.running.values())), b"1")
        ended = await cluster.in_state(identity, State.SUCCESS)
        assert instance_shape(ended).running_since is None
        await worker.disconnect()
        await cluster.stop()

    run_virtual(play())
