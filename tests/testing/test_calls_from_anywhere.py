"""Who calls the cluster from where: tasks, threads, other loops; and whose thread and loop tasks find."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from ostinato import App, Retry, UserError, current_context
from ostinato.testing import Cluster, MakeCluster


def test_a_def_task_may_submit_wait_for_results_and_run_a_loop_of_its_own(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task
    async def square(number: int) -> int:
        await asyncio.sleep(60)
        return number * number

    async def sum_of(numbers: int) -> int:
        handles = [await square.submit_async(number) for number in range(numbers)]
        return sum([await handle.result_async() for handle in handles])

    @app.task(timeout="1d")
    def total(numbers: int) -> int:
        assert asyncio.run(sum_of(2)) == 1
        return sum(square.options(delay="1h").submit(number).result() for number in range(numbers))

    cluster = ostinato_cluster(app)
    instance = cluster.finish(total.submit(3))
    assert instance.result == 5
    assert instance.attempts[0].duration is not None
    assert instance.attempts[0].duration.total_seconds() == 60 + 3 * 3660


def test_def_tasks_run_in_the_tests_own_thread_and_see_their_own_context(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    # Refuses every thread but the one that has made it.
    connection = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE seen (instance TEXT)")

    @app.task
    def write() -> None:
        connection.execute("INSERT INTO seen VALUES (?)", [current_context().instance_id])

    cluster = ostinato_cluster(app)
    handles = app.submit_many(write, [{}, {}])
    assert {instance.state for instance in cluster.finish()} == {"success"}
    seen = {row[0] for row in connection.execute("SELECT instance FROM seen")}
    assert seen == {handle.id for handle in handles}
    connection.close()


@pytest.mark.parametrize("error", [GeneratorExit(), asyncio.CancelledError(), SystemExit(3)], ids=repr)
@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_whatever_a_task_raises_is_its_failure(
    is_async: bool, error: BaseException, ostinato_cluster: MakeCluster, app: App
) -> None:
    if is_async:

        @app.task(retry=Retry.fixed("1s", max_retry=0))
        async def work() -> None:
            raise error
    else:

        @app.task(retry=Retry.fixed("1s", max_retry=0))
        def work() -> None:
            raise error

    cluster = ostinato_cluster(app)
    (attempt,) = cluster.finish(work.submit()).attempts
    assert attempt.code == ("EXIT_3" if isinstance(error, SystemExit) else "PYTHON_ERROR")
    assert type(error).__name__ in attempt.message


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_what_ends_a_test_ends_it_in_a_task_too(
    is_async: bool, ostinato_cluster: MakeCluster, app: App
) -> None:
    if is_async:

        @app.task
        async def check() -> None:
            pytest.fail("not as it should be")
    else:

        @app.task
        def check() -> None:
            pytest.fail("not as it should be")

    cluster = ostinato_cluster(app)
    with pytest.raises(pytest.fail.Exception, match="not as it should be"):
        cluster.finish(check.submit())


@pytest.mark.parametrize("is_async", [False, True], ids=["def", "async def"])
def test_a_task_that_submits_itself_for_ever_at_one_instant_fails_the_test(
    is_async: bool, ostinato_cluster: MakeCluster, app: App
) -> None:
    if is_async:

        @app.task(retry=Retry.fixed("1s", max_retry=0))
        async def again() -> None:
            await app.submit_async("again")
    else:

        @app.task(retry=Retry.fixed("1s", max_retry=0))
        def again() -> None:
            app.submit("again")

    cluster = ostinato_cluster(app)
    again.submit()
    with pytest.raises(UserError, match="tasks have submitted 1000 instances at one instant"):
        cluster.finish()
    assert [instance.state for instance in cluster.instances("again")].count("failed") == 1


def test_a_task_that_submits_itself_with_a_delay_goes_on(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def later() -> None:
        later.options(delay="1s").submit()

    cluster = ostinato_cluster(app)
    later.submit()
    cluster.advance("20m")
    assert len(cluster.instances(later)) == 1202


def test_an_async_task_may_submit_and_must_await_what_waits(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def double(number: int) -> int:
        return 2 * number

    @app.task
    async def good() -> int:
        return await double.submit(4).result_async() + await (await double.submit_async(5)).result_async()

    @app.task(retry={"max_retry": 0})
    async def bad() -> int:
        return double.submit(4).result()

    cluster = ostinato_cluster(app)
    assert good.submit().result() == 18
    with pytest.raises(UserError, match="result_async"):
        cluster.finish(bad.submit()).raise_failure()


def test_a_thread_that_a_task_starts_may_submit_and_wait(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def child(number: int) -> int:
        return number

    @app.task
    def parent() -> list[int]:
        results: list[int] = []
        threads = [
            threading.Thread(target=lambda number=number: results.append(child.submit(number).result()))
            for number in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sorted(results)

    ostinato_cluster(app)
    assert parent.submit().result() == list(range(8))


def test_threads_of_a_test_take_turns(ostinato_cluster: MakeCluster, app: App) -> None:
    @app.task
    def half(number: int) -> float:
        return number / 2

    cluster = ostinato_cluster(app)
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda number: half.options(delay="1m").submit(number).result(), range(40)))
    assert results == [number / 2 for number in range(40)]
    assert {instance.state for instance in cluster.instances()} == {"success"}


def test_time_stands_still_while_a_thread_works_for_an_async_task(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    released = threading.Event()

    @app.task(timeout="1m")
    async def read() -> bool:
        threading.Timer(0.2, released.set).start()
        return await asyncio.to_thread(released.wait, 30)

    cluster = ostinato_cluster(app)
    before = cluster.now
    assert cluster.finish(read.submit()).result is True
    assert cluster.now == before


def test_a_long_sleep_of_a_task_fails_the_test_at_once_and_names_the_task(app: App) -> None:
    @app.task
    def slow() -> None:
        try:
            time.sleep(3600)
        except Exception as error:  # noqa: BLE001 - what many tasks do
            print(error)

    @app.task
    async def slow_too() -> None:
        await asyncio.to_thread(time.sleep, 3600)

    began = time.monotonic()
    real = time.sleep
    with Cluster(app) as cluster:
        handle = slow.submit()
        with pytest.raises(UserError, match=r"task default/slow called time\.sleep\(3600\)"):
            cluster.finish(handle)
        slow_too.submit()
        with pytest.raises(UserError, match="default/slow_too"):
            cluster.finish()
        # What is not a task sleeps as ever, and so does a task for a moment.
        assert time.sleep is not real
    assert time.sleep is real
    assert time.monotonic() - began < 60


def test_an_interrupt_in_a_task_reaches_the_test_and_leaves_the_cluster_closable(app: App) -> None:
    @app.task
    def stuck() -> None:
        raise KeyboardInterrupt

    @app.task
    def leave() -> None:
        raise SystemExit(3)

    with Cluster(app) as cluster:
        handle = stuck.submit()
        with pytest.raises(KeyboardInterrupt):
            cluster.finish(handle)
        assert cluster.finish(leave.submit()).attempts[0].code == "EXIT_3"


async def test_an_async_test_may_call_and_await(ostinato_cluster: MakeCluster, app: App) -> None:
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    @app.task
    def work() -> str:
        return threading.current_thread().name

    @app.task
    async def wait() -> str:
        await asyncio.sleep(3600)
        return "waited"

    cluster = ostinato_cluster(app)
    counting = asyncio.create_task(count())
    # Blocks the test's loop, as any plain call does.
    assert work.submit().result() == (await work.submit_async()).result()
    handle = await wait.submit_async()
    await cluster.advance_async("59m")
    assert await handle.status_async() == "running"
    assert (await cluster.finish_async(handle)).result == "waited"
    await cluster.advance_to_async(cluster.now)
    assert len(await cluster.finish_async()) == 3
    assert turns > 0
    counting.cancel()


async def test_a_def_task_of_an_async_test_may_run_a_loop_too(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task
    async def child() -> str:
        return "child"

    async def ask() -> str:
        return child.submit().result() + await (await child.submit_async()).result_async()

    @app.task
    def parent() -> str:
        return asyncio.run(ask())

    ostinato_cluster(app)
    assert await parent.submit().result_async() == "childchild"


async def test_coroutines_of_a_test_may_wait_at_the_same_time(
    ostinato_cluster: MakeCluster, app: App
) -> None:
    @app.task
    async def work(number: int) -> int:
        await asyncio.sleep(number)
        return number

    ostinato_cluster(app)
    handles = await asyncio.gather(*(work.submit_async(number) for number in range(5)))
    assert await asyncio.gather(*(handle.result_async() for handle in handles)) == [0, 1, 2, 3, 4]
