"""What a node makes of a guardian's report: what it brings counts first, then what it frees; virtual time."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of, worker_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.definition import HttpSpec, TaskDefinition
from ostinato.core.instants import SECOND
from ostinato.core.model import HistoryKind, Outcome
from ostinato.core.states import State
from ostinato.errors import UnavailableError
from ostinato.observe.records import TreeEndReported, WorkerRefused
from ostinato.scheduler.config import NodeConfig
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Assignment,
    GuardianHello,
    Heartbeat,
    NodeMessage,
    Outcomes,
    OutcomesAcknowledged,
    Rejected,
    TreeEnded,
    TreeEndedRecorded,
    WorkerMessage,
)
from ostinato.wire.protocol import WorkerStream

WORKER_LEASE_US = 6 * SECOND


class Guardian:
    """A guardian's stream, message by message."""

    def __init__(self, cluster: Cluster, worker_id: str) -> None:
        self._cluster = cluster
        self.worker_id = worker_id
        self.stream: WorkerStream | None = None

    async def say(self, *messages: WorkerMessage, token: str = "") -> None:
        self.stream = await self._cluster.network.worker_transport().connect(ADDRESS)
        hello = GuardianHello(PROTOCOL_VERSION, self.worker_id, "scripted", token)
        await self.stream.send([hello, *messages])

    async def hear(self, count: int) -> list[NodeMessage]:
        """The next messages of the node."""
        assert self.stream is not None
        heard: list[NodeMessage] = []
        while len(heard) < count:
            heard += await self.stream.receive()
        return heard

    async def close(self) -> None:
        if self.stream is not None:
            await self.stream.close()


async def report(cluster: Cluster, *messages: WorkerMessage, worker_id: str = "worker-1") -> None:
    """Bring a report and wait until it is recorded."""
    guardian = Guardian(cluster, worker_id)
    await guardian.say(*messages)
    heard = await guardian.hear(len(messages))
    assert heard[-1] == TreeEndedRecorded()
    await guardian.close()


def outcome_of(item: Assignment, cluster: Cluster) -> Outcome:
    now_us = cluster.clock.wall_us()
    return Outcome(
        instance_id=item.instance_id,
        attempt=item.attempt,
        attempt_id=item.attempt_id,
        started_us=now_us,
        finished_us=now_us,
        result=b"7",
    )


async def running(cluster: Cluster, tasks: Sequence[TaskDefinition]) -> list[str]:
    """Submit one instance of each and wait until they run."""
    identities = [await cluster.submit(task) for task in tasks]
    for identity in identities:
        await cluster.in_state(identity, State.RUNNING)
    return identities


async def second_worker(cluster: Cluster) -> ScriptedWorker:
    other = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"2", tasks=["t"])
    other.worker_id = "worker-2"
    await other.connect(ADDRESS)
    other.beat(HEARTBEAT_US)
    return other


def test_what_a_dead_supervisor_had_is_retried_at_once_and_what_had_ended_counts() -> None:
    """I2, I6: the guardian brings the spooled outcome, then frees the rest."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        finished, lost = await running(cluster, [task, task])
        await worker.disconnect()
        began_us = cluster.clock.boot_us()
        other = await second_worker(cluster)
        item = next(item for item in worker.assigned if item.instance_id == finished)
        guardian = Guardian(cluster, "worker-1")
        await guardian.say(Outcomes([outcome_of(item, cluster)], {}), TreeEnded(None, "killed by signal 9"))
        assert await guardian.hear(2) == [OutcomesAcknowledged([item.attempt_id]), TreeEndedRecorded()]
        await guardian.close()
        done = await cluster.in_state(lost, State.SUCCESS)
        assert cluster.clock.boot_us() - began_us < SECOND
        assert (done.attempt, done.counters.lost, done.result) == (2, 1, b"2")
        (row,) = await cluster.store.history(lost)
        assert row.code == "WORKER_LOST"
        assert row.failure is not None
        assert "supervisor is gone" in row.failure.message
        first = await cluster.instance(finished)
        assert (first.state, first.attempt, first.result) == (State.SUCCESS, 1, b"7")
        (told,) = [record for record in cluster.recorder.records if isinstance(record, TreeEndReported)]
        assert (told.worker_id, told.heartbeat_sequence, told.lost_count) == ("worker-1", None, 1)
        await other.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("verb", ["delete", "disable"])
def test_what_a_dead_supervisor_had_of_a_task_that_has_gone_is_cancelled(verb: str) -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        assert await cluster.ask(verb, task="t") == "OK"
        await worker.disconnect()
        await report(cluster, TreeEnded(None, "killed by signal 9"))
        row = await cluster.instance(identity)
        assert (row.state, row.attempt) == (State.CANCELLED, 1)
        assert "task default/t" in row.reason
        assert row.reason.endswith("the attempt ended with WORKER_LOST")
        await cluster.stop()

    run_virtual(story())


def test_a_report_of_an_ended_lease_frees_strict_processes_assigned_under_it_and_no_others() -> None:
    async def story() -> None:
        cluster = Cluster()
        strict, relaxed = python_task("t"), python_task("relaxed", exclusive="relaxed")
        request = python_task("request", executor=HttpSpec(method="GET", url="http://127.0.0.1"))
        await cluster.start(strict, relaxed, request)
        worker = await worker_of(cluster, lambda item: None, tasks=["t", "relaxed"])
        await cluster.sleep(HEARTBEAT_US // 2)
        early, free, asking = await running(cluster, [strict, relaxed, request])
        newest = cluster.node.parts.sessions.by_id["worker-1"].heartbeat_sequence
        await cluster.sleep(HEARTBEAT_US)
        (later,) = await running(cluster, [strict])
        await report(cluster, TreeEnded(newest, "the lease has ended"))
        assert (await cluster.instance(early)).state is State.RETRY_WAITING
        for identity in (free, asking, later):
            row = await cluster.instance(identity)
            assert (row.state, row.attempt) == (State.RUNNING, 1)
        # Its worker has to say anew what it has.
        await cluster.until(lambda: value_of("worker-1" not in cluster.node.parts.sessions.by_id))
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_i1_a_late_report_frees_nothing_that_rests_on_the_greeting_of_a_newer_stream() -> None:
    """The supervisor was frozen, its guardian could not reach the node, and both are back."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
        await worker.connect(ADDRESS)
        identity = await cluster.submit(task)
        first = await cluster.in_state(identity, State.RUNNING)
        assert cluster.node.parts.sessions.by_id["worker-1"].heartbeat_sequence == 0
        await report(cluster, TreeEnded(40, "the lease had ended"))
        row = await cluster.instance(identity)
        assert (row.state, row.attempt_id) == (State.RUNNING, first.attempt_id)
        # Its first heartbeat dates it: a report that names this one concerns it.
        await worker.disconnect()
        await worker.connect(ADDRESS)
        assert worker._stream is not None
        await worker._stream.send([Heartbeat(41, cluster.clock.boot_us(), {})])
        running_now = cluster.node.parts.ownership.memory.running
        await cluster.until(lambda: value_of(running_now[identity].heartbeat_sequence == 41))
        await report(cluster, TreeEnded(40, "the lease had ended"))
        assert (await cluster.instance(identity)).attempt_id == first.attempt_id
        await report(cluster, TreeEnded(41, "the lease had ended"))
        assert (await cluster.instance(identity)).state is State.RETRY_WAITING
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_restarted_node_frees_what_a_dead_supervisor_had() -> None:
    """The node was away while it died; nobody ever reconnects."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        await worker.disconnect()
        await cluster.restart()
        await report(cluster, TreeEnded(3, "the lease has ended"))
        assert (await cluster.instance(identity)).state is State.RUNNING
        await report(cluster, TreeEnded(None, "killed"))
        assert (await cluster.instance(identity)).state is State.RETRY_WAITING
        await cluster.stop()

    run_virtual(story())


def test_a_result_that_comes_after_the_report_is_refused_acknowledged_and_kept() -> None:
    """I6: the thawed supervisor reports what its guardian had killed, or believed to have."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        (item,) = worker.assigned
        await worker.disconnect()
        await report(cluster, TreeEnded(None, "killed"))
        back = ScriptedWorker(cluster.network, cluster.clock, lambda _: None, tasks=["other"])
        back.running[item.attempt_id] = item
        await back.connect(ADDRESS)
        await cluster.until(lambda: value_of(bool(back.cancelled)))
        assert back.cancelled[0].attempt_id == item.attempt_id
        await back.finish(item, b"1")
        await cluster.until(lambda: value_of(back.acknowledged == [item.attempt_id]))
        row = await cluster.instance(identity)
        assert (row.state, row.result) == (State.RETRY_WAITING, None)
        assert "late_result" in [entry.kind for entry in await cluster.store.history(identity)]
        await back.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_what_another_worker_process_brings_is_adopted_by_it_whatever_the_dead_one_s_guardian_says() -> None:
    """A later worker over the same data directory reports what it found in the spool of a former one."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        (item,) = worker.assigned
        await worker.disconnect()
        heir = ScriptedWorker(cluster.network, cluster.clock, lambda _: None, tasks=[])
        heir.worker_id = "worker-2"
        heir.running[item.attempt_id] = item
        await heir.connect(ADDRESS)
        heir.beat(HEARTBEAT_US)
        await cluster.until(
            lambda: value_of(cluster.node.parts.ownership.memory.running[identity].worker_id == "worker-2")
        )
        await report(cluster, TreeEnded(None, "killed"))
        await cluster.sleep(3 * WORKER_LEASE_US)
        assert (await cluster.instance(identity)).state is State.RUNNING
        await heir.finish(item, b"7")
        done = await cluster.in_state(identity, State.SUCCESS)
        assert (done.attempt, done.result) == (1, b"7")
        assert heir.acknowledged == [item.attempt_id]
        await heir.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_later_worker_brings_the_word_of_a_guardian_that_reached_no_node() -> None:
    """What is in its report is adopted; the rest of the former worker's attempts is retried at once."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        spooled, lost = await running(cluster, [task, task])
        await worker.disconnect()
        item = next(item for item in worker.assigned if item.instance_id == spooled)
        began_us = cluster.clock.boot_us()
        heir = ScriptedWorker(cluster.network, cluster.clock, lambda _: b"2", tasks=["t"])
        heir.worker_id, heir.ended_workers = "worker-2", ["worker-1"]
        heir.running[item.attempt_id] = item
        await heir.connect(ADDRESS)
        heir.beat(HEARTBEAT_US)
        again = await cluster.in_state(lost, State.SUCCESS)
        assert cluster.clock.boot_us() - began_us < SECOND
        assert (again.attempt, again.counters.lost) == (2, 1)
        await heir.finish(item, b"7")
        done = await cluster.in_state(spooled, State.SUCCESS)
        assert (done.attempt, done.result) == (1, b"7")
        await heir.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_i1_what_is_said_of_a_worker_that_is_connected_is_not_believed() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        liar = ScriptedWorker(cluster.network, cluster.clock, lambda _: b"2", tasks=["t"])
        liar.worker_id, liar.ended_workers = "worker-2", ["worker-1"]
        await liar.connect(ADDRESS)
        liar.beat(HEARTBEAT_US)
        await cluster.sleep(2 * WORKER_LEASE_US)
        row = await cluster.instance(identity)
        assert (row.state, row.attempt) == (State.RUNNING, 1)
        assert liar.assigned == []
        await liar.disconnect()
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_second_report_of_an_attempt_that_says_something_else_is_kept_however_close_it_comes() -> None:
    """I6: both arrive in one message, so they would be committed together."""

    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        (identity,) = await running(cluster, [task])
        first = outcome_of(worker.assigned[0], cluster)
        second = msgspec.structs.replace(first, result=b"8")
        guardian = Guardian(cluster, "worker-1")
        await guardian.say(Outcomes([first, second, first], {}))
        await guardian.hear(1)
        done = await cluster.in_state(identity, State.SUCCESS)
        assert done.result == b"7"
        (row,) = await cluster.until(lambda: cluster.store.history(identity))
        assert row.kind is HistoryKind.LATE_RESULT
        await guardian.close()
        await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


@pytest.mark.parametrize("token", ["", "wrong"])
def test_a_guardian_without_the_token_frees_nothing(token: str) -> None:
    async def story() -> None:
        config = NodeConfig(worker_lease_us=WORKER_LEASE_US, join_token="right")
        cluster = Cluster(config=config)
        await cluster.start()
        guardian = Guardian(cluster, "worker-1")
        await guardian.say(TreeEnded(None, "killed"), token=token)
        (answer,) = await guardian.hear(1)
        assert isinstance(answer, Rejected)
        assert answer.code == "UNKNOWN_TOKEN"
        with pytest.raises(UnavailableError):
            await guardian.hear(1)
        await guardian.say(TreeEnded(None, "killed"), token="right")
        assert await guardian.hear(1) == [TreeEndedRecorded()]
        await guardian.close()
        await cluster.stop()

    run_virtual(story())


def test_a_message_that_does_not_belong_there_ends_a_guardian_s_stream_with_the_reason() -> None:
    async def story() -> None:
        cluster = Cluster()
        await cluster.start()
        guardian = Guardian(cluster, "worker-1")
        await guardian.say(Heartbeat(1, 1, {}))
        (answer,) = await guardian.hear(1)
        assert isinstance(answer, Rejected)
        assert "Heartbeat" in answer.message
        (told,) = [record for record in cluster.recorder.records if isinstance(record, WorkerRefused)]
        assert told.error_code == "PROTOCOL_MISMATCH"
        await guardian.close()
        await cluster.stop()

    run_virtual(story())


def test_a_node_stops_while_a_guardian_waits_for_what_cannot_be_committed() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        worker = await worker_of(cluster, lambda item: None)
        await running(cluster, [task])
        (item,) = worker.assigned
        await worker.disconnect()
        # As after a take-over by another node: it decides nothing any more.
        cluster.node.parts.ownership._believed_until_us = 0
        cluster.node.parts.ownership.renew = _never_renewed  # type: ignore[method-assign]  # the database is away
        guardian = Guardian(cluster, "worker-1")
        await guardian.say(Outcomes([outcome_of(item, cluster)], {}), TreeEnded(None, "killed"))
        await cluster.sleep(SECOND)
        began_us = cluster.clock.boot_us()
        await cluster.stop()
        assert cluster.clock.boot_us() - began_us < SECOND
        with pytest.raises(UnavailableError):
            await guardian.hear(1)

    run_virtual(story())


async def _never_renewed() -> None:
    return None
