"""Who may join a node, and workers that share a name; on virtual time."""

from __future__ import annotations

import pytest
from support.cluster import ADDRESS, Cluster, python_task, value_of
from support.scripted_worker import HEARTBEAT_US, ScriptedWorker

from ostinato.core.instants import SECOND
from ostinato.core.states import Hold, State
from ostinato.observe.records import (
    WorkerConnected,
    WorkerDisconnected,
    WorkerNameShared,
    WorkerRefused,
)
from ostinato.scheduler.config import NodeConfig
from ostinato.scheduler.worker_streams import GREETING_US_MAX
from ostinato.testing.virtual_clock import run_virtual
from ostinato.wire.messages import (
    PROTOCOL_VERSION,
    Accepted,
    Hello,
    NodeMessage,
    Rejected,
    Welcome,
    WorkerMessage,
)

TOKEN = "sesame"


def joining(*, join_token: str = TOKEN) -> Cluster:
    return Cluster(config=NodeConfig(worker_lease_us=6 * SECOND, join_token=join_token))


def hello(*, protocol: int = PROTOCOL_VERSION, token: str = "") -> Hello:
    return Hello(protocol=protocol, worker_id="worker-1", worker_name="build-7", token=token)


def answer_to(first: WorkerMessage, *, join_token: str = TOKEN) -> tuple[NodeMessage, Cluster]:
    """What a node says to the first message of a stream."""

    async def story() -> tuple[NodeMessage, Cluster]:
        cluster = joining(join_token=join_token)
        await cluster.start()
        stream = await cluster.network.worker_transport().connect(ADDRESS)
        await stream.send([first])
        (answer, *_) = await stream.receive()
        await stream.close()
        await cluster.stop()
        return answer, cluster

    return run_virtual(story())


@pytest.mark.parametrize("token", ["", "Sesame", "sesame ", "ünïcode", "\ud800"])
def test_a_worker_with_an_unknown_token_is_refused_and_named(token: str) -> None:
    answer, cluster = answer_to(hello(token=token))
    assert isinstance(answer, Rejected)
    assert answer.code == "UNKNOWN_TOKEN"
    assert TOKEN not in answer.message
    (told,) = [record for record in cluster.recorder.records if isinstance(record, WorkerRefused)]
    assert (told.worker_name, told.error_code) == ("build-7", "UNKNOWN_TOKEN")
    assert TOKEN not in told.reason


@pytest.mark.parametrize(("token", "join_token"), [(TOKEN, TOKEN), ("ключ", "ключ"), ("any", ""), ("", "")])
def test_a_worker_with_the_token_or_where_none_is_asked_for_is_welcome(token: str, join_token: str) -> None:
    answer, _ = answer_to(hello(token=token), join_token=join_token)
    assert isinstance(answer, Welcome)


@pytest.mark.parametrize(("protocol", "newer"), [(PROTOCOL_VERSION + 1, "worker"), (0, "scheduler")])
def test_a_worker_of_another_protocol_version_is_told_who_is_newer_whatever_its_token(
    protocol: int, newer: str
) -> None:
    answer, _ = answer_to(hello(protocol=protocol))
    assert isinstance(answer, Rejected)
    assert answer.code == "PROTOCOL_MISMATCH"
    assert f"the {newer} is newer" in answer.message


@pytest.mark.parametrize("name", ["a\0b", "line\nbreak", "x" * 300])
def test_c157_a_worker_whose_name_no_store_or_page_can_show_is_refused_with_the_field_named(
    name: str,
) -> None:
    first = Hello(protocol=PROTOCOL_VERSION, worker_id="worker-1", worker_name=name, token=TOKEN)
    answer, _ = answer_to(first)
    assert isinstance(answer, Rejected)
    assert (answer.code, "worker_name" in answer.message) == ("INVALID_VALUE", True)


def test_a_stream_must_begin_with_a_greeting() -> None:
    answer, cluster = answer_to(Accepted([]))
    assert isinstance(answer, Rejected)
    assert answer.code == "PROTOCOL_MISMATCH"
    # Nobody was connected, so nobody counts as gone.
    kinds = {type(record) for record in cluster.recorder.records}
    assert not kinds & {WorkerConnected, WorkerDisconnected}


def test_a_stream_that_says_nothing_is_ended() -> None:
    async def story() -> None:
        cluster = joining()
        await cluster.start()
        began_us = cluster.clock.boot_us()
        stream = await cluster.network.worker_transport().connect(ADDRESS)
        (answer,) = await stream.receive()
        assert isinstance(answer, Rejected)
        assert cluster.clock.boot_us() - began_us == GREETING_US_MAX
        await stream.close()
        await cluster.stop()

    run_virtual(story())


def test_two_workers_of_one_name_both_get_work_and_the_log_says_so_once() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        workers: list[ScriptedWorker] = []
        for number in (1, 2):
            worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"], slots=1)
            worker.worker_id = f"worker-{number}"
            await worker.connect(ADDRESS)
            worker.beat(HEARTBEAT_US)
            workers.append(worker)
        ids = [await cluster.submit(task) for _ in range(2)]
        for identity in ids:
            await cluster.in_state(identity, State.RUNNING)
        assert [len(worker.assigned) for worker in workers] == [1, 1]
        await workers[1].disconnect()
        await workers[1].connect(ADDRESS)
        await cluster.until(lambda: value_of(len(cluster.node.parts.sessions.by_id) == 2))
        (told,) = [record for record in cluster.recorder.records if isinstance(record, WorkerNameShared)]
        assert (told.worker_name, told.worker_id) == ("scripted", "worker-2")
        for worker in workers:
            await worker.disconnect()
        await cluster.stop()

    run_virtual(story())


def test_a_worker_that_connects_anew_before_its_old_stream_has_broken_counts_once() -> None:
    async def story() -> None:
        cluster, task = Cluster(), python_task()
        await cluster.start(task)
        old = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"])
        await old.connect(ADDRESS)
        await cluster.until(lambda: value_of(bool(old.welcome)))
        new = ScriptedWorker(cluster.network, cluster.clock, lambda item: b"1", tasks=["t"])
        await new.connect(ADDRESS)
        await cluster.until(lambda: value_of(bool(new.welcome)))
        identity = await cluster.submit(task)
        await cluster.in_state(identity, State.SUCCESS)
        assert old.assigned == []
        for worker in (new, old):
            await worker.disconnect()
        await cluster.until(lambda: value_of(not cluster.node.parts.sessions.by_id))
        await cluster.sleep(SECOND)
        kinds = [type(record) for record in cluster.recorder.records]
        assert (kinds.count(WorkerConnected), kinds.count(WorkerDisconnected)) == (2, 2)
        assert not [record for record in cluster.recorder.records if isinstance(record, WorkerNameShared)]
        await cluster.stop()

    run_virtual(story())


def test_what_a_waiting_instance_says_of_workers_changes_when_they_come_and_go() -> None:
    """Also of those for which there is no slot, and of more of them than one round looks at."""

    async def story() -> None:
        cluster = Cluster(config=NodeConfig(worker_lease_us=6 * SECOND, batch_count=20))
        task = python_task()
        await cluster.start(task)
        identities = [await cluster.submit(task) for _ in range(50)]

        async def holds() -> list[Hold | None]:
            return [(await cluster.instance(identity)).hold for identity in identities]

        async def all_are(hold: Hold, count: int) -> bool:
            return (await holds()).count(hold) == count

        await cluster.until(lambda: all_are(Hold.NO_WORKER, 50))
        worker = ScriptedWorker(cluster.network, cluster.clock, lambda item: None, tasks=["t"], slots=2)
        await worker.connect(ADDRESS)
        worker.beat(HEARTBEAT_US)
        await cluster.until(lambda: all_are(Hold.BUSY, 48), within_us=5 * SECOND)
        waiting = await cluster.instances(states=(State.PENDING,))
        assert {row.reason for row in waiting} == {"the worker that can run it is busy"}
        await worker.disconnect()
        await cluster.until(lambda: all_are(Hold.NO_WORKER, 48), within_us=5 * SECOND)
        await cluster.stop()

    run_virtual(story())
